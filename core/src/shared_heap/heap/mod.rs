//! Blocks that are allocated and freed within transactions of a [`redo_log`](super::redo_log).
//!
//! Offsets in bytes from its beginning, a multiple of [`PAGE`]:
//!
//! ```text
//!   0  metadata  see `allocator`
//!      map       16 for each page, from the next whole page on: see `pages`
//!      pages     from the next whole page on
//! ```
//!
//! A block belongs to the transaction that has allocated it until the commit makes it visible to all. A freed block
//! becomes free at the end of the transaction: until then readers may copy it, and the transaction may be rolled back.
//!
//! Pages are backed and returned under the lock, while others wait for it. If the holder dies, the file may have pages
//! that the metadata do not list as backed; the member that takes the lock over returns them.
//!
//! The caller of a method with a `Writer` holds the lock of the redo log, and rolls the operation back after an error.

mod repair;

use crate::crash;
use crate::shared_heap::access::ReadWords;
use crate::shared_heap::backing_file::{BackingFile, PAGE};
use crate::shared_heap::blocks::{self, Blocks, aligned, pages_for};
use crate::shared_heap::pages::{Kind, PageEntry};
use crate::shared_heap::redo_log::{self, Writer};
use crate::shared_heap::{Field, HeapError, Members, Words, corrupt};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The most runs to return at the end of one transaction.
const MAX_RUNS: usize = 64;
/// The number of free backed pages to keep in a small and in a large store, however few are used. A large value that
/// replaces another one, or a message that follows another one, then finds backed pages: backing new ones takes ten
/// times as long as writing them. A small store keeps fewer, because spare pages are no use to a value that is larger
/// than each free run.
const MIN_SPARE: std::ops::RangeInclusive<u64> = 64..=if cfg!(test) { 64 } else { 1024 };

/// The heap of a store, as one process has it.
pub struct Heap {
    pub(in crate::shared_heap) blocks: Blocks,
    /// True if the file is sealed. Its pages cannot be returned, so free ones are kept for the next blocks.
    is_sealed: bool,
}

/// The memory use of a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapUsage {
    /// Bytes of backed pages.
    pub backed: u64,
    /// Bytes of backed pages that are free.
    pub spare: u64,
    /// The most bytes that may be backed.
    pub limit: u64,
}

/// Returns the size of a file in which a heap begins at `start`.
pub fn file_size(start: u64, max_memory: u64) -> u64 {
    blocks::file_size(start + blocks::METADATA_SIZE, max_memory)
}

/// Bytes of the metadata, which are backed from the beginning.
pub const METADATA_SIZE: u64 = blocks::METADATA_SIZE;

impl Heap {
    /// Opens the heap that begins `start` bytes into `file`, which has `size` bytes, see [`file_size`]. `max_memory`
    /// bounds the pages, without the metadata before them.
    ///
    /// # Panics
    /// If `start` is not a multiple of the page size, or the file has no space for any page.
    pub fn new(file: &Arc<OwnedFd>, start: u64, size: u64, max_memory: u64) -> io::Result<Self> {
        assert!(start % PAGE == 0);
        let heap = Heap::open(file, start, size, max_memory);
        heap.allocate_metadata(start)?;
        Ok(heap)
    }

    /// Opens the heap of a file that is sealed against writes by others, or is about to be: its pages cannot be
    /// returned.
    pub fn sealed(file: &Arc<OwnedFd>, start: u64, size: u64, max_memory: u64) -> Self {
        Heap {
            is_sealed: true,
            ..Heap::open(file, start, size, max_memory)
        }
    }

    /// Opens a heap without backing its metadata.
    fn open(file: &Arc<OwnedFd>, start: u64, size: u64, max_memory: u64) -> Self {
        let map = aligned(start + blocks::METADATA_SIZE);
        Heap {
            blocks: Blocks::new(BackingFile::new(file), start, map, size, max_memory),
            is_sealed: false,
        }
    }

    /// Backs the metadata with pages.
    pub fn allocate_metadata(&self, start: u64) -> io::Result<()> {
        let len = aligned(start + blocks::METADATA_SIZE) - start;
        self.blocks.backing_file.allocate(start, len)
    }

    /// Returns the memory use.
    pub fn usage(&self, t: &impl ReadWords) -> Result<HeapUsage, HeapError> {
        Ok(HeapUsage {
            backed: self.blocks.pages.backed(t)? * PAGE,
            spare: self.blocks.pages.spare(t)? * PAGE,
            limit: self.blocks.max_pages * PAGE,
        })
    }

    /// Allocates a block of at least `len` bytes. Its offset is a multiple of 16, and of the page size if it is larger
    /// than 16 KiB. Its contents are undefined; write them by [`WriteWords::init`](super::access::WriteWords::init).
    /// Fails with [`HeapError::Limit`] or [`HeapError::System`] if too few pages can be backed.
    pub fn allocate<W: Words, M: Members>(
        &self,
        t: &mut Writer<'_, W, M>,
        len: u64,
    ) -> Result<u64, HeapError> {
        let offset = match self.blocks.allocate(t, len, false)? {
            Some(offset) => offset,
            None => self.allocate_more(t, len)?,
        };
        t.add_fresh(offset, len.div_ceil(8) * 8);
        Ok(offset)
    }

    /// Backs more pages and allocates a block from them. Returns [`HeapError::Limit`] or [`HeapError::System`] if too
    /// few can be backed.
    #[cold]
    fn allocate_more<W: Words, M: Members>(
        &self,
        t: &mut Writer<'_, W, M>,
        len: u64,
    ) -> Result<u64, HeapError> {
        let need = pages_for(len);
        // First more than needed, then only as much.
        let mut refused = None;
        for with_spare in [true, false] {
            match self.grow(t, need, with_spare) {
                Ok(true) => match self.blocks.allocate(t, len, false)? {
                    Some(offset) => return Ok(offset),
                    None => continue,
                },
                Ok(false) => {}
                Err(HeapError::System { error, .. }) => refused = Some(error),
                Err(other) => return Err(other),
            }
        }
        if let Some(error) = refused {
            return Err(HeapError::System { asked: len, error });
        }
        let usage = self.usage(t)?;
        Err(HeapError::Limit {
            asked: len,
            used: usage.backed - usage.spare.min(usage.backed),
            limit: usage.limit,
        })
    }

    /// Returns the least number of free backed pages to keep.
    fn min_spare(&self) -> u64 {
        let share = self.blocks.max_pages / 16;
        share.clamp(*MIN_SPARE.start(), *MIN_SPARE.end())
    }

    /// Backs a run of `need` pages, and some for later if `with_spare`, and frees it for the next block. Returns false
    /// if `max_memory` or the file has no space for them, and [`HeapError::System`] if the kernel refuses them.
    fn grow<W: Words, M: Members>(
        &self,
        t: &mut Writer<'_, W, M>,
        need: u64,
        with_spare: bool,
    ) -> Result<bool, HeapError> {
        let Blocks {
            pages,
            backing_file,
            ..
        } = &self.blocks;
        let Some((page, count)) = self.blocks.take_bare_run(t, need, with_spare)? else {
            return Ok(false);
        };
        let (start, len) = (pages.offset(page), count * PAGE);
        // The kernel's count, because the one in shared memory is untrusted.
        let most = pages.data + self.blocks.max_pages * PAGE + redo_log::SIZE;
        let is_over = || {
            let allocated = backing_file.allocated();
            allocated
                .map(|bytes| bytes + len > most)
                .map_err(|error| HeapError::System { asked: len, error })
        };
        let mut over = is_over()?;
        if over && !self.is_sealed {
            // A reader may have touched an unbacked page and so backed it.
            self.punch_bare(t)?;
            over = is_over()?;
        }
        let fetched = match over {
            true => Err(io::Error::other(
                "the file has more pages than max_memory allows",
            )),
            false => backing_file.allocate(start, len),
        };
        if let Err(error) = fetched {
            pages.set_entry(t, page, PageEntry::new(Kind::Bare, count))?;
            pages.free_run(t, Kind::Bare, page, count)?;
            return Err(HeapError::System { asked: len, error });
        }
        crash::point!(HeapGrown);
        t.pending.fetched.push((start, len));
        pages.add_backed(t, count)?;
        pages.set_entry(t, page, PageEntry::new(Kind::Spare, count))?;
        pages.free_run(t, Kind::Spare, page, count)?;
        Ok(true)
    }

    /// Frees a block when [`finish_frees`](Self::finish_frees) is called before the commit. The offset is not checked
    /// until then.
    #[inline]
    pub fn free<W: Words, M: Members>(&self, t: &mut Writer<'_, W, M>, offset: u64) {
        t.pending.freed.push(offset);
    }

    /// Returns the number of blocks to free when the transaction ends.
    pub fn pending_frees<W: Words, M: Members>(&self, t: &Writer<'_, W, M>) -> usize {
        t.pending.freed.len()
    }

    /// Frees the blocks passed to [`free`](Self::free), and marks excess pages, in a bounded number of runs, to be
    /// returned after the commit. The caller commits afterwards. Reports a corruption if there is no such block.
    pub fn finish_frees<W: Words, M: Members>(
        &self,
        t: &mut Writer<'_, W, M>,
    ) -> Result<(), HeapError> {
        if t.pending.freed.is_empty() {
            return Ok(());
        }
        for offset in std::mem::take(&mut t.pending.freed) {
            self.blocks
                .release(t, offset, false)
                .map_err(|error| match error {
                    // The offset was read from shared memory, so the memory is corrupt.
                    HeapError::NoBlock { offset } => corrupt(Field::Offset, offset, offset),
                    other => other,
                })?;
        }
        if self.is_sealed {
            return Ok(());
        }
        let Some(most) = self.blocks.spare_to_keep(t, self.min_spare())? else {
            return Ok(());
        };
        let pages = &self.blocks.pages;
        for _ in 0..MAX_RUNS {
            let excess = pages.spare(t)?.saturating_sub(most);
            if excess == 0 {
                break;
            }
            let Some((page, len)) = pages.longest_run(t, Kind::Spare)? else {
                break;
            };
            let count = len.min(excess);
            pages.split_run(t, Kind::Spare, (page, len), count)?;
            pages.set_entry(t, page, PageEntry::new(Kind::Bare, count))?;
            pages.free_run(t, Kind::Bare, page, count)?;
            pages.subtract_backed(t, count)?;
            t.pending.to_punch.push((pages.offset(page), count * PAGE));
        }
        Ok(())
    }

    /// Backs all pages that the metadata list as backed: a copy lacks those that were never written. Fails with
    /// [`HeapError::System`] if the system has too little memory.
    pub fn back_all<W: Words, M: Members>(&self, t: &Writer<'_, W, M>) -> Result<(), HeapError> {
        let Blocks {
            pages,
            backing_file,
            ..
        } = &self.blocks;
        let (mut page, frontier) = (0, pages.frontier(t)?);
        self.blocks.forget_backing();
        self.blocks.back_map(frontier)?;
        while page < frontier {
            let (entry, len) = pages.entry_and_len(t, page, frontier)?;
            if matches!(entry.kind, Kind::Spare | Kind::Block | Kind::Slab) {
                let asked = len * PAGE;
                let fetched = backing_file.allocate(pages.offset(page), asked);
                fetched.map_err(|error| HeapError::System { asked, error })?;
            }
            page += len;
        }
        Ok(())
    }

    /// Returns the written ranges of the file between `start` and `end`: the beginning and the end of each, see
    /// [`BackingFile::written`].
    pub fn written(&self, start: u64, end: u64) -> io::Result<Vec<(u64, u64)>> {
        self.blocks.backing_file.written(start, end)
    }

    /// Forgets which part of the page map is backed: other memory has replaced it.
    pub fn forget_backing(&self) {
        self.blocks.forget_backing();
    }

    /// Returns the bytes of pages that the file has.
    pub fn allocated(&self) -> io::Result<u64> {
        self.blocks.backing_file.allocated()
    }
}

#[cfg(test)]
impl Heap {
    /// Returns the offset of the pages.
    pub(crate) fn tests_data(&self) -> u64 {
        self.blocks.pages.data
    }
}
