//! What reading returns.

use super::source::PublisherId;
use crate::topic::log::CutReason;

/// What a look for messages has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// This many.
    Messages(usize),
    /// None is there.
    Empty,
    /// None is there, and this publisher is gone, whose last one was read.
    PublisherGone(PublisherId),
    /// This publisher does not wait for us any more, and nothing more is read of it.
    CutOff(PublisherId, CutReason),
    /// What this publisher has written cannot be true, and nothing more is read of it.
    Corrupt(PublisherId, CorruptLog),
}

/// What cannot be true in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CorruptLog {
    /// The number of its records.
    Tail(u64),
    /// The entry of a record.
    Entry(u64),
}

/// What others are to be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wakeups {
    /// A publisher that sleeps may have room.
    pub room: bool,
}
