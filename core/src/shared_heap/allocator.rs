//! Blocks of any size in shared memory, for members that come, go and die.
//!
//! Offsets in bytes, from where it begins, a multiple of [`PAGE`]:
//!
//! ```text
//!      0  journal   4096            see `undo_log.rs`
//!   4096  books     4096
//!           0  frontier   u64       pages that were ever used
//!           8  backed     u64       pages that have memory
//!          16  spare      u64       of these, those that are free
//!          32  free       u64       the first free entry of the table below, plus one
//!          40  high       u64       entries of it that were ever used
//!          64  bits       8 u64     which lists of free runs are not empty: with memory, without
//!         128  slabs      64 u64    the lists of slabs that have room, by class: a page plus one
//!   8192  heads     512 x u64       the lists of free runs: a page plus one
//!  12288  table     4096 x 16       who fills what: see `unfinished_allocs.rs`
//!  77824  map       16 for each page, from the next whole page on: see `pages.rs`
//!         pages     from the next whole page on
//! ```
//!
//! Zeros are an allocator that has no blocks. Up to the map all has memory from the beginning; the map gets more as it
//! is needed, and keeps it.
//!
//! # From the request to the block
//!
//! Blocks of up to 16 KiB come out of slabs, larger ones are runs of pages. Either way free pages with memory are taken
//! if there are any, and if not, memory is fetched for a few more than are needed. `max_memory` bounds the pages that
//! have memory. Freed pages keep theirs for the next block, up to an eighth of what is in use; the rest is given back, wherever it
//! lies. So it does no harm that free pages are scattered, and the file is larger than `max_memory`: addresses cost
//! nothing.
//!
//! # The life of a block
//!
//! [`Allocator::reserve`] gives a block that is this member's alone, to be filled outside of the lease. If the member
//! dies, [`Allocator::recover`] frees it. In a transaction of its own the member then makes it known, in a word of a
//! queue perhaps, and calls [`Allocator::commit`]: from then on the block is everybody's, and lives until somebody calls
//! [`Allocator::free`], or [`Allocator::free_within`] a transaction that takes it out again.

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

/// Pages that may be spare, however few are in use.
const MIN_SPARE: u64 = 64;
const METADATA: u64 = undo_log::SIZE;
const TABLE: u64 = METADATA + 4096 + HEADS;
const MAP: u64 = TABLE + unfinished_allocs::SIZE;

/// A block that this member fills. It is to be committed, or given up.
#[derive(Debug)]
#[must_use = "a block that is neither committed nor given up stays reserved until its member dies"]
pub struct Reservation {
    offset: u64,
    entry: u64,
}

impl Reservation {
    /// Where it is, in bytes from the beginning of the memory: a multiple of 16, and of a page's size if it is larger
    /// than 16 KiB.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

/// How much memory there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of pages that have memory.
    pub backed: u64,
    /// Of these, those that are free.
    pub spare: u64,
}

/// A run of pages whose memory is on its way.
#[derive(Clone, Copy, Debug)]
struct PageMove {
    page: u64,
    pages: u64,
    entry: u64,
    /// What the pages are when it is over.
    becomes: Kind,
}

/// An allocator, as one process has it.
pub struct Allocator<W, M> {
    undo_log: UndoLog<W, M>,
    blocks: Blocks,
    unfinished: UnfinishedAllocs,
    /// Runs whose memory has come or gone, but the lease could not be had in time to say so.
    unreported_moves: Mutex<Vec<PageMove>>,
}

/// The bytes of a file in which an allocator begins `start` bytes from the beginning.
pub fn file_size(start: u64, max_memory: u64) -> u64 {
    blocks::file_size(start + MAP, max_memory)
}

impl<W: Words, M: Members> Allocator<W, M> {
    /// The allocator that begins `start` bytes into `words`, which is all of `file`, of [`file_size`]. All members say
    /// the same `start` and `max_memory`, which bounds the pages and not what is before them.
    ///
    /// # Panics
    /// If it does not begin with a page, or there is no room for any page.
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

    /// The lease and its transactions, for what lies in the blocks too.
    pub fn undo_log(&self) -> &UndoLog<W, M> {
        &self.undo_log
    }

    /// How much memory there is.
    pub fn usage(&self, deadline: u64) -> Result<Usage, HeapError> {
        self.undo_log.read(deadline, |t| {
            Ok(Usage {
                backed: self.blocks.pages.backed(t)? * PAGE,
                spare: self.blocks.pages.spare(t)? * PAGE,
            })
        })
    }

    /// Bytes of memory that the file has, books and all.
    pub fn allocated(&self) -> io::Result<u64> {
        self.blocks.backing_file.allocated()
    }

    /// Allocates a block of at least `len` bytes, for this member to fill. What it holds may be anything.
    pub fn reserve(&self, len: u64, deadline: u64) -> Result<Reservation, HeapError> {
        self.reserve_as(len, pages_for(len), deadline, |t| {
            self.blocks.allocate(t, len, true)
        })
    }

    /// The same, of pages of its own, however small it is: so it fits whenever this many pages are free.
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

    /// Within the transaction that makes a block known to others: it is filled, and everybody's.
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

    /// Frees a block that was reserved and is not wanted.
    pub fn release(&self, block: &Reservation, deadline: u64) -> Result<(), HeapError> {
        let change = |t: &mut Transaction<'_, W, M>| {
            self.unfinished.remove(t, block.entry, block.offset)?;
            self.blocks.release(t, block.offset, true)
        };
        self.undo_log.transact(deadline, change)?;
        self.shrink_excess(deadline);
        Ok(())
    }

    /// Allocates a block of at least `len` bytes that is everybody's at once. If this process dies before it has told
    /// anybody, nobody frees it.
    pub fn allocate(&self, len: u64, deadline: u64) -> Result<u64, HeapError> {
        self.with_room(len, pages_for(len), deadline, |t| {
            self.blocks.allocate(t, len, false)
        })
    }

    /// Frees a block that nobody fills.
    pub fn free(&self, offset: u64, deadline: u64) -> Result<(), HeapError> {
        let excess = self.undo_log.transact(deadline, |t| {
            self.free_within(t, offset)?;
            self.blocks.excess(t, MIN_SPARE)
        })?;
        if let Some(most) = excess {
            // The block is free all the same. What is wrong, whoever comes next reads too.
            let _ = self.shrink(most, deadline);
        }
        Ok(())
    }

    /// Frees a block within a transaction. Call [`settle`](Self::settle) when it is over.
    pub fn free_within(&self, t: &mut Transaction<'_, W, M>, offset: u64) -> Result<(), HeapError> {
        self.blocks.release(t, offset, false)
    }

    /// Whether much of the memory is free.
    pub fn has_excess(&self, deadline: u64) -> Result<bool, HeapError> {
        let excess = self
            .undo_log
            .read(deadline, |t| self.blocks.excess(t, MIN_SPARE))?;
        Ok(excess.is_some())
    }

    /// Gives memory back if much of it is free. If that takes longer than the deadline, the next one does it.
    pub fn shrink_excess(&self, deadline: u64) {
        let much = self
            .undo_log
            .transact(deadline, |t| self.blocks.excess(t, MIN_SPARE));
        if let Ok(Some(most)) = much {
            // What is wrong, whoever comes next reads too.
            let _ = self.shrink(most, deadline);
        }
    }

    /// Frees what this member itself has reserved and not committed, as [`recover`](Self::recover) does: it does nothing any
    /// more.
    pub fn abandon(&self, deadline: u64) -> Result<usize, HeapError> {
        // They are in the table, too: to arrive twice would be a lie.
        lock(&self.unreported_moves).clear();
        let me = self.undo_log.members().self_id();
        self.recover(|owner| owner == me, deadline)
    }

    /// Frees what members who are gone have reserved and not committed, and pages whose memory they were fetching or
    /// giving back. How much there was. No number of a member that does anything must be among them.
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

    /// Does what takes room for a block of `len` bytes, and `need` pages at most; with more memory, if it finds that there
    /// is not enough.
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
        // More than is needed; only that; and only that once all that is free was given back.
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

    /// Sets pages without memory aside. None if `max_memory` or the file has no room for them.
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

    /// Makes pages that were taken this member's.
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

    /// Fetches the memory of pages that were set aside.
    fn back_run(&self, moving: PageMove) -> io::Result<()> {
        let len = moving.pages * PAGE;
        // The kernel's count, since the one in the shared memory is a claim.
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

    /// Takes the memory of pages that were set aside away.
    fn punch(&self, moving: PageMove, deadline: u64) -> Result<(), HeapError> {
        let (start, len) = (self.blocks.pages.offset(moving.page), moving.pages * PAGE);
        let moving = PageMove {
            becomes: Kind::Bare,
            ..moving
        };
        if let Err(error) = self.blocks.backing_file.punch(start, len) {
            // The pages stay this member's, and are tried again.
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

    /// The memory of pages that were set aside has come or gone.
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

    /// Says of all pages whose memory has come or gone that it has.
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

    /// Gives memory of free pages back until no more than `most` have any.
    fn shrink(&self, most: u64, deadline: u64) -> Result<(), HeapError> {
        self.complete_moves(deadline)?;
        // Others may free as much meanwhile: it ends all the same.
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

    /// Gives all back that is free: also the pages of empty slabs.
    fn reclaim(&self, deadline: u64) -> Result<(), HeapError> {
        for class in 0..slabs::CLASSES {
            self.undo_log.transact(deadline, |t| {
                slabs::trim(&self.blocks.pages, t, class as u8)
            })?;
        }
        self.shrink(0, deadline)
    }

    /// Leaves pages whose memory has come, of which it could not be said that it has.
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
