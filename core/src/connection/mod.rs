//! Two processes and what is between them: frames both ways, and memory that they lend each other.

#[cfg(not(loom))]
pub mod buffer;
#[cfg(not(loom))]
pub mod channel;
#[cfg(not(loom))]
pub mod loans;
pub mod parcel;
#[cfg(not(loom))]
pub mod peer_extents;
#[cfg(not(loom))]
pub mod poller;
#[cfg(not(loom))]
pub mod segment;
#[cfg(not(loom))]
mod sweeper;
