//! What reading returns.

use super::source::Source;
use crate::topic::log::Why;

/// What a look for messages has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// This many.
    Messages(usize),
    /// None is there.
    Empty,
    /// None is there, and this publisher is gone, whose last one was read.
    Gone(Source),
    /// This publisher does not wait for us any more, and nothing more is read of it.
    CutOff(Source, Why),
    /// What this publisher has written cannot be true, and nothing more is read of it.
    False(Source, False),
}

/// What cannot be true in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum False {
    /// The number of its records.
    Tail(u64),
    /// The entry of a record.
    Entry(u64),
}

/// What others are to be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// A publisher that sleeps may have room.
    pub room: bool,
}
