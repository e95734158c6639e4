//! A topic in memory that equals share: each publisher writes once, and any number of subscribers read, each at its own
//! pace.
//!
//! * A [`log`] is the memory of one publisher, which it alone can write: an index of its records, a ring with the small
//!   ones, and [`blocks`] with the large ones.
//! * The [`directory`] is what all members write: which publishers there are, who subscribes, and how far each subscriber
//!   has read.
//! * A [`publisher`] has a private `limit`, up to which it writes without a look at others, unless a subscriber has come.
//!   Out of that, it looks at the heads of its subscribers, and gives up what all have read who must be waited for.
//! * A [`subscriber`] has a head for each publisher, and copies records out, or pins a large one and looks at it in place.
//!
//! # What is given up, and who sees it
//!
//! A record may be written over once it is below `floor`, which is stored *before* that. Two pairs of a store and a
//! look, each with a sequentially consistent fence between, see to it that of two sides at least one sees the other:
//!
//! ```text
//!   publisher                                subscriber
//!   floor = f, or cut = claim                claim = joining, cell = head      or pin = record
//!   fence                                    fence
//!   look at new claims, and at pins          is floor (or cut) above it? then not
//!
//!   waits = seat, target                     head = h
//!   fence                                    fence
//!   look at the heads, sleep                 does it wait for us, and for no more than h? wake it
//! ```
//!
//! A publisher that comes and a subscriber that joins at the same time need none of their own. Whoever sleeps has
//! announced it before its last look at the version, and a new publisher wakes all that sleep. Until an active subscriber
//! has attached itself, it counts as one that has read nothing of what is kept; and a publisher looks at the claims, after a
//! fence, before it gives anything up.
//!
//! Who *must be waited for* (`Policy::Block`, and `Policy::Disconnect` within its lag) need not look at the floor: it
//! reads what is there until the publisher has said in `cut` that it does not wait for it any more. `Policy::KeepLast`
//! looks at the floor after it has copied, and counts what it has missed.
//!
//! # Whom to trust
//!
//! Subscribers can write the directory and nothing of a log. What they say of themselves is bounded by their publisher:
//! a head that cannot be true cuts that subscriber off. A publisher may write anything into its log: what a subscriber
//! reads is bounded by the size of the log, which is sealed, and ends its attachment if it cannot be true.

pub mod blocks;
pub mod directory;
pub mod log;
#[cfg(not(loom))]
pub mod mapped_log;
pub mod publisher;
pub mod subscriber;

#[cfg(all(test, not(loom)))]
mod tests;

use crate::shared_heap::{VecWords, Words};
use crate::sync::Ordering;
use std::io;

/// The memory of a log. Bytes that were checked to be within it are copied whatever others do to them meanwhile.
pub trait Space: Words {
    /// Copies these bytes to `at`, a multiple of 8.
    ///
    /// # Panics
    /// If they are not within the memory.
    fn write(&self, at: u64, bytes: &[u8]);
    /// Appends `len` bytes from `at` on, a multiple of 8, to `out`.
    ///
    /// # Panics
    /// If they are not within the memory.
    fn read(&self, at: u64, len: u64, out: &mut Vec<u8>);
    /// Sets memory aside for a part that has none so far.
    fn set_aside(&self, at: u64, len: u64) -> io::Result<()>;
}

/// For tests and for loom: in words, so that a look at bytes that are written meanwhile is no mistake of the program.
impl Space for VecWords {
    fn write(&self, at: u64, bytes: &[u8]) {
        for (index, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let to = self.word(at + 8 * index as u64).expect("within the memory");
            // Relaxed: published with its record.
            to.store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
    }

    fn read(&self, at: u64, len: u64, out: &mut Vec<u8>) {
        let begin = out.len();
        for index in 0..len.div_ceil(8) {
            let from = self.word(at + 8 * index).expect("within the memory");
            // Relaxed: as above; of one that was written over it is found out afterwards.
            out.extend_from_slice(&from.load(Ordering::Relaxed).to_ne_bytes());
        }
        out.truncate(begin + len as usize);
    }

    fn set_aside(&self, _at: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
}

impl<S: Space> Space for std::sync::Arc<S> {
    #[inline]
    fn write(&self, at: u64, bytes: &[u8]) {
        (**self).write(at, bytes);
    }
    #[inline]
    fn read(&self, at: u64, len: u64, out: &mut Vec<u8>) {
        (**self).read(at, len, out);
    }
    fn set_aside(&self, at: u64, len: u64) -> io::Result<()> {
        (**self).set_aside(at, len)
    }
}

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
    fn is_respected(self) -> bool {
        self != Policy::KeepLast
    }
}
