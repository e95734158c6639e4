//! Offsets in the directory, and its capacity.

/// Number of publishers that a topic may have.
pub const LISTINGS: usize = 96;

/// Number of subscribers that a topic may have.
pub const SEATS: usize = 128;

/// Number of records that a subscriber may read in place at a time.
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

/// Value of `waits`: for any subscriber.
pub(super) const ANY_SEAT: u64 = u32::MAX as u64;

/// Head of a subscriber that does not read from a publisher, because it cannot or was cut off.
pub(in crate::topic) const READS_NOTHING: u64 = u64::MAX;

/// Mask of the number of a record in a pin.
pub(in crate::topic) const SEQ: u64 = (1 << 56) - 1;

/// The capacity of a directory: models use smaller ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Number of publishers.
    pub listings: usize,
    /// Number of subscribers.
    pub seats: usize,
    /// Number of records that each subscriber may read in place at a time.
    pub pins: usize,
}

impl Capacity {
    /// The capacity of a topic.
    pub const OF_A_TOPIC: Self = Capacity {
        listings: LISTINGS,
        seats: SEATS,
        pins: PINS,
    };

    /// Return the offset of the words of the seats.
    pub(super) fn seat_words_at(self) -> u64 {
        FIRST_LISTING + LISTING * self.listings as u64
    }

    /// Return the offset of the seats, a multiple of [`SEAT`]. Everything before needs memory from the beginning.
    pub fn seats_at(self) -> u64 {
        (self.seat_words_at() + 24 * self.seats as u64).next_multiple_of(SEAT)
    }

    /// Return the size of a directory, in bytes.
    pub fn size(self) -> u64 {
        self.seats_at() + SEAT * self.seats as u64
    }
}
