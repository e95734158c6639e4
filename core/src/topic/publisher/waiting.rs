//! Threads and tasks of the publisher that wait for room.

/// Whether one that finds no room is about to wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// It is told so, and goes.
    No,
    /// It sleeps until it is woken. So the subscriber that it waits for is told, until `forget`.
    Waits(Waiter),
}

/// One of ours that may wait, by a number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter(pub u64);

/// How far one that waits for room has the others read before it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) seat: Option<usize>,
    pub(super) target: u64,
}

impl Waiting {
    /// For a change of any seat.
    pub(super) const FOR_ANYBODY: Self = Waiting {
        seat: None,
        target: 0,
    };

    /// What wakes either of two.
    pub(super) fn or(self, other: Self) -> Self {
        if self.seat != other.seat {
            return Waiting::FOR_ANYBODY;
        }
        Waiting {
            seat: self.seat,
            target: self.target.min(other.target),
        }
    }
}
