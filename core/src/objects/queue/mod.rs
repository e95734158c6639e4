//! Queues as shared objects: what members do with a queue, and which sleepers they wake.

mod dropped;
mod membership;
mod object;
mod operations;
#[cfg(all(test, not(loom)))]
mod tests;

pub use dropped::take_dropped;
pub use membership::{DONE, ITEMS, QueueMembership, ROOM};
