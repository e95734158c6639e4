//! Free runs of pages: lists by their length, splitting and merging.
//!
//! `state` is the kind of a free run: `Spare` if it is backed, `Bare` if it is not.

use super::{AT_BITS, AT_FRONTIER, AT_SPARE, BINS, Kind, MAX_PROBES, PageEntry, Pages, bin};
use crate::shared_heap::access::{ReadWords, WriteWords};
use crate::shared_heap::corruption::Field;
use crate::shared_heap::error::{HeapError, corrupt};

impl Pages {
    /// Returns the offset of the head of a list of free runs.
    pub(super) fn head(&self, state: Kind, bin: u64) -> u64 {
        self.heads + (self.lists(state) * BINS + bin) * 8
    }

    /// Returns the offset of the word with the bit of a list.
    pub(super) fn bits(&self, state: Kind, bin: u64) -> u64 {
        self.metadata + AT_BITS + (self.lists(state) * BINS + bin) / 64 * 8
    }

    /// Returns 0 for the lists of backed runs and 1 for those of bare ones.
    fn lists(&self, state: Kind) -> u64 {
        u64::from(state == Kind::Bare)
    }

    /// Writes the entries of a free run, and adds it to its list. The caller counts its pages.
    fn insert(
        &self,
        t: &mut impl WriteWords,
        state: Kind,
        page: u64,
        len: u64,
    ) -> Result<(), HeapError> {
        self.set_entry(t, page, PageEntry::new(state, len))?;
        if len > 1 {
            self.set_entry(t, page + len - 1, PageEntry::new(Kind::Tail, len))?;
        }
        let bin = bin(len);
        if self.push(t, self.head(state, bin), page)? {
            let at = self.bits(state, bin);
            let bits = t.get(at)?;
            t.set(at, bits | 1 << (bin % 64))?;
        }
        Ok(())
    }

    /// Removes a free run from its list. The caller clears its entries and counts its pages.
    fn remove(
        &self,
        t: &mut impl WriteWords,
        state: Kind,
        page: u64,
        len: u64,
    ) -> Result<(), HeapError> {
        let bin = bin(len);
        if self.unlink(t, self.head(state, bin), page)? {
            let at = self.bits(state, bin);
            let bits = t.get(at)?;
            t.set(at, bits & !(1 << (bin % 64)))?;
        }
        Ok(())
    }

    /// Returns the length of the free run that begins at a page of the list `bin`, after checking its entry.
    pub(super) fn run_len(
        &self,
        t: &impl ReadWords,
        state: Kind,
        page: u64,
        bin: u64,
    ) -> Result<u64, HeapError> {
        let entry = self.entry(t, page)?;
        let fits = entry.kind == state && entry.len > 0 && super::bin(entry.len) == bin;
        if !fits || page + entry.len > self.frontier(t)? {
            return Err(self.corrupt_entry(page, entry));
        }
        Ok(entry.len)
    }

    /// Finds a free run of at least this many pages, which may stay unfound in a long list of runs of similar length.
    /// Returns its first page and its length; None if none was found.
    fn find(
        &self,
        t: &impl ReadWords,
        state: Kind,
        pages: u64,
    ) -> Result<Option<(u64, u64)>, HeapError> {
        let near = bin(pages);
        let mut next = self.first(t, self.head(state, near))?;
        for _ in 0..MAX_PROBES {
            let Some(page) = next else { break };
            let len = self.run_len(t, state, page, near)?;
            if len >= pages {
                return Ok(Some((page, len)));
            }
            next = self.next(t, page)?;
        }
        let mut bin = near + 1;
        while bin < BINS {
            let bits = t.get(self.bits(state, bin))? >> (bin % 64);
            if bits == 0 {
                bin = (bin / 64 + 1) * 64;
                continue;
            }
            return self.first_run(t, state, bin + u64::from(bits.trailing_zeros()));
        }
        Ok(None)
    }

    /// Returns the first page and the length of the first run of a list, which its bit marks as not empty.
    fn first_run(
        &self,
        t: &impl ReadWords,
        state: Kind,
        bin: u64,
    ) -> Result<Option<(u64, u64)>, HeapError> {
        let head = self.head(state, bin);
        let Some(page) = self.first(t, head)? else {
            return Err(corrupt(Field::Links, head, 0));
        };
        Ok(Some((page, self.run_len(t, state, page, bin)?)))
    }

    /// Finds the first run of the list with the longest free runs, not necessarily the longest one. Returns its first
    /// page and its length; None if there are no free runs.
    pub(in crate::shared_heap) fn longest_run(
        &self,
        t: &impl ReadWords,
        state: Kind,
    ) -> Result<Option<(u64, u64)>, HeapError> {
        for group in (0..BINS / 64).rev() {
            let bits = t.get(self.bits(state, group * 64))?;
            if bits != 0 {
                return self.first_run(t, state, group * 64 + u64::from(bits.ilog2()));
            }
        }
        Ok(None)
    }

    /// Takes this many pages from a free run; the caller sets their entry. Returns None if no run that long was found.
    pub(in crate::shared_heap) fn take_run(
        &self,
        t: &mut impl WriteWords,
        state: Kind,
        pages: u64,
    ) -> Result<Option<u64>, HeapError> {
        let Some((page, len)) = self.find(t, state, pages)? else {
            return Ok(None);
        };
        self.split_run(t, state, (page, len), pages)?;
        Ok(Some(page))
    }

    /// Takes the first `pages` pages of this free run, and the caller sets their entry; the rest stays free.
    pub(in crate::shared_heap) fn split_run(
        &self,
        t: &mut impl WriteWords,
        state: Kind,
        (page, len): (u64, u64),
        pages: u64,
    ) -> Result<(), HeapError> {
        self.remove(t, state, page, len)?;
        if len > pages {
            self.insert(t, state, page + pages, len - pages)?;
        } else if len > 1 {
            self.clear(t, page + len - 1)?;
        }
        self.count_spare(t, state, -(pages as i64))
    }

    /// Takes this many pages that were never used; the caller backs the page map for them before and sets their entry.
    /// Returns None if there are too few.
    pub(in crate::shared_heap) fn take_fresh_run(
        &self,
        t: &mut impl WriteWords,
        pages: u64,
    ) -> Result<Option<u64>, HeapError> {
        let page = self.frontier(t)?;
        if pages > self.count - page {
            return Ok(None);
        }
        t.set(self.metadata + AT_FRONTIER, page + pages)?;
        Ok(Some(page))
    }

    /// Frees a run of which only the first page has an entry, and merges it with its neighbours of the same state. The
    /// caller changes the number of backed pages.
    pub(in crate::shared_heap) fn free_run(
        &self,
        t: &mut impl WriteWords,
        state: Kind,
        page: u64,
        pages: u64,
    ) -> Result<(), HeapError> {
        let frontier = self.frontier(t)?;
        let (mut start, mut len) = (page, pages);
        if page + pages > frontier {
            return Err(self.corrupt_entry(page, PageEntry::new(state, pages)));
        }
        if let Some((before, pages_before)) = self.ends_before(t, state, page)? {
            self.remove(t, state, before, pages_before)?;
            if pages_before > 1 {
                self.clear(t, page - 1)?;
            }
            self.clear(t, page)?;
            start = before;
            len += pages_before;
        }
        let after = page + pages;
        if after < frontier {
            let entry = self.entry(t, after)?;
            if entry.kind == state {
                if entry.len == 0 || after + entry.len > frontier {
                    return Err(self.corrupt_entry(after, entry));
                }
                self.remove(t, state, after, entry.len)?;
                self.clear(t, after)?;
                len += entry.len;
            }
        }
        self.insert(t, state, start, len)?;
        self.count_spare(t, state, pages as i64)
    }

    /// Returns the first page and the length of the free run of this state that ends just before a page; None if there
    /// is none.
    fn ends_before(
        &self,
        t: &impl ReadWords,
        state: Kind,
        page: u64,
    ) -> Result<Option<(u64, u64)>, HeapError> {
        let Some(last) = page.checked_sub(1) else {
            return Ok(None);
        };
        let end = self.entry(t, last)?;
        if end.kind == state {
            if end.len != 1 {
                return Err(self.corrupt_entry(last, end));
            }
            return Ok(Some((last, 1)));
        }
        if end.kind != Kind::Tail {
            return Ok(None);
        }
        let Some(first) = page.checked_sub(end.len).filter(|_| end.len > 1) else {
            return Err(self.corrupt_entry(last, end));
        };
        let begin = self.entry(t, first)?;
        if begin.len != end.len || !matches!(begin.kind, Kind::Spare | Kind::Bare) {
            return Err(self.corrupt_entry(first, begin));
        }
        Ok((begin.kind == state).then_some((first, end.len)))
    }

    /// Adds to the number of free backed pages if this state is backed.
    fn count_spare(
        &self,
        t: &mut impl WriteWords,
        state: Kind,
        pages: i64,
    ) -> Result<(), HeapError> {
        if state == Kind::Spare {
            self.add(t, AT_SPARE, pages)?;
        }
        Ok(())
    }
}
