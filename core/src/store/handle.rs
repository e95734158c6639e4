//! The handle of a store in one process: how it is opened, and where its parts lie.

use super::error::StoreError;
use super::format::budget::Budget;
use super::format::cell::Cell;
use super::format::copy;
use super::format::header;
use super::format::pins::{self, Pins};
use super::format::roots::Root;
use super::format::value::ContainerRef;
use super::format::versions::{self, Versions};
use super::proxies::Proxies;
use super::reader_table::ReaderTable;
use crate::shared_heap::access::{OptimisticView, ReadWords};
use crate::shared_heap::backing_file::{BackingFile, PAGE};
use crate::shared_heap::heap::{self, Heap, HeapUsage};
use crate::shared_heap::redo_log::{self, RedoLog};
use crate::shared_heap::{Members, Words};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

pub(super) const AT_LAST_ID: u64 = 0;
pub(super) const AT_ROOTS: u64 = 8;
pub(super) const AT_COMMITTED_ID: u64 = 56;
pub(super) const AT_PINS: u64 = 64;
pub(super) const AT_SKIPPED_IDS: u64 = 72;
pub(super) const AT_WATCHES: u64 = AT_PINS + pins::SIZE;

/// Returns the size of a file in which a store begins at `start`, and the size of its part that is backed from the
/// beginning, in bytes.
pub fn sizes(start: u64, max_memory: u64) -> (u64, u64) {
    let heap = heap_at(start);
    let size = heap::file_size(heap, max_memory) + redo_log::SIZE;
    (size, heap + heap::METADATA_SIZE)
}

/// Returns the offset of the heap of a store that begins at `start`: the first page behind its roots, pins and watches.
pub(super) fn heap_at(start: u64) -> u64 {
    (start + AT_WATCHES + versions::SIZE).next_multiple_of(PAGE)
}

/// A store, as one process has it.
pub struct Store<W, M> {
    pub(in crate::store) log: RedoLog<W, M>,
    pub(in crate::store) heap: Heap,
    pub(in crate::store) start: u64,
    pub(in crate::store) budget: Budget,
    pub(in crate::store) proxies: Proxies,
    /// The offset of the [`ReaderTable`], if the store has an owner.
    pub(in crate::store) readers_at: Option<u64>,
    /// True if a block of such a store waits to be freed because a reader may have pinned it.
    pub(in crate::store) has_deferred_frees: AtomicBool,
    /// Committed changes that waiters were not yet notified of.
    pub(in crate::store) pending_changes: AtomicBool,
    pub(in crate::store) pending_messages: AtomicU32,
}

/// Returns the size of a memory in bytes, and the offset of the redo log in it.
fn size_and_log_offset(words: &impl Words) -> (u64, u64) {
    let size = words.size() as u64;
    (size, size.saturating_sub(redo_log::SIZE) / PAGE * PAGE)
}

impl<W: Words, M: Members> Store<W, M> {
    /// Opens the store that begins `start` bytes into `words`, which map all of `file`, see [`sizes`]. Zeros are a
    /// store that [`initialize`](Self::initialize) has to complete. Backs the metadata, and fails if the system refuses
    /// memory.
    ///
    /// # Panics
    /// If `start` is not a multiple of the page size.
    pub fn new(
        words: W,
        file: &Arc<OwnedFd>,
        start: u64,
        max_memory: u64,
        members: M,
    ) -> io::Result<Self> {
        let (size, log_at) = size_and_log_offset(&words);
        let heap = Heap::new(file, heap_at(start), log_at, max_memory)?;
        let log = RedoLog::new(words, BackingFile::new(file), log_at, members)?;
        Ok(Store::from_parts(log, heap, start, size, false))
    }

    /// Opens the store in a sealed file, for reading only, without backing anything.
    pub(in crate::store) fn open_sealed(
        words: W,
        file: &Arc<OwnedFd>,
        start: u64,
        max_memory: u64,
        members: M,
    ) -> io::Result<Self> {
        let (size, log_at) = size_and_log_offset(&words);
        let heap = Heap::sealed(file, heap_at(start), log_at, max_memory);
        let log = RedoLog::open_read_only(words, BackingFile::new(file), log_at, members)?;
        Ok(Store::from_parts(log, heap, start, size, true))
    }

    /// Creates the handle of an opened log and an opened heap.
    fn from_parts(
        log: RedoLog<W, M>,
        heap: Heap,
        start: u64,
        size: u64,
        has_deferred_frees: bool,
    ) -> Self {
        Store {
            log,
            heap,
            start,
            budget: Budget::of(size),
            proxies: Proxies::default(),
            readers_at: None,
            has_deferred_frees: AtomicBool::new(has_deferred_frees),
            pending_changes: AtomicBool::new(false),
            pending_messages: AtomicU32::new(0),
        }
    }

    /// Returns the offset of the cell of a root.
    pub(in crate::store) fn root_at(&self, root: Root) -> u64 {
        self.start + AT_ROOTS + 8 * root as u64
    }

    /// Returns the container that is a root, as of one moment. The caller has initialized the store: a root that is
    /// missing counts as a corruption, and poisons the store.
    pub fn root(&self, root: Root, deadline: u64) -> Result<ContainerRef, StoreError> {
        self.log.read(deadline, |t| self.container_of(t, root))
    }

    /// Returns the container that is a root, in the state that `t` reads.
    pub(in crate::store) fn container_of(
        &self,
        t: &impl ReadWords,
        root: Root,
    ) -> Result<ContainerRef, StoreError> {
        copy::container_of(t, Cell(t.get(self.root_at(root))?))
    }

    /// Returns the memory.
    pub fn words(&self) -> &W {
        self.log.seqlock().words()
    }

    /// Returns the member that holds the lock now; 0 if none does. A hint.
    pub fn holder(&self) -> u64 {
        self.log.seqlock().holder()
    }

    /// Returns a number that differs after each change. A hint, read without the lock.
    pub fn sequence(&self) -> u64 {
        self.log.seqlock().sequence()
    }

    /// Returns the memory use.
    pub fn usage(&self, deadline: u64) -> Result<HeapUsage, StoreError> {
        self.log.read(deadline, |t| Ok(self.heap.usage(t)?))
    }

    /// Returns the bytes of pages that its file has.
    pub fn allocated(&self) -> io::Result<u64> {
        self.heap.allocated()
    }

    /// Returns the number of containers ever created, including those of transactions that were rolled back.
    pub fn containers_made(&self, deadline: u64) -> Result<u64, StoreError> {
        self.log.read(deadline, |t| {
            let skipped_ids = t.get(self.start + AT_SKIPPED_IDS)?;
            Ok(t.get(self.start + AT_LAST_ID)?.wrapping_sub(skipped_ids))
        })
    }

    /// Returns the containers that this process has proxies of.
    pub fn proxies(&self) -> &Proxies {
        &self.proxies
    }

    /// Returns [`StoreError::ContainerDeleted`] for a container that is not committed, which other processes must not
    /// see.
    #[inline]
    pub(in crate::store) fn check_committed(
        &self,
        t: &OptimisticView<'_, W>,
        container: Option<ContainerRef>,
    ) -> Result<(), StoreError> {
        let Some(container) = container else {
            return Ok(());
        };
        let committed = t.get(self.start + AT_COMMITTED_ID)?;
        match header::number(container.id) <= header::number(committed) {
            true => Ok(()),
            false => Err(StoreError::ContainerDeleted),
        }
    }

    /// Skips `count` container numbers, modulo 1/4096 of the remaining ones, because another copy of this store may
    /// have given the next numbers to containers that processes still know, and copies alone must not use the numbers
    /// up. No other process may know this memory, because no lock is acquired.
    pub(in crate::store) fn skip_ids(&self, count: u64) {
        let last = self.words().word(self.start + AT_LAST_ID);
        // Relaxed: no other process knows this memory.
        let last = last.map_or(0, |word| word.load(Relaxed));
        let left = header::NUMBERS - header::number(last);
        let count = count % (left >> 12).max(1);
        for at in [AT_LAST_ID, AT_SKIPPED_IDS] {
            if let Some(word) = self.words().word(self.start + at) {
                // Relaxed: no other process knows this memory.
                word.store(word.load(Relaxed).wrapping_add(count), Relaxed);
            }
        }
    }

    /// Refuses changes by all other threads of this process, which is about to leave. Waits until they have released
    /// the lock, or until `deadline`: then some may still hold it, without an error.
    pub fn close(&self, deadline: u64) {
        self.log.seqlock().close(deadline);
    }

    /// Returns true if this process only reads the store.
    #[inline]
    pub fn is_read_only(&self) -> bool {
        self.log.seqlock().is_read_only()
    }

    /// Returns the number of this member; 0 if this process is none.
    pub(in crate::store) fn self_id(&self) -> u64 {
        self.log.seqlock().members().self_id()
    }

    /// Returns the reader table, if the store has an owner.
    #[inline]
    pub(in crate::store) fn reader_table(&self) -> Option<ReaderTable<'_, W>> {
        let at = self.readers_at?;
        Some(ReaderTable::new(self.words(), at))
    }

    /// Returns the table of watched containers.
    pub(in crate::store) fn versions(&self) -> Versions {
        Versions(self.start + AT_WATCHES)
    }

    /// Returns the table of pinned buffers.
    pub(in crate::store) fn pins(&self) -> Pins {
        Pins(self.start + AT_PINS)
    }
}
