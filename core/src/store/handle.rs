//! A store as one process has it: where its parts lie, and how it is opened.

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

/// The store that begins `start` bytes into a file: the bytes that it has, and those of them that need memory from the
/// beginning.
pub fn sizes(start: u64, max_memory: u64) -> (u64, u64) {
    let heap = heap_at(start);
    let size = heap::file_size(heap, max_memory) + redo_log::SIZE;
    (size, heap + heap::METADATA_SIZE)
}

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
    /// Of a store with an owner: where its readers say what they look at.
    pub(in crate::store) readers_at: Option<u64>,
    /// Something was taken out of such a store that a reader may look at.
    pub(in crate::store) has_deferred_frees: AtomicBool,
    /// What was committed, of which nobody was told so far.
    pub(in crate::store) pending_changes: AtomicBool,
    pub(in crate::store) pending_messages: AtomicU32,
}

/// The bytes of a memory, and where its log begins.
fn extent_of(words: &impl Words) -> (u64, u64) {
    let size = words.size() as u64;
    (size, size.saturating_sub(redo_log::SIZE) / PAGE * PAGE)
}

impl<W: Words, M: Members> Store<W, M> {
    /// The store that begins `start` bytes into `words`, which is all of `file`, of [`sizes`].
    ///
    /// # Panics
    /// If it does not begin with a page.
    pub fn new(
        words: W,
        file: &Arc<OwnedFd>,
        start: u64,
        max_memory: u64,
        members: M,
    ) -> io::Result<Self> {
        let (size, log_at) = extent_of(&words);
        let heap = Heap::new(file, heap_at(start), log_at, max_memory)?;
        let log = RedoLog::new(words, BackingFile::new(file), log_at, members)?;
        Ok(Store::from_parts(log, heap, start, size, false))
    }

    /// The same in a sealed file, as one has it who only reads.
    pub(in crate::store) fn open_sealed(
        words: W,
        file: &Arc<OwnedFd>,
        start: u64,
        max_memory: u64,
        members: M,
    ) -> io::Result<Self> {
        let (size, log_at) = extent_of(&words);
        let heap = Heap::sealed(file, heap_at(start), log_at, max_memory);
        let log = RedoLog::open_read_only(words, BackingFile::new(file), log_at, members)?;
        Ok(Store::from_parts(log, heap, start, size, true))
    }

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

    pub(in crate::store) fn root_at(&self, root: Root) -> u64 {
        self.start + AT_ROOTS + 8 * root as u64
    }

    /// One of the containers that it begins with.
    pub fn root(&self, root: Root, deadline: u64) -> Result<ContainerRef, StoreError> {
        self.log.read(deadline, |t| self.container_of(t, root))
    }

    pub(in crate::store) fn container_of(
        &self,
        t: &impl ReadWords,
        root: Root,
    ) -> Result<ContainerRef, StoreError> {
        copy::container_of(t, Cell(t.get(self.root_at(root))?))
    }

    /// The memory.
    pub fn words(&self) -> &W {
        self.log.seqlock().words()
    }

    /// The member that changes it just now; 0 if none does.
    pub fn holder(&self) -> u64 {
        self.log.seqlock().holder()
    }

    /// A number that is another one after each change.
    pub fn sequence(&self) -> u64 {
        self.log.seqlock().sequence()
    }

    /// How much memory it has.
    pub fn usage(&self, deadline: u64) -> Result<HeapUsage, StoreError> {
        self.log.read(deadline, |t| Ok(self.heap.usage(t)?))
    }

    /// Bytes of memory that its file has.
    pub fn allocated(&self) -> io::Result<u64> {
        self.heap.allocated()
    }

    /// Returns the number of containers ever made, also in transactions that were undone.
    pub fn containers_made(&self, deadline: u64) -> Result<u64, StoreError> {
        self.log.read(deadline, |t| {
            let skipped_ids = t.get(self.start + AT_SKIPPED_IDS)?;
            Ok(t.get(self.start + AT_LAST_ID)?.wrapping_sub(skipped_ids))
        })
    }

    /// The containers that this process has proxies of.
    pub fn proxies(&self) -> &Proxies {
        &self.proxies
    }

    /// An error for a container that was not committed so far: others see nothing of it.
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

    /// Skips numbers that another copy of this store may have given out after the two parted, and of which nothing was kept:
    /// other processes may still know the containers of that copy by them. Skips a small part of the numbers that are left,
    /// so copies alone never use them up.
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

    /// Lets no other thread of this process change anything any more: it is to be no member soon.
    pub fn close(&self, deadline: u64) {
        self.log.seqlock().close(deadline);
    }

    /// Whether this process only reads it.
    #[inline]
    pub fn is_read_only(&self) -> bool {
        self.log.seqlock().is_read_only()
    }

    pub(in crate::store) fn self_id(&self) -> u64 {
        self.log.seqlock().members().self_id()
    }

    #[inline]
    pub(in crate::store) fn reader_table(&self) -> Option<ReaderTable<'_, W>> {
        let at = self.readers_at?;
        Some(ReaderTable::new(self.words(), at))
    }

    pub(in crate::store) fn versions(&self) -> Versions {
        Versions(self.start + AT_WATCHES)
    }

    pub(in crate::store) fn pins(&self) -> Pins {
        Pins(self.start + AT_PINS)
    }
}
