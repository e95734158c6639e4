//! The layout of an object's memory that all kinds have in common. Offsets in bytes, behind the header of a region:
//!
//! ```text
//!     64  poison        3 u64  the corruption that was found, see `shared_heap/corruption.rs`; the object is unusable
//!     88  amount        u64    permits of a semaphore; bytes of a memory, or for the items of a queue
//!     96  event         u64    how often it was set, times two; plus one while it is set; of a store: 0, or the number of
//!                              the file that has its contents now, see `store/copies.rs`
//!    104  signals       u64    pending signals
//!    112  bounds        2 u64  of a queue: the items that may wait; how often one is delivered, plus 2^63 if they are raw; of a
//!                              topic: 0; 2^63 if its records are raw; of a store: 1 if it has a single writer
//!    128  members       256 of them, 32 bytes each: see `members/table.rs`
//!   8320  the first wait set, of permits, an event or signals: 256 slots
//!  12544  the second wait set, of queues, topics and stores: 256 slots
//!  16768  spinner       u64    until when a thread spins for the only permit: see `sole_spinner.rs`
//!  16776  fairness      2 u64  reserved permits: see `semaphore/fairness.rs`
//!  16832  permits       u64 each: the member that has it, or 0
//!         data          from the next multiple of 64 KiB on: see `shape.rs`
//! ```

use crate::objects::members::{MEMBER_SIZE, SLOTS};
use crate::wait::wait_set::mapped::size_for;

/// Slots of each wait set.
pub const SLEEPERS: usize = 256;
/// Data begins at a page of any machine.
pub const PAGE: usize = 64 << 10;

pub const AT_POISON: usize = 64;
pub const AT_AMOUNT: usize = 88;
pub const AT_EVENT: usize = 96;
/// The number of a store's contents. A store has no event.
pub const AT_CONTENTS: usize = AT_EVENT;
pub const AT_SIGNALS: usize = 104;
pub const AT_BOUNDS: usize = 112;
pub const AT_MEMBERS: usize = 128;
/// The wait sets that all kinds have.
pub const AT_SETS: [usize; 2] = {
    let first = AT_MEMBERS + SLOTS as usize * MEMBER_SIZE;
    [first, first + size_for(SLEEPERS)]
};
/// In a cache line of its own.
pub const AT_SPINNER: usize = AT_SETS[1] + size_for(SLEEPERS);
pub const AT_FAIRNESS: usize = AT_SPINNER + 8;
pub const AT_PERMITS: usize = AT_SPINNER + 64;
/// Bytes of an object without permits and data.
pub const MIN_BYTES: u64 = AT_PERMITS as u64;
