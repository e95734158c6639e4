//! A listing, a seat and a cell, as they are read.

use crate::topic::policy::Policy;

/// A publisher, as its listing has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListingInfo {
    /// Which listing.
    pub listing: usize,
    /// Whose turn in it.
    pub generation: u64,
    /// The member that publishes.
    pub owner: u64,
    /// The descriptor of its log in its process.
    pub descriptor: i32,
    /// What its log has too.
    pub token: u64,
}

/// What a seat is used for, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeatWord(pub u64);

/// What a seat's subscriber does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SeatState {
    /// There is none.
    Free = 0,
    /// It attaches itself to the publishers that are there.
    Joining = 1,
    /// It reads.
    Active = 2,
    /// It reads no more, and looks at what it has pinned.
    Leaving = 3,
}

impl SeatWord {
    pub(super) fn new(generation: u32, policy: Policy, state: SeatState) -> Self {
        SeatWord(u64::from(generation) << 32 | (policy as u64) << 8 | state as u64)
    }

    /// Which use of the seat it is.
    pub fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// What it does; free, if that is none of them.
    pub fn state(self) -> SeatState {
        match self.0 as u8 {
            1 => SeatState::Joining,
            2 => SeatState::Active,
            3 => SeatState::Leaving,
            _ => SeatState::Free,
        }
    }

    /// What it costs if it is slow; None if that is none of them: it is not waited for.
    pub fn policy(self) -> Option<Policy> {
        Policy::of((self.0 >> 8) as u8)
    }
}

/// A subscriber's seat, as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeatInfo {
    /// Which seat.
    pub seat: usize,
    /// The member that has it.
    pub owner: u64,
    /// What it is used for.
    pub claim: SeatWord,
    /// The number of its policy.
    pub lag: u64,
}

/// How far a subscriber has read of a publisher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubscriberProgress {
    /// The record that it reads next.
    pub head: u64,
    /// Records that it has missed.
    pub lost: u64,
    /// Bytes of blocks that it looks at.
    pub held: u64,
}
