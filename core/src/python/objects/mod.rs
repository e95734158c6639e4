//! Shared objects: queues, topics, stores, locks and memory that processes share without a server.

pub(crate) mod error;
pub(crate) mod loop_waiter;
pub(crate) mod permits;
pub(crate) mod queues;
pub(crate) mod report;
mod returned_objects;
pub(crate) mod shared_object;
pub(crate) mod signals;
pub(crate) mod stores;
pub(crate) mod topics;
pub(crate) mod watch;
