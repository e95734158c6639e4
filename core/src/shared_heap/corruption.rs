//! Corrupt values in shared memory, and the words that report them to all members.

use crate::sync::{AtomicU64, Ordering};
use std::fmt;

macro_rules! fields {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+) => {
        /// Kind of value that is corrupt. The discriminants are stored in shared memory, so none is ever reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Field {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Field {
            const ALL: &[Field] = &[$(Field::$name,)+];

            /// Returns the name of the field for messages.
            fn text(self) -> &'static str {
                match self {
                    $(Field::$name => $text,)+
                }
            }
        }
    };
}

fields! {
    /// A field that another build has reported, or a corrupt number.
    Unknown = "a field that this build does not know",
    /// Memory that a member has truncated.
    Truncated = "the memory",
    /// An offset at which the memory has no word.
    Offset = "an offset",
    /// The holder of the owner lock.
    OwnerLock = "the holder of the owner lock",
    /// The number of entries of an undo or redo log.
    LogCount = "the entry count of the log",
    /// The offset in an entry of an undo or redo log.
    LogEntry = "the offset in an entry of the log",
    /// A page number.
    Page = "a page number",
    /// An entry of the page map.
    Map = "an entry of the page map",
    /// The links of a run or a slab in its list.
    Links = "a link of a list",
    /// A count of pages.
    Pages = "a count of pages",
    /// The bitmap of a slab.
    Bits = "the bitmap of a slab",
    /// An entry of the table of unfinished allocations.
    UnfinishedAllocs = "an entry of the table of unfinished allocations",
    /// The holder of a permit of this process.
    Permit = "the holder of a permit of this process",
    /// A permit whose holder is no member.
    OrphanedPermit = "the holder of a permit, which is no member,",
    /// The count of pending signals.
    Signals = "the count of signals",
    /// The wait slot of a sleeper of this process.
    Sleeper = "the wait slot of a sleeper of this process",
    /// The entry of a member, which only that member may change.
    Member = "the entry of this member",
    /// A count of a queue.
    Queue = "a count of the queue",
    /// A chunk of a queue.
    Chunk = "a chunk offset",
    /// An item of a queue.
    Item = "the header of an item",
    /// A claim of a queue.
    Claim = "an entry of the claim table",
    /// The header of an item with buffers.
    Parts = "the header of an item with buffers",
    /// The header of an item that was copied; the offset of the original is unknown.
    Copied = "the header of a received item",
    /// A cell of a store.
    Cell = "a cell of the store",
    /// The header of a container, or its description of the payload.
    Container = "the header of a container",
    /// No corruption: a copy has replaced the memory, because the member of this number did not release the lock.
    Replaced = "the memory",
}

/// A corrupt value: a process has overwritten memory that only correct members may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// The kind of the value.
    pub field: Field,
    /// Its offset in bytes from the beginning of the memory.
    pub at: u64,
    /// The value found there.
    pub found: u64,
}

impl Corruption {
    /// The memory was truncated.
    pub(crate) const TRUNCATED: Self = Corruption {
        field: Field::Truncated,
        at: 0,
        found: 0,
    };
}

impl fmt::Display for Corruption {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (field, at, found) = (self.field.text(), self.at, self.found);
        match self.field {
            Field::Truncated => return write!(out, "{field} was truncated by a member"),
            Field::Replaced => return write!(out, "{field} was replaced by a copy"),
            Field::Copied => write!(out, "{field}")?,
            _ => write!(out, "{field} at byte {at}")?,
        }
        write!(
            out,
            " is {found:#x}: a process has overwritten shared memory"
        )
    }
}

impl std::error::Error for Corruption {}

/// The three words of shared memory by which one member reports a corrupt value to all. Zeros report none.
///
/// ```text
///      0  number      u64    0, or the number of the field plus one
///      8  offset      u64    its offset
///     16  found       u64    its value
/// ```
pub(crate) struct Poison<'a>(pub [&'a AtomicU64; 3]);

impl Poison<'_> {
    /// Returns the reported corrupt value, whose words are untrusted. Its field is [`Field::Unknown`] if this build
    /// does not know it.
    #[cold]
    pub fn read(&self) -> Corruption {
        // Acquire: pairs with the release in `record`.
        let number = self.0[0].load(Ordering::Acquire);
        // Relaxed, both: the acquire above covers them.
        let [at, found] = [1, 2].map(|word: usize| self.0[word].load(Ordering::Relaxed));
        let index = usize::try_from(number.wrapping_sub(1)).unwrap_or(usize::MAX);
        let field = Field::ALL.get(index).copied().unwrap_or(Field::Unknown);
        Corruption { field, at, found }
    }

    /// Reports a corrupt value to all members, unless another one has been reported.
    #[cold]
    pub fn record(&self, corruption: Corruption) {
        // Relaxed: a member that reads in between reads the report of another value.
        if self.0[0].load(Ordering::Relaxed) == 0 {
            self.0[1].store(corruption.at, Ordering::Relaxed);
            self.0[2].store(corruption.found, Ordering::Relaxed);
            // Release: the two words above are stored first.
            self.0[0].store(corruption.field as u64 + 1, Ordering::Release);
        }
    }
}
