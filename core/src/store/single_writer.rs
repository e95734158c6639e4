//! A store that one member, its owner, changes and that all others only read.
//!
//! Its contents lie in a [sealed](crate::memory::sealed) file of the owner, which the others map for reading. They
//! report to the owner in the [`ReaderTable`](super::reader_table), which lies elsewhere. The owner never waits for
//! readers: it frees a removed block once no reader has pinned it, and notifies watchers after the commit.
//!
//! Words that such a store has beside those of each store:
//!
//! ```text
//!     32  mark   u64   the number of these contents; 0 until they are complete
//!         owner  u64   the number of the owner
//!         name   u64   the end of the name of the memory
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
/// The owner of contents, and their identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerHeader {
    /// The number of the contents; 0 until they are complete.
    pub mark: u64,
    /// The number of the member that changes them.
    pub owner: u64,
    /// The end of the name of the memory.
    pub name: u64,
}

/// The offsets of the owner header in a store.
pub const OWNER_HEADER: [u64; 3] = [AT_MARK, AT_OWNER, AT_NAME];

impl<W: Words, M: Members> Store<W, M> {
    /// Opens the store that begins `start` bytes into `words` for reading only. `readers_at` is the offset of its
    /// reader table.
    ///
    /// # Panics
    /// If `start` is not a multiple of the page size.
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

    /// Creates contents for a store with an owner, in a file that no other process knows. The caller fills them, then
    /// calls [`write_owner_header`](Self::write_owner_header).
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

    /// Makes this process the owner, which may write, and backs the log and the metadata. The process must have mapped
    /// contents of its own. After an error the store stays read-only. The caller ensures that no other process is the
    /// owner.
    pub fn take_ownership(&self) -> io::Result<()> {
        self.log.allocate_kept()?;
        self.heap.allocate_metadata(heap_at(self.start))?;
        self.log.forget_backing();
        self.heap.forget_backing();
        self.log.seqlock().set_read_only(false);
        Ok(())
    }

    /// Finishes the commit during which the last owner died. The memory must be visible to this process alone.
    pub fn finish_commit(&self) -> Result<(), StoreError> {
        Ok(self.log.finish_commit()?)
    }

    /// Returns true if a commit is running, or was running when the owner died.
    pub fn is_committing(&self) -> bool {
        self.log.is_committing()
    }

    /// Returns the owner and the identity of the contents, an untrusted value. The contents are visible if the mark is
    /// not 0.
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

    /// Publishes contents, by writing their owner and identity, the mark last. The caller has filled the contents
    /// before.
    pub fn write_owner_header(&self, header: OwnerHeader) {
        for (at, value) in OWNER_HEADER
            .into_iter()
            .zip([header.mark, header.owner, header.name])
            .rev()
        {
            if let Some(word) = self.words().word(self.start + at) {
                // Release: the mark is stored last, after all contents.
                word.store(value, Ordering::Release);
            }
        }
    }

    /// Reports to the owner that the member of a slot has mapped the contents of this mark; 0: none so far. Does
    /// nothing without a reader table.
    pub fn report_mapped(&self, slot: u32, mark: u64) {
        if let Some(readers) = self.reader_table() {
            readers.report_mapped(slot, mark);
        }
    }

    /// Reports to the owner that the member leaves and will map nothing more.
    pub fn report_leaving(&self, slot: u32) {
        if let Some(readers) = self.reader_table() {
            readers.report_leaving(slot);
        }
    }

    /// Returns true if the member of a slot has mapped the contents of this mark, or leaves; also without a reader
    /// table.
    pub fn has_mapped_or_left(&self, slot: u32, mark: u64) -> bool {
        self.reader_table()
            .is_none_or(|readers| readers.has_mapped_or_left(slot, mark))
    }
}
