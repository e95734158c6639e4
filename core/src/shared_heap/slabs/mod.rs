//! Small blocks: many of one size in a run of pages, a *slab*.
//!
//! A slab begins with its bitmaps, followed by its blocks:
//!
//! ```text
//!   w words   bit i: block i is in use
//!   w words   bit i: a member has reserved block i and not yet committed it
//!   blocks, each of the size of its class
//! ```
//!
//! There is a class for each 16 bytes up to 256, and then 8 for each power of two, so that a block is at most an eighth
//! larger than needed. The page map has the class of each slab and the number of its used blocks. Slabs with free
//! blocks are in a list, one for each class. An empty slab gives its pages back, unless it is a short one and the only
//! one with free blocks, because the next block would create it again.

mod classes;

use super::access::{ReadWords, WriteWords};
use super::corrupt;
use super::pages::{Kind, PageEntry, Pages};
use super::{Field, HeapError};
use classes::{Class, TABLE, index_of};

pub(super) use classes::{CLASSES, LARGEST, class_of};

/// The most pages of a slab that is kept although it is empty. Larger slabs have large blocks, and filling one of those
/// takes longer than creating a slab.
const MAX_KEPT_PAGES: u64 = 4;

/// The offset of the list heads in the metadata.
const AT_HEADS: u64 = 128;

/// Returns the offset of the list head of a class.
fn head(pages: &Pages, class: u8) -> u64 {
    pages.metadata + AT_HEADS + u64::from(class) * 8
}

/// A block in a slab.
#[derive(Clone, Copy, Debug)]
struct Small {
    /// The first page of the slab.
    page: u64,
    entry: PageEntry,
    class: &'static Class,
    index: u64,
}

impl Small {
    /// Returns the offsets of the words with the used bit and the unfinished bit of the block, and the mask of the bit.
    fn bits(&self, pages: &Pages) -> (u64, u64, u64) {
        let at = pages.offset(self.page) + self.index / 64 * 8;
        (
            at,
            at + 8 * self.class.bitmap_words(),
            1 << (self.index % 64),
        )
    }
}

/// Returns the class of a slab, after checking its entry in the page map.
fn class(pages: &Pages, page: u64, entry: PageEntry) -> Result<&'static Class, HeapError> {
    match TABLE.get(usize::from(entry.class)) {
        Some(class)
            if entry.kind == Kind::Slab
                && entry.len == class.pages
                && page + entry.len <= pages.count
                && u64::from(entry.used) <= class.count =>
        {
            Ok(class)
        }
        _ => Err(pages.corrupt_entry(page, entry)),
    }
}

/// Allocates a block of at least `len` bytes, at most [`LARGEST`], for a member to fill and commit if `is_unfinished`.
/// Returns its offset; None if too few backed pages are free, and the caller backs more.
pub(super) fn allocate(
    pages: &Pages,
    t: &mut impl WriteWords,
    len: u64,
    is_unfinished: bool,
) -> Result<Option<u64>, HeapError> {
    let index = index_of(len);
    let head = head(pages, index);
    let page = match pages.first(t, head)? {
        Some(page) => page,
        None => match create(pages, t, index)? {
            Some(page) => page,
            None => return Ok(None),
        },
    };
    let entry = pages.entry(t, page)?;
    let class = class(pages, page, entry)?;
    if entry.class != index || u64::from(entry.used) >= class.count {
        return Err(pages.corrupt_entry(page, entry));
    }
    let index = free_bit(pages, t, page, class)?;
    let small = Small {
        page,
        entry,
        class,
        index,
    };
    let (at, at_unfinished, bit) = small.bits(pages);
    let bits = t.get(at)?;
    t.set(at, bits | bit)?;
    if is_unfinished {
        let bits = t.get(at_unfinished)?;
        t.set(at_unfinished, bits | bit)?;
    }
    let used = entry.used + 1;
    pages.set_entry(t, page, PageEntry { used, ..entry })?;
    if u64::from(used) == class.count {
        pages.unlink(t, head, page)?;
    }
    Ok(Some(
        pages.offset(page) + class.header_size() + index * class.size,
    ))
}

/// Returns the number of a free block of a slab that has one.
fn free_bit(pages: &Pages, t: &impl ReadWords, page: u64, class: &Class) -> Result<u64, HeapError> {
    let start = pages.offset(page);
    for word in 0..class.bitmap_words() {
        let free = !t.get(start + word * 8)?;
        let index = word * 64 + u64::from(free.trailing_zeros());
        if free != 0 && index < class.count {
            return Ok(index);
        }
    }
    Err(corrupt(Field::Bits, start, u64::MAX))
}

/// Creates an empty slab of the class `index`. Returns its first page; None if too few backed pages are free.
fn create(pages: &Pages, t: &mut impl WriteWords, index: u8) -> Result<Option<u64>, HeapError> {
    let class = &TABLE[usize::from(index)];
    let Some(page) = pages.take_run(t, Kind::Spare, class.pages)? else {
        return Ok(None);
    };
    for word in 0..2 * class.bitmap_words() {
        t.init(pages.offset(page) + word * 8, 0)?;
    }
    let entry = PageEntry {
        class: index,
        ..PageEntry::new(Kind::Slab, class.pages)
    };
    pages.set_entry(t, page, entry)?;
    for distance in 1..class.pages {
        pages.set_entry(
            t,
            page + distance,
            PageEntry::new(Kind::SlabInner, distance),
        )?;
    }
    pages.push(t, head(pages, index), page)?;
    Ok(Some(page))
}

/// Returns the block in use that begins at this offset, in a page of a slab. Returns [`HeapError::NoBlock`] if there is
/// none.
fn find(
    pages: &Pages,
    t: &impl ReadWords,
    offset: u64,
    page: u64,
    entry: PageEntry,
) -> Result<Small, HeapError> {
    let (first, entry) = match entry.kind {
        Kind::SlabInner => {
            let first = page.checked_sub(entry.len);
            let first = first.ok_or_else(|| pages.corrupt_entry(page, entry))?;
            (first, pages.entry(t, first)?)
        }
        _ => (page, entry),
    };
    let class = class(pages, first, entry)?;
    let within = offset - pages.offset(first);
    let none = HeapError::NoBlock { offset };
    let Some(within) = within.checked_sub(class.header_size()) else {
        return Err(none);
    };
    let index = within / class.size;
    if within % class.size != 0 || index >= class.count {
        return Err(none);
    }
    let small = Small {
        page: first,
        entry,
        class,
        index,
    };
    let (at, _, bit) = small.bits(pages);
    if t.get(at)? & bit == 0 {
        return Err(none);
    }
    Ok(small)
}

/// Marks the block at this offset as committed. Returns [`HeapError::NoBlock`] or [`HeapError::NotUnfinished`] if it is
/// not an unfinished one.
pub(super) fn commit(
    pages: &Pages,
    t: &mut impl WriteWords,
    offset: u64,
    page: u64,
    entry: PageEntry,
) -> Result<(), HeapError> {
    let small = find(pages, t, offset, page, entry)?;
    let (_, at, bit) = small.bits(pages);
    let bits = t.get(at)?;
    if bits & bit == 0 {
        return Err(HeapError::NotUnfinished { offset });
    }
    t.set(at, bits & !bit)
}

/// Frees the block at this offset, whose unfinished bit must equal `is_unfinished`, and the pages of its slab if that
/// is empty and not kept. Returns [`HeapError::NotUnfinished`] for a committed block, and [`HeapError::NoBlock`] for an
/// unfinished one and if there is none.
pub(super) fn free(
    pages: &Pages,
    t: &mut impl WriteWords,
    offset: u64,
    page: u64,
    entry: PageEntry,
    is_unfinished: bool,
) -> Result<(), HeapError> {
    let small = find(pages, t, offset, page, entry)?;
    let (at, at_unfinished, bit) = small.bits(pages);
    let unfinished = t.get(at_unfinished)?;
    match (unfinished & bit != 0, is_unfinished) {
        (true, true) => t.set(at_unfinished, unfinished & !bit)?,
        (false, false) => {}
        (true, false) => return Err(HeapError::NoBlock { offset }),
        (false, true) => return Err(HeapError::NotUnfinished { offset }),
    }
    let bits = t.get(at)?;
    t.set(at, bits & !bit)?;
    let Small {
        page, entry, class, ..
    } = small;
    let Some(used) = entry.used.checked_sub(1) else {
        return Err(pages.corrupt_entry(page, entry));
    };
    let head = head(pages, entry.class);
    if u64::from(entry.used) == class.count {
        pages.set_entry(t, page, PageEntry { used, ..entry })?;
        pages.push(t, head, page)?;
        return Ok(());
    }
    if used > 0 || (class.pages <= MAX_KEPT_PAGES && pages.is_alone(t, page)?) {
        return pages.set_entry(t, page, PageEntry { used, ..entry });
    }
    free_slab(pages, t, head, page, class)
}

/// Removes an empty slab from its list, and frees its pages, which stay backed.
fn free_slab(
    pages: &Pages,
    t: &mut impl WriteWords,
    head: u64,
    page: u64,
    class: &Class,
) -> Result<(), HeapError> {
    pages.unlink(t, head, page)?;
    for distance in 1..class.pages {
        pages.clear(t, page + distance)?;
    }
    pages.free_run(t, Kind::Spare, page, class.pages)
}

/// Returns the offsets of the free blocks of a slab.
pub(super) fn free_blocks(
    pages: &Pages,
    t: &impl ReadWords,
    page: u64,
    entry: PageEntry,
) -> Result<Vec<u64>, HeapError> {
    let class = class(pages, page, entry)?;
    let (start, mut free) = (pages.offset(page), Vec::new());
    for word in 0..class.bitmap_words() {
        let used = t.get(start + word * 8)?;
        let indices = word * 64..(word * 64 + 64).min(class.count);
        let unused = indices.filter(|index| used >> (index % 64) & 1 == 0);
        free.extend(unused.map(|index| start + class.header_size() + index * class.size));
    }
    Ok(free)
}

/// The most slabs of a class to try for an empty one.
const MAX_PROBES: u32 = 64;

/// Frees the pages of one empty slab of the class `index`, if one of the first slabs in its list is empty.
pub(super) fn free_empty_slab(
    pages: &Pages,
    t: &mut impl WriteWords,
    index: u8,
) -> Result<(), HeapError> {
    let head = head(pages, index);
    let mut next = pages.first(t, head)?;
    for _ in 0..MAX_PROBES {
        let Some(page) = next else { break };
        let entry = pages.entry(t, page)?;
        let class = class(pages, page, entry)?;
        if entry.used == 0 {
            return free_slab(pages, t, head, page, class);
        }
        next = pages.next(t, page)?;
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::collections::BTreeSet;

    pub(in crate::shared_heap) fn class(index: u8) -> Class {
        TABLE[usize::from(index)]
    }

    /// Returns the used blocks of a slab, and those that are unfinished.
    pub(in crate::shared_heap) fn contents(
        pages: &Pages,
        t: &impl ReadWords,
        page: u64,
    ) -> (BTreeSet<u64>, BTreeSet<u64>) {
        let entry = pages.entry(t, page).unwrap();
        let class = super::class(pages, page, entry).unwrap();
        let start = pages.offset(page);
        let of = |bits: u64| {
            let is_set =
                |&index: &u64| t.get(bits + index / 64 * 8).unwrap() >> (index % 64) & 1 == 1;
            assert!(!(class.count..64 * class.bitmap_words()).any(|index| is_set(&index)));
            let set = (0..class.count).filter(is_set);
            set.map(|index| start + class.header_size() + index * class.size)
                .collect()
        };
        (of(start), of(start + 8 * class.bitmap_words()))
    }

    /// Returns the slabs in the list of a class.
    pub(in crate::shared_heap) fn listed(
        pages: &Pages,
        t: &impl ReadWords,
        class: u8,
    ) -> BTreeSet<u64> {
        let mut listed = BTreeSet::new();
        let mut next = pages.first(t, head(pages, class)).unwrap();
        while let Some(page) = next {
            assert!(listed.insert(page), "a circle");
            next = pages.next(t, page).unwrap();
        }
        listed
    }
}
