//! Waiters: threads and tasks of the publisher that wait for room.

/// The behaviour of an operation that finds no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFull {
    /// Fail.
    Fail,
    /// Fail, and announce the condition for which the caller is about to sleep, until `cancel_wait` or its success.
    Wait(Waiter),
}

/// The number of a thread or task of this publisher that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter(pub u64);

/// The condition under which a waiter is woken: a seat whose head has reached a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WakeCondition {
    pub(super) seat: Option<usize>,
    pub(super) target: u64,
}

impl WakeCondition {
    /// Any change of any seat.
    pub(super) const ANY_CHANGE: Self = WakeCondition {
        seat: None,
        target: 0,
    };

    /// Return a condition that is met whenever one of two is met, and perhaps more often.
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
