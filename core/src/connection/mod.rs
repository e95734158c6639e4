//! A connection between two processes: frames in both directions, and memory that the two sides lend each other.

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
