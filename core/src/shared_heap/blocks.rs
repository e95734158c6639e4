//! Blocks of any size and the pages that they consist of: the part that [`allocator`](super::allocator) and
//! [`heap`](super::heap) share.

use super::access::{ReadWords, WriteWords};
use super::backing_file::{self, BackingFile, PAGE};
use super::pages::{HEADS, Kind, MAP_ENTRY, PageEntry, Pages};
use super::{HeapError, slabs};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes by which the page map is backed: the entries for 16 MiB of pages of 4 KiB.
const MAP_STEP: u64 = 64 << 10;
/// The largest file: a larger one could not be guarded against truncation.
const LARGEST: u64 = ((1 << 24) - 1) * 4096;
/// Bytes of the metadata: the page counts, and the heads of the lists of slabs and of free runs.
pub(super) const METADATA_SIZE: u64 = 4096 + HEADS;

/// Returns the size of a file whose page map begins at the first page from `start` on: with twice the pages that
/// `max_memory` backs, within [`LARGEST`].
pub(super) fn file_size(start: u64, max_memory: u64) -> u64 {
    // Twice as many pages as may be backed, so that a long run is found although free pages are scattered.
    let pages = max_memory.div_ceil(PAGE).saturating_mul(2);
    let map = aligned(pages.saturating_mul(MAP_ENTRY));
    let size = aligned(start).saturating_add(map);
    size.saturating_add(pages.saturating_mul(PAGE))
        .min(LARGEST / PAGE * PAGE)
}

/// Returns the offset of the first page from this offset on.
pub(super) const fn aligned(offset: u64) -> u64 {
    offset.div_ceil(PAGE).saturating_mul(PAGE)
}

/// Returns the most pages that a block of this many bytes may take: a whole slab for a small one.
pub(super) fn pages_for(len: u64) -> u64 {
    if len <= slabs::LARGEST {
        slabs::class_of(len).pages
    } else {
        len.div_ceil(PAGE)
    }
}

/// The pages of a file and their backing, as one process has them.
pub(super) struct Blocks {
    pub(super) pages: Pages,
    pub(super) backing_file: BackingFile,
    /// The most pages that may be backed.
    pub(super) max_pages: u64,
    /// Bytes of the page map that are backed, as far as this process knows.
    mapped: AtomicU64,
}

impl Blocks {
    /// Opens the pages of a file of `size` bytes whose metadata and page map begin at these offsets. `max_memory`
    /// bounds the backed pages, in bytes.
    ///
    /// # Panics
    /// If the file has no space for any page.
    pub(super) fn new(
        backing_file: BackingFile,
        metadata: u64,
        map: u64,
        size: u64,
        max_memory: u64,
    ) -> Self {
        assert!(map + 2 * PAGE <= size);
        let mut count = (size - map) / (PAGE + MAP_ENTRY);
        while aligned(map + count * MAP_ENTRY) + count * PAGE > size {
            count -= 1;
        }
        Blocks {
            pages: Pages {
                metadata,
                heads: metadata + 4096,
                map,
                data: aligned(map + count * MAP_ENTRY),
                count,
            },
            backing_file,
            max_pages: (max_memory / PAGE).min(count),
            mapped: AtomicU64::new(0),
        }
    }

    /// Returns the page that an offset lies in, and its entry in the page map. Returns [`HeapError::NoBlock`] if the
    /// offset lies outside of the used pages, or within the first page of a run of pages. The caller checks the kind,
    /// because the page may be free.
    pub(super) fn locate(
        &self,
        t: &impl ReadWords,
        offset: u64,
    ) -> Result<(u64, PageEntry), HeapError> {
        let none = HeapError::NoBlock { offset };
        let Some(within) = offset.checked_sub(self.pages.data) else {
            return Err(none);
        };
        let page = within / PAGE;
        if page >= self.pages.frontier(t)? {
            return Err(none);
        }
        let entry = self.pages.entry(t, page)?;
        let is_run = matches!(entry.kind, Kind::Block | Kind::Unfinished | Kind::Moving);
        if is_run && within % PAGE != 0 {
            return Err(none);
        }
        Ok((page, entry))
    }

    /// Allocates a block of at least `len` bytes from backed pages, for a member to commit if `is_unfinished`. Returns
    /// its offset; None if there are not enough pages, and the caller backs more.
    pub(super) fn allocate(
        &self,
        t: &mut impl WriteWords,
        len: u64,
        is_unfinished: bool,
    ) -> Result<Option<u64>, HeapError> {
        if len <= slabs::LARGEST {
            return slabs::allocate(&self.pages, t, len, is_unfinished);
        }
        self.allocate_pages(t, len.div_ceil(PAGE), is_unfinished)
    }

    /// Allocates a block of whole backed pages, for a member to commit if `is_unfinished`. Returns its offset; None if
    /// there are not enough.
    pub(super) fn allocate_pages(
        &self,
        t: &mut impl WriteWords,
        pages: u64,
        is_unfinished: bool,
    ) -> Result<Option<u64>, HeapError> {
        let Some(page) = self.pages.take_run(t, Kind::Spare, pages)? else {
            return Ok(None);
        };
        let kind = if is_unfinished {
            Kind::Unfinished
        } else {
            Kind::Block
        };
        self.pages.set_entry(t, page, PageEntry::new(kind, pages))?;
        Ok(Some(self.pages.offset(page)))
    }

    /// Frees an unfinished block if `is_unfinished`, or else a committed one. Its pages stay backed. Returns
    /// [`HeapError::NoBlock`] or [`HeapError::NotUnfinished`] if the block is not of that kind.
    pub(super) fn release(
        &self,
        t: &mut impl WriteWords,
        offset: u64,
        is_unfinished: bool,
    ) -> Result<(), HeapError> {
        let (page, entry) = self.locate(t, offset)?;
        match (entry.kind, is_unfinished) {
            (Kind::Block, false) | (Kind::Unfinished, true) => {
                if entry.len == 0 {
                    return Err(self.pages.corrupt_entry(page, entry));
                }
                self.pages.free_run(t, Kind::Spare, page, entry.len)
            }
            (Kind::Slab | Kind::SlabInner, _) => {
                slabs::free(&self.pages, t, offset, page, entry, is_unfinished)
            }
            _ => Err(HeapError::NoBlock { offset }),
        }
    }

    /// Returns the number of free backed pages to keep, half of [`backing_file::spare_limit`], if more pages than that
    /// limit are free; None if all may stay.
    pub(super) fn spare_to_keep(
        &self,
        t: &impl ReadWords,
        least: u64,
    ) -> Result<Option<u64>, HeapError> {
        let spare = self.pages.spare(t)?;
        let used = self.pages.backed(t)?.saturating_sub(spare);
        let limit = backing_file::spare_limit(used, least);
        Ok((spare > limit).then_some(limit / 2))
    }

    /// Takes a run of pages that are not backed: `need` pages, and some for later if `with_spare`. Returns its first
    /// page and its length. The caller sets its entry, backs it and adds to the number of backed pages; only the page
    /// map is backed here. Returns None if `max_memory` or the file has no space for them. Fails with
    /// [`HeapError::System`] if the kernel refuses pages for the map.
    pub(super) fn take_bare_run(
        &self,
        t: &mut impl WriteWords,
        need: u64,
        with_spare: bool,
    ) -> Result<Option<(u64, u64)>, HeapError> {
        let backed = self.pages.backed(t)?;
        let left = self.max_pages.saturating_sub(backed);
        if need > left {
            return Ok(None);
        }
        let count = match with_spare {
            true => backing_file::growth_step(backed).max(need).min(left),
            false => need,
        };
        if let Some(page) = self.pages.take_run(t, Kind::Bare, count)? {
            return Ok(Some((page, count)));
        }
        let end = self.pages.frontier(t)? + count;
        if end > self.pages.count {
            return Ok(None);
        }
        self.back_map(end)?;
        let page = self.pages.take_fresh_run(t, count)?;
        Ok(page.map(|page| (page, count)))
    }

    /// Forgets which part of the page map is backed, because other memory has replaced it.
    pub(super) fn forget_backing(&self) {
        // Relaxed: as below.
        self.mapped.store(0, Ordering::Relaxed);
    }

    /// Backs the page map for the first `count` pages. Does nothing if this process has done so before.
    pub(super) fn back_map(&self, count: u64) -> Result<(), HeapError> {
        // Relaxed, here and below: another thread may at most have backed the same part again.
        let known = self.mapped.load(Ordering::Relaxed);
        let wanted = count * MAP_ENTRY;
        if wanted <= known {
            return Ok(());
        }
        let end = wanted.next_multiple_of(MAP_STEP);
        let end = end.min(self.pages.data - self.pages.map);
        let backed = self
            .backing_file
            .allocate(self.pages.map + known, end - known);
        backed.map_err(|error| HeapError::System {
            asked: end - known,
            error,
        })?;
        self.mapped.store(end, Ordering::Relaxed);
        Ok(())
    }
}
