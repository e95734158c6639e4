//! What the tests of stores have in common.

mod books;
mod deaths;
mod depth;
mod leaving;
mod lies;
mod model;
mod moments;
mod values;

use super::*;
use crate::shared::tests::{Mapping, Member, START, Shared};
use crate::testing::{Dice, file_in_memory, scaled, soon};

const MIB: u64 = 1 << 20;
/// The member that the tests' own process is.
const US: u64 = 1 << 32 | 1;

type Ours = Store<Mapping, Member>;

/// The memory of a store, which begins behind words that belong to the tests.
fn shared(max_memory: u64) -> Shared {
    let (size, _) = sizes(START, max_memory);
    Shared::sized(file_in_memory(), size, max_memory)
}

/// A store in it, as a member has it.
fn store(shared: &Shared, number: u64) -> Ours {
    let (file, mapping) = (shared.file.clone(), shared.mapping.clone());
    let member = shared.member(number);
    let store = Store::new(mapping, &file, START, shared.max_memory, member).unwrap();
    store.found(soon()).unwrap();
    store
}

fn root(store: &Ours) -> Place {
    store.root(Root::Store, soon()).unwrap()
}
