//! Topics: publishers, subscriptions and messages.

pub(crate) mod message;
pub(crate) mod publisher;
pub(crate) mod records;
pub(crate) mod subscription;
