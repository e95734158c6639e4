//! Invariants of a store at any moment at which no member changes it: each used block is reached once, from the roots
//! or from the pins.

use super::*;
use crate::shared_heap::tests::metadata::of_heap;
use std::collections::{BTreeMap, BTreeSet};

/// The contents of a store, in numbers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Inventory {
    /// The number of blocks, and their bytes.
    pub(super) blocks: usize,
    pub(super) bytes: u64,
    /// The number of the last container.
    pub(super) last: u64,
}

struct Walk<'a, T> {
    t: &'a T,
    /// The blocks of the heap that were not reached so far.
    left: BTreeMap<u64, u64>,
    ids: BTreeSet<u64>,
    unpinned: BTreeSet<u64>,
}

impl<T: ReadWords> Walk<'_, T> {
    fn get(&self, at: u64) -> u64 {
        self.t.get(at).unwrap()
    }

    /// Notes that a block of at least this many bytes is reached.
    fn block(&mut self, at: u64, len: u64) {
        let size = self.left.remove(&at);
        let size = size.unwrap_or_else(|| panic!("{at} is no block, or is reached twice"));
        assert!(len <= size, "{len} bytes in a block of {size}");
    }

    fn cell(&mut self, cell: Cell, parent: Parent) {
        let Content::At(kind, at) = cell.content().unwrap() else {
            return;
        };
        match kind {
            Type::Text | Type::Bytes | Type::Int | Type::Packed => {
                let len = self.get(at);
                self.block(at, 8 + len);
            }
            Type::Key | Type::Alias => {
                let word = self.get(at);
                let first = (word & 0xffff_ffff).next_multiple_of(8);
                self.block(at, 8 + first + (word >> 32));
            }
            Type::Tuple | Type::FrozenSet => {
                let count = self.get(at);
                self.block(at, 8 + 8 * count);
                for index in 1..=count {
                    self.cell(Cell(self.get(at + 8 * index)), parent.deeper());
                }
            }
            _ => self.container(kind, at, parent),
        }
    }

    fn container(&mut self, kind: Type, at: u64, parent: Parent) {
        let header = Header::at(self.t, at).unwrap();
        assert_eq!(header.kind, kind);
        let fields = if kind == Type::Record { header.len } else { 0 };
        self.block(at, header::SIZE + 8 * fields);
        let id = self.get(at);
        assert!(self.ids.insert(id), "two containers have the number {id}");
        assert_eq!(
            self.get(header.parent_at()),
            parent.word(),
            "the parent of {header:?}"
        );
        let payload = self.get(header.payload_at());
        let inner = parent.deeper().within(header);
        match kind {
            Type::Record => {
                for number in 0..header.len {
                    self.cell(Cell(self.get(header.field(number).unwrap())), inner);
                }
                self.cell(Cell(payload), inner);
            }
            Type::Buffer => {
                let len = self.get(payload);
                self.block(payload, 64 + len);
                assert!(!self.unpinned.contains(&payload));
                self.cell(Cell::at(Type::Bytes, self.get(payload + 8)), inner);
            }
            Type::List => {
                let cells = Cells::of(self.t, header).unwrap();
                if payload != 0 {
                    let room = self.get(payload) >> 32;
                    self.block(payload, 8 + 8 * room);
                }
                for index in 0..header.len {
                    self.cell(cells.cell(self.t, index).unwrap(), inner);
                }
            }
            _ => self.table(header, payload, inner),
        }
    }

    fn table(&mut self, header: Header, payload: u64, inner: Parent) {
        let table = Table::of(self.t, header).unwrap();
        if payload != 0 {
            let (slots, room) = (self.get(payload), self.get(payload + 8) >> 32);
            let width = if header.kind == Type::Dict { 2 } else { 1 };
            self.block(payload, 16 + 8 * slots + 8 * width * room);
            let mut entries: Vec<u64> = (0..slots)
                .map(|slot| self.get(payload + 16 + 8 * slot))
                .filter(|&word| word > 1)
                .map(|word| (word & 0xffff_ffff) - 2)
                .collect();
            entries.sort_unstable();
            let there: Vec<u64> = (0..table.used)
                .filter(|&number| table.key(self.t, number).unwrap().is_some())
                .collect();
            assert_eq!(entries, there, "each entry is in one slot");
        }
        let mut count = 0;
        for number in 0..table.used {
            if let Some(key) = table.key(self.t, number).unwrap() {
                count += 1;
                self.cell(key, inner);
                if header.kind == Type::Dict {
                    self.cell(table.value(self.t, number).unwrap(), inner);
                }
            }
        }
        assert_eq!(count, header.len);
    }
}

/// Checks all invariants.
pub(super) fn checked(store: &Ours) -> Inventory {
    let mut open = store.begin(soon()).unwrap();
    let t = &store.log.writer(&mut open.pending);
    let (heap, memory) = of_heap(&store.heap, t);
    let mut walk = Walk {
        t,
        left: heap.blocks.clone(),
        ids: BTreeSet::new(),
        unpinned: store.pins().tests_free_on_unpin(t),
    };
    for block in walk.unpinned.clone() {
        walk.block(block, 64);
    }
    for root in Root::ALL {
        walk.cell(Cell(walk.get(store.root_at(root))), Parent::NONE);
    }
    assert!(walk.left.is_empty(), "{:?} are not reached", walk.left);
    let last = walk.get(store.start + AT_LAST_ID);
    assert!(
        walk.ids
            .iter()
            .all(|&id| id != 0 && id & 0xffff_ffff_ffff <= last)
    );
    let metadata = Inventory {
        blocks: heap.blocks.len(),
        bytes: heap.blocks.values().sum(),
        last,
    };
    // Memory besides the heap: the words of the tests, the log, and the part between them.
    let others = heap_at(START) + redo_log::KEPT;
    let allocated = store.allocated().unwrap();
    assert!(
        (*memory.start()..=memory.end() + others).contains(&allocated),
        "{allocated} bytes of memory, {memory:?} and {others} others are accounted for"
    );
    store.abandon(open);
    metadata
}
