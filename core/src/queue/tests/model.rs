//! A queue agrees with a model of it: the same items, in the same order, and the same refusals.

use super::*;
use std::collections::{BTreeMap, VecDeque};

/// An item of the model: its payload, and the number of its deliveries.
#[derive(Clone, Debug)]
struct Item {
    payload: Vec<u8>,
    deliveries: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Holds {
    Item,
    Letter,
    /// Acknowledged, with memory that is still read.
    Over,
}

#[derive(Default)]
struct Model {
    put: u64,
    waiting: VecDeque<(u64, Item)>,
    returned: BTreeMap<u64, Item>,
    dead: BTreeMap<u64, Item>,
    held: Vec<(usize, Claim, Item, Holds)>,
    /// Unprocessed items of each member.
    outstanding: [u64; SLOTS_USED],
    unfinished: u64,
    is_shut: bool,
}

const SLOTS_USED: usize = 3;

impl Model {
    fn depth(&self) -> u64 {
        (self.waiting.len() + self.returned.len()) as u64
    }

    fn is_finished(&self) -> bool {
        let is_held = |holds: &Holds| *holds == Holds::Item;
        let has_claims = self.held.iter().any(|(_, _, _, holds)| is_held(holds));
        self.is_shut && self.depth() == 0 && !has_claims
    }

    fn refusal(&self, limits: Limits, count: u64) -> Option<PutOutcome> {
        if self.is_shut {
            return Some(PutOutcome::ShutDown);
        }
        let is_full = limits.items != 0 && self.depth() + count > limits.items;
        is_full.then_some(PutOutcome::Full)
    }

    fn add(&mut self, items: &[u8], count: u64) {
        let mut at = 0;
        for _ in 0..count {
            let len = Head(crate::bytes::u64_at(items, at)).size() as usize;
            let payload = items[at + 8..at + 8 + len].to_vec();
            let item = Item {
                payload,
                deliveries: 0,
            };
            self.waiting.push_back((self.put, item));
            self.put += 1;
            self.unfinished += 1;
            at = (at + 8 + len).next_multiple_of(8);
        }
    }

    /// Return the next item, and its number.
    fn next(&mut self, source: Source) -> Option<(u64, Item)> {
        match source {
            Source::Queue => self
                .returned
                .pop_first()
                .or_else(|| self.waiting.pop_front()),
            Source::DeadLetters => self.dead.pop_first(),
        }
    }

    fn give_back(&mut self, limits: Limits, number: u64, item: Item, holds: &Holds) {
        match holds {
            Holds::Letter => drop(self.dead.insert(number, item)),
            Holds::Item if limits.deliveries != 0 && item.deliveries >= limits.deliveries => {
                self.unfinished -= 1;
                self.dead.insert(number, item);
            }
            Holds::Item => drop(self.returned.insert(number, item)),
            Holds::Over => {}
        }
    }

    /// Return all items of a member.
    fn lose(&mut self, limits: Limits, slot: usize) {
        let (gone, held) = std::mem::take(&mut self.held)
            .into_iter()
            .partition::<Vec<_>, _>(|each| each.0 == slot);
        self.held = held;
        for (_, claim, item, holds) in gone {
            self.give_back(limits, claim.number, item, &holds);
        }
        self.unfinished -= std::mem::take(&mut self.outstanding[slot]);
    }
}

/// Create a batch of items, all small or some large, and return their number.
fn batch(rng: &mut TestRng, model: &Model) -> (Vec<u8>, u64) {
    let count = if rng.below(3) == 0 {
        1 + rng.below(20)
    } else {
        1
    };
    let mut items = Vec::new();
    for each in 0..count {
        items.extend_from_slice(&item(model.put + each, any_len(rng)));
    }
    (items, count)
}

struct Trial {
    memory: Memory,
    queues: Vec<Ours>,
    generations: [u64; SLOTS_USED],
    reserved: Vec<(usize, Chunk)>,
    model: Model,
}

impl Trial {
    fn new(limits: Limits) -> Self {
        let memory = Memory::new(limits);
        let queues = (0..SLOTS_USED as u64)
            .map(|slot| memory.queue(number(slot, 1)))
            .collect();
        Trial {
            memory,
            queues,
            generations: [1; SLOTS_USED],
            reserved: Vec::new(),
            model: Model::default(),
        }
    }

    fn step(&mut self, rng: &mut TestRng) {
        let slot = rng.below(SLOTS_USED as u64) as usize;
        let limits = self.memory.limits;
        let source = if rng.below(8) == 0 {
            Source::DeadLetters
        } else {
            Source::Queue
        };
        match rng.below(100) {
            0..30 => self.put(slot, rng),
            30..40 => self.reserve(slot, rng),
            40..60 => self.take(slot, source, 1 + rng.below(30) as usize),
            60..75 => self.claim(slot, source),
            75..93 => self.end_claim(rng),
            93..96 => {
                let count = rng.below(4);
                let done = self.queues[slot].task_done(count, soon()).unwrap();
                assert_eq!(done.is_some(), self.model.outstanding[slot] >= count);
                if done.is_some() {
                    self.model.outstanding[slot] -= count;
                    self.model.unfinished -= count;
                }
            }
            96..98 => {
                // The member dies, and another one gets its slot before or after its recovery.
                self.reserved.retain(|(owner, _)| *owner != slot);
                self.generations[slot] += 1;
                self.queues[slot] = self
                    .memory
                    .queue(number(slot as u64, self.generations[slot]));
                let by = rng.below(SLOTS_USED as u64) as usize;
                self.queues[by].recover(slot as u32, soon()).unwrap();
                self.model.lose(limits, slot);
            }
            98 => {
                self.reserved.retain(|(owner, _)| *owner != slot);
                self.queues[slot].abandon(soon()).unwrap();
                self.model.lose(limits, slot);
            }
            _ => {
                let _ = self.queues[slot].trim(TrimState::default(), soon());
            }
        }
        self.compare(slot);
    }

    fn put(&mut self, slot: usize, rng: &mut TestRng) {
        let (items, count) = batch(rng, &self.model);
        let put = self.queues[slot].put(&items, count, soon());
        self.has_put(put, &items, count);
    }

    /// Check that the put agrees with the model, except for a lack of memory, which the model does not know.
    fn has_put(&mut self, put: Result<PutOutcome, HeapError>, items: &[u8], count: u64) {
        match (put, self.model.refusal(self.memory.limits, count)) {
            (Ok(PutOutcome::Stored), None) => self.model.add(items, count),
            (Ok(put), Some(refusal)) => assert_eq!(put, refusal),
            (Ok(PutOutcome::Full), None) => {
                let used = self.queues[0].stats(soon()).unwrap().memory;
                let least = self.memory.limits.memory / 2;
                let large = items.len() as u64;
                assert!(
                    used + 2 * large + 64 * 1024 > least,
                    "{large} bytes found no room beside {used}"
                );
            }
            (Err(HeapError::Limit { .. }), None) => {
                assert!(items.len() as u64 + 2 * PAGE > self.memory.limits.memory);
            }
            (put, refusal) => panic!("{put:?} instead of {refusal:?}"),
        }
    }

    fn reserve(&mut self, slot: usize, rng: &mut TestRng) {
        let queue = &self.queues[slot];
        if self.reserved.len() < 4 && rng.below(2) == 0 {
            let len = (8 + any_len(rng)).next_multiple_of(8);
            match queue.reserve(len, soon()) {
                Ok(Some(chunk)) => self.reserved.push((slot, chunk)),
                Ok(None) => {}
                Err(HeapError::Limit { .. }) => assert!(len + 64 > self.memory.limits.memory),
                Err(error) => panic!("{error}"),
            }
            return;
        }
        let Some(index) = self.reserved.iter().position(|(owner, _)| *owner == slot) else {
            return;
        };
        let (_, chunk) = self.reserved.swap_remove(index);
        if rng.below(4) == 0 {
            return queue.free_chunk(chunk, soon());
        }
        let len = 8 + rng.below(chunk.room() - 15);
        let filled = item(self.model.put, len);
        let to = queue.bytes(chunk.items(), filled.len() as u64).unwrap();
        // SAFETY: the reserved chunk has room for it, and no other thread writes it.
        unsafe { std::ptr::copy_nonoverlapping(filled.as_ptr(), to, filled.len()) };
        let mut chunk = Some(chunk);
        let put = queue.link(&mut chunk, filled.len() as u64, 1, soon());
        assert_eq!(chunk.is_none(), matches!(put, Ok(PutOutcome::Stored)));
        if let Some(unused) = chunk {
            queue.free_chunk(unused, soon());
        }
        assert!(
            !matches!(put, Ok(PutOutcome::Full))
                || self.model.refusal(self.memory.limits, 1).is_some()
        );
        self.has_put(put, &filled, 1);
    }

    fn take(&mut self, slot: usize, source: Source, most: usize) {
        let mut out = vec![7; 3];
        let (taken, _) = self.queues[slot]
            .pop(source, most, &mut out, soon())
            .unwrap();
        assert_eq!(out[..3], [7; 3]);
        let PopOutcome::Items(count) = taken else {
            assert_eq!(out.len(), 3);
            let expected = match source {
                Source::Queue => self.model.depth(),
                Source::DeadLetters => self.model.dead.len() as u64,
            };
            let is_finished = source == Source::Queue && self.model.is_finished();
            match taken {
                PopOutcome::Large => assert!(expected > 0),
                PopOutcome::Empty => assert!(expected == 0 && !is_finished),
                _ => assert!(expected == 0 && is_finished),
            }
            return;
        };
        assert!((1..=most).contains(&count));
        let mut at = 3;
        for _ in 0..count {
            let len = Head(crate::bytes::u64_at(&out, at)).size() as usize;
            let (_, expected) = self.model.next(source).expect("an item that is nowhere");
            assert_eq!(out[at + 8..at + 8 + len], expected.payload);
            at = (at + 8 + len - 3).next_multiple_of(8) + 3;
        }
        assert_eq!(at, out.len());
        if source == Source::Queue {
            self.model.outstanding[slot] += count as u64;
        }
    }

    fn claim(&mut self, slot: usize, source: Source) {
        let queue = &self.queues[slot];
        match (
            queue.claim(source, 0, soon()).unwrap().0,
            self.model.next(source),
        ) {
            (ClaimOutcome::Item(claim), Some((number, mut item))) => {
                item.deliveries += u64::from(source == Source::Queue);
                assert_eq!((claim.number, claim.deliveries), (number, item.deliveries));
                assert_eq!(payload(queue, &claim).unwrap(), item.payload);
                let holds = match source {
                    Source::Queue => Holds::Item,
                    Source::DeadLetters => Holds::Letter,
                };
                self.model.held.push((slot, claim, item, holds));
            }
            (ClaimOutcome::Empty, None) => {
                assert!(source == Source::DeadLetters || !self.model.is_finished());
            }
            (ClaimOutcome::Finished, None) => {
                assert!(source == Source::Queue && self.model.is_finished())
            }
            (found, expected) => panic!("{found:?} instead of {expected:?}"),
        }
    }

    fn end_claim(&mut self, rng: &mut TestRng) {
        if self.model.held.is_empty() {
            return;
        }
        let index = rng.below(self.model.held.len() as u64) as usize;
        let (slot, claim, item, holds) = self.model.held.swap_remove(index);
        let queue = &self.queues[slot];
        assert_eq!(
            payload(queue, &claim).unwrap(),
            item.payload,
            "its memory was used"
        );
        if holds == Holds::Over {
            assert!(
                queue
                    .acknowledge(&claim, ClaimEnd::Done, false, soon())
                    .unwrap()
                    .is_none()
            );
            queue.release_memory(&claim, soon()).unwrap();
            return;
        }
        if rng.below(3) == 0 {
            assert!(queue.give_back(&claim, soon()).unwrap().is_some());
            self.model
                .give_back(self.memory.limits, claim.number, item, &holds);
        } else {
            let end = if rng.below(3) == 0 {
                ClaimEnd::HandedOver
            } else {
                ClaimEnd::Done
            };
            let keeps = rng.below(3) == 0;
            assert!(
                queue
                    .acknowledge(&claim, end, keeps, soon())
                    .unwrap()
                    .is_some()
            );
            match (holds, end) {
                (Holds::Letter, _) => {}
                (_, ClaimEnd::Done) => self.model.unfinished -= 1,
                (_, ClaimEnd::HandedOver) => self.model.outstanding[slot] += 1,
            }
            if keeps {
                self.model.held.push((slot, claim, item, Holds::Over));
            }
        }
        assert!(
            queue.give_back(&claim, soon()).unwrap().is_none(),
            "it had ended"
        );
    }

    fn compare(&self, slot: usize) {
        let queue = &self.queues[slot];
        let stats = queue.stats(soon()).unwrap();
        let model = &self.model;
        let held = model.held.iter().filter(|each| each.3 == Holds::Item);
        assert_eq!(stats.depth, model.depth());
        assert_eq!(stats.put, model.put);
        assert_eq!(stats.unfinished, model.unfinished);
        assert_eq!(stats.dead, model.dead.len() as u64);
        assert_eq!(stats.held.len(), held.count());
        assert_eq!(queue.len(), model.depth());
        assert!(stats.memory <= self.memory.limits.memory);
    }

    /// Pop everything: no items and no memory are left.
    fn end(&mut self) {
        self.model.is_shut = true;
        self.queues[0].shut_down(false, soon()).unwrap();
        for slot in 0..SLOTS_USED {
            self.reserved.retain(|(owner, _)| *owner != slot);
            self.queues[slot].abandon(soon()).unwrap();
            self.model.lose(self.memory.limits, slot);
        }
        for source in [Source::Queue, Source::DeadLetters] {
            loop {
                let had = self.model.held.len();
                self.claim(0, source);
                if self.model.held.len() == had {
                    break;
                }
                let (_, claim, ..) = self.model.held.pop().unwrap();
                let ended = self.queues[0].acknowledge(&claim, ClaimEnd::Done, false, soon());
                assert!(ended.unwrap().is_some());
                self.model.unfinished -= u64::from(source == Source::Queue);
            }
        }
        self.compare(0);
        // No item is put between two calls: the memory is then given back.
        if let Some(state) = self.queues[0].trim(TrimState::default(), soon()) {
            assert_eq!(self.queues[0].trim(state, soon()), None);
        }
        let stats = self.queues[0].stats(soon()).unwrap();
        assert_eq!(stats.unfinished, 0);
        // The last chunk, and a run of pages of which the smallest chunks are parts.
        assert!(
            stats.used <= 2 * CHUNK_SIZES.1,
            "{} bytes are in use",
            stats.used
        );
    }
}

#[test]
fn a_queue_agrees_with_its_model() {
    let mut rng = TestRng(0x5eed);
    let (mut put, mut rounds) = (0, 0);
    for round in 0..scaled(60, 6_000) {
        let mut trial = Trial::new(Limits {
            items: [0, 1, 5, 100][round as usize % 4],
            memory: [64 << 10, MIB, 8 * MIB][round as usize % 3],
            deliveries: [0, 1, 3][round as usize / 2 % 3],
        });
        for _ in 0..rng.below(1_500) {
            trial.step(&mut rng);
        }
        trial.end();
        put += trial.model.put;
        rounds += 1;
    }
    println!("{rounds} queues, {put} items");
}
