//! ClaimTable as their holders see them.

use super::claim_table::{ClaimList, ClaimState, DEAD_LETTERS, RETURNED_CLAIMS};
use super::layout::Form;

/// Where items come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The queue: what has come back, then the chain.
    Queue,
    /// The dead letters.
    DeadLetters,
}

/// An item that this member holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub(super) index: u64,
    pub(super) source: Source,
    /// Its place in the order in which all items were put.
    pub number: u64,
    /// How often it was delivered, this time among them.
    pub deliveries: u64,
    /// What its payload is.
    pub form: Form,
    /// Where its payload is, in bytes from the beginning of the memory.
    pub at: u64,
    /// The bytes of its payload.
    pub len: u64,
}

/// How a claim ends whose item does not come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimEnd {
    /// Its item was dealt with.
    Done,
    /// Its item is this member's, who deals with it.
    HandedOver,
}

pub(super) fn held_state(source: Source) -> ClaimState {
    match source {
        Source::Queue => ClaimState::Held,
        Source::DeadLetters => ClaimState::Examined,
    }
}

pub(super) fn list_for(source: Source) -> ClaimList {
    match source {
        Source::Queue => RETURNED_CLAIMS,
        Source::DeadLetters => DEAD_LETTERS,
    }
}
