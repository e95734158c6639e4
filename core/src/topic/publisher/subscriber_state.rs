//! A publisher's private records of its subscribers.

use crate::topic::directory::SeatWord;

/// The last known state of a seat's subscriber.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SubscriberState {
    /// Seat word when the subscriber was last seen active and attached; 0: never.
    pub(super) word: u64,
    pub(super) head: u64,
    /// Generation of the seat word that was cut off.
    pub(super) cut: Option<u32>,
}

/// The head of a subscriber whose unread records are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct SubscriberHead {
    pub(super) seat: usize,
    pub(super) word: SeatWord,
    pub(super) at: u64,
}
