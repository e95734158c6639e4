//! All that must be true of an allocator whenever nobody changes it.

use super::*;
use crate::shared_heap::access::ReadWords;
use crate::shared_heap::heap::{self, Heap};
use crate::shared_heap::pages::{Kind, Pages};
use crate::shared_heap::slabs;
use crate::shared_heap::unfinished_allocs::MAX_UNFINISHED;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// What an allocator has.
#[derive(Debug, Default)]
pub(crate) struct Books {
    /// The offset of each block, and its size.
    pub(crate) blocks: BTreeMap<u64, u64>,
    /// Those of them that a member fills.
    pub(super) filling: BTreeSet<u64>,
    /// Bytes of memory of the pages.
    pub(crate) backed: u64,
    pub(crate) spare: u64,
}

/// Looks at everything.
pub(super) fn checked(allocator: &Blocks) -> Books {
    let checked = allocator
        .undo_log()
        .transact(soon(), |t| Ok(walk(allocator, t)));
    let metadata = checked.unwrap();
    let (pages, _, backing_file) = allocator.layout();
    let moving = metadata.filling.len() as u64 > 0;
    let allocated = backing_file.allocated().unwrap();
    // The test's own words have memory as they are written, and the map by steps.
    let least = metadata.backed + pages.map - START;
    let most = least + START + pages.data - pages.map;
    assert!(
        moving || (least..=most).contains(&allocated),
        "{allocated} bytes of memory, {least} to {most} are accounted for"
    );
    metadata
}

/// What a heap has, and the bytes of memory that its file must have for it at least, and may have at most.
pub(crate) fn of_heap(heap: &Heap, t: &impl ReadWords) -> (Books, RangeInclusive<u64>) {
    let pages = &heap.blocks.pages;
    let (metadata, unfinished) = of_pages(pages, t);
    assert!(unfinished.is_empty());
    let most = metadata.backed + heap::METADATA_SIZE + pages.data - pages.map;
    let memory = metadata.backed..=most;
    (metadata, memory)
}

fn walk(allocator: &Blocks, t: &impl ReadWords) -> Books {
    let (pages, filling, _) = allocator.layout();
    let (mut metadata, unfinished) = of_pages(pages, t);
    let mut owned = BTreeSet::new();
    let mut free = 0;
    for index in 0..MAX_UNFINISHED as u64 {
        let (owner, offset) = filling.tests_entry(t, index);
        if owner == 0 {
            free += 1;
        } else {
            assert!(owned.insert(offset), "two fill {offset}");
        }
    }
    assert_eq!(owned, unfinished, "what is unfinished is somebody's");
    assert_eq!(filling.tests_free(t), free);
    metadata.filling = unfinished;
    metadata
}

/// All but who fills the blocks that are unfinished, which are the others.
fn of_pages(pages: &Pages, t: &impl ReadWords) -> (Books, BTreeSet<u64>) {
    let frontier = pages.frontier(t).unwrap();
    let mut metadata = Books::default();
    let mut runs: BTreeMap<u64, (Kind, u64)> = BTreeMap::new();
    let mut roomy: BTreeMap<u8, BTreeSet<u64>> = BTreeMap::new();
    let mut unfinished = BTreeSet::new();
    let (mut page, mut before) = (0, Kind::Inner);
    while page < frontier {
        let entry = pages.entry(t, page).unwrap();
        assert!(entry.len > 0 && page + entry.len <= frontier, "{entry:?}");
        let inner = |from: u64, to: u64| {
            for inner in page + from..page + to {
                let found = pages.entry(t, inner).unwrap();
                assert_eq!(
                    found.kind,
                    Kind::Inner,
                    "page {inner} of {entry:?} at {page}"
                );
            }
        };
        let offset = pages.offset(page);
        match entry.kind {
            Kind::Spare | Kind::Bare => {
                assert_ne!(before, entry.kind, "two free runs touch at {page}");
                runs.insert(page, (entry.kind, entry.len));
                if entry.len > 1 {
                    let last = pages.entry(t, page + entry.len - 1).unwrap();
                    assert_eq!((last.kind, last.len), (Kind::Tail, entry.len));
                    inner(1, entry.len - 1);
                }
            }
            Kind::Block | Kind::Unfinished | Kind::Moving => {
                inner(1, entry.len);
                if entry.kind != Kind::Moving {
                    metadata.blocks.insert(offset, entry.len * PAGE);
                }
                if entry.kind != Kind::Block {
                    unfinished.insert(offset);
                }
            }
            Kind::Slab => {
                for distance in 1..entry.len {
                    let found = pages.entry(t, page + distance).unwrap();
                    assert_eq!((found.kind, found.len), (Kind::SlabInner, distance));
                }
                let (used, filling) = slabs::tests::contents(pages, t, page);
                let class = slabs::tests::class(entry.class);
                assert_eq!(
                    (used.len(), entry.len),
                    (usize::from(entry.used), class.pages)
                );
                if (used.len() as u64) < class.count {
                    roomy.entry(entry.class).or_default().insert(page);
                }
                assert!(filling.iter().all(|offset| used.contains(offset)));
                metadata
                    .blocks
                    .extend(used.iter().map(|&at| (at, class.size)));
                unfinished.extend(filling);
            }
            kind => panic!("page {page} is {kind:?} where a run must begin"),
        }
        let (backed, spare) = match entry.kind {
            Kind::Bare => (0, 0),
            Kind::Spare => (entry.len, entry.len),
            _ => (entry.len, 0),
        };
        metadata.backed += backed * PAGE;
        metadata.spare += spare * PAGE;
        before = entry.kind;
        page += entry.len;
    }
    assert_eq!(pages.backed(t).unwrap() * PAGE, metadata.backed);
    assert_eq!(pages.spare(t).unwrap() * PAGE, metadata.spare);
    let listed = pages.tests_listed(t);
    assert_eq!(listed, runs, "each free run is in the list for its length");
    for class in 0..slabs::CLASSES as u8 {
        let listed = slabs::tests::listed(pages, t, class);
        let roomy = roomy.remove(&class).unwrap_or_default();
        assert_eq!(listed, roomy, "slabs of class {class} that have room");
    }
    (metadata, unfinished)
}
