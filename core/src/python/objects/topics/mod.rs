//! Topics: publishers, subscriptions and messages.

mod batch;
pub(crate) mod message;
mod message_in_place;
mod message_reader;
pub(crate) mod publisher;
mod publisher_end_error;
pub(crate) mod records;
pub(crate) mod subscription;
