//! A store that one member changes, its owner, and that all others can only read.
//!
//! Its contents lie in a [sealed](crate::memory::sealed) file of the owner's, which the others map for reading. What they tell
//! the owner lies elsewhere: see [`readers`](super::readers). Nobody waits for them: what is taken out of the store while they
//! look at it is freed later, and whoever watches is told after the commit.
//!
//! Beside what each store begins with:
//!
//! ```text
//!     32  mark   u64   the number of these contents; 0 while they are made
//!         owner  u64   the number of the member
//!         name   u64   what the name of the memory ends with
//! ```

use super::error::StoreError;
use super::handle::{Store, heap_at};
use crate::shared_heap::{Members, Words};
use crate::sync::Ordering;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

const AT_MARK: u64 = 32;
const AT_OWNER: u64 = 40;
const AT_NAME: u64 = 48;
/// Who owns contents, and which they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerHeader {
    /// Their number; 0 while they are made.
    pub mark: u64,
    /// The number of the member that changes them.
    pub owner: u64,
    /// What the name of the memory ends with.
    pub name: u64,
}

/// Where the title lies, in bytes from the beginning of a store.
pub const OWNER_HEADER: [u64; 3] = [AT_MARK, AT_OWNER, AT_NAME];

impl<W: Words, M: Members> Store<W, M> {
    /// A store with an owner, which begins `start` bytes into `words`, as one has it who only reads; `readers_at`: where readers
    /// say what they look at.
    ///
    /// # Panics
    /// If it does not begin with a page.
    pub fn open_read_only(
        words: W,
        file: &Arc<OwnedFd>,
        start: u64,
        max_memory: u64,
        members: M,
        readers_at: u64,
    ) -> io::Result<Self> {
        let store = Store::open_sealed(words, file, start, max_memory, members)?;
        Ok(Store {
            readers_at: Some(readers_at),
            ..store
        })
    }

    /// New contents of a store with an owner, in a file that nobody else knows so far: to be filled, and then published.
    pub fn create_owned(
        words: W,
        file: &Arc<OwnedFd>,
        start: u64,
        max_memory: u64,
        members: M,
    ) -> io::Result<Self> {
        let store = Store::open_sealed(words, file, start, max_memory, members)?;
        store.take_ownership()?;
        Ok(store)
    }

    /// This process changes it from now on: what is mapped is its own.
    pub fn take_ownership(&self) -> io::Result<()> {
        self.log.allocate_kept()?;
        self.heap.allocate_metadata(heap_at(self.start))?;
        self.log.memory_replaced();
        self.heap.memory_replaced();
        self.log.seqlock().set_read_only(false);
        Ok(())
    }

    /// Ends what a dead owner had committed in memory that this process alone sees.
    pub fn finish_commit(&self) -> Result<(), StoreError> {
        Ok(self.log.finish_commit()?)
    }

    /// Whether a commit is under way.
    pub fn is_committing(&self) -> bool {
        self.log.is_committing()
    }

    /// Whose contents these are.
    pub fn owner_header(&self) -> OwnerHeader {
        let words = OWNER_HEADER.map(|at| {
            let word = self.words().word(self.start + at);
            // Acquire: pairs with the release of the mark.
            word.map_or(0, |word| word.load(Ordering::Acquire))
        });
        OwnerHeader {
            mark: words[0],
            owner: words[1],
            name: words[2],
        }
    }

    /// Says whose contents these are, of which nobody knows so far.
    pub fn write_owner_header(&self, header: OwnerHeader) {
        for (at, value) in OWNER_HEADER
            .into_iter()
            .zip([header.mark, header.owner, header.name])
            .rev()
        {
            if let Some(word) = self.words().word(self.start + at) {
                // Release: the mark comes last, and with it all that was made.
                word.store(value, Ordering::Release);
            }
        }
    }

    /// Says to the owner that the member of a slot has mapped the contents of this number; 0: none so far.
    pub fn report_mapped(&self, slot: u32, mark: u64) {
        if let Some(readers) = self.reader_table() {
            readers.report_mapped(slot, mark);
        }
    }

    /// Says to it that the member leaves, and will map nothing more.
    pub fn report_leaving(&self, slot: u32) {
        if let Some(readers) = self.reader_table() {
            readers.report_leaving(slot);
        }
    }

    /// Whether the member of a slot has mapped the contents of this number, or leaves.
    pub fn has_mapped_or_left(&self, slot: u32, mark: u64) -> bool {
        self.reader_table()
            .is_none_or(|readers| readers.has_mapped_or_left(slot, mark))
    }
}
