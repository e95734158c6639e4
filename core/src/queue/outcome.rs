//! What the operations of a queue return, and which processes their callers wake.

use super::claim::Claim;

/// What became of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The items are in the queue.
    Stored,
    /// There is no room for them now.
    Full,
    /// Nothing is put any more.
    ShutDown,
}

/// What was found to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PopOutcome {
    /// This many items were copied.
    Items(usize),
    /// The first item is large: it is to be claimed.
    Large,
    /// There is none.
    Empty,
    /// There is none, and nothing will ever come: nothing is put any more, and nobody has claimed what may come back.
    Finished,
}

/// What a look for a claim has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// An item.
    Item(Claim),
    /// There is none.
    Empty,
    /// There is none, and nothing will ever come.
    Finished,
    /// There is one, and no place for another claim.
    TableFull,
}

/// Which writers that sleep are to look again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum WritersToWake {
    /// None.
    #[default]
    None,
    /// One, which wakes the next if it has put something: there may be room for it too.
    One,
    /// All: memory is free, and it may be enough for any of them.
    All,
}

/// What an operation leaves for others to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wakeups {
    /// Items wait.
    pub items: bool,
    /// For whom there is room that slept for it.
    pub room: WritersToWake,
    /// All items are done.
    pub done: bool,
    /// A chunk is free.
    pub freed: bool,
    /// Nothing will ever come.
    pub over: bool,
}

impl Wakeups {
    pub(super) fn and(self, other: Wakeups) -> Wakeups {
        Wakeups {
            items: self.items || other.items,
            room: self.room.max(other.room),
            done: self.done || other.done,
            freed: self.freed || other.freed,
            over: self.over || other.over,
        }
    }
}
