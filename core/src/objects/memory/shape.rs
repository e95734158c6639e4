//! The shape of an object: its kind, and the sizes that all its members agree on.
//!
//! Data of an object begins at the next multiple of 64 KiB behind its permits:
//!
//! ```text
//!   memory   its bytes
//!   queue    the wait set of members that wait until all items are done; from the next multiple of 64 KiB on the queue
//!   topic    its directory
//!   store    the wait set of members that wait for a message; with a single writer, the table of readers; from the next
//!            multiple of 64 KiB on the store
//! ```

use super::layout::{
    AT_AMOUNT, AT_BOUNDS, AT_EVENT, AT_FAIRNESS, AT_MEMBERS, AT_PERMITS, AT_POISON, AT_SETS,
    AT_SIGNALS, AT_SPINNER, PAGE, SLEEPERS,
};
use crate::memory::mapping::SharedMapping;
use crate::memory::region::{Kind, Layout, signature};
use crate::queue::{self, Limits};
use crate::store::{self, reader_table};
use crate::sync::Ordering::Relaxed;
use crate::topic::directory::Capacity;
use crate::wait::wait_set::mapped::size_for;
use std::fmt;

/// The maximum number of permits of a semaphore.
pub const MAX_PERMITS: u64 = 1 << 16;
/// The flag, in the bounds of a queue or a topic, of raw bytes.
pub const RAW: u64 = 1 << 63;
/// The bounds of a store with a single writer.
pub const SINGLE_WRITER: u64 = 1;
/// The bytes that the items of a queue, or the values of a store, may have.
pub const QUEUE_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 34;
/// The maximum size of a memory: the longest range of the guard against SIGBUS, without the pages before it.
pub const MAX_BYTES: u64 = (1 << 36) - (1 << 20);

/// The kind and the sizes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The kind.
    pub kind: Kind,
    /// Permits of a semaphore, bytes of a memory or for the items of a queue, 1 of a lock, 0 of an event or a signal.
    pub amount: u64,
    /// Of a queue: the items that may wait, 0 for any number; and how often one is delivered, plus [`RAW`] if they are
    /// raw. Of a topic: 0; [`RAW`] if its records are raw. Of a store: [`SINGLE_WRITER`] if it has a single writer; 0.
    pub bounds: [u64; 2],
}

impl Shape {
    /// Returns the shape of an object of a kind without bounds; of a store, one without a single writer. Returns None
    /// if the amount is out of range, and for a queue, a topic or a connection.
    pub fn new(kind: Kind, amount: u64) -> Option<Self> {
        let fits = match kind {
            Kind::Connection | Kind::Queue | Kind::Topic => false,
            Kind::Memory => (1..=MAX_BYTES).contains(&amount),
            Kind::Semaphore => (1..=MAX_PERMITS).contains(&amount),
            Kind::Lock => amount == 1,
            Kind::Event | Kind::Signal => amount == 0,
            Kind::Store => QUEUE_BYTES.contains(&amount),
        };
        fits.then_some(Shape {
            kind,
            amount,
            bounds: [0; 2],
        })
    }

    /// Returns the shape of a queue; `raw` is true if its items are raw bytes. Returns None if the memory is not within
    /// `QUEUE_BYTES` or the deliveries are 2^63 or more.
    pub fn of_queue(limits: Limits, raw: bool) -> Option<Self> {
        let fits = QUEUE_BYTES.contains(&limits.memory) && limits.deliveries < RAW;
        fits.then_some(Shape {
            kind: Kind::Queue,
            amount: limits.memory,
            bounds: [limits.items, limits.deliveries | if raw { RAW } else { 0 }],
        })
    }

    /// Returns the shape of a store, with a single writer if `single_writer` is true. Returns None if the amount is out
    /// of range.
    pub fn of_store(amount: u64, single_writer: bool) -> Option<Self> {
        let shape = Shape::new(Kind::Store, amount)?;
        Some(Shape {
            bounds: [if single_writer { SINGLE_WRITER } else { 0 }, 0],
            ..shape
        })
    }

    /// Returns the shape of a topic; `raw` is true if its records are raw bytes.
    pub fn of_topic(raw: bool) -> Self {
        Shape {
            kind: Kind::Topic,
            amount: 0,
            bounds: [0, if raw { RAW } else { 0 }],
        }
    }

    /// Reads the shape of an object of this kind. `word` reads the word at an offset. Returns None for a size that the
    /// kind cannot have. Raises the error of `word`.
    pub(in crate::objects) fn read<E>(
        kind: Kind,
        word: impl Fn(usize) -> Result<u64, E>,
    ) -> Result<Option<Self>, E> {
        Ok(match kind {
            Kind::Memory | Kind::Semaphore => Shape::new(kind, word(AT_AMOUNT)?),
            Kind::Store => Shape::of_store(word(AT_AMOUNT)?, word(AT_BOUNDS)? == SINGLE_WRITER),
            Kind::Queue => {
                let deliveries = word(AT_BOUNDS + 8)?;
                let limits = Limits {
                    memory: word(AT_AMOUNT)?,
                    items: word(AT_BOUNDS)?,
                    deliveries: deliveries & !RAW,
                };
                Shape::of_queue(limits, deliveries & RAW != 0)
            }
            Kind::Topic => Some(Shape::of_topic(word(AT_BOUNDS + 8)? & RAW != 0)),
            Kind::Connection | Kind::Lock | Kind::Event | Kind::Signal => {
                Shape::new(kind, u64::from(kind == Kind::Lock))
            }
        })
    }

    /// Stores the shape in a new region.
    pub(in crate::objects) fn write(self, mapping: &SharedMapping) {
        // Relaxed: published with the header.
        mapping.u64_at(AT_AMOUNT).store(self.amount, Relaxed);
        for (index, bound) in self.bounds.into_iter().enumerate() {
            mapping.u64_at(AT_BOUNDS + 8 * index).store(bound, Relaxed);
        }
    }

    /// Returns the limits of a queue; the caller knows that the object is one.
    pub fn limits(self) -> Limits {
        Limits {
            items: self.bounds[0],
            memory: self.amount,
            deliveries: self.bounds[1] & !RAW,
        }
    }

    /// Returns true if the items of the queue, or the records of the topic, are raw bytes; false for other kinds.
    pub fn is_raw(self) -> bool {
        self.bounds[1] & RAW != 0
    }

    /// Returns true for a store with a single writer.
    pub fn has_single_writer(self) -> bool {
        self.kind == Kind::Store && self.bounds[0] == SINGLE_WRITER
    }

    /// Returns true if the next members reuse memory that killed members have left.
    pub(in crate::objects) fn is_reusable(self) -> bool {
        // No process has the contents of a single-writer store any longer.
        !matches!(self.kind, Kind::Queue | Kind::Topic) && !self.has_single_writer()
    }

    /// Returns true if memory that killed members have left holds values of users. Such values must not be discarded
    /// silently.
    pub(in crate::objects) fn keeps_values(self) -> bool {
        matches!(self.kind, Kind::Store | Kind::Memory) && !self.has_single_writer()
    }

    /// Returns the offset of the table of readers of a single-writer store.
    pub fn readers_at(self) -> usize {
        (self.data_at() + size_for(SLEEPERS)).next_multiple_of(64)
    }

    /// Returns the offsets of the wait sets, by their numbers: three of a queue and a store, two of other kinds.
    pub fn sets_at(self) -> Vec<usize> {
        let mut sets = AT_SETS.to_vec();
        if matches!(self.kind, Kind::Queue | Kind::Store) {
            sets.push(self.data_at());
        }
        sets
    }

    /// Returns the offset of the queue or the store; meaningless for other kinds.
    pub fn contents_at(self) -> usize {
        let readers = match self.has_single_writer() {
            true => reader_table::SIZE as usize,
            false => 0,
        };
        (self.readers_at() + readers).next_multiple_of(PAGE)
    }

    /// Returns the number of bytes that are allocated at creation.
    pub fn initial_bytes(self) -> usize {
        match self.kind {
            Kind::Queue => queue::sizes(self.contents_at() as u64, self.limits()).0 as usize,
            Kind::Topic => self.data_at() + Capacity::OF_A_TOPIC.seats_at() as usize,
            // The contents are in a file of the owner.
            Kind::Store if self.has_single_writer() => self.contents_at(),
            Kind::Store => store::sizes(self.contents_at() as u64, self.amount).1 as usize,
            _ => self.layout().size,
        }
    }

    /// Returns the number of permits: 1 of a memory or a lock, 0 of kinds without permits.
    pub fn permits(self) -> usize {
        match self.kind {
            Kind::Semaphore => self.amount as usize,
            Kind::Memory | Kind::Lock => 1,
            Kind::Connection
            | Kind::Event
            | Kind::Signal
            | Kind::Queue
            | Kind::Topic
            | Kind::Store => 0,
        }
    }

    /// Returns the offset of the data.
    pub fn data_at(self) -> usize {
        (AT_PERMITS + 8 * self.permits()).next_multiple_of(PAGE)
    }

    /// Returns the layout of the region: kind, size in bytes, and a signature of all offsets that members must agree
    /// on.
    pub fn layout(self) -> Layout {
        let size = match self.kind {
            Kind::Memory => self.data_at() + self.amount as usize,
            Kind::Queue => queue::sizes(self.contents_at() as u64, self.limits()).1 as usize,
            Kind::Topic => self.data_at() + Capacity::OF_A_TOPIC.size() as usize,
            Kind::Store => store::sizes(self.contents_at() as u64, self.amount).0 as usize,
            _ => AT_PERMITS + 8 * self.permits(),
        };
        Layout {
            kind: self.kind,
            size,
            signature: signature(&[
                AT_POISON,
                AT_AMOUNT,
                AT_EVENT,
                AT_SIGNALS,
                AT_BOUNDS,
                AT_MEMBERS,
                AT_SETS[0],
                AT_SETS[1],
                AT_SPINNER,
                AT_FAIRNESS,
                AT_PERMITS,
                PAGE,
            ]),
        }
    }

    /// Returns a description, for an error message, of the items of a queue or the records of a topic.
    fn contents(self) -> &'static str {
        match self.is_raw() {
            true => "raw bytes (raw=True)",
            false => "values (raw=False)",
        }
    }
}

impl fmt::Display for Shape {
    /// Describes the object for an error message, with an article and the options of its constructor.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = self.amount;
        match self.kind {
            Kind::Memory => write!(out, "a memory of {amount} bytes"),
            Kind::Semaphore if amount == 1 => write!(out, "a semaphore of 1 permit"),
            Kind::Semaphore => write!(out, "a semaphore of {amount} permits"),
            Kind::Event => write!(out, "an event"),
            Kind::Queue => {
                let (limits, what) = (self.limits(), self.contents());
                let (items, deliveries) = (limits.items, limits.deliveries);
                write!(
                    out,
                    "a queue of {what} with maxsize={items}, max_memory={amount}, max_deliveries={deliveries}"
                )
            }
            Kind::Topic => write!(out, "a topic of {}", self.contents()),
            Kind::Store if self.has_single_writer() => {
                write!(out, "a store with max_memory={amount}, single_writer=True")
            }
            Kind::Store => write!(out, "a store with max_memory={amount}"),
            _ => write!(out, "a {}", self.kind.word()),
        }
    }
}

impl Kind {
    /// Returns the name of the kind in lower case, as in the name of the memory.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Connection => "connection",
            Kind::Memory => "memory",
            Kind::Semaphore => "semaphore",
            Kind::Lock => "lock",
            Kind::Event => "event",
            Kind::Signal => "signal",
            Kind::Queue => "queue",
            Kind::Topic => "topic",
            Kind::Store => "store",
        }
    }
}
