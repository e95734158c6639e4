//! Offsets of the directory.

/// Publishers that a topic may have.
pub const LISTINGS: usize = 96;

/// Subscribers that a topic may have.
pub const SEATS: usize = 128;

/// Records that a subscriber may look at in place at a time.
pub const PINS: usize = 32;

pub(super) const JOINED: u64 = 8;

pub(super) const LISTING: u64 = 64;

pub(super) const FIRST_LISTING: u64 = 64;

pub(super) const OWNER: u64 = 0;

pub(super) const GENERATION: u64 = 8;

pub(super) const DESCRIPTOR: u64 = 16;

pub(super) const TOKEN: u64 = 24;

pub(super) const WAITS: u64 = 32;

pub(super) const TARGET: u64 = 40;

/// Bytes of a seat.
pub const SEAT: u64 = 4096;

pub(super) const CELLS: u64 = 8 * PINS as u64;

pub(super) const CELL: u64 = 32;

/// In `waits`: for any subscriber.
pub(super) const ANY_SEAT: u64 = u32::MAX as u64;

/// The head of a subscriber that does not read of a publisher: it cannot, or was cut off.
pub(in crate::topic) const READS_NOTHING: u64 = u64::MAX;

/// In a pin: the number of a record.
pub(in crate::topic) const SEQ: u64 = (1 << 56) - 1;

/// How many there may be of each: fewer in models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Publishers.
    pub listings: usize,
    /// Subscribers.
    pub seats: usize,
    /// Records that each of them may look at in place at a time.
    pub pins: usize,
}

impl Capacity {
    /// That of a topic.
    pub const OF_A_TOPIC: Self = Capacity {
        listings: LISTINGS,
        seats: SEATS,
        pins: PINS,
    };

    pub(super) fn seat_words_at(self) -> u64 {
        FIRST_LISTING + LISTING * self.listings as u64
    }

    /// Where the seats begin: what is before needs memory from the beginning.
    pub fn seats_at(self) -> u64 {
        (self.seat_words_at() + 24 * self.seats as u64).next_multiple_of(SEAT)
    }

    /// Bytes of a directory.
    pub fn size(self) -> u64 {
        self.seats_at() + SEAT * self.seats as u64
    }
}
