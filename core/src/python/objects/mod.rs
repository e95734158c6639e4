//! Shared objects: what processes share without a server.

pub(crate) mod loop_waiter;
pub(crate) mod permits;
pub(crate) mod queues;
pub(crate) mod shared_object;
pub(crate) mod stores;
pub(crate) mod topics;
