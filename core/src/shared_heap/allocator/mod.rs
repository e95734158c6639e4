//! Blocks of any size in shared memory, for members that may die at any time.
//!
//! Offsets in bytes from its beginning, a multiple of [`PAGE`]:
//!
//! ```text
//!      0  undo log  4096            see `undo_log.rs`
//!   4096  metadata  4096
//!           0  frontier   u64       pages that were ever used
//!           8  backed     u64       pages that are backed
//!          16  spare      u64       backed pages that are free
//!          32  free       u64       the first free entry of the table below, plus one
//!          40  high       u64       entries of the table that were ever used
//!          64  bits       8 u64     the lists of free runs that are not empty: backed ones, then bare ones
//!         128  slabs      64 u64    the lists of slabs with free blocks, by class: a page plus one
//!   8192  heads     512 x u64       the lists of free runs: a page plus one
//!  12288  table     4096 x 16       unfinished allocations: see `unfinished_allocs.rs`
//!  77824  map       16 for each page, from the next whole page on: see `pages`
//!         pages     from the next whole page on
//! ```
//!
//! Zeros are a valid allocator without blocks. Everything before the map is backed from the beginning; the map is
//! backed as needed, and stays so.
//!
//! # From the request to the block
//!
//! Blocks of up to 16 KiB come from slabs, larger ones are runs of pages. Both use free backed pages if there are any;
//! otherwise a few more pages than needed are backed. `max_memory` bounds the backed pages. Freed pages stay backed for
//! the next block, up to an eighth of the used pages; the rest is returned to the system, wherever it lies. So
//! scattered free pages do no harm, and a file larger than `max_memory` costs only addresses.
//!
//! # The life of a block
//!
//! [`Allocator::reserve`] returns a block of this member alone, which it fills without the lock. If the member dies,
//! [`Allocator::recover`] frees the block. In a transaction the member then publishes its offset, for example in a word
//! of a queue, and calls [`Allocator::commit`]: from then on the block is shared, and lives until a member calls
//! [`Allocator::free`], or [`Allocator::free_within`] the transaction that removes its offset.

mod page_moves;

use crate::crash;
use crate::shared_heap::backing_file::{BackingFile, PAGE};
use crate::shared_heap::blocks::{self, Blocks, aligned, pages_for};
use crate::shared_heap::pages::{HEADS, Kind, PageEntry};
use crate::shared_heap::slabs;
use crate::shared_heap::undo_log::{self, Transaction, UndoLog};
use crate::shared_heap::unfinished_allocs::{self, UnfinishedAllocs};
use crate::shared_heap::{HeapError, Members, Words};
use crate::sync::lock;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

/// The number of free backed pages to keep, however few are used.
const MIN_SPARE: u64 = 64;
const METADATA: u64 = undo_log::SIZE;
const TABLE: u64 = METADATA + 4096 + HEADS;
const MAP: u64 = TABLE + unfinished_allocs::SIZE;

/// A block that this member has reserved. Commit it or release it.
#[derive(Debug)]
#[must_use = "commit or release the block: otherwise it stays reserved until the member dies"]
pub struct Reservation {
    offset: u64,
    entry: u64,
}

impl Reservation {
    /// Returns the offset of the block in bytes from the beginning of the memory: a multiple of 16, and of the page
    /// size if the block is larger than 16 KiB.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

/// The memory use of an allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of backed pages.
    pub backed: u64,
    /// Bytes of backed pages that are free.
    pub spare: u64,
}

/// A run of pages that this member is backing or punching.
#[derive(Clone, Copy, Debug)]
struct PageMove {
    page: u64,
    pages: u64,
    entry: u64,
    /// The kind of the pages afterwards.
    becomes: Kind,
}

/// An allocator, as one process has it.
pub struct Allocator<W, M> {
    undo_log: UndoLog<W, M>,
    blocks: Blocks,
    unfinished: UnfinishedAllocs,
    /// Runs that were backed or punched, which could not be recorded because the lock was not available in time.
    unreported_moves: Mutex<Vec<PageMove>>,
}

/// Returns the size of a file in which an allocator begins at `start`.
pub fn file_size(start: u64, max_memory: u64) -> u64 {
    blocks::file_size(start + MAP, max_memory)
}

impl<W: Words, M: Members> Allocator<W, M> {
    /// Opens the allocator that begins `start` bytes into `words`, which map all of `file`, see [`file_size`], and
    /// backs the metadata before the map. All members must pass the same `start` and `max_memory`, which bounds the
    /// pages without the metadata before them.
    ///
    /// # Panics
    /// If `start` is not a multiple of the page size, or the file has no space for any page.
    pub fn new(
        words: W,
        file: &Arc<OwnedFd>,
        start: u64,
        max_memory: u64,
        members: M,
    ) -> io::Result<Self> {
        assert!(start % PAGE == 0);
        let map = aligned(start + MAP);
        let metadata = start + METADATA;
        let blocks = Blocks::new(
            BackingFile::new(file),
            metadata,
            map,
            words.size() as u64,
            max_memory,
        );
        blocks.backing_file.allocate(start, map - start)?;
        Ok(Allocator {
            undo_log: UndoLog::new(words, start, members)?,
            blocks,
            unfinished: UnfinishedAllocs {
                metadata,
                start: start + TABLE,
            },
            unreported_moves: Mutex::new(Vec::new()),
        })
    }

    /// Returns the lock and its transactions, which also change the contents of blocks.
    pub fn undo_log(&self) -> &UndoLog<W, M> {
        &self.undo_log
    }

    /// Returns the memory use.
    pub fn usage(&self, deadline: u64) -> Result<Usage, HeapError> {
        self.undo_log.read(deadline, |t| {
            Ok(Usage {
                backed: self.blocks.pages.backed(t)? * PAGE,
                spare: self.blocks.pages.spare(t)? * PAGE,
            })
        })
    }

    /// Returns the bytes of pages that the file has, metadata included.
    pub fn allocated(&self) -> io::Result<u64> {
        self.blocks.backing_file.allocated()
    }

    /// Reserves a block of at least `len` bytes for this member to fill. Its contents are undefined. The caller commits
    /// or releases it. Fails with [`HeapError::Limit`] or [`HeapError::System`] if too few pages can be backed, and
    /// with [`HeapError::TooManyUnfinished`].
    pub fn reserve(&self, len: u64, deadline: u64) -> Result<Reservation, HeapError> {
        self.reserve_as(len, pages_for(len), deadline, |t| {
            self.blocks.allocate(t, len, true)
        })
    }

    /// Reserves a block of whole pages, however small `len` is, so the call succeeds whenever enough pages are free.
    /// Otherwise as [`reserve`](Self::reserve).
    pub fn reserve_pages(&self, len: u64, deadline: u64) -> Result<Reservation, HeapError> {
        let pages = len.div_ceil(PAGE);
        self.reserve_as(len, pages, deadline, |t| {
            self.blocks.allocate_pages(t, pages, true)
        })
    }

    /// Reserves the block of `len` bytes that `carve` takes from at most `pages` pages, and records this member as its
    /// owner. `carve` returns None if too few pages are backed.
    fn reserve_as(
        &self,
        len: u64,
        pages: u64,
        deadline: u64,
        carve: impl Fn(&mut Transaction<'_, W, M>) -> Result<Option<u64>, HeapError>,
    ) -> Result<Reservation, HeapError> {
        let reserved = self.with_enough_pages(len, pages, deadline, |t| {
            let Some(offset) = carve(t)? else {
                return Ok(None);
            };
            let entry = self.unfinished.add(t, offset)?;
            Ok(Some(Reservation { offset, entry }))
        })?;
        crash::point!(BlockReserved);
        Ok(reserved)
    }

    /// Commits a block within the transaction that publishes its offset. Returns [`HeapError::NotUnfinished`] if this
    /// member has no such reservation.
    pub fn commit(
        &self,
        t: &mut Transaction<'_, W, M>,
        block: &Reservation,
    ) -> Result<(), HeapError> {
        self.unfinished.remove(t, block.entry, block.offset)?;
        let (page, entry) = self.blocks.locate(t, block.offset)?;
        match entry.kind {
            Kind::Unfinished => {
                let kind = Kind::Block;
                self.blocks
                    .pages
                    .set_entry(t, page, PageEntry { kind, ..entry })
            }
            Kind::Slab | Kind::SlabInner => {
                slabs::commit(&self.blocks.pages, t, block.offset, page, entry)
            }
            _ => Err(HeapError::NotUnfinished {
                offset: block.offset,
            }),
        }
    }

    /// Frees a reserved block, and returns excess pages to the system. Fails with [`HeapError::NotUnfinished`] if this
    /// member has no such reservation.
    pub fn release(&self, block: &Reservation, deadline: u64) -> Result<(), HeapError> {
        let change = |t: &mut Transaction<'_, W, M>| {
            self.unfinished.remove(t, block.entry, block.offset)?;
            self.blocks.release(t, block.offset, true)
        };
        self.undo_log.transact(deadline, change)?;
        self.shrink_excess(deadline);
        Ok(())
    }

    /// Allocates a block of at least `len` bytes that is shared at once, and returns its offset. If this process dies
    /// before it has published the offset, the block is lost. Fails as [`reserve`](Self::reserve) does.
    pub fn allocate(&self, len: u64, deadline: u64) -> Result<u64, HeapError> {
        self.with_enough_pages(len, pages_for(len), deadline, |t| {
            self.blocks.allocate(t, len, false)
        })
    }

    /// Frees a committed block, and returns excess pages to the system. Fails with [`HeapError::NoBlock`] if no
    /// committed block begins at this offset.
    pub fn free(&self, offset: u64, deadline: u64) -> Result<(), HeapError> {
        let excess = self.undo_log.transact(deadline, |t| {
            self.free_within(t, offset)?;
            self.blocks.spare_to_keep(t, MIN_SPARE)
        })?;
        if let Some(most) = excess {
            // The block is free even if this fails. The next operation meets the same corruption.
            let _ = self.shrink(most, deadline);
        }
        Ok(())
    }

    /// Frees a committed block within a transaction. Call [`shrink_excess`](Self::shrink_excess) afterwards. Fails as
    /// [`free`](Self::free) does; the caller then fails the transaction.
    pub fn free_within(&self, t: &mut Transaction<'_, W, M>, offset: u64) -> Result<(), HeapError> {
        self.blocks.release(t, offset, false)
    }

    /// Returns true if [`shrink_excess`](Self::shrink_excess) would return pages to the system.
    pub fn has_excess(&self, deadline: u64) -> Result<bool, HeapError> {
        let excess = self
            .undo_log
            .read(deadline, |t| self.blocks.spare_to_keep(t, MIN_SPARE))?;
        Ok(excess.is_some())
    }

    /// Returns free pages to the system until half of the spare limit is left, if more than the limit are free. Errors
    /// are ignored; after a passed deadline the next call continues.
    pub fn shrink_excess(&self, deadline: u64) {
        let much = self
            .undo_log
            .transact(deadline, |t| self.blocks.spare_to_keep(t, MIN_SPARE));
        if let Ok(Some(most)) = much {
            // The next operation meets the same corruption.
            let _ = self.shrink(most, deadline);
        }
    }

    /// Frees the reservations of this member itself, as [`recover`](Self::recover) does, and returns their number. No
    /// other thread may use them meanwhile.
    pub fn abandon(&self, deadline: u64) -> Result<usize, HeapError> {
        // The table has these runs too: completing one twice would be a corruption.
        lock(&self.unreported_moves).clear();
        let self_id = self.undo_log.members().self_id();
        self.recover(|owner| owner == self_id, deadline)
    }

    /// Frees the reservations of members that are gone, and the pages that they were backing or punching. Returns the
    /// number of entries that were freed. `is_gone` must be false for each member that is still active. After an error
    /// the caller calls again to free the rest.
    pub fn recover(
        &self,
        is_gone: impl Fn(u64) -> bool,
        deadline: u64,
    ) -> Result<usize, HeapError> {
        let (mut from, mut found) = (0, 0);
        loop {
            let remains = self.undo_log.transact(deadline, |t| {
                let Some((index, offset)) = self.unfinished.find(t, from, &is_gone)? else {
                    return Ok(None);
                };
                crash::point!(DeadAllocationFound);
                let located = self.blocks.locate(t, offset);
                let (page, entry) = located
                    .map_err(|error| self.unfinished.corrupt_if_missing(index, offset, error))?;
                if entry.kind == Kind::Moving {
                    self.unfinished.adopt(t, index)?;
                    let moving = PageMove {
                        page,
                        pages: entry.len,
                        entry: index,
                        becomes: Kind::Bare,
                    };
                    return Ok(Some((index, Some(moving))));
                }
                let released = self.blocks.release(t, offset, true);
                released
                    .map_err(|error| self.unfinished.corrupt_if_missing(index, offset, error))?;
                self.unfinished.free_entry(t, index)?;
                Ok(Some((index, None)))
            })?;
            let Some((index, moving)) = remains else {
                break;
            };
            if let Some(moving) = moving {
                self.punch(moving, deadline)?;
            }
            (from, found) = (index + 1, found + 1);
        }
        self.shrink_excess(deadline);
        Ok(found)
    }

    #[cfg(test)]
    pub(in crate::shared_heap) fn layout(
        &self,
    ) -> (&super::pages::Pages, &UnfinishedAllocs, &BackingFile) {
        (
            &self.blocks.pages,
            &self.unfinished,
            &self.blocks.backing_file,
        )
    }
}
