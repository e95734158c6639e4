//! Repairing a heap after the death of the holder of the lock.

use super::Heap;
use crate::crash;
use crate::shared_heap::access::{ReadWords, WriteWords};
use crate::shared_heap::backing_file::PAGE;
use crate::shared_heap::blocks::Blocks;
use crate::shared_heap::error::HeapError;
use crate::shared_heap::members::Members;
use crate::shared_heap::pages::Kind;
use crate::shared_heap::redo_log::Writer;
use crate::shared_heap::slabs;
use crate::shared_heap::words::Words;

impl Heap {
    /// Returns to the system the pages that a dead holder has backed, or was about to return. Does nothing unless the
    /// lock was taken over. Called at the beginning of a transaction. If the file is sealed, these pages stay. In both
    /// cases clears the record of the death, so a second call does nothing; after an error the record stays for the
    /// next transaction.
    #[cold]
    pub fn repair<W: Words, M: Members>(&self, t: &mut Writer<'_, W, M>) -> Result<(), HeapError> {
        if std::mem::take(&mut t.pending.taken_over) {
            if !self.is_sealed {
                self.punch_bare(t)?;
            }
            t.log().clear_died();
        }
        Ok(())
    }

    /// Zeroes the words at the beginning of free blocks for which `is_left` returns true: a dead holder has left them
    /// there in the middle of a transaction. Called before [`repair`](Self::repair).
    #[cold]
    pub fn scrub<W: Words, M: Members>(
        &self,
        t: &mut Writer<'_, W, M>,
        is_left: impl Fn(u64) -> bool,
    ) -> Result<(), HeapError> {
        let pages = &self.blocks.pages;
        let (mut page, frontier) = (0, pages.frontier(t)?);
        while page < frontier {
            let (entry, len) = pages.entry_and_len(t, page, frontier)?;
            match entry.kind {
                Kind::Spare | Kind::Bare => self.scrub_pages(t, page, len, &is_left)?,
                Kind::Slab => {
                    for at in slabs::free_blocks(pages, t, page, entry)? {
                        if is_left(t.get(at)?) {
                            t.init(at, 0)?;
                        }
                    }
                }
                _ => {}
            }
            page += len;
        }
        // The pages beyond are punched by `repair`, unless the file is sealed.
        if self.is_sealed {
            self.scrub_pages(t, frontier, pages.count - frontier, &is_left)?;
        }
        Ok(())
    }

    /// Zeroes the words in `len` free pages, at each offset at which a block may begin, for which `is_left` returns
    /// true. Skips unbacked pages, because reading would back them.
    fn scrub_pages<W: Words, M: Members>(
        &self,
        t: &mut Writer<'_, W, M>,
        page: u64,
        len: u64,
        is_left: &impl Fn(u64) -> bool,
    ) -> Result<(), HeapError> {
        let Blocks {
            pages,
            backing_file,
            ..
        } = &self.blocks;
        let parts = backing_file.written(pages.offset(page), pages.offset(page + len));
        for (start, end) in parts.map_err(|error| HeapError::System { asked: 0, error })? {
            for at in (start..end).step_by(16) {
                if is_left(t.get(at)?) {
                    t.init(at, 0)?;
                }
            }
        }
        Ok(())
    }

    /// Returns to the system all pages that the metadata do not list as backed.
    #[cold]
    pub(super) fn punch_bare<W: Words, M: Members>(
        &self,
        t: &Writer<'_, W, M>,
    ) -> Result<(), HeapError> {
        let Blocks {
            pages,
            backing_file,
            ..
        } = &self.blocks;
        let refused = |error| HeapError::System { asked: 0, error };
        let (mut page, frontier) = (0, pages.frontier(t)?);
        while page < frontier {
            let (entry, len) = pages.entry_and_len(t, page, frontier)?;
            if entry.kind == Kind::Bare {
                backing_file
                    .punch(pages.offset(page), len * PAGE)
                    .map_err(refused)?;
                crash::point!(RepairPunched);
            }
            page += len;
        }
        let rest = (pages.count - frontier) * PAGE;
        if rest > 0 {
            backing_file
                .punch(pages.offset(frontier), rest)
                .map_err(refused)?;
            crash::point!(RepairPunched);
        }
        Ok(())
    }
}
