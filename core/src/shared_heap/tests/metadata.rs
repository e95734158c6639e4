//! Invariants of an allocator at any moment at which no member changes it.

use super::*;
use crate::shared_heap::access::ReadWords;
use crate::shared_heap::heap::{self, Heap};
use crate::shared_heap::pages::{Kind, Pages};
use crate::shared_heap::slabs;
use crate::shared_heap::unfinished_allocs::MAX_UNFINISHED;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// The blocks of an allocator, and its memory use.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    /// The size of each block, by its offset.
    pub(crate) blocks: BTreeMap<u64, u64>,
    /// The offsets of unfinished blocks.
    pub(super) unfinished: BTreeSet<u64>,
    /// Bytes of backed pages.
    pub(crate) backed: u64,
    pub(crate) spare: u64,
}

/// Checks all invariants.
pub(super) fn checked(allocator: &Blocks) -> Inventory {
    let checked = allocator
        .undo_log()
        .transact(soon(), |t| Ok(walk(allocator, t)));
    let inventory = checked.unwrap();
    let (pages, _, backing_file) = allocator.layout();
    let moving = inventory.unfinished.len() as u64 > 0;
    let allocated = backing_file.allocated().unwrap();
    // The test's own words are backed when they are written, and the page map in steps.
    let least = inventory.backed + pages.map - START;
    let most = least + START + pages.data - pages.map;
    assert!(
        moving || (least..=most).contains(&allocated),
        "{allocated} bytes of memory, {least} to {most} are accounted for"
    );
    inventory
}

/// Checks a heap. Returns its blocks, and the least and the most bytes that its file may have.
pub(crate) fn of_heap(heap: &Heap, t: &impl ReadWords) -> (Inventory, RangeInclusive<u64>) {
    let pages = &heap.blocks.pages;
    let (inventory, unfinished) = of_pages(pages, t);
    assert!(unfinished.is_empty());
    let most = inventory.backed + heap::METADATA_SIZE + pages.data - pages.map;
    let memory = inventory.backed..=most;
    (inventory, memory)
}

fn walk(allocator: &Blocks, t: &impl ReadWords) -> Inventory {
    let (pages, table, _) = allocator.layout();
    let (mut inventory, unfinished) = of_pages(pages, t);
    let mut owned = BTreeSet::new();
    let mut free = 0;
    for index in 0..MAX_UNFINISHED as u64 {
        let (owner, offset) = table.tests_entry(t, index);
        if owner == 0 {
            free += 1;
        } else {
            assert!(owned.insert(offset), "two entries for {offset}");
        }
    }
    assert_eq!(owned, unfinished, "each unfinished block has an entry");
    assert_eq!(table.tests_free(t), free);
    inventory.unfinished = unfinished;
    inventory
}

/// Checks all but the table of unfinished allocations. Returns the blocks, and the unfinished ones of them.
fn of_pages(pages: &Pages, t: &impl ReadWords) -> (Inventory, BTreeSet<u64>) {
    let frontier = pages.frontier(t).unwrap();
    let mut inventory = Inventory::default();
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
                    inventory.blocks.insert(offset, entry.len * PAGE);
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
                let (used, reserved) = slabs::tests::contents(pages, t, page);
                let class = slabs::tests::class(entry.class);
                assert_eq!(
                    (used.len(), entry.len),
                    (usize::from(entry.used), class.pages)
                );
                if (used.len() as u64) < class.count {
                    roomy.entry(entry.class).or_default().insert(page);
                }
                assert!(reserved.iter().all(|offset| used.contains(offset)));
                inventory
                    .blocks
                    .extend(used.iter().map(|&at| (at, class.size)));
                unfinished.extend(reserved);
            }
            kind => panic!("page {page} is {kind:?} at the beginning of a run"),
        }
        let (backed, spare) = match entry.kind {
            Kind::Bare => (0, 0),
            Kind::Spare => (entry.len, entry.len),
            _ => (entry.len, 0),
        };
        inventory.backed += backed * PAGE;
        inventory.spare += spare * PAGE;
        before = entry.kind;
        page += entry.len;
    }
    assert_eq!(pages.backed(t).unwrap() * PAGE, inventory.backed);
    assert_eq!(pages.spare(t).unwrap() * PAGE, inventory.spare);
    let listed = pages.tests_listed(t);
    assert_eq!(listed, runs, "each free run is in the list for its length");
    for class in 0..slabs::CLASSES as u8 {
        let listed = slabs::tests::listed(pages, t, class);
        let roomy = roomy.remove(&class).unwrap_or_default();
        assert_eq!(listed, roomy, "slabs of class {class} with free blocks");
    }
    (inventory, unfinished)
}
