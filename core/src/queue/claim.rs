//! Claims as their holders see them.

use super::claim_table::{BACK, DEAD_LETTERS, List, State};
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
pub enum End {
    /// Its item was dealt with.
    Done,
    /// Its item is this member's, who deals with it.
    Gotten,
}

pub(super) fn held_from(source: Source) -> State {
    match source {
        Source::Queue => State::Held,
        Source::DeadLetters => State::Examined,
    }
}

pub(super) fn list_of(source: Source) -> List {
    match source {
        Source::Queue => BACK,
        Source::DeadLetters => DEAD_LETTERS,
    }
}
