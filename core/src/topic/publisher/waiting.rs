//! Threads and tasks of the publisher that wait for room.

/// Whether one that finds no room is about to wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFull {
    /// It is told so, and goes.
    Fail,
    /// It sleeps until it is woken. So the subscriber that it waits for is told, until `forget`.
    Wait(Waiter),
}

/// One of ours that may wait, by a number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter(pub u64);

/// How far one that waits for room has the others read before it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WakeCondition {
    pub(super) seat: Option<usize>,
    pub(super) target: u64,
}

impl WakeCondition {
    /// For a change of any seat.
    pub(super) const ANY_CHANGE: Self = WakeCondition {
        seat: None,
        target: 0,
    };

    /// What wakes either of two.
    pub(super) fn or(self, other: Self) -> Self {
        if self.seat != other.seat {
            return WakeCondition::ANY_CHANGE;
        }
        WakeCondition {
            seat: self.seat,
            target: self.target.min(other.target),
        }
    }
}
