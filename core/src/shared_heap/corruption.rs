//! What cannot be true in shared memory, and how all members are told of it.

use crate::sync::{AtomicU64, Ordering};
use std::fmt;

macro_rules! fields {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+) => {
        /// What was found to be false. Its number stands in the shared memory, so none is used again for another.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Field {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Field {
            const ALL: &[Field] = &[$(Field::$name,)+];

            fn text(self) -> &'static str {
                match self {
                    $(Field::$name => $text,)+
                }
            }
        }
    };
}

fields! {
    /// Not one of these: another build's, or a lie.
    Unknown = "something that this build does not know",
    /// Words that somebody has cut off.
    CutOff = "the memory",
    /// An offset at which there is no word of this memory.
    Offset = "an offset",
    /// The holder of the lease.
    Lease = "the holder of the lease, which is another one's,",
    /// The number of entries of the journal.
    JournalCount = "the count of the journal",
    /// The offset of an entry of the journal.
    JournalEntry = "the offset in an entry of the journal",
    /// The number of a page.
    Page = "the number of a page",
    /// What the map says of a page.
    Map = "what the map says of a page",
    /// The links of a run or a slab in its list.
    Links = "a link of a list",
    /// The counts of pages.
    Pages = "a count of pages",
    /// The bits of a slab.
    Bits = "the bits of a slab",
    /// An entry of the table of blocks that are being filled.
    UnfinishedAllocs = "an entry of the table of blocks that are being filled",
    /// The holder of a permit of ours.
    Permit = "the holder of a permit, which is another one's,",
    /// A permit whose holder is no member.
    Stranger = "the holder of a permit, who is no member,",
    /// How many signals nobody has waited for.
    Signals = "the count of signals",
    /// The word of a sleeper of ours.
    Sleeper = "the place of a sleeper, which is another one's,",
    /// The entry of a member, which it alone may change.
    Member = "the entry of a member, which is another one's,",
    /// The counts of a queue.
    Queue = "a count of the queue",
    /// A chunk of a queue.
    Chunk = "the place of a chunk or in a chunk",
    /// An item of a queue.
    Item = "the head of an item",
    /// A claim of a queue.
    Claim = "an entry of the table of claims",
    /// What stands before the parts of an item with buffers.
    Parts = "the beginning of an item with buffers",
    /// The same, or the head, of an item that was copied: where it was is not known any more.
    Copied = "the beginning of an item that was taken",
    /// A cell of a store.
    Cell = "a value of the store",
    /// The head of a container, or what it says of its payload.
    Container = "the head of a container",
    /// Nothing is false: there is a copy, since the member whose number stands there has not given the lease back.
    Replaced = "the memory",
}

/// What cannot be true: somebody has written where only those who keep to the rules write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// What was found false.
    pub field: Field,
    /// Where, in bytes from the beginning of the memory.
    pub at: u64,
    /// What stood there.
    pub found: u64,
}

impl Corruption {
    /// The memory is not there any more.
    pub(crate) const CUT_OFF: Self = Corruption {
        field: Field::CutOff,
        at: 0,
        found: 0,
    };
}

impl fmt::Display for Corruption {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (field, at, found) = (self.field.text(), self.at, self.found);
        match self.field {
            Field::CutOff => return write!(out, "{field} was cut off by a member"),
            Field::Replaced => return write!(out, "{field} was replaced by a copy"),
            Field::Copied => write!(out, "{field}")?,
            _ => write!(out, "{field} at byte {at}")?,
        }
        let why = "which cannot be true: a member has written where it must not";
        write!(out, " is {found:#x}, {why}")
    }
}

impl std::error::Error for Corruption {}

/// The three words of shared memory that tell all members of a lie that one of them has found. Zeros are none.
///
/// ```text
///      0  number      u64    0, or the number of what was false
///      8  where       u64    and its offset
///     16  found       u64    and what stood there
/// ```
pub(crate) struct Poison<'a>(pub [&'a AtomicU64; 3]);

impl Poison<'_> {
    /// What was found; any values may come.
    #[cold]
    pub fn read(&self) -> Corruption {
        // Acquire: pairs with the release in `tell`.
        let number = self.0[0].load(Ordering::Acquire);
        // Relaxed, both: covered by it.
        let [at, found] = [1, 2].map(|word: usize| self.0[word].load(Ordering::Relaxed));
        let index = usize::try_from(number.wrapping_sub(1)).unwrap_or(usize::MAX);
        let field = Field::ALL.get(index).copied().unwrap_or(Field::Unknown);
        Corruption { field, at, found }
    }

    /// Tells what was found, unless something was told before.
    #[cold]
    pub fn record(&self, corruption: Corruption) {
        // Relaxed: whoever comes between reads of another lie.
        if self.0[0].load(Ordering::Relaxed) == 0 {
            self.0[1].store(corruption.at, Ordering::Relaxed);
            self.0[2].store(corruption.found, Ordering::Relaxed);
            // Release: the rest is there.
            self.0[0].store(corruption.field as u64 + 1, Ordering::Release);
        }
    }
}
