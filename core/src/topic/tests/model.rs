//! A topic agrees with a model of it, for any order of operations: each record is read, or counted as missed.

use super::*;
use crate::testing::{TestRng, scaled};
use crate::topic::subscriber::PublisherId;
use std::collections::HashMap;

struct ModelReader {
    reader: Reader,
    policy: Policy,
    lag: u64,
    /// Next record of each publisher that was read.
    next: HashMap<(usize, u64), u64>,
    /// Records that were skipped between those that were read.
    skipped: u64,
    cut: bool,
    /// Pinned messages, with their payloads.
    held: Vec<(Got, Vec<u8>)>,
}

struct Writer {
    ours: Ours,
    id: u64,
    lens: Vec<usize>,
}

struct Trial {
    topic: Topic,
    writers: Vec<Writer>,
    readers: Vec<ModelReader>,
    /// Writer of each listing and generation, and the lengths of its records.
    published: HashMap<(usize, u64), (u64, Vec<usize>)>,
    ids: u64,
}

impl Trial {
    fn open(&mut self, rng: &mut TestRng) {
        let limits = limits(rng.between(1, 40), rng.below(20), 128 << 10);
        let ours = match rng.below(3) {
            0 => self.topic.publisher(limits),
            _ => self.topic.publisher_of(limits, tight(limits)),
        };
        self.ids += 1;
        let id = self.ids;
        self.published.insert(ours.listing(), (id, Vec::new()));
        self.writers.push(Writer {
            ours,
            id,
            lens: Vec::new(),
        });
    }

    fn join(&mut self, rng: &mut TestRng) {
        let policy = [Policy::Block, Policy::KeepLast, Policy::Disconnect][rng.below(3) as usize];
        let history = match rng.below(3) {
            0 => History::Oldest,
            1 => History::Last(0),
            _ => History::Last(rng.below(10)),
        };
        let lag = rng.between(1, 30);
        self.readers.push(ModelReader {
            reader: self.topic.subscriber(policy, lag, history),
            policy,
            lag,
            next: HashMap::new(),
            skipped: 0,
            cut: false,
            held: Vec::new(),
        });
    }

    fn publish(&mut self, rng: &mut TestRng) {
        let index = rng.below(self.writers.len() as u64) as usize;
        let writer = &mut self.writers[index];
        for _ in 0..rng.between(1, 12) {
            let len = match rng.below(20) {
                0 => rng.between(600, 30_000),
                1 => 0,
                _ => rng.between(1, 400),
            } as usize;
            let seq = writer.lens.len() as u64;
            assert_eq!(writer.ours.next(), seq);
            let patience = [OnFull::Fail, WAITS][rng.below(2) as usize];
            match write(&mut writer.ours, &payload(writer.id, seq, len), patience) {
                Ok(()) => writer.lens.push(len),
                Err(PublishError::Full(slowest)) => {
                    let is_blocked = self.readers.iter().any(|each| {
                        !each.cut && each.policy == Policy::Block || !each.held.is_empty()
                    });
                    // Unpublished records cannot be reclaimed.
                    assert!(is_blocked || writer.ours.publish(), "{slowest:?}");
                    break;
                }
                Err(other) => panic!("{other}"),
            }
        }
        writer.ours.publish();
        let key = writer.ours.listing();
        self.published
            .get_mut(&key)
            .unwrap()
            .1
            .clone_from(&writer.lens);
    }

    fn read(&mut self, rng: &mut TestRng) {
        let index = rng.below(self.readers.len() as u64) as usize;
        let known = &mut self.readers[index];
        if known.reader.is_stale() {
            known.reader.refresh(&mut open);
        }
        assert!(known.reader.next_unreadable().is_none());
        let (mut out, mut messages) = (Vec::new(), Vec::new());
        let (most, pins) = (rng.between(1, 30) as usize, rng.below(2) == 0);
        match known.reader.receive(most, pins, &mut out, &mut messages).0 {
            Received::CutOff(..) => {
                assert_eq!(known.policy, Policy::Disconnect);
                known.cut = true;
            }
            Received::PublisherGone(PublisherId {
                listing,
                generation,
                ..
            }) => {
                let (_, lens) = &self.published[&(listing, generation)];
                let next = known.next.get(&(listing, generation));
                let is_whole = next.is_none_or(|&next| next == lens.len() as u64);
                assert!(is_whole, "it was read to its end");
            }
            Received::Messages(count) => assert_eq!(count, messages.len()),
            Received::Empty => assert!(messages.is_empty()),
            Received::Corrupt(source, corruption) => panic!("{source:?} {corruption:?}"),
        }
        for message in messages {
            let key = (message.source.listing, message.source.generation);
            let (id, lens) = &self.published[&key];
            let expected = payload(*id, message.seq, lens[message.seq as usize]);
            assert!(
                bytes_of(&message, &out) == expected,
                "{key:?} {}",
                message.seq
            );
            let next = known.next.insert(key, message.seq + 1);
            if let Some(next) = next {
                assert!(message.seq >= next, "in order, and once");
                known.skipped += message.seq - next;
                if known.policy != Policy::KeepLast {
                    assert_eq!(message.seq, next, "nothing is missing");
                }
            }
            if known.policy == Policy::KeepLast {
                assert!(
                    message.seq + known.lag >= lens.len() as u64,
                    "no older ones"
                );
            }
            if matches!(message.payload, Payload::Pinned(_)) && rng.below(2) == 0 {
                known.held.push((message, expected));
            }
        }
        assert!(
            known.reader.lost() >= known.skipped,
            "what was skipped is counted"
        );
        if rng.below(3) == 0 {
            let count = rng.below(known.held.len() as u64 + 1) as usize;
            known.held.drain(..count);
        }
    }

    fn step(&mut self, rng: &mut TestRng) {
        match rng.below(100) {
            0 if self.writers.len() < 4 => self.open(rng),
            1..=2 if self.readers.len() < 6 => self.join(rng),
            3 if self.writers.len() > 1 => {
                let index = rng.below(self.writers.len() as u64) as usize;
                let mut writer = self.writers.swap_remove(index);
                if rng.below(2) == 0 {
                    writer.ours.close();
                } else {
                    // The killed publisher's unpublished records are never visible.
                    let _ = writer.ours.append(0, b"lost", false, OnFull::Fail);
                    let (listing, _) = writer.ours.listing();
                    self.topic.directory().release_listing(listing);
                }
            }
            4 if self.readers.len() > 1 => {
                let index = rng.below(self.readers.len() as u64) as usize;
                let mut known = self.readers.swap_remove(index);
                known.reader.leave();
            }
            5..=45 => self.publish(rng),
            _ => self.read(rng),
        }
        for (message, expected) in self.readers.iter().flat_map(|known| &known.held) {
            assert!(
                bytes_of(message, &[]) == *expected,
                "{} was written over",
                message.seq
            );
        }
    }
}

#[test]
fn each_record_is_read_whole_in_order_or_counted_as_missed() {
    for seed in 1..=scaled(15, 2_000) {
        let mut rng = TestRng(seed * 0x9e37_79b9);
        let mut trial = Trial {
            topic: Topic::new(),
            writers: Vec::new(),
            readers: Vec::new(),
            published: HashMap::new(),
            ids: 0,
        };
        trial.open(&mut rng);
        trial.join(&mut rng);
        for _ in 0..1500 {
            trial.step(&mut rng);
        }
    }
}
