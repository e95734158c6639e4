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
//!  77824  map       16 for each page, from the next whole page on: see `pages.rs`
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

use super::access::WriteWords;
use super::backing_file::{self, BackingFile, PAGE};
use super::blocks::{self, Blocks, aligned, pages_for};
use super::pages::{HEADS, Kind, PageEntry};
use super::slabs;
use super::undo_log::{self, Transaction, UndoLog};
use super::unfinished_allocs::{self, UnfinishedAllocs};
use super::{HeapError, Members, Words};
use crate::crash;
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
    /// Returns its offset in bytes from the beginning of the memory: a multiple of 16, and of the page size if it is
    /// larger than 16 KiB.
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
    /// Opens the allocator that begins `start` bytes into `words`, which map all of `file`, see [`file_size`]. All
    /// members must pass the same `start` and `max_memory`, which bounds the pages without the metadata before them.
    ///
    /// # Panics If `start` is not a multiple of the page size, or the file has no space for any page.
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

    /// Reserves a block of at least `len` bytes for this member to fill. Its contents are undefined.
    pub fn reserve(&self, len: u64, deadline: u64) -> Result<Reservation, HeapError> {
        self.reserve_as(len, pages_for(len), deadline, |t| {
            self.blocks.allocate(t, len, true)
        })
    }

    /// Reserves a block of whole pages, however small it is: so it succeeds whenever this many pages are free.
    pub fn reserve_pages(&self, len: u64, deadline: u64) -> Result<Reservation, HeapError> {
        let pages = len.div_ceil(PAGE);
        self.reserve_as(len, pages, deadline, |t| {
            self.blocks.allocate_pages(t, pages, true)
        })
    }

    fn reserve_as(
        &self,
        len: u64,
        pages: u64,
        deadline: u64,
        carve: impl Fn(&mut Transaction<'_, W, M>) -> Result<Option<u64>, HeapError>,
    ) -> Result<Reservation, HeapError> {
        let reserved = self.with_room(len, pages, deadline, |t| {
            let Some(offset) = carve(t)? else {
                return Ok(None);
            };
            let entry = self.unfinished.add(t, offset)?;
            Ok(Some(Reservation { offset, entry }))
        })?;
        crash::point!(BlockReserved);
        Ok(reserved)
    }

    /// Commits a block within the transaction that publishes its offset.
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
                slabs::fill(&self.blocks.pages, t, block.offset, page, entry)
            }
            _ => Err(HeapError::NotUnfinished {
                offset: block.offset,
            }),
        }
    }

    /// Frees a reserved block.
    pub fn release(&self, block: &Reservation, deadline: u64) -> Result<(), HeapError> {
        let change = |t: &mut Transaction<'_, W, M>| {
            self.unfinished.remove(t, block.entry, block.offset)?;
            self.blocks.release(t, block.offset, true)
        };
        self.undo_log.transact(deadline, change)?;
        self.shrink_excess(deadline);
        Ok(())
    }

    /// Allocates a block of at least `len` bytes that is shared at once. If this process dies before it has published
    /// the offset, the block is lost.
    pub fn allocate(&self, len: u64, deadline: u64) -> Result<u64, HeapError> {
        self.with_room(len, pages_for(len), deadline, |t| {
            self.blocks.allocate(t, len, false)
        })
    }

    /// Frees a committed block.
    pub fn free(&self, offset: u64, deadline: u64) -> Result<(), HeapError> {
        let excess = self.undo_log.transact(deadline, |t| {
            self.free_within(t, offset)?;
            self.blocks.excess(t, MIN_SPARE)
        })?;
        if let Some(most) = excess {
            // The block is free even if this fails. The next operation meets the same corruption.
            let _ = self.shrink(most, deadline);
        }
        Ok(())
    }

    /// Frees a block within a transaction. Call [`shrink_excess`](Self::shrink_excess) afterwards.
    pub fn free_within(&self, t: &mut Transaction<'_, W, M>, offset: u64) -> Result<(), HeapError> {
        self.blocks.release(t, offset, false)
    }

    /// Returns true if many backed pages are free.
    pub fn has_excess(&self, deadline: u64) -> Result<bool, HeapError> {
        let excess = self
            .undo_log
            .read(deadline, |t| self.blocks.excess(t, MIN_SPARE))?;
        Ok(excess.is_some())
    }

    /// Returns pages to the system if many are free. If the deadline passes, the next call continues.
    pub fn shrink_excess(&self, deadline: u64) {
        let much = self
            .undo_log
            .transact(deadline, |t| self.blocks.excess(t, MIN_SPARE));
        if let Ok(Some(most)) = much {
            // The next operation meets the same corruption.
            let _ = self.shrink(most, deadline);
        }
    }

    /// Frees the reservations of this member itself, as [`recover`](Self::recover) does. The member must be idle.
    pub fn abandon(&self, deadline: u64) -> Result<usize, HeapError> {
        // They are in the table too: completing one twice would be a corruption.
        lock(&self.unreported_moves).clear();
        let me = self.undo_log.members().self_id();
        self.recover(|owner| owner == me, deadline)
    }

    /// Frees the reservations of members who are gone, and the pages that they were backing or punching. Returns the
    /// number of entries. `is_gone` must be false for each member that is still active.
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
                crash::point!(RemainsFound);
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

    /// Runs `carve`, which needs space for a block of `len` bytes and at most `need` pages. Backs more pages if it
    /// returns None.
    fn with_room<R>(
        &self,
        len: u64,
        need: u64,
        deadline: u64,
        mut carve: impl FnMut(&mut Transaction<'_, W, M>) -> Result<Option<R>, HeapError>,
    ) -> Result<R, HeapError> {
        if let Some(result) = self.undo_log.transact(deadline, &mut carve)? {
            return Ok(result);
        }
        // First more than needed, then only as much, then only as much after all free pages were returned.
        let mut refused = None;
        for attempt in 0..3 {
            if attempt == 2 {
                self.reclaim(deadline)?;
            }
            let Some(moving) = self.begin_growth(need, attempt == 0, deadline)? else {
                continue;
            };
            match self.back_run(moving) {
                Ok(()) => {}
                Err(error) => {
                    refused = Some(error);
                    self.punch(moving, deadline)?;
                    continue;
                }
            }
            crash::point!(GrowthDone);
            let grown = self.undo_log.transact(deadline, |t| {
                self.complete_move(t, moving)?;
                carve(t)
            });
            match grown {
                Ok(Some(result)) => return Ok(result),
                Ok(None) => {}
                Err(error) => {
                    lock(&self.unreported_moves).push(moving);
                    return Err(error);
                }
            }
        }
        if let Some(error) = refused {
            return Err(HeapError::System { asked: len, error });
        }
        let usage = self.usage(deadline)?;
        Err(HeapError::Limit {
            asked: len,
            used: usage.backed - usage.spare,
            limit: self.blocks.max_pages * PAGE,
        })
    }

    /// Sets aside a run of unbacked pages. Returns None if `max_memory` or the file has no space for them.
    fn begin_growth(
        &self,
        need: u64,
        with_spare: bool,
        deadline: u64,
    ) -> Result<Option<PageMove>, HeapError> {
        self.complete_moves(deadline)?;
        let moving = self.undo_log.transact(deadline, |t| {
            let backed = self.blocks.pages.backed(t)?;
            let left = self.blocks.max_pages.saturating_sub(backed);
            if need > left {
                return Ok(None);
            }
            let pages = if with_spare {
                backing_file::step(backed).max(need).min(left)
            } else {
                need
            };
            let page = match self.blocks.pages.take_run(t, Kind::Bare, pages)? {
                Some(page) => page,
                None => {
                    let end = self.blocks.pages.frontier(t)? + pages;
                    if end > self.blocks.pages.count {
                        return Ok(None);
                    }
                    self.blocks.back_map(end)?;
                    match self.blocks.pages.take_fresh_run(t, pages)? {
                        Some(page) => page,
                        None => return Ok(None),
                    }
                }
            };
            self.blocks.pages.add_backed(t, pages)?;
            self.set_aside(t, page, pages, Kind::Spare).map(Some)
        })?;
        if moving.is_some() {
            crash::point!(GrowthBegun);
        }
        Ok(moving)
    }

    /// Records a taken run as one that this member is backing or punching.
    fn set_aside(
        &self,
        t: &mut impl WriteWords,
        page: u64,
        pages: u64,
        becomes: Kind,
    ) -> Result<PageMove, HeapError> {
        self.blocks
            .pages
            .set_entry(t, page, PageEntry::new(Kind::Moving, pages))?;
        let entry = self.unfinished.add(t, self.blocks.pages.offset(page))?;
        Ok(PageMove {
            page,
            pages,
            entry,
            becomes,
        })
    }

    /// Backs a run that was set aside.
    fn back_run(&self, moving: PageMove) -> io::Result<()> {
        let len = moving.pages * PAGE;
        // The kernel's count, because the one in shared memory is untrusted.
        let most = self.blocks.pages.data + self.blocks.max_pages * PAGE;
        if self.blocks.backing_file.allocated()? + len > most {
            return Err(io::Error::other(
                "the file has more memory than max_memory already",
            ));
        }
        self.blocks
            .backing_file
            .allocate(self.blocks.pages.offset(moving.page), len)
    }

    /// Punches a run that was set aside, and records it as free.
    fn punch(&self, moving: PageMove, deadline: u64) -> Result<(), HeapError> {
        let (start, len) = (self.blocks.pages.offset(moving.page), moving.pages * PAGE);
        let moving = PageMove {
            becomes: Kind::Bare,
            ..moving
        };
        if let Err(error) = self.blocks.backing_file.punch(start, len) {
            // The pages stay set aside, to be tried again.
            lock(&self.unreported_moves).push(moving);
            return Err(HeapError::System { asked: 0, error });
        }
        crash::point!(ShrinkingDone);
        let arrived = self
            .undo_log
            .transact(deadline, |t| self.complete_move(t, moving));
        if arrived.is_err() {
            lock(&self.unreported_moves).push(moving);
        }
        arrived
    }

    /// Records within a transaction that a run was backed or punched.
    fn complete_move(&self, t: &mut impl WriteWords, moving: PageMove) -> Result<(), HeapError> {
        let PageMove { page, pages, .. } = moving;
        let entry = self.blocks.pages.entry(t, page)?;
        if entry != PageEntry::new(Kind::Moving, pages) {
            return Err(self.blocks.pages.corrupt_entry(page, entry));
        }
        let offset = self.blocks.pages.offset(page);
        let removed = self.unfinished.remove(t, moving.entry, offset);
        removed.map_err(|error| {
            self.unfinished
                .corrupt_if_missing(moving.entry, offset, error)
        })?;
        if moving.becomes == Kind::Bare {
            self.blocks.pages.subtract_backed(t, pages)?;
        }
        self.blocks.pages.free_run(t, moving.becomes, page, pages)
    }

    /// Records all runs that were backed or punched and could not be recorded then.
    fn complete_moves(&self, deadline: u64) -> Result<(), HeapError> {
        loop {
            let Some(moving) = lock(&self.unreported_moves).pop() else {
                return Ok(());
            };
            if moving.becomes == Kind::Bare {
                self.punch(moving, deadline)?;
            } else {
                let arrived = self
                    .undo_log
                    .transact(deadline, |t| self.complete_move(t, moving));
                if arrived.is_err() {
                    lock(&self.unreported_moves).push(moving);
                }
                arrived?;
            }
        }
    }

    /// Returns free pages to the system until at most `most` of them are backed.
    fn shrink(&self, most: u64, deadline: u64) -> Result<(), HeapError> {
        self.complete_moves(deadline)?;
        // Bounded, although other members may free as many pages meanwhile.
        for _ in 0..=self.blocks.pages.count {
            let moving = self.undo_log.transact(deadline, |t| {
                let excess = self.blocks.pages.spare(t)?.saturating_sub(most);
                if excess == 0 {
                    return Ok(None);
                }
                let Some((page, len)) = self.blocks.pages.longest_run(t, Kind::Spare)? else {
                    return Ok(None);
                };
                let pages = len.min(excess);
                self.blocks
                    .pages
                    .split_run(t, Kind::Spare, (page, len), pages)?;
                self.set_aside(t, page, pages, Kind::Bare).map(Some)
            })?;
            let Some(moving) = moving else {
                break;
            };
            crash::point!(ShrinkingBegun);
            self.punch(moving, deadline)?;
        }
        Ok(())
    }

    /// Returns all free pages to the system, also those of empty slabs.
    fn reclaim(&self, deadline: u64) -> Result<(), HeapError> {
        for class in 0..slabs::CLASSES {
            self.undo_log.transact(deadline, |t| {
                slabs::trim(&self.blocks.pages, t, class as u8)
            })?;
        }
        self.shrink(0, deadline)
    }

    /// Leaves a run that was backed and not recorded.
    #[cfg(test)]
    pub(super) fn leave_unreported_move(&self, deadline: u64) {
        let moving = self.begin_growth(16, false, deadline).unwrap();
        self.back_run(moving.unwrap()).unwrap();
        lock(&self.unreported_moves).extend(moving);
    }

    #[cfg(test)]
    pub(super) fn layout(&self) -> (&super::pages::Pages, &UnfinishedAllocs, &BackingFile) {
        (
            &self.blocks.pages,
            &self.unfinished,
            &self.blocks.backing_file,
        )
    }
}
