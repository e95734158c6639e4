//! The directory of a topic, which all members write: its publishers, its subscribers, and how far each subscriber has
//! read.
//!
//! ```text
//!       0  version    u64   number of changes of the listings
//!       8  joined     u64   number of subscribers that have ever joined
//!      64  listings   96 of 64 bytes: the publishers
//!          words      u64 for each seat: the generation in the high half; the policy in the second byte; the state in
//!                     the first: 0 free, 1 joining, 2 active, 3 leaving
//!          owners     u64 for each seat: the member that has it, or 0
//!          lags       u64 for each seat: the parameter of its policy, in records
//!          seats      from the next multiple of 4096 on, one page for each
//! ```
//!
//! A listing:
//!
//! ```text
//!       0  owner       u64   the member that publishes, or 0
//!       8  generation  u64   number of publishers that have had this listing
//!      16  descriptor  u64   of its log, plus one, in its process; 0: not open
//!      24  token       u64   the token of its log
//!      32  waits       u64   the seat for which it sleeps, plus one; 2^32 - 1: for any; 0: it does not sleep
//!      40  target      u64   the record that the head of that seat must reach
//! ```
//!
//! A seat is written by its subscriber alone, and by the process that recovers the seat of a dead one:
//!
//! ```text
//!       0  pins       32 u64   the listing plus one in the high byte, and the number of a record that is read in
//!                              place; or 0
//!     256  cells      32 bytes for each listing: the generation of the publisher to which it is attached, or 0; its
//!                     head, which is the record that it reads next, or 2^64 - 1 if it reads nothing of it; the number
//!                     of records that it has missed; and the bytes of blocks that it reads in place
//! ```
//!
//! A seat gets memory when it is first acquired, so a topic with few subscribers is small.

mod cells;
mod entries;
mod layout;
mod listings;
mod recovery;
mod seats;

pub use entries::{ListingInfo, SeatInfo, SeatState, SeatWord, SubscriberProgress};
pub use layout::{Capacity, LISTINGS, PINS, SEAT, SEATS};
pub(super) use layout::{READS_NOTHING, SEQ};

use crate::shared_heap::Words;
use crate::sync::AtomicU64;

/// The directory of a topic.
#[derive(Clone, Debug)]
pub struct Directory<W> {
    words: W,
    start: u64,
    capacity: Capacity,
}

impl<W: Words> Directory<W> {
    /// Open the directory that begins `start` bytes into these words; zeros are a valid, empty one. Nothing is read or
    /// written. Panics if `start` is not a multiple of [`SEAT`], if the words are too small, or if the capacity exceeds
    /// that of a topic.
    pub fn new(words: W, start: u64, capacity: Capacity) -> Self {
        assert!(start % SEAT == 0 && words.size() as u64 >= start + capacity.size());
        assert!(capacity.seats <= crate::topic::log_layout::MAX_SEATS);
        assert!(capacity.listings <= LISTINGS && capacity.pins <= PINS);
        Directory {
            words,
            start,
            capacity,
        }
    }

    /// Return the capacity of the directory.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Return the word at this offset from the beginning of the directory.
    #[inline]
    fn word(&self, at: u64) -> &AtomicU64 {
        let word = self.words.word(self.start + at);
        word.expect("the directory is within the memory")
    }
}
