//! What a publisher knows of a subscriber.

use crate::topic::directory::SeatWord;

/// What is known of the subscriber of a seat.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SubscriberState {
    /// Its claim when it was last seen active and attached; 0: not so far.
    pub(super) claim: u64,
    pub(super) head: u64,
    /// The generation of a claim that was cut off.
    pub(super) cut: Option<u32>,
}

/// One who must be waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct SubscriberHead {
    pub(super) seat: usize,
    pub(super) claim: SeatWord,
    pub(super) at: u64,
}
