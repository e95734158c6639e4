//! Why something in shared memory was not done.

use std::io;
use thiserror::Error;

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
    CutOff = "the memory, which a member has cut off,",
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
    Filling = "an entry of the table of blocks that are being filled",
}

/// What cannot be true: somebody has written where only transactions write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{} at byte {at} is {found:#x}, which cannot be true: a member has written where it must not", .field.text())]
pub struct Lie {
    /// What was found false.
    pub field: Field,
    /// Where, in bytes from the beginning of the memory.
    pub at: u64,
    /// What stood there.
    pub found: u64,
}

impl Lie {
    /// As it stands in the shared memory: a number that is not 0, where, and what was found.
    pub(super) fn to_words(self) -> [u64; 3] {
        [self.field as u64 + 1, self.at, self.found]
    }

    /// What others have put there; any values may come.
    pub(super) fn from_words([number, at, found]: [u64; 3]) -> Self {
        let index = usize::try_from(number.wrapping_sub(1)).unwrap_or(usize::MAX);
        let field = Field::ALL.get(index).copied().unwrap_or(Field::Unknown);
        Lie { field, at, found }
    }
}

/// Why something was not done. Nothing of it was done then.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the texts say what the fields hold")]
pub enum SharedError {
    /// The deadline has come. Its holder lives, or it would have been taken over.
    #[error("member {holder:#x} holds the lease")]
    Busy { holder: u64 },
    /// This memory cannot be used any more.
    #[error("{0}")]
    Poisoned(#[from] Lie),
    /// This process was forked from a member, and is none.
    #[error("a forked process is no member: open the name in it")]
    Detached,
    #[error("a transaction changes at most {most} words")]
    JournalFull { most: usize },
    #[error("{asked} bytes were asked for, {used} of max_memory of {limit} are in use")]
    Limit { asked: u64, used: u64, limit: u64 },
    #[error("{asked} bytes were asked for, and the system refused: {error}")]
    System { asked: u64, error: io::Error },
    #[error("there are {most} blocks already that are not finished")]
    TooManyFilling { most: usize },
    #[error("{offset} is not the offset of a block, or it was freed already")]
    NoBlock { offset: u64 },
    #[error("block {offset} is still being filled, or is another one by now")]
    NotFilling { offset: u64 },
}
