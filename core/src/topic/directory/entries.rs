//! Listings, seats and cells, as they are read from the directory.

use crate::topic::policy::Policy;

/// A publisher, as its listing describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListingInfo {
    /// Number of the listing.
    pub listing: usize,
    /// Generation of the listing, which changes with its publisher.
    pub generation: u64,
    /// Member that publishes.
    pub owner: u64,
    /// Descriptor of the log in the publisher's process.
    pub descriptor: i32,
    /// Token that the log has, too.
    pub token: u64,
}

/// The word of a seat: its generation, the policy of its subscriber and its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeatWord(pub u64);

/// The state of a seat's subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SeatState {
    /// There is no subscriber.
    Free = 0,
    /// The subscriber attaches itself to the publishers.
    Joining = 1,
    /// The subscriber reads.
    Active = 2,
    /// The subscriber reads no more records, but still has pins.
    Leaving = 3,
}

impl SeatWord {
    /// Create the word of a seat from its parts.
    pub(super) fn new(generation: u32, policy: Policy, state: SeatState) -> Self {
        SeatWord(u64::from(generation) << 32 | (policy as u64) << 8 | state as u64)
    }

    /// Return the generation of the seat, which changes with its subscriber.
    pub fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Return the state of the subscriber; free for an unknown number.
    pub fn state(self) -> SeatState {
        match self.0 as u8 {
            1 => SeatState::Joining,
            2 => SeatState::Active,
            3 => SeatState::Leaving,
            _ => SeatState::Free,
        }
    }

    /// Return the policy of the subscriber; None for an unknown number, for which no publisher waits.
    pub fn policy(self) -> Option<Policy> {
        Policy::of((self.0 >> 8) as u8)
    }
}

/// A subscriber's seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeatInfo {
    /// Number of the seat.
    pub seat: usize,
    /// Member that has the seat.
    pub owner: u64,
    /// Word of the seat.
    pub word: SeatWord,
    /// Number of records that the policy takes as its parameter.
    pub lag: u64,
}

/// The progress of a subscriber in the log of a publisher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubscriberProgress {
    /// Record that the subscriber reads next.
    pub head: u64,
    /// Number of records that it has missed.
    pub lost: u64,
    /// Bytes of blocks that it reads in place.
    pub held: u64,
}
