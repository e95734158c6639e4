//! Runs of pages: free ones with and without backing, and those in use.
//!
//! The page map has two words for each page. It lies outside of the pages, so a program that writes beyond its block
//! does not destroy it:
//!
//! ```text
//!   0  entry  u64   bits 0-7 the kind, 8-15 the class of a slab, 16-31 the used blocks of a slab,
//!                   32-63 pages of the run; of a slab's further pages, the distance to its first one
//!   8  links  u64   pages of a list, each plus one, 0 for none: the previous in the high half, the next in the low
//! ```
//!
//! The first page of a run describes the run, the last page of a free run has its length, and all pages between are 0:
//! so the map tells for each page whether a block begins there. Adjacent free runs are merged, unless one of them is
//! backed and the other one is not.
//!
//! As in TLSF, free runs of similar length are in one list (8 lists for each power of two), and a bit for each list
//! says if it has runs. So finding, splitting and merging runs take a bounded number of steps and change a bounded
//! number of words.

use super::access::{ReadWords, WriteWords};
use super::backing_file::PAGE;
use super::{Field, HeapError, corrupt};

/// Bytes of the page map for each page.
pub const MAP_ENTRY: u64 = 16;
/// The number of lists of free runs, for backed and for bare runs each.
const BINS: u64 = 256;
/// Bytes of the heads of these lists.
pub(super) const HEADS: u64 = 2 * BINS * 8;
/// The most runs of one list to try for one that is long enough.
const MAX_PROBES: u32 = 8;

// Offsets in the metadata, in bytes.
const AT_FRONTIER: u64 = 0;
const AT_BACKED: u64 = 8;
const AT_SPARE: u64 = 16;
const AT_BITS: u64 = 64;

/// The kind of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A page within a run, or one that was never used.
    Inner = 0,
    /// The first page of a free run that is backed.
    Spare = 1,
    /// The first page of a free run that is not backed.
    Bare = 2,
    /// The last page of a free run.
    Tail = 3,
    /// The first page of a block.
    Block = 4,
    /// The first page of a block that a member has reserved and not yet committed.
    Unfinished = 5,
    /// The first page of a slab.
    Slab = 6,
    /// A further page of a slab.
    SlabInner = 7,
    /// The first page of a run that a member is about to back or to punch.
    Moving = 8,
}

impl Kind {
    const ALL: [Kind; 9] = [
        Kind::Inner,
        Kind::Spare,
        Kind::Bare,
        Kind::Tail,
        Kind::Block,
        Kind::Unfinished,
        Kind::Slab,
        Kind::SlabInner,
        Kind::Moving,
    ];
}

/// The entry of a page in the page map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageEntry {
    pub(super) kind: Kind,
    /// The class of a slab.
    pub(super) class: u8,
    /// The number of used blocks of a slab.
    pub(super) used: u16,
    /// The pages of the run, or the distance to the first page of a slab.
    pub(super) len: u64,
}

impl PageEntry {
    pub(super) fn new(kind: Kind, len: u64) -> Self {
        let (class, used) = (0, 0);
        PageEntry {
            kind,
            class,
            used,
            len,
        }
    }

    fn from_word(word: u64) -> Option<Self> {
        Some(PageEntry {
            kind: *Kind::ALL.get((word & 0xff) as usize)?,
            class: (word >> 8) as u8,
            used: (word >> 16) as u16,
            len: word >> 32,
        })
    }

    fn to_word(self) -> u64 {
        self.len << 32 | u64::from(self.used) << 16 | u64::from(self.class) << 8 | self.kind as u64
    }
}

/// Returns the list for runs of this many pages.
fn bin(len: u64) -> u64 {
    if len < 16 {
        return len;
    }
    let power = u64::from(len.ilog2());
    16 + (power - 4) * 8 + (len >> (power - 3) & 7)
}

/// The offsets of the metadata, the page map and the pages, in bytes from the beginning of the memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pages {
    pub(super) metadata: u64,
    pub(super) heads: u64,
    pub(super) map: u64,
    pub(super) data: u64,
    /// The number of pages.
    pub(super) count: u64,
}

impl Pages {
    /// Returns the offset of a page.
    pub(super) fn offset(&self, page: u64) -> u64 {
        self.data + page * PAGE
    }

    fn at(&self, page: u64) -> u64 {
        self.map + page * MAP_ENTRY
    }

    /// Returns the number of pages that were ever used. All pages beyond it are free and not backed.
    pub(super) fn frontier(&self, t: &impl ReadWords) -> Result<u64, HeapError> {
        let at = self.metadata + AT_FRONTIER;
        let found = t.get(at)?;
        if found > self.count {
            return Err(corrupt(Field::Pages, at, found));
        }
        Ok(found)
    }

    /// Returns the number of pages that are backed or about to be.
    pub(super) fn backed(&self, t: &impl ReadWords) -> Result<u64, HeapError> {
        self.counted(t, AT_BACKED)
    }

    /// Returns the number of free pages that are backed.
    pub(super) fn spare(&self, t: &impl ReadWords) -> Result<u64, HeapError> {
        self.counted(t, AT_SPARE)
    }

    fn counted(&self, t: &impl ReadWords, at: u64) -> Result<u64, HeapError> {
        let found = t.get(self.metadata + at)?;
        if found > self.count {
            return Err(corrupt(Field::Pages, self.metadata + at, found));
        }
        Ok(found)
    }

    /// Adds to the number of backed pages.
    pub(super) fn add_backed(&self, t: &mut impl WriteWords, pages: u64) -> Result<(), HeapError> {
        self.add(t, AT_BACKED, pages as i64)
    }

    /// Subtracts from the number of backed pages.
    pub(super) fn subtract_backed(
        &self,
        t: &mut impl WriteWords,
        pages: u64,
    ) -> Result<(), HeapError> {
        self.add(t, AT_BACKED, -(pages as i64))
    }

    fn add(&self, t: &mut impl WriteWords, at: u64, pages: i64) -> Result<(), HeapError> {
        let found = self.counted(t, at)?;
        match found.checked_add_signed(pages) {
            Some(sum) if sum <= self.count => t.set(self.metadata + at, sum),
            _ => Err(corrupt(Field::Pages, self.metadata + at, found)),
        }
    }

    /// Returns the entry of a page.
    pub(super) fn entry(&self, t: &impl ReadWords, page: u64) -> Result<PageEntry, HeapError> {
        if page >= self.count {
            return Err(corrupt(Field::Page, self.map, page));
        }
        let found = t.get(self.at(page))?;
        PageEntry::from_word(found).ok_or_else(|| corrupt(Field::Map, self.at(page), found))
    }

    /// Returns the error for a corrupt entry of this page.
    #[cold]
    pub(super) fn corrupt_entry(&self, page: u64, found: PageEntry) -> HeapError {
        corrupt(Field::Map, self.at(page), found.to_word())
    }

    pub(super) fn set_entry(
        &self,
        t: &mut impl WriteWords,
        page: u64,
        entry: PageEntry,
    ) -> Result<(), HeapError> {
        t.set(self.at(page), entry.to_word())
    }

    /// Marks the page as one within a run.
    pub(super) fn clear(&self, t: &mut impl WriteWords, page: u64) -> Result<(), HeapError> {
        t.set(self.at(page), 0)
    }

    fn links(&self, t: &impl ReadWords, page: u64) -> Result<(u64, u64), HeapError> {
        let found = t.get(self.at(page) + 8)?;
        let (before, next) = (found >> 32, found & 0xffff_ffff);
        if before > self.count || next > self.count {
            return Err(corrupt(Field::Links, self.at(page) + 8, found));
        }
        Ok((before, next))
    }

    fn link(
        &self,
        t: &mut impl WriteWords,
        page: u64,
        before: u64,
        next: u64,
    ) -> Result<(), HeapError> {
        t.set(self.at(page) + 8, before << 32 | next)
    }

    /// Returns the first page of the list with this head.
    pub(super) fn first(&self, t: &impl ReadWords, head: u64) -> Result<Option<u64>, HeapError> {
        let found = t.get(head)?;
        if found > self.count {
            return Err(corrupt(Field::Links, head, found));
        }
        Ok(found.checked_sub(1))
    }

    /// Returns the page after this one in its list.
    pub(super) fn next(&self, t: &impl ReadWords, page: u64) -> Result<Option<u64>, HeapError> {
        Ok(self.links(t, page)?.1.checked_sub(1))
    }

    /// Returns true if this page is the only one of its list.
    pub(super) fn is_alone(&self, t: &impl ReadWords, page: u64) -> Result<bool, HeapError> {
        Ok(self.links(t, page)? == (0, 0))
    }

    /// Adds a page at the beginning of a list. Returns true if the list was empty.
    pub(super) fn push(
        &self,
        t: &mut impl WriteWords,
        head: u64,
        page: u64,
    ) -> Result<bool, HeapError> {
        let first = self.first(t, head)?;
        if let Some(first) = first {
            let (before, next) = self.links(t, first)?;
            if before != 0 {
                return Err(corrupt(Field::Links, self.at(first) + 8, before));
            }
            self.link(t, first, page + 1, next)?;
        }
        self.link(t, page, 0, first.map_or(0, |first| first + 1))?;
        t.set(head, page + 1)?;
        Ok(first.is_none())
    }

    /// Removes a page from a list. Returns true if the list is empty now.
    pub(super) fn unlink(
        &self,
        t: &mut impl WriteWords,
        head: u64,
        page: u64,
    ) -> Result<bool, HeapError> {
        let (before, next) = self.links(t, page)?;
        if let Some(next) = next.checked_sub(1) {
            let (back, on) = self.links(t, next)?;
            if back != page + 1 {
                return Err(corrupt(Field::Links, self.at(next) + 8, back));
            }
            self.link(t, next, before, on)?;
        }
        if let Some(before) = before.checked_sub(1) {
            let (back, on) = self.links(t, before)?;
            if on != page + 1 {
                return Err(corrupt(Field::Links, self.at(before) + 8, on));
            }
            self.link(t, before, back, next)?;
            return Ok(false);
        }
        if self.first(t, head)? != Some(page) {
            return Err(corrupt(Field::Links, head, page));
        }
        t.set(head, next)?;
        Ok(next == 0)
    }

    /// Returns the offset of the head of a list of free runs.
    fn head(&self, state: Kind, bin: u64) -> u64 {
        self.heads + (self.lists(state) * BINS + bin) * 8
    }

    fn bits(&self, state: Kind, bin: u64) -> u64 {
        self.metadata + AT_BITS + (self.lists(state) * BINS + bin) / 64 * 8
    }

    fn lists(&self, state: Kind) -> u64 {
        u64::from(state == Kind::Bare)
    }

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

    /// Returns the length of the free run that begins at a page of this list, after checking its entry.
    fn listed(
        &self,
        t: &impl ReadWords,
        state: Kind,
        page: u64,
        list: u64,
    ) -> Result<u64, HeapError> {
        let entry = self.entry(t, page)?;
        let fits = entry.kind == state && entry.len > 0 && bin(entry.len) == list;
        if !fits || page + entry.len > self.frontier(t)? {
            return Err(self.corrupt_entry(page, entry));
        }
        Ok(entry.len)
    }

    /// Finds a free run of at least this many pages. Returns its first page and its length.
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
            let len = self.listed(t, state, page, near)?;
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
            return self.head_of(t, state, bin + u64::from(bits.trailing_zeros()));
        }
        Ok(None)
    }

    /// Returns the first run of a list whose bit says that it is not empty.
    fn head_of(
        &self,
        t: &impl ReadWords,
        state: Kind,
        bin: u64,
    ) -> Result<Option<(u64, u64)>, HeapError> {
        let head = self.head(state, bin);
        let Some(page) = self.first(t, head)? else {
            return Err(corrupt(Field::Links, head, 0));
        };
        Ok(Some((page, self.listed(t, state, page, bin)?)))
    }

    /// Finds a run of the list with the longest free runs. Returns its first page and its length.
    pub(super) fn longest_run(
        &self,
        t: &impl ReadWords,
        state: Kind,
    ) -> Result<Option<(u64, u64)>, HeapError> {
        for group in (0..BINS / 64).rev() {
            let bits = t.get(self.bits(state, group * 64))?;
            if bits != 0 {
                return self.head_of(t, state, group * 64 + u64::from(bits.ilog2()));
            }
        }
        Ok(None)
    }

    /// Takes this many pages from a free run; the caller sets their entry. Returns None if no run is that long.
    pub(super) fn take_run(
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

    /// Takes the first pages of this free run.
    pub(super) fn split_run(
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

    /// Takes this many pages that were never used; the caller sets their entry. Returns None if there are too few.
    pub(super) fn take_fresh_run(
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

    /// Frees a run of which only the first page has an entry, and merges it with its neighbours.
    pub(super) fn free_run(
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

    /// Returns the free run of this state that ends just before a page.
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

#[cfg(test)]
impl Pages {
    /// Returns all free runs that are in the list for their length, and checks the bits of the lists.
    pub(super) fn tests_listed(
        &self,
        t: &impl ReadWords,
    ) -> std::collections::BTreeMap<u64, (Kind, u64)> {
        let mut runs = std::collections::BTreeMap::new();
        for (state, bin) in [Kind::Spare, Kind::Bare]
            .into_iter()
            .flat_map(|state| (0..BINS).map(move |bin| (state, bin)))
        {
            let mut next = self.first(t, self.head(state, bin)).unwrap();
            let bit = t.get(self.bits(state, bin)).unwrap() >> (bin % 64) & 1;
            assert_eq!(bit == 1, next.is_some());
            while let Some(page) = next {
                let len = self.listed(t, state, page, bin).unwrap();
                assert_eq!(runs.insert(page, (state, len)), None, "a circle");
                next = self.next(t, page).unwrap();
            }
        }
        runs
    }
}
