//! Results of the operations of a queue, and the wake-ups that their callers owe.

use super::claim::Claim;

/// The result of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The items are in the queue.
    Stored,
    /// There is no room for them now.
    Full,
    /// The queue accepts no more items.
    ShutDown,
}

/// The result of a pop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PopOutcome {
    /// Number of items that were copied.
    Items(usize),
    /// The first item is large: the caller claims it instead.
    Large,
    /// The queue is empty.
    Empty,
    /// The queue is empty and will stay so: it is shut down, and no claimed item may return.
    Finished,
}

/// The result of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// An item.
    Item(Claim),
    /// The queue is empty.
    Empty,
    /// The queue is empty and will stay so.
    Finished,
    /// There is an item, but no free claim in the table.
    TableFull,
}

/// The waiting writers to wake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum WritersToWake {
    /// No writer.
    #[default]
    None,
    /// One writer, which wakes the next one if it has put something, because there may be room for it too.
    One,
    /// All writers, because memory was freed, and it may be enough for any of them.
    All,
}

/// The wake-ups that an operation owes to other processes: its caller does them after the operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wakeups {
    /// True if the caller wakes one reader, because items wait or a claim may expire.
    pub items: bool,
    /// Writers to wake, because there is room for them now.
    pub room: WritersToWake,
    /// True if the caller wakes all that wait for the end of all items.
    pub done: bool,
    /// True if a chunk was freed, so that a later [`trim`](super::Queue::trim) may give memory back.
    pub freed: bool,
    /// True if the caller wakes all readers, because the queue is empty and will stay so.
    pub over: bool,
}

impl Wakeups {
    /// Return the wake-ups of two operations together.
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
