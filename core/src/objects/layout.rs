//! What lies where in the memory of a name. Offsets in bytes, behind the header that every region has:
//!
//! ```text
//!     64  poison        3 u64  what was found that cannot be true, see `shared_heap/corruption.rs`; then nobody uses it any more
//!     88  amount        u64    permits of a semaphore; bytes of a memory, or for the items of a queue
//!     96  event         u64    how often it was set, times two; plus one while it is set; of a store: 0, or the number of
//!                              the file that has its contents now, see `replacing.rs`
//!    104  signals       u64    those that nobody has waited for
//!    112  bounds        2 u64  of a queue: the items that may wait; how often one is delivered, plus 2^63 if they are raw; of a
//!                              topic: 0; 2^63 if its records are raw; of a store: 1 if one member owns it
//!    128  members       256 of them, 32 bytes each: see `members.rs`
//!   8320  the wait set of permits, or of an event: 256 slots
//!  12544  the wait set of signals: 256 slots
//!  16768  looking       u64    until when a thread looks again and again for the only permit: see `looking.rs`
//!  16776  kept          2 u64  for whom has waited for long: see `fairness.rs`
//!  16832  permits       u64 each: the member that has it, or 0
//!         data          from the next multiple of 64 KiB on: the bytes of a memory; of a queue, the wait set of those
//!                       that wait until all is done, and from the next multiple of 64 KiB on the queue; of a topic, its
//!                       directory; of a store with an owner, what its readers say comes before the store
//! ```

use super::members::{MEMBER_SIZE, SLOTS};
use crate::memory::region::{Kind, Layout, signature};
use crate::queue::{self, Limits};
use crate::store::{self, reader_table};
use crate::topic::directory::Capacity;
use crate::wait::wait_set::mapped::size_for;

/// Slots of each wait set.
pub const SLEEPERS: usize = 256;
/// The most permits of a semaphore.
pub const MOST_PERMITS: u64 = 1 << 16;
/// In the bounds of a queue or a topic: its items are raw bytes.
pub const RAW: u64 = 1 << 63;
/// In the bounds of a store: one member alone changes it.
pub const OWNED: u64 = 1;
/// The bytes that the items of a queue, or the values of a store, may have.
pub const QUEUE_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 34;
/// The most bytes of a memory: what one range of the guard against SIGBUS counts, without the pages before it.
pub const MOST_BYTES: u64 = (1 << 36) - (1 << 20);

pub const AT_POISON: usize = 64;
pub const AT_AMOUNT: usize = 88;
pub const AT_EVENT: usize = 96;
/// Of a store, which has no event.
pub const AT_CONTENTS: usize = AT_EVENT;
pub const AT_SIGNALS: usize = 104;
pub const AT_BOUNDS: usize = 112;
pub const AT_MEMBERS: usize = 128;
/// Where the wait sets begin that all names have.
pub const AT_SETS: [usize; 2] = {
    let first = AT_MEMBERS + SLOTS as usize * MEMBER_SIZE;
    [first, first + size_for(SLEEPERS)]
};
/// In a cache line of its own.
pub const AT_LOOKING: usize = AT_SETS[1] + size_for(SLEEPERS);
pub const AT_KEPT: usize = AT_LOOKING + 8;
pub const AT_PERMITS: usize = AT_LOOKING + 64;
/// Bytes of a name without permits and data.
pub const LEAST_BYTES: u64 = AT_PERMITS as u64;
/// Data begins at a page of any machine.
const PAGE: usize = 64 << 10;

/// What is opened: a kind, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// What the name is for.
    pub kind: Kind,
    /// Permits of a semaphore, bytes of a memory or for the items of a queue, 1 of a lock, 0 of an event.
    pub amount: u64,
    /// Of a queue: the items that may wait; and how often one is delivered, plus [`RAW`] if they are raw; 0: any number. Of
    /// others: 0.
    pub bounds: [u64; 2],
}

impl Shape {
    /// The shape, if there can be one such.
    pub fn new(kind: Kind, amount: u64) -> Option<Self> {
        let fits = match kind {
            Kind::Connection | Kind::Queue | Kind::Topic => false,
            Kind::Memory => (1..=MOST_BYTES).contains(&amount),
            Kind::Semaphore => (1..=MOST_PERMITS).contains(&amount),
            Kind::Lock => amount == 1,
            Kind::Event => amount == 0,
            Kind::Store => QUEUE_BYTES.contains(&amount),
        };
        fits.then_some(Shape {
            kind,
            amount,
            bounds: [0; 2],
        })
    }

    /// The shape of a queue, if there can be one such.
    pub fn of_queue(limits: Limits, raw: bool) -> Option<Self> {
        let fits = QUEUE_BYTES.contains(&limits.memory) && limits.deliveries < RAW;
        fits.then_some(Shape {
            kind: Kind::Queue,
            amount: limits.memory,
            bounds: [limits.items, limits.deliveries | if raw { RAW } else { 0 }],
        })
    }

    /// The shape of a store, if there can be one such; `owned`: one member alone changes it.
    pub fn of_store(amount: u64, owned: bool) -> Option<Self> {
        let shape = Shape::new(Kind::Store, amount)?;
        Some(Shape {
            bounds: [if owned { OWNED } else { 0 }, 0],
            ..shape
        })
    }

    /// The shape of a topic.
    pub fn of_topic(raw: bool) -> Self {
        Shape {
            kind: Kind::Topic,
            amount: 0,
            bounds: [0, if raw { RAW } else { 0 }],
        }
    }

    /// What a queue of this shape may hold.
    pub fn limits(self) -> Limits {
        Limits {
            items: self.bounds[0],
            memory: self.amount,
            deliveries: self.bounds[1] & !RAW,
        }
    }

    /// Whether the items of the queue, or the records of the topic, are raw.
    pub fn is_raw(self) -> bool {
        self.bounds[1] & RAW != 0
    }

    /// Whether it is a store that one member alone changes.
    pub fn is_owned(self) -> bool {
        self.kind == Kind::Store && self.bounds[0] == OWNED
    }

    /// Where the readers of a store with an owner say what they look at.
    pub fn readers_at(self) -> usize {
        (self.data() + size_for(SLEEPERS)).next_multiple_of(64)
    }

    /// Where its wait sets begin.
    pub fn sets(self) -> Vec<usize> {
        let mut sets = AT_SETS.to_vec();
        if matches!(self.kind, Kind::Queue | Kind::Store) {
            sets.push(self.data());
        }
        sets
    }

    /// Where the queue or the store begins.
    pub fn contents_at(self) -> usize {
        let readers = match self.is_owned() {
            true => reader_table::SIZE as usize,
            false => 0,
        };
        (self.readers_at() + readers).next_multiple_of(PAGE)
    }

    /// How many bytes need memory from the beginning.
    pub fn used(self) -> usize {
        match self.kind {
            Kind::Queue => queue::sizes(self.contents_at() as u64, self.limits()).0 as usize,
            Kind::Topic => self.data() + Capacity::OF_A_TOPIC.seats_at() as usize,
            // Its contents are elsewhere.
            Kind::Store if self.is_owned() => self.contents_at(),
            Kind::Store => store::sizes(self.contents_at() as u64, self.amount).1 as usize,
            _ => self.layout().size,
        }
    }

    /// How many permits it has.
    pub fn permits(self) -> usize {
        match self.kind {
            Kind::Semaphore => self.amount as usize,
            Kind::Memory | Kind::Lock => 1,
            Kind::Connection | Kind::Event | Kind::Queue | Kind::Topic | Kind::Store => 0,
        }
    }

    /// Where its data begin.
    pub fn data(self) -> usize {
        (AT_PERMITS + 8 * self.permits()).next_multiple_of(PAGE)
    }

    /// Its region.
    pub fn layout(self) -> Layout {
        let size = match self.kind {
            Kind::Memory => self.data() + self.amount as usize,
            Kind::Queue => queue::sizes(self.contents_at() as u64, self.limits()).1 as usize,
            Kind::Topic => self.data() + Capacity::OF_A_TOPIC.size() as usize,
            Kind::Store => store::sizes(self.contents_at() as u64, self.amount).0 as usize,
            _ => AT_PERMITS + 8 * self.permits(),
        };
        Layout {
            kind: self.kind,
            size,
            signature: signature(&[
                AT_POISON, AT_AMOUNT, AT_EVENT, AT_SIGNALS, AT_BOUNDS, AT_MEMBERS, AT_SETS[0],
                AT_SETS[1], AT_LOOKING, AT_KEPT, AT_PERMITS, PAGE,
            ]),
        }
    }
}
