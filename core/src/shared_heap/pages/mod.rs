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

mod free_runs;

use crate::shared_heap::access::{ReadWords, WriteWords};
use crate::shared_heap::backing_file::PAGE;
use crate::shared_heap::{Field, HeapError, corrupt};

/// Bytes of the page map for each page.
pub const MAP_ENTRY: u64 = 16;
/// The number of lists of free runs, for backed and for bare runs each.
const BINS: u64 = 256;
/// Bytes of the heads of these lists.
pub(in crate::shared_heap) const HEADS: u64 = 2 * BINS * 8;
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
pub(in crate::shared_heap) struct PageEntry {
    pub(in crate::shared_heap) kind: Kind,
    /// The class of a slab.
    pub(in crate::shared_heap) class: u8,
    /// The number of used blocks of a slab.
    pub(in crate::shared_heap) used: u16,
    /// The pages of the run, or the distance to the first page of a slab.
    pub(in crate::shared_heap) len: u64,
}

impl PageEntry {
    /// Creates the entry of a run, without a class and used blocks.
    pub(in crate::shared_heap) fn new(kind: Kind, len: u64) -> Self {
        let (class, used) = (0, 0);
        PageEntry {
            kind,
            class,
            used,
            len,
        }
    }

    /// Decodes an entry. Returns None if its kind is unknown.
    fn from_word(word: u64) -> Option<Self> {
        Some(PageEntry {
            kind: *Kind::ALL.get((word & 0xff) as usize)?,
            class: (word >> 8) as u8,
            used: (word >> 16) as u16,
            len: word >> 32,
        })
    }

    /// Encodes the entry as a word of the page map.
    fn to_word(self) -> u64 {
        self.len << 32 | u64::from(self.used) << 16 | u64::from(self.class) << 8 | self.kind as u64
    }
}

/// Returns the number of the list for free runs of this many pages.
fn bin(len: u64) -> u64 {
    if len < 16 {
        return len;
    }
    let power = u64::from(len.ilog2());
    16 + (power - 4) * 8 + (len >> (power - 3) & 7)
}

/// The offsets of the metadata, the page map and the pages, in bytes from the beginning of the memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::shared_heap) struct Pages {
    pub(in crate::shared_heap) metadata: u64,
    pub(in crate::shared_heap) heads: u64,
    pub(in crate::shared_heap) map: u64,
    pub(in crate::shared_heap) data: u64,
    /// The number of pages.
    pub(in crate::shared_heap) count: u64,
}

impl Pages {
    /// Returns the offset of a page.
    pub(in crate::shared_heap) fn offset(&self, page: u64) -> u64 {
        self.data + page * PAGE
    }

    /// Returns the offset of the entry of a page.
    fn at(&self, page: u64) -> u64 {
        self.map + page * MAP_ENTRY
    }

    /// Returns the number of pages that were ever used. All pages beyond it are free and not backed.
    pub(in crate::shared_heap) fn frontier(&self, t: &impl ReadWords) -> Result<u64, HeapError> {
        self.read_count(t, AT_FRONTIER)
    }

    /// Returns the number of pages that are backed or about to be.
    pub(in crate::shared_heap) fn backed(&self, t: &impl ReadWords) -> Result<u64, HeapError> {
        self.read_count(t, AT_BACKED)
    }

    /// Returns the number of free pages that are backed.
    pub(in crate::shared_heap) fn spare(&self, t: &impl ReadWords) -> Result<u64, HeapError> {
        self.read_count(t, AT_SPARE)
    }

    /// Reads the count of pages at an offset of the metadata. Returns an error if the memory has fewer pages.
    fn read_count(&self, t: &impl ReadWords, at: u64) -> Result<u64, HeapError> {
        let found = t.get(self.metadata + at)?;
        if found > self.count {
            return Err(corrupt(Field::Pages, self.metadata + at, found));
        }
        Ok(found)
    }

    /// Adds to the number of backed pages.
    pub(in crate::shared_heap) fn add_backed(
        &self,
        t: &mut impl WriteWords,
        pages: u64,
    ) -> Result<(), HeapError> {
        self.add(t, AT_BACKED, pages as i64)
    }

    /// Subtracts from the number of backed pages.
    pub(in crate::shared_heap) fn subtract_backed(
        &self,
        t: &mut impl WriteWords,
        pages: u64,
    ) -> Result<(), HeapError> {
        self.add(t, AT_BACKED, -(pages as i64))
    }

    /// Adds to the count of pages at an offset of the metadata. Returns an error if the sum is no possible count.
    fn add(&self, t: &mut impl WriteWords, at: u64, pages: i64) -> Result<(), HeapError> {
        let found = self.read_count(t, at)?;
        match found.checked_add_signed(pages) {
            Some(sum) if sum <= self.count => t.set(self.metadata + at, sum),
            _ => Err(corrupt(Field::Pages, self.metadata + at, found)),
        }
    }

    /// Returns the entry of a page, or an error if the page or its entry is corrupt.
    pub(in crate::shared_heap) fn entry(
        &self,
        t: &impl ReadWords,
        page: u64,
    ) -> Result<PageEntry, HeapError> {
        if page >= self.count {
            return Err(corrupt(Field::Page, self.map, page));
        }
        let found = t.get(self.at(page))?;
        PageEntry::from_word(found).ok_or_else(|| corrupt(Field::Map, self.at(page), found))
    }

    /// Returns the entry of a page below `frontier`, and the number of pages that it describes: at least one, and none
    /// from `frontier` on, whatever the entry says.
    pub(in crate::shared_heap) fn entry_and_len(
        &self,
        t: &impl ReadWords,
        page: u64,
        frontier: u64,
    ) -> Result<(PageEntry, u64), HeapError> {
        let entry = self.entry(t, page)?;
        let len = match entry.kind {
            Kind::Inner | Kind::Tail | Kind::SlabInner => 1,
            _ => entry.len.clamp(1, frontier - page),
        };
        Ok((entry, len))
    }

    /// Returns the error for a corrupt entry of this page.
    #[cold]
    pub(in crate::shared_heap) fn corrupt_entry(&self, page: u64, found: PageEntry) -> HeapError {
        corrupt(Field::Map, self.at(page), found.to_word())
    }

    /// Stores the entry of a page, which must be below `count`. The links of the page stay.
    pub(in crate::shared_heap) fn set_entry(
        &self,
        t: &mut impl WriteWords,
        page: u64,
        entry: PageEntry,
    ) -> Result<(), HeapError> {
        t.set(self.at(page), entry.to_word())
    }

    /// Marks a page, which must be below `count`, as one within a run.
    pub(in crate::shared_heap) fn clear(
        &self,
        t: &mut impl WriteWords,
        page: u64,
    ) -> Result<(), HeapError> {
        t.set(self.at(page), 0)
    }

    /// Reads the links of a page: the previous and the next one, each plus one.
    fn links(&self, t: &impl ReadWords, page: u64) -> Result<(u64, u64), HeapError> {
        let found = t.get(self.at(page) + 8)?;
        let (before, next) = (found >> 32, found & 0xffff_ffff);
        if before > self.count || next > self.count {
            return Err(corrupt(Field::Links, self.at(page) + 8, found));
        }
        Ok((before, next))
    }

    /// Stores the links of a page, which must be below `count`: each is a page plus one, or 0.
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
    pub(in crate::shared_heap) fn first(
        &self,
        t: &impl ReadWords,
        head: u64,
    ) -> Result<Option<u64>, HeapError> {
        let found = t.get(head)?;
        if found > self.count {
            return Err(corrupt(Field::Links, head, found));
        }
        Ok(found.checked_sub(1))
    }

    /// Returns the page after this one in its list.
    pub(in crate::shared_heap) fn next(
        &self,
        t: &impl ReadWords,
        page: u64,
    ) -> Result<Option<u64>, HeapError> {
        Ok(self.links(t, page)?.1.checked_sub(1))
    }

    /// Returns true if a page, which must be in a list, is the only one of it.
    pub(in crate::shared_heap) fn is_alone(
        &self,
        t: &impl ReadWords,
        page: u64,
    ) -> Result<bool, HeapError> {
        Ok(self.links(t, page)? == (0, 0))
    }

    /// Adds a page, which must be in no list, at the beginning of a list. Returns true if the list was empty.
    pub(in crate::shared_heap) fn push(
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

    /// Removes a page from a list. Its links stay. Returns true if the list is empty now, or an error if the neighbours
    /// or the head do not refer to the page.
    pub(in crate::shared_heap) fn unlink(
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
}

#[cfg(test)]
impl Pages {
    /// Returns all free runs that are in the list for their length, and checks the bits of the lists.
    pub(in crate::shared_heap) fn tests_listed(
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
                let len = self.run_len(t, state, page, bin).unwrap();
                assert_eq!(runs.insert(page, (state, len)), None, "a circle");
                next = self.next(t, page).unwrap();
            }
        }
        runs
    }
}
