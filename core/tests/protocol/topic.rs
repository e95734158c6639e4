//! Topics: records reclaimed while a subscriber joins, pins or copies, and the wake-up of a waiting publisher.

use crate::model::{Arc, AtomicU64, LoopWaker, Ordering, Plain, model_within, thread};
use _core::shared_heap::Words;
use _core::topic::blocks::PAGE;
use _core::topic::directory::{Capacity, Directory, ListingInfo};
use _core::topic::log_layout::{LogLayout, PublisherLimits};
use _core::topic::publisher::{OnFull, PublishError, Publisher, Waiter};
use _core::topic::subscriber::{History, Payload, Received, Subscriber};
use _core::topic::{LogMemory, Policy};
use std::collections::BTreeMap;
use std::io;

/// Memory with the used words alone, because each costs a model time.
struct Sparse {
    size: u64,
    words: BTreeMap<u64, AtomicU64>,
    /// Payloads that must not be read while they are written.
    plain: BTreeMap<u64, Plain>,
}

impl Sparse {
    fn new(size: u64, words: &[(u64, u64)], plain: &[(u64, u64)]) -> std::sync::Arc<Self> {
        std::sync::Arc::new(Sparse {
            size,
            words: places(words).map(|at| (at, AtomicU64::new(0))).collect(),
            plain: places(plain).map(|at| (at, Plain::new())).collect(),
        })
    }
}

fn places(parts: &[(u64, u64)]) -> impl Iterator<Item = u64> {
    parts
        .iter()
        .flat_map(|&(at, words)| (0..words).map(move |word| at + 8 * word))
}

impl Words for Sparse {
    fn size(&self) -> usize {
        self.size as usize
    }

    fn word(&self, at: u64) -> Option<&AtomicU64> {
        Some(
            self.words
                .get(&at)
                .unwrap_or_else(|| panic!("a word at {at}")),
        )
    }
}

impl LogMemory for Sparse {
    fn write(&self, at: u64, bytes: &[u8]) {
        for (index, word) in bytes.chunks(8).enumerate() {
            let (at, value) = (
                at + 8 * index as u64,
                u64::from_ne_bytes(word.try_into().unwrap()),
            );
            match self.plain.get(&at) {
                Some(plain) => plain.write(value),
                None => self.word(at).unwrap().store(value, Ordering::Relaxed),
            }
        }
    }

    fn read(&self, at: u64, len: u64, out: &mut Vec<u8>) {
        for at in places(&[(at, len / 8)]) {
            let value = match self.plain.get(&at) {
                Some(plain) => plain.read(),
                None => self.word(at).unwrap().load(Ordering::Relaxed),
            };
            out.extend_from_slice(&value.to_ne_bytes());
        }
    }

    fn populate(&self, _at: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
}

type Memory = std::sync::Arc<Sparse>;
type Ours = Publisher<Memory, Memory>;
type Reader = Subscriber<Memory, Memory>;

const CAPACITY: Capacity = Capacity {
    listings: 1,
    seats: 1,
    pins: 1,
};
const SHAPE: LogLayout = LogLayout {
    entries: 2,
    ring: 64,
    blocks: PAGE,
};

/// A topic with a publisher's log.
#[derive(Clone)]
struct Topic {
    directory: Memory,
    log: Memory,
}

impl Topic {
    /// Create a topic whose payloads are read only while they do not change.
    fn new() -> Self {
        Topic::of(true)
    }

    /// Create a topic whose payloads are overwritten during copies.
    fn torn() -> Self {
        Topic::of(false)
    }

    fn of(is_plain: bool) -> Self {
        let seats = CAPACITY.seats_at();
        let directory = [(0, 2), (64, 6), (128, 3), (seats, 1), (seats + 256, 4)];
        // The offset of the ring depends on the machine's page size.
        let payloads = [(8192, 8), (64 << 10, 8), (SHAPE.size() - PAGE, 2)];
        let header = [(0, 6), (64, 2), (128, 1), (192, 1), (4096, 4)];
        let log = match is_plain {
            true => Sparse::new(SHAPE.size(), &header, &payloads),
            false => Sparse::new(SHAPE.size(), &[&header[..], &payloads].concat(), &[]),
        };
        Topic {
            directory: Sparse::new(CAPACITY.size(), &directory, &[]),
            log,
        }
    }

    fn directory(&self) -> Directory<Memory> {
        Directory::new(self.directory.clone(), 0, CAPACITY)
    }

    fn publisher(&self, high: u64) -> Ours {
        let limits = PublisherLimits {
            high,
            low: 0,
            memory: PAGE,
        };
        let log = self.log.clone();
        Publisher::open(log, self.directory(), 1, limits, SHAPE, (7, 0)).unwrap()
    }

    fn open(&self) -> impl FnMut(&ListingInfo) -> Result<Memory, Option<String>> {
        let log = self.log.clone();
        move |_| Ok(log.clone())
    }

    fn subscriber(&self, policy: Policy, history: History) -> Reader {
        let us = (2, Box::new(|| true) as _);
        let (policy, open) = ((policy, 1), &mut self.open());
        let joined =
            Subscriber::subscribe(self.directory(), us, policy, history, |_, _| Ok(()), open);
        joined.unwrap().unwrap().0
    }
}

/// Publish the next record, whose words identify it.
fn publish(publisher: &mut Ours, words: usize) -> bool {
    let bytes = publisher.next().to_ne_bytes().repeat(words);
    let written = match publisher.is_large(bytes.len() as u64) {
        false => publisher.append(0, &bytes, false, OnFull::Fail),
        true => publisher
            .reserve(bytes.len() as u64, OnFull::Fail)
            .map(|block| {
                publisher.log().space().write(block.at, &bytes);
                let (used, patience) = (bytes.len() as u64, OnFull::Fail);
                let written = publisher.append_block(0, block, used, patience);
                assert!(written.is_ok(), "there is room in the index");
            }),
    };
    match written {
        Ok(()) => publisher.publish(),
        Err(PublishError::Full(_)) => false,
        Err(other) => panic!("{other}"),
    }
}

/// Return the numbers of the pending records, after a check of their words. Return None after a cut-off.
fn take(topic: &Topic, reader: &mut Reader) -> Option<Vec<u64>> {
    if reader.is_stale() {
        reader.refresh(&mut topic.open());
    }
    let (mut out, mut messages) = (Vec::new(), Vec::new());
    match reader.receive(4, true, &mut out, &mut messages).0 {
        Received::CutOff(..) => return None,
        Received::Messages(_) | Received::Empty => {}
        other => panic!("{other:?}"),
    }
    let seqs = messages.iter().map(|message| {
        let mut bytes = Vec::new();
        match &message.payload {
            Payload::Copied(at, len) => bytes.extend_from_slice(&out[*at..at + len]),
            Payload::Pinned(pin) => pin.log().space().read(pin.at, pin.len, &mut bytes),
        }
        assert_eq!(bytes, message.seq.to_ne_bytes().repeat(bytes.len() / 8));
        message.seq
    });
    Some(seqs.collect())
}

fn is_in_row(seqs: &[u64]) -> bool {
    seqs.windows(2).all(|pair| pair[1] == pair[0] + 1)
}

#[test]
fn a_joining_subscriber_is_waited_for_or_sees_the_floor() {
    model_within(2, || {
        let topic = Topic::new();
        let mut publisher = topic.publisher(2);
        publish(&mut publisher, 1);
        publish(&mut publisher, 1);
        let theirs = topic.clone();
        let joining = thread::spawn(move || {
            let mut reader = theirs.subscriber(Policy::Block, History::Oldest);
            let seqs = take(&theirs, &mut reader).expect("nothing is cut off");
            (reader, seqs)
        });
        publish(&mut publisher, 1);
        let (mut reader, mut seqs) = joining.join().unwrap();
        seqs.extend(take(&topic, &mut reader).unwrap());
        assert!(is_in_row(&seqs), "{seqs:?}");
        assert_eq!(seqs.last(), Some(&(publisher.next() - 1)));
    });
}

#[test]
fn a_new_publisher_waits_for_a_joining_subscriber() {
    model_within(2, || {
        let topic = Topic::new();
        let theirs = topic.clone();
        let joining = thread::spawn(move || theirs.subscriber(Policy::Block, History::Last(0)));
        let mut publisher = topic.publisher(1);
        let published = (0..2).filter(|_| publish(&mut publisher, 1)).count() as u64;
        let mut reader = joining.join().unwrap();
        let seqs = take(&topic, &mut reader).unwrap();
        assert!(is_in_row(&seqs), "{seqs:?}");
        let last = seqs.last().map_or(0, |seq| seq + 1);
        assert!(seqs.is_empty() || last == published);
        // From now on the publisher waits for it in any case.
        let more = (0..3).filter(|_| publish(&mut publisher, 1)).count() as u64;
        assert!(more <= 2);
        let seqs = take(&topic, &mut reader).unwrap();
        assert_eq!(seqs, (published..published + more).collect::<Vec<_>>());
    });
}

/// Each record takes all of the ring, so that the second one overwrites the first.
#[test]
fn a_publisher_that_waits_for_room_is_woken() {
    model_within(3, || {
        let topic = Topic::new();
        let mut publisher = topic.publisher(1);
        let mut reader = topic.subscriber(Policy::Block, History::Oldest);
        let bells = Arc::new([LoopWaker::new(), LoopWaker::new()]);
        let theirs = (topic.clone(), bells.clone());
        let reading = thread::spawn(move || {
            let (topic, bells) = theirs;
            let mut seen = 0;
            while seen < 2 {
                if reader.is_stale() {
                    reader.refresh(&mut topic.open());
                }
                let (mut out, mut messages) = (Vec::new(), Vec::new());
                let (taken, news) = reader.receive(1, false, &mut out, &mut messages);
                if news.room {
                    bells[0].ring();
                }
                match taken {
                    Received::Messages(_) => seen += 1,
                    _ => bells[1].sleep(),
                }
            }
        });
        for seq in 0..2u64 {
            while publisher
                .append(0, &seq.to_ne_bytes(), true, OnFull::Wait(Waiter(0)))
                .is_err()
            {
                bells[0].sleep();
            }
            publisher.publish();
            bells[1].ring();
        }
        reading.join().unwrap();
    });
}

#[test]
fn a_pinned_block_is_not_overwritten() {
    model_within(3, || {
        let topic = Topic::new();
        let mut publisher = topic.publisher(2);
        let mut reader = topic.subscriber(Policy::KeepLast, History::Oldest);
        publish(&mut publisher, 2);
        let theirs = topic.clone();
        let reading = thread::spawn(move || {
            assert!(take(&theirs, &mut reader).is_some());
        });
        publish(&mut publisher, 2);
        reading.join().unwrap();
    });
}

#[test]
fn a_new_owner_of_a_seat_is_not_confused_with_the_last_one() {
    model_within(2, || {
        let topic = Topic::new();
        let mut publisher = topic.publisher(2);
        let mut last = topic.subscriber(Policy::Block, History::Oldest);
        publish(&mut publisher, 1);
        publish(&mut publisher, 1);
        assert_eq!(take(&topic, &mut last).unwrap(), [0, 1]);
        drop(last);
        let theirs = topic.clone();
        let joining = thread::spawn(move || {
            let mut reader = theirs.subscriber(Policy::Block, History::Oldest);
            let seqs = take(&theirs, &mut reader).expect("its words are true");
            (reader, seqs)
        });
        publish(&mut publisher, 1);
        publish(&mut publisher, 1);
        let (mut reader, mut seqs) = joining.join().unwrap();
        publish(&mut publisher, 1);
        seqs.extend(take(&topic, &mut reader).expect("its words are true"));
        assert!(is_in_row(&seqs), "{seqs:?}");
        assert_eq!(seqs.last(), Some(&(publisher.next() - 1)));
    });
}

fn copied_meanwhile(policy: Policy) {
    model_within(3, move || {
        let topic = Topic::torn();
        let mut publisher = topic.publisher(2);
        let mut reader = topic.subscriber(policy, History::Oldest);
        publish(&mut publisher, 1);
        let theirs = topic.clone();
        let reading = thread::spawn(move || {
            let seqs = take(&theirs, &mut reader).unwrap_or_default();
            assert!(seqs.is_sorted(), "{seqs:?}");
        });
        for _ in 0..2 {
            assert!(publish(&mut publisher, 1), "such a one is not waited for");
        }
        reading.join().unwrap();
    });
}

#[test]
fn a_record_reclaimed_during_its_copy_is_rejected() {
    copied_meanwhile(Policy::KeepLast);
}

#[test]
fn a_subscriber_cut_off_during_a_copy_rejects_it() {
    copied_meanwhile(Policy::Disconnect);
}
