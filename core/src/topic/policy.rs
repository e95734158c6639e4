//! What a slow subscriber costs.

/// What a slow subscriber costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Policy {
    /// It is waited for.
    Block = 1,
    /// It is not waited for, and skips all but the last this many records.
    KeepLast = 2,
    /// It is cut off once it is behind by this many records.
    Disconnect = 3,
}

impl Policy {
    /// That of this number.
    pub fn of(number: u8) -> Option<Self> {
        match number {
            1 => Some(Policy::Block),
            2 => Some(Policy::KeepLast),
            3 => Some(Policy::Disconnect),
            _ => None,
        }
    }

    /// Whether a publisher keeps what such a one has not read.
    pub(super) fn is_respected(self) -> bool {
        self != Policy::KeepLast
    }
}
