//! A hostile process overwrites all of a store: each operation ends in time, with a result or an error.

use super::values::{self, Keys, key, value};
use super::*;
use crate::clock;
use crate::shared_heap::Corruption;
use crate::sync::Ordering;
use crate::testing::LONG;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;

const PATIENCE: u64 = 20_000_000;
const MAX_MEMORY: u64 = 2 * MIB;

struct Victim {
    store: Ours,
    keys: Rc<Keys>,
    containers: Vec<ContainerRef>,
    pins: Vec<u64>,
}

impl Victim {
    fn new(shared: &Shared, keys: &Rc<Keys>) -> Self {
        let store = store(shared, US);
        let containers = Root::ALL
            .map(|each| store.root(each, soon()).unwrap())
            .to_vec();
        let (keys, pins) = (keys.clone(), Vec::new());
        Victim {
            store,
            keys,
            containers,
            pins,
        }
    }

    fn note(&mut self, found: &StoredValue) {
        if let StoredValue::Container(_, container, _) = found {
            self.containers.push(*container);
        }
    }

    /// Runs one operation on a container.
    fn operate(
        &mut self,
        mut open: Option<&mut OpenTransaction>,
        rng: &mut TestRng,
    ) -> Result<(), StoreError> {
        let deadline = clock::now() + PATIENCE;
        let container = self.containers[rng.below(self.containers.len() as u64) as usize];
        let (chosen, new) = (self.keys.any(rng), self.keys.value(rng, 2));
        let (key, new) = (key(&chosen), value(&new));
        let item = match rng.below(4) {
            0 => Item::Key(&key),
            1 => Item::Extra(&key),
            2 => Item::Index(rng.below(5) as i64 - 2),
            _ => Item::Field(rng.below(5)),
        };
        let store = &self.store;
        match rng.below(16) {
            0..4 => {
                store.set(open.as_deref_mut(), deadline, container, &item, &new)?;
                let found = store.get(open, deadline, container, &item)?;
                self.note(&found);
            }
            4 => drop(take(store, open, container, &item)?),
            5 => drop(store.add(open, deadline, container, &item, Number::Int(1))?),
            6 => drop(store.copy(open, deadline, container)?),
            7 => {
                for (_, found) in store.items(open, deadline, container)? {
                    self.note(&found);
                }
            }
            8 => drop(store.keys(open, deadline, container)?),
            9 => {
                let values = [new, Value::Immediate(Cell::NONE)];
                store.splice(
                    open,
                    deadline,
                    container,
                    rng.below(4),
                    rng.below(4),
                    &values,
                )?;
            }
            10 => {
                let len = store.len(open.as_deref_mut(), deadline, container)?;
                let order: Vec<u32> = (0..len.min(100) as u32).rev().collect();
                store.permute(open, deadline, container, &order)?;
            }
            11 => drop(store.insert(open, deadline, container, &key)?),
            12 => drop(store.discard(open, deadline, container, &key)?),
            13 if open.is_none() => {
                let (block, ..) = store.pin(deadline, container)?;
                self.pins.push(block);
                if rng.below(2) == 0 {
                    store.unpin(deadline, self.pins.swap_remove(0))?;
                }
            }
            14 => store.send(open, deadline, &new, false)?,
            15 => drop(store.receive(open, deadline, StoredValue::is_plain)?),
            _ => {
                for found in store.range(open, deadline, container, 0, u64::MAX)? {
                    self.note(&found);
                }
            }
        }
        Ok(())
    }

    /// Runs one operation, and checks that it ends in time. Returns the corruption that it met.
    fn step(&mut self, rng: &mut TestRng) -> Option<Corruption> {
        let begun = clock::now();
        if self.containers.len() > 100 {
            self.containers.drain(10..60);
        }
        let done = match rng.below(8) {
            0 => self.store.begin(begun + PATIENCE).and_then(|mut open| {
                for _ in 0..4 {
                    let _ = self.operate(Some(&mut open), rng);
                }
                self.store.commit(open)
            }),
            1 => self.store.recover(|member| member == 7, begun + PATIENCE),
            2 => self.store.usage(begun + PATIENCE).map(drop),
            3 => self
                .store
                .define_class(
                    None,
                    begun + PATIENCE,
                    &Key::Immediate(Cell::NONE),
                    &value(&values::int(1)),
                )
                .map(drop),
            _ => self.operate(None, rng),
        };
        let took = clock::now() - begun;
        assert!(took < LONG, "{took} ns");
        match done {
            Err(StoreError::Heap(HeapError::Poisoned(found))) => {
                assert!(found.to_string().contains("overwritten shared memory"));
                Some(found)
            }
            _ => None,
        }
    }

    /// Returns an offset that is worth overwriting.
    fn somewhere(&self, shared: &Shared, rng: &mut TestRng) -> u64 {
        let metadata = heap_at(START);
        let data = self.store.heap.tests_data();
        let container = self.containers[rng.below(self.containers.len() as u64) as usize].at;
        match rng.below(16) {
            0 => self.store.log.seqlock().start() + rng.below(40) * 8,
            1 => START + AT_LAST_ID + rng.below(40) * 8,
            2 => START + AT_WATCHES + rng.below(40) * 8,
            3 => metadata + rng.below(1100) * 8,
            4 => metadata + heap::METADATA_SIZE + rng.below(300) * 8,
            5..10 => container + rng.below(8) * 8,
            10 | 11 => {
                // The first word of its payload.
                let payload = shared.mapping.word(container + 24);
                let payload = payload.map_or(0, |word| word.load(Ordering::Relaxed));
                let low = (payload & ((1 << 40) - 1)) / 8 * 8;
                (low + rng.below(20) * 8).min(shared.mapping.size() as u64 - 8)
            }
            _ => data + rng.below(64 * PAGE / 8) * 8,
        }
    }

    fn corrupt(&self, shared: &Shared, rng: &mut TestRng) {
        let at = self
            .somewhere(shared, rng)
            .min(shared.mapping.size() as u64 - 8);
        // Rarely the poison, because it ends the run at once.
        let log = self.store.log.seqlock().start();
        if (log + 8..log + 32).contains(&at) {
            return;
        }
        let found = shared.load(at);
        let container = self.containers[rng.below(self.containers.len() as u64) as usize];
        let kinds = [
            Type::List,
            Type::Dict,
            Type::Set,
            Type::Record,
            Type::Buffer,
        ];
        let kind = kinds[rng.below(5) as usize];
        let value = match rng.below(14) {
            0 => rng.next(),
            1 => 0,
            2 => u64::MAX,
            3 => found ^ 1 << rng.below(64),
            4 => found.wrapping_add(rng.below(5)).wrapping_sub(2),
            5 => rng.below(4096),
            6 => rng.below(1 << 32) << 32 | rng.below(16),
            7 => u64::MAX >> rng.below(64),
            // A cycle, or a container in two others.
            8 | 9 => Cell::at(kind, container.at).0,
            10 => Cell::at(Type::Tuple, container.at).0,
            11 => container.at,
            12 => START + rng.below(shared.mapping.size() as u64 / 8) * 8,
            _ => {
                let other = self
                    .somewhere(shared, rng)
                    .min(shared.mapping.size() as u64 - 8);
                shared.load(other)
            }
        };
        shared.store(at, value);
    }
}

#[test]
fn corruption_at_rest_ends_in_results_or_errors() {
    let mut rng = TestRng(0xdead_beef);
    let (mut poisoned, mut overwrites) = (0, 0);
    let keys = Rc::new(Keys::new());
    for _ in 0..scaled(300, 20_000) {
        let shared = &shared(MAX_MEMORY);
        let mut victim = Victim::new(shared, &keys);
        for _ in 0..rng.below(60) {
            assert_eq!(victim.step(&mut rng), None, "without corruption");
        }
        for _ in 0..60 {
            for _ in 0..rng.below(3) {
                victim.corrupt(shared, &mut rng);
                overwrites += 1;
            }
            if victim.step(&mut rng).is_some() {
                poisoned += 1;
                break;
            }
        }
    }
    println!("{overwrites} overwrites, {poisoned} stores poisoned");
    assert!(poisoned > 0);
}

#[test]
fn corruption_during_operations_ends_in_results_or_errors() {
    let mut rng = TestRng(0xfeed);
    let keys = Rc::new(Keys::new());
    for round in 0..scaled(20, 2_000) {
        let shared = &shared(MAX_MEMORY);
        let mut victim = Victim::new(shared, &keys);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let over = &over;
            // The attacker has the same memory, and knows the roots.
            let (store, containers) = (store(shared, US), victim.containers.clone());
            scope.spawn(move || {
                let mut rng = TestRng(round + 1);
                let attacker = Victim {
                    store,
                    keys: Rc::new(Keys::none()),
                    containers,
                    pins: Vec::new(),
                };
                while !over.load(Ordering::Relaxed) {
                    attacker.corrupt(shared, &mut rng);
                    for _ in 0..rng.below(3000) {
                        std::hint::spin_loop();
                    }
                }
            });
            let end = clock::now() + 20_000_000;
            while clock::now() < end {
                if victim.step(&mut rng).is_some() {
                    for at in [8, 16, 24] {
                        shared.store(victim.store.log.seqlock().start() + at, 0);
                    }
                }
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn corrupt_entries_of_the_log_change_no_word_of_the_log() {
    let start = shared(MAX_MEMORY).mapping.size() as u64 - redo_log::SIZE;
    let log = |at| start + at;
    let words = [
        // A word of the log, an invalid offset, the last word.
        (log(0), true),
        (log(64), true),
        (log(80), true),
        (log(redo_log::SIZE) - 8, true),
        (7, true),
        (u64::MAX - 7, true),
        (u64::MAX, true),
        // Words that a transaction may change: of the pins, of the tests.
        (START + AT_PINS + 16, false),
        (8, false),
    ];
    for (at, is_corrupt) in words {
        let shared = shared(MAX_MEMORY);
        let store = store(&shared, US);
        for (number, word) in [at, 5].into_iter().enumerate() {
            shared.store(log(80) + 8 * number as u64, word);
        }
        shared.store(log(72), 1);
        let done = store.recover(|_| false, soon());
        assert_eq!(done.is_err(), is_corrupt, "{at}: {done:?}");
        assert!(is_corrupt || shared.load(at) == 5);
        assert!(store.len(None, soon(), ContainerRef { at, id: 5 }).is_err());
    }
    for count in [redo_log::CAPACITY as u64 + 1, 1 << 32, u64::MAX] {
        let shared = shared(MAX_MEMORY);
        let store = store(&shared, US);
        shared.store(log(72), count);
        let done = store.recover(|_| false, soon());
        assert!(matches!(
            done,
            Err(StoreError::Heap(HeapError::Poisoned(_)))
        ));
    }
}

#[test]
fn an_inbox_that_is_no_list_is_a_corruption() {
    let shared = shared(MAX_MEMORY);
    let store = store(&shared, US);
    let container = store.root(Root::Inbox, soon()).unwrap();
    let at = container.at + header::AT_FORM;
    shared.store(at, shared.load(at) & !0xFF | Type::Dict as u64);
    let done = store.receive(None, soon(), |_| true);
    assert!(matches!(done, Err(StoreError::Heap(_))), "{done:?}");
}
