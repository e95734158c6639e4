//! Claims as their holders see them.

use super::claim_table::{ClaimList, ClaimState, DEAD_LETTERS, RETURNED_CLAIMS};
use super::layout::Form;

/// The source of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The queue: returned items first, then the list of chunks.
    Queue,
    /// The dead letters.
    DeadLetters,
}

/// A claim: an item that this member holds. A copy is the same claim; the drop does not end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub(super) index: u64,
    pub(super) source: Source,
    /// Number of the item in the order in which all items were put.
    pub number: u64,
    /// Number of deliveries of the item, this one included.
    pub deliveries: u64,
    /// Form of the payload.
    pub form: Form,
    /// Offset of the payload, in bytes from the beginning of the memory.
    pub at: u64,
    /// Length of the payload, in bytes.
    pub len: u64,
}

/// The end of a claim whose item does not return to the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimEnd {
    /// The item was processed.
    Done,
    /// The item was handed to this member, which reports later that it was processed.
    HandedOver,
}

/// Return the state of a claim that a member holds.
pub(super) fn held_state(source: Source) -> ClaimState {
    match source {
        Source::Queue => ClaimState::Active,
        Source::DeadLetters => ClaimState::Examined,
    }
}

/// Return the list of claims from which items of this source are taken first.
pub(super) fn list_for(source: Source) -> ClaimList {
    match source {
        Source::Queue => RETURNED_CLAIMS,
        Source::DeadLetters => DEAD_LETTERS,
    }
}
