//! Helpers for the tests of stores.

mod corruption;
mod deaths;
mod depth;
mod leaving;
mod metadata;
mod model;
mod moments;
mod values;

use super::format::header::{Header, Parent};
use super::format::list::Cells;
use super::format::table::Table;
use super::format::{copy, header, value};
use super::handle::{AT_LAST_ID, AT_PINS, AT_WATCHES, heap_at};
use super::*;
use crate::shared_heap::access::ReadWords;
use crate::shared_heap::backing_file::PAGE;
use crate::shared_heap::tests::{Mapping, Member, START, Shared};
use crate::shared_heap::{HeapError, Members, Words, heap, redo_log};
use crate::testing::{TestRng, file_in_memory, scaled, soon};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const MIB: u64 = 1 << 20;
/// The member number of the test's own process.
const US: u64 = 1 << 32 | 1;

type Ours = Store<Mapping, Member>;

/// Creates the memory of a store, which begins behind words that belong to the tests.
fn shared(max_memory: u64) -> Shared {
    let (size, _) = sizes(START, max_memory);
    Shared::sized(file_in_memory(), size, max_memory)
}

/// Opens the store in it, as a member.
fn store(shared: &Shared, number: u64) -> Ours {
    let (file, mapping) = (shared.file.clone(), shared.mapping.clone());
    let member = shared.member(number);
    let store = Store::new(mapping, &file, START, shared.max_memory, member).unwrap();
    store.initialize(soon()).unwrap();
    store
}

/// Removes an item as a program does: reads it first, and then removes what it has read.
fn take(
    store: &Ours,
    mut open: Option<&mut OpenTransaction>,
    container: ContainerRef,
    item: &Item<'_>,
) -> Result<StoredValue, StoreError> {
    match store.get_copy(open.as_deref_mut(), soon(), container, item) {
        Ok((whole, known)) => {
            let removed = store.remove(open, soon(), container, item, |found| *found == known);
            removed.map(|_| whole)
        }
        Err(_) => store.remove(open, soon(), container, item, |_| true),
    }
}

/// Returns all containers that the root reaches.
fn containers(store: &Ours, mut open: Option<&mut OpenTransaction>) -> Vec<ContainerRef> {
    let mut containers = vec![root(store)];
    let mut next = 0;
    while let Some(&container) = containers.get(next) {
        next += 1;
        let mut found = Vec::new();
        let items = store.items(open.as_deref_mut(), soon(), container);
        found.extend(items.into_iter().flatten().map(|(_, item)| item));
        let items = store.range(open.as_deref_mut(), soon(), container, 0, u64::MAX);
        found.extend(items.into_iter().flatten());
        let fields = (0..).map_while(|number| {
            let field = Item::Field(number);
            store
                .get(open.as_deref_mut(), soon(), container, &field)
                .ok()
        });
        found.extend(fields);
        while let Some(found) = found.pop() {
            if let StoredValue::Container(_, container, _) = found {
                containers.push(container);
            }
        }
    }
    containers
}

fn root(store: &Ours) -> ContainerRef {
    store.root(Root::Store, soon()).unwrap()
}
