//! A store behaves like a model of plain values: in single operations and in transactions, including those with
//! operations that fail and those that are rolled back.

mod changes;

use super::metadata::{Inventory, checked};
use super::values::{self, Keys, is_same, key, value};
use super::*;
use std::collections::HashSet;
use std::rc::Rc;

/// More bytes than any store of the tests has.
static TOO_MUCH: [u8; 65 << 20] = [0; 65 << 20];

/// An item of a container of the model.
#[derive(Clone, Copy, Debug)]
enum Step {
    Entry(usize),
    Index(usize),
    Field(usize),
    Extra(usize),
}

/// Returns the items of a container that are containers.
fn steps(found: &StoredValue) -> Vec<Step> {
    let is_container = |found: &StoredValue| {
        matches!(
            found,
            StoredValue::List(_)
                | StoredValue::Dict(_)
                | StoredValue::Set(_)
                | StoredValue::Record(..)
                | StoredValue::Buffer(..)
        )
    };
    let entries = |items: &[(StoredValue, StoredValue)]| -> Vec<usize> {
        let items = items.iter().enumerate();
        let those = items.filter(|(_, (_, item))| is_container(item));
        those.map(|(index, _)| index).collect()
    };
    let items = |items: &[StoredValue]| -> Vec<usize> {
        let items = items.iter().enumerate();
        let those = items.filter(|(_, item)| is_container(item));
        those.map(|(index, _)| index).collect()
    };
    match found {
        StoredValue::Dict(all) => entries(all).into_iter().map(Step::Entry).collect(),
        StoredValue::List(all) => items(all).into_iter().map(Step::Index).collect(),
        StoredValue::Record(_, fields, extra) => {
            let fields = items(fields).into_iter().map(Step::Field);
            fields
                .chain(entries(extra).into_iter().map(Step::Extra))
                .collect()
        }
        _ => Vec::new(),
    }
}

fn at(found: &mut StoredValue, step: Step) -> &mut StoredValue {
    match (found, step) {
        (StoredValue::Dict(items), Step::Entry(index)) => &mut items[index].1,
        (StoredValue::List(items), Step::Index(index)) => &mut items[index],
        (StoredValue::Record(_, fields, _), Step::Field(index)) => &mut fields[index],
        (StoredValue::Record(_, _, extra), Step::Extra(index)) => &mut extra[index].1,
        (found, step) => panic!("{step:?} of {found:?}"),
    }
}

/// Returns the number of values.
fn size(found: &StoredValue) -> usize {
    1 + match found {
        StoredValue::Tuple(items)
        | StoredValue::List(items)
        | StoredValue::Set(items)
        | StoredValue::FrozenSet(items) => items.iter().map(size).sum(),
        StoredValue::Dict(items) => items.iter().map(|(_, item)| 1 + size(item)).sum(),
        StoredValue::Record(_, fields, extra) => {
            let extra = extra.iter().map(|(_, item)| 1 + size(item));
            fields.iter().map(size).sum::<usize>() + extra.sum::<usize>()
        }
        _ => 0,
    }
}

/// Returns true if the value found agrees with the model; containers are not copied.
fn agrees(found: &StoredValue, model: &StoredValue) -> bool {
    match (found, model) {
        (StoredValue::Container(kind, _, class), model) => match model {
            StoredValue::List(_) => *kind == Type::List,
            StoredValue::Dict(_) => *kind == Type::Dict,
            StoredValue::Set(_) => *kind == Type::Set,
            StoredValue::Record(number, ..) => *kind == Type::Record && class == number,
            StoredValue::Buffer(..) => *kind == Type::Buffer,
            _ => false,
        },
        (StoredValue::Tuple(found), StoredValue::Tuple(model)) => all_agree(found, model),
        _ => found == model,
    }
}

fn all_agree(found: &[StoredValue], model: &[StoredValue]) -> bool {
    found.len() == model.len()
        && found
            .iter()
            .zip(model)
            .all(|(one, other)| agrees(one, other))
}

fn entries_agree(
    found: &[(StoredValue, StoredValue)],
    model: &[(StoredValue, StoredValue)],
) -> bool {
    let mut pairs = found.iter().zip(model);
    found.len() == model.len()
        && pairs.all(|(one, other)| one.0 == other.0 && agrees(&one.1, &other.1))
}

fn position(items: &[(StoredValue, StoredValue)], key: &StoredValue) -> Option<usize> {
    items.iter().position(|(each, _)| is_same(each, key))
}

fn sum(old: &StoredValue, by: Number) -> Option<StoredValue> {
    let StoredValue::Immediate(cell) = old else {
        return None;
    };
    Some(match (cell.content()?, by) {
        (Content::Int(old), Number::Int(by)) => StoredValue::Immediate(Cell::int(old + by)?),
        (Content::Int(old), Number::Float(by)) => values::float(old as f64 + by),
        (Content::Float(old), Number::Int(by)) => values::float(old + by as f64),
        (Content::Float(old), Number::Float(by)) => values::float(old + by),
        _ => return None,
    })
}

/// Result of an operation.
#[derive(Debug, PartialEq)]
enum End {
    Done,
    NoKey,
    NoIndex,
    NoNumber,
    OtherType,
    Full,
}

fn end<R>(done: &Result<R, StoreError>) -> End {
    match done {
        Ok(_) => End::Done,
        Err(StoreError::KeyNotFound) => End::NoKey,
        Err(StoreError::IndexOutOfRange(_)) => End::NoIndex,
        Err(StoreError::NotANumber) => End::NoNumber,
        Err(StoreError::WrongType) => End::OtherType,
        Err(StoreError::Heap(HeapError::Limit { .. })) => End::Full,
        Err(error) => panic!("{error:?}"),
    }
}

/// A store, and its model.
pub(super) struct Trial {
    pub(super) store: Ours,
    pub(super) model: StoredValue,
    keys: Rc<Keys>,
    /// Containers that were removed.
    gone: Vec<ContainerRef>,
    pins: Vec<u64>,
    /// The number of operations that failed for lack of memory.
    pub(super) refused: u64,
}

impl Trial {
    pub(super) fn new(store: Ours) -> Self {
        Trial {
            store,
            model: StoredValue::Dict(Vec::new()),
            keys: Rc::new(Keys::new()),
            gone: Vec::new(),
            pins: Vec::new(),
            refused: 0,
        }
    }

    /// Copies the model, for another store on which the same was done.
    pub(super) fn twin(&self, store: Ours) -> Self {
        Trial {
            store,
            model: self.model.clone(),
            keys: self.keys.clone(),
            gone: Vec::new(),
            pins: Vec::new(),
            refused: 0,
        }
    }

    /// Forgets all pins and all removed containers.
    pub(super) fn forget(&mut self) {
        for block in std::mem::take(&mut self.pins) {
            self.store.unpin(soon(), block).unwrap();
        }
        self.gone.clear();
    }

    /// Runs one operation, or one transaction of several.
    pub(super) fn step(&mut self, rng: &mut TestRng) {
        if rng.below(8) > 0 {
            return self.operate(None, rng);
        }
        let before = (self.model.clone(), self.gone.clone());
        let mut open = self.store.begin(soon()).unwrap();
        let most = if rng.below(10) == 0 { 100 } else { 8 };
        for _ in 0..rng.below(most) {
            match rng.below(8) {
                0 => self.with_savepoint(&mut open, rng),
                _ => self.operate(Some(&mut open), rng),
            }
        }
        let is_kept = rng.below(3) > 0;
        if is_kept {
            self.store.commit(open).unwrap();
            return;
        }
        if rng.below(8) > 0 {
            self.store.abandon(open);
            (self.model, self.gone) = before;
            return;
        }
        // Containers of a transaction are unknown to others before its end and, after a rollback, deleted.
        let within = containers(&self.store, Some(&mut open));
        let outside: HashSet<ContainerRef> = containers(&self.store, None).into_iter().collect();
        let made: Vec<ContainerRef> = within
            .into_iter()
            .filter(|container| !outside.contains(container))
            .collect();
        for &container in &made {
            let len = self.store.len(None, soon(), container);
            assert!(matches!(len, Err(StoreError::ContainerDeleted)), "{len:?}");
        }
        self.store.abandon(open);
        (self.model, self.gone) = before;
        self.gone.extend(made.into_iter().take(100));
    }

    /// Runs several operations between savepoints, also nested ones.
    fn with_savepoint(&mut self, open: &mut OpenTransaction, rng: &mut TestRng) {
        let before = (self.model.clone(), self.gone.clone());
        let part = self.store.begin_savepoint(open);
        for _ in 0..rng.below(8) {
            match rng.below(8) {
                0 => self.with_savepoint(open, rng),
                _ => self.operate(Some(open), rng),
            }
        }
        let is_kept = rng.below(2) == 0;
        if rng.below(4) == 0 {
            self.store.begin_savepoint(open); // Ended by the end of the outer savepoint.
        }
        let is_checked = !is_kept && rng.below(8) == 0;
        let within = is_checked.then(|| containers(&self.store, Some(open)));
        self.store.end_savepoint(open, part, is_kept);
        if !is_kept {
            (self.model, self.gone) = before;
        }
        if let Some(within) = within {
            let left: HashSet<ContainerRef> =
                containers(&self.store, Some(open)).into_iter().collect();
            let made = within
                .into_iter()
                .filter(|container| !left.contains(container));
            self.gone.extend(made.take(100));
        }
    }

    fn operate(&mut self, mut open: Option<&mut OpenTransaction>, rng: &mut TestRng) {
        if let Some(&container) = self.gone.last()
            && rng.below(8) == 0
        {
            let index = rng.below(self.gone.len() as u64) as usize;
            let container = if rng.below(2) == 0 {
                container
            } else {
                self.gone[index]
            };
            let found = self
                .store
                .get(open.as_deref_mut(), soon(), container, &Item::Index(0));
            assert!(
                matches!(found, Err(StoreError::ContainerDeleted)),
                "{found:?}"
            );
        }
        let mut model = std::mem::replace(&mut self.model, StoredValue::Dict(Vec::new()));
        let is_large = rng.below(64) == 0 && size(&model) > 3000;
        let (mut container, mut part) = (root(&self.store), &mut model);
        while !is_large && rng.below(4) > 0 {
            let steps = steps(part);
            if steps.is_empty() {
                break;
            }
            let step = steps[rng.below(steps.len() as u64) as usize];
            container = self.container(open.as_deref_mut(), container, part, step);
            part = at(part, step);
        }
        if is_large || rng.below(300) == 0 {
            self.clear(open, container, part);
        } else {
            match part {
                StoredValue::Dict(_) => self.change_dict(open, container, part, rng),
                StoredValue::List(_) => self.change_list(open, container, part, rng),
                StoredValue::Set(_) => self.change_set(open, container, part, rng),
                StoredValue::Record(..) => self.change_record(open, container, part, rng),
                _ => self.change_buffer(open, container, part, rng),
            }
        }
        self.model = model;
    }

    /// Returns the container that is this item.
    fn container(
        &self,
        open: Option<&mut OpenTransaction>,
        container: ContainerRef,
        part: &StoredValue,
        step: Step,
    ) -> ContainerRef {
        let get = |item: &Item<'_>| self.store.get(open, soon(), container, item);
        let found = match (part, step) {
            (StoredValue::Dict(items), Step::Entry(index)) => {
                get(&Item::Key(&key(&items[index].0)))
            }
            (_, Step::Index(index)) => get(&Item::Index(index as i64)),
            (_, Step::Field(index)) => get(&Item::Field(index as u64)),
            (StoredValue::Record(_, _, extra), Step::Extra(index)) => {
                get(&Item::Extra(&key(&extra[index].0)))
            }
            _ => panic!("{step:?} of {part:?}"),
        };
        match found {
            Ok(StoredValue::Container(_, container, _)) => container,
            other => panic!("{other:?} instead of a container"),
        }
    }

    /// Notes that the container in this item, if it is one, will be removed.
    fn will_remove(
        &mut self,
        open: Option<&mut OpenTransaction>,
        container: ContainerRef,
        item: &Item<'_>,
    ) -> Option<ContainerRef> {
        match self.store.get(open, soon(), container, item) {
            Ok(StoredValue::Container(_, container, _)) => Some(container),
            _ => None,
        }
    }

    /// Checks the result of an operation. Returns false if it failed for lack of memory.
    fn is_done<R>(
        &mut self,
        done: &Result<R, StoreError>,
        expected: End,
        left: Option<ContainerRef>,
    ) -> bool {
        let end = end(done);
        if end == End::Full {
            self.refused += 1;
            return false;
        }
        assert_eq!(end, expected);
        if end == End::Done {
            self.gone.extend(left);
            if self.gone.len() > 1000 {
                self.gone.drain(..500);
            }
        }
        end == End::Done
    }

    /// Tries an operation that fails for lack of memory after many changes.
    fn exceed_memory(
        &mut self,
        open: Option<&mut OpenTransaction>,
        container: ContainerRef,
        item: Option<&Item<'_>>,
        rng: &mut TestRng,
    ) {
        let first = self.keys.value(rng, 2);
        let large = Value::Blob(Type::Bytes, value::Bytes::Borrowed(&TOO_MUCH));
        let new = Value::List(vec![value(&first), Value::Tuple(vec![large])]);
        let done = match item {
            Some(item) => self
                .store
                .set(open, soon(), container, item, &new)
                .map(drop),
            None => self
                .store
                .splice(open, soon(), container, 0, 3, &[value(&first), new]),
        };
        assert_eq!(end(&done), End::Full);
    }

    fn clear(
        &mut self,
        mut open: Option<&mut OpenTransaction>,
        container: ContainerRef,
        part: &mut StoredValue,
    ) {
        let left = steps(part)
            .first()
            .map(|&step| self.container(open.as_deref_mut(), container, part, step));
        let done = self.store.clear(open, soon(), container);
        let expected = match part {
            StoredValue::Dict(_) | StoredValue::List(_) | StoredValue::Set(_) => End::Done,
            _ => End::OtherType,
        };
        if self.is_done(&done, expected, left) {
            match part {
                StoredValue::Dict(items) => items.clear(),
                StoredValue::List(items) | StoredValue::Set(items) => items.clear(),
                _ => {}
            }
        }
    }

    /// Returns one of these keys, or a new one.
    fn key_of(&self, items: &[(StoredValue, StoredValue)], rng: &mut TestRng) -> StoredValue {
        match rng.below(3) {
            0 if !items.is_empty() => items[rng.below(items.len() as u64) as usize].0.clone(),
            _ => self.keys.any(rng),
        }
    }

    /// Checks that the store equals the model.
    pub(super) fn assert_same(&self) {
        let found = self.store.copy(None, soon(), root(&self.store)).unwrap();
        assert!(found == self.model, "{found:?} instead of {:?}", self.model);
    }

    /// Empties the store and removes all pins.
    pub(super) fn empty(&mut self) {
        self.forget();
        self.store.clear(None, soon(), root(&self.store)).unwrap();
        self.model = StoredValue::Dict(Vec::new());
    }
}

#[test]
fn a_store_equals_its_model_and_leaks_nothing() {
    for seed in 1..=scaled(2, 20) {
        // So little memory that operations often fail.
        let shared = shared(if seed % 2 == 0 { MIB / 2 } else { 8 * MIB });
        let mut trial = Trial::new(store(&shared, US));
        let empty = checked(&trial.store);
        let mut rng = TestRng(seed);
        for number in 0..scaled(40_000, 100_000) {
            trial.step(&mut rng);
            if number % 1000 == 0 {
                trial.assert_same();
                checked(&trial.store);
            }
        }
        trial.assert_same();
        checked(&trial.store);
        trial.empty();
        let Inventory { last, .. } = checked(&trial.store);
        assert_eq!(checked(&trial.store), Inventory { last, ..empty });
        assert_eq!(trial.refused > 0, seed % 2 == 0);
        let usage = trial.store.usage(soon()).unwrap();
        println!("{last} containers, {} refused, {usage:?}", trial.refused);
    }
}
