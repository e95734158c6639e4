//! Names whose members are equals: whoever opens one first makes it, the others join, the last one takes it away, and no
//! death of any of them keeps what the others need.

#[cfg(not(loom))]
pub mod arrivals;
#[cfg(not(loom))]
mod fairness;
#[cfg(not(loom))]
mod layout;
#[cfg(not(loom))]
pub mod lock_file;
mod looking;
pub mod members;
#[cfg(not(loom))]
pub mod membership;
#[cfg(not(loom))]
mod owning;
pub mod permits;
#[cfg(not(loom))]
pub mod queueing;
#[cfg(not(loom))]
pub mod registry;
#[cfg(not(loom))]
mod replacing;
#[cfg(not(loom))]
pub mod stores;
#[cfg(not(loom))]
pub mod topics;
#[cfg(not(loom))]
pub mod waiting;
#[cfg(not(loom))]
mod watcher;

#[cfg(not(loom))]
pub use layout::{MOST_BYTES, MOST_PERMITS, OWNED, QUEUE_BYTES, SLEEPERS, Shape};
