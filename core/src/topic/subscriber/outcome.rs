//! Results of receiving.

use super::source::PublisherId;
use crate::topic::log::CutReason;

/// The result of a call to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Number of messages.
    Messages(usize),
    /// There is no message.
    Empty,
    /// There is no message, and the last one of this publisher, which is gone, was received.
    PublisherGone(PublisherId),
    /// This publisher no longer waits for the subscriber, and is no longer read.
    CutOff(PublisherId, CutReason),
    /// This publisher has written impossible values, and is no longer read.
    Corrupt(PublisherId, CorruptLog),
}

/// The impossible value in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CorruptLog {
    /// The number of its records.
    Tail(u64),
    /// A word of the entry of a record.
    Entry(u64),
}

/// The wake-ups that an operation owes to other processes: its caller does them after the operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wakeups {
    /// True if the caller wakes all sleeping publishers, because one of them may have room.
    pub room: bool,
}
