//! Queues as shared objects: what members do with a queue, and which sleepers they wake.

mod dropped;
mod membership;
mod object;
mod operations;

pub use dropped::take_dropped;
pub use membership::{DONE, ITEMS, QueueMembership, ROOM};
