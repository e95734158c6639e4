//! A message.

use super::pins::PinnedBlock;
use super::source::PublisherId;
use crate::shared_heap::Words;
use crate::topic::log_memory::LogMemory;

/// What was read.
pub struct Message<L: LogMemory, D: Words> {
    /// Whose it is.
    pub source: PublisherId,
    /// Its number among those of its publisher.
    pub seq: u64,
    /// What its payload is.
    pub form: u8,
    /// Where the payload is.
    pub payload: Payload<L, D>,
}

/// The bytes of a message.
pub enum Payload<L: LogMemory, D: Words> {
    /// They were copied: where they begin in what was filled, and how many.
    Copied(usize, usize),
    /// They are looked at in the publisher's memory. In a box: most messages are small.
    Pinned(Box<PinnedBlock<L, D>>),
}
