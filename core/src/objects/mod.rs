//! Shared objects: semaphores, locks, events, signals, memories, queues, topics and stores, whose members are equals.
//! The first process that opens an object creates it, the next ones join, and the last one removes it. The other members
//! recover what a dead member held.
//!
//! From the bottom to the top:
//!
//! * [`error`], [`deadline`], `files`: helpers;
//! * [`members`]: identity and liveness of members; the watcher, which knows an object as the trait `Watched`;
//! * [`memory`]: the memory of an object, its layout and its shape;
//! * [`parts`], [`membership`], [`object`], [`lifecycle`], [`waiting`]: what all kinds have in common; a kind
//!   implements the trait [`Object`](object::Object);
//! * [`registry`]: the objects that are open; the constructor takes the kinds;
//! * [`semaphore`], [`event`], [`signal`], [`queue`], [`topic`], [`store`]: the kinds;
//! * [`kinds`]: all kinds together, and the registry of this process.

#[cfg(not(loom))]
pub mod deadline;
#[cfg(not(loom))]
pub mod discovery;
#[cfg(not(loom))]
pub mod error;
#[cfg(not(loom))]
pub mod event;
#[cfg(not(loom))]
mod files;
#[cfg(not(loom))]
pub mod kinds;
#[cfg(not(loom))]
pub mod lifecycle;
pub mod members;
#[cfg(not(loom))]
pub mod membership;
#[cfg(not(loom))]
pub mod memory;
#[cfg(not(loom))]
pub mod object;
#[cfg(not(loom))]
pub mod parts;
#[cfg(not(loom))]
pub mod queue;
#[cfg(not(loom))]
pub mod registry;
pub mod semaphore;
#[cfg(not(loom))]
mod shared_error;
#[cfg(not(loom))]
pub mod signal;
#[cfg(not(loom))]
mod sole_spinner;
#[cfg(not(loom))]
pub mod store;
#[cfg(not(loom))]
pub mod topic;
#[cfg(not(loom))]
pub mod waiting;
#[cfg(not(loom))]
mod wakeups;
