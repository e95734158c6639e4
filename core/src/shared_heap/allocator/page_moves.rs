//! Backing and punching runs of pages without the lock, in steps that survive the death of the member.

use super::{Allocator, PageMove};
use crate::crash;
use crate::shared_heap::access::WriteWords;
use crate::shared_heap::backing_file::PAGE;
use crate::shared_heap::error::HeapError;
use crate::shared_heap::members::Members;
use crate::shared_heap::pages::{Kind, PageEntry};
use crate::shared_heap::slabs;
use crate::shared_heap::undo_log::Transaction;
use crate::shared_heap::words::Words;
use crate::sync::lock;
use std::io;

impl<W: Words, M: Members> Allocator<W, M> {
    /// Runs `carve`, which takes a block of `len` bytes from at most `need` backed pages, and returns its result. While
    /// `carve` returns None, backs more pages and tries again; fails with [`HeapError::Limit`] or [`HeapError::System`]
    /// if no more can be backed.
    pub(super) fn with_enough_pages<R>(
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

    /// Sets aside a run of at least `need` unbacked pages, already counted as backed. The caller then backs it and
    /// calls [`complete_move`](Self::complete_move), or calls [`punch`](Self::punch). Returns None if `max_memory` or
    /// the file has no space for them.
    pub(super) fn begin_growth(
        &self,
        need: u64,
        with_spare: bool,
        deadline: u64,
    ) -> Result<Option<PageMove>, HeapError> {
        self.complete_moves(deadline)?;
        let moving = self.undo_log.transact(deadline, |t| {
            let Some((page, pages)) = self.blocks.take_bare_run(t, need, with_spare)? else {
                return Ok(None);
            };
            self.blocks.pages.add_backed(t, pages)?;
            self.begin_move(t, page, pages, Kind::Spare).map(Some)
        })?;
        if moving.is_some() {
            crash::point!(GrowthBegun);
        }
        Ok(moving)
    }

    /// Records that this member is about to back or to punch a run that it has taken. The caller then calls
    /// [`complete_move`](Self::complete_move) or [`punch`](Self::punch).
    pub(super) fn begin_move(
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

    /// Backs a run that was set aside. Returns an error if the file would then have more pages than `max_memory`
    /// allows.
    pub(super) fn back_run(&self, moving: PageMove) -> io::Result<()> {
        let len = moving.pages * PAGE;
        // The kernel's count, because the one in shared memory is untrusted.
        let most = self.blocks.pages.data + self.blocks.max_pages * PAGE;
        if self.blocks.backing_file.allocated()? + len > most {
            return Err(io::Error::other(
                "the file has more pages than max_memory allows",
            ));
        }
        self.blocks
            .backing_file
            .allocate(self.blocks.pages.offset(moving.page), len)
    }

    /// Returns the pages of a run that was set aside to the system, and records the run as free. After an error the run
    /// stays set aside, and [`complete_moves`](Self::complete_moves) tries again.
    pub(super) fn punch(&self, moving: PageMove, deadline: u64) -> Result<(), HeapError> {
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
        let recorded = self
            .undo_log
            .transact(deadline, |t| self.complete_move(t, moving));
        if recorded.is_err() {
            lock(&self.unreported_moves).push(moving);
        }
        recorded
    }

    /// Records within a transaction that a run was backed or punched, and frees the run.
    pub(super) fn complete_move(
        &self,
        t: &mut impl WriteWords,
        moving: PageMove,
    ) -> Result<(), HeapError> {
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

    /// Records all runs that this process has backed or punched without being able to record them. Stops at the first
    /// error and keeps the rest for the next call.
    pub(super) fn complete_moves(&self, deadline: u64) -> Result<(), HeapError> {
        loop {
            let Some(moving) = lock(&self.unreported_moves).pop() else {
                return Ok(());
            };
            if moving.becomes == Kind::Bare {
                self.punch(moving, deadline)?;
            } else {
                let recorded = self
                    .undo_log
                    .transact(deadline, |t| self.complete_move(t, moving));
                if recorded.is_err() {
                    lock(&self.unreported_moves).push(moving);
                }
                recorded?;
            }
        }
    }

    /// Returns free pages to the system until at most `most` of them are backed, in one transaction for each run.
    pub(super) fn shrink(&self, most: u64, deadline: u64) -> Result<(), HeapError> {
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
                self.begin_move(t, page, pages, Kind::Bare).map(Some)
            })?;
            let Some(moving) = moving else {
                break;
            };
            crash::point!(ShrinkingBegun);
            self.punch(moving, deadline)?;
        }
        Ok(())
    }

    /// Returns all free pages to the system, also those of one empty slab of each class.
    pub(super) fn reclaim(&self, deadline: u64) -> Result<(), HeapError> {
        for class in 0..slabs::CLASSES {
            self.undo_log.transact(deadline, |t| {
                slabs::free_empty_slab(&self.blocks.pages, t, class as u8)
            })?;
        }
        self.shrink(0, deadline)
    }

    /// Backs a run of 16 pages and leaves it unrecorded, as a passed deadline would.
    #[cfg(test)]
    pub(in crate::shared_heap) fn leave_unreported_move(&self, deadline: u64) {
        let moving = self.begin_growth(16, false, deadline).unwrap();
        self.back_run(moving.unwrap()).unwrap();
        lock(&self.unreported_moves).extend(moving);
    }
}
