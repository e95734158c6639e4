//! Policies for slow subscribers.

/// The policy for a slow subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Policy {
    /// The publisher waits for it.
    Block = 1,
    /// The publisher does not wait for it; the subscriber skips all but the last records.
    KeepLast = 2,
    /// The publisher cuts it off once it is too many records behind.
    Disconnect = 3,
}

impl Policy {
    /// Return the policy with this number, as a seat word has it; None for an unknown number.
    pub fn of(number: u8) -> Option<Self> {
        match number {
            1 => Some(Policy::Block),
            2 => Some(Policy::KeepLast),
            3 => Some(Policy::Disconnect),
            _ => None,
        }
    }

    /// Return true if a publisher keeps records that such a subscriber has not read: for all but [`Policy::KeepLast`].
    pub(super) fn is_respected(self) -> bool {
        self != Policy::KeepLast
    }
}
