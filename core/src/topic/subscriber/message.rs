//! A message.

use super::pins::PinnedBlock;
use super::source::PublisherId;
use crate::shared_heap::Words;
use crate::topic::log_memory::LogMemory;

/// A message that was received.
pub struct Message<L: LogMemory, D: Words> {
    /// Publisher of the message.
    pub source: PublisherId,
    /// Number of the message among those of its publisher.
    pub seq: u64,
    /// Form of the payload.
    pub form: u8,
    /// Position of the payload.
    pub payload: Payload<L, D>,
}

/// The bytes of a message.
pub enum Payload<L: LogMemory, D: Words> {
    /// Offset in the output to which they were copied, and their number.
    Copied(usize, usize),
    /// A pinned block in the publisher's memory. Boxed, because most messages are small.
    Pinned(Box<PinnedBlock<L, D>>),
}
