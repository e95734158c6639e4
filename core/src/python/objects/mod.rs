//! Shared objects: what processes share without a server.

pub(crate) mod hold;
pub(crate) mod loop_sleeper;
pub(crate) mod name;
pub(crate) mod queues;
pub(crate) mod stores;
pub(crate) mod topics;
