//! Topics whose members belong to one process, each with mappings of its own.

mod backpressure;
mod corruption;
mod deaths;
mod model;
mod threads;

use super::directory::{Capacity, Directory, ListingInfo};
use super::log_layout::{LogLayout, PublisherLimits};
use super::mapped_log::MappedLog;
use super::publisher::{OnFull, PublishError, Publisher, Waiter};
use super::subscriber::{History, Message, Payload, Received, Subscriber};
use super::{LogMemory, Policy};
use crate::memory::mapping::SharedMapping;
use crate::testing::file_in_memory;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

type Ours = Publisher<Arc<MappedLog>, Arc<SharedMapping>>;
type Reader = Subscriber<Arc<MappedLog>, Arc<SharedMapping>>;
type Got = Message<Arc<MappedLog>, Arc<SharedMapping>>;

const MIB: u64 = 1 << 20;

/// The directory of a topic.
#[derive(Clone)]
struct Topic {
    words: Arc<SharedMapping>,
    members: Arc<AtomicU64>,
}

fn limits(high: u64, low: u64, memory: u64) -> PublisherLimits {
    PublisherLimits { high, low, memory }
}

/// Return a small layout, so that every limit is reached.
fn tight(limits: PublisherLimits) -> LogLayout {
    LogLayout {
        entries: (2 * limits.high).next_power_of_two(),
        ring: 4096,
        ..LogLayout::of(limits)
    }
}

impl Topic {
    fn new() -> Self {
        let size = Capacity::OF_A_TOPIC.size();
        let file = file_in_memory();
        file.set_len(size).unwrap();
        let mapping = SharedMapping::new(file.as_fd(), size as usize);
        Topic {
            words: Arc::new(mapping.unwrap()),
            members: Arc::new(AtomicU64::new(1)),
        }
    }

    fn directory(&self) -> Directory<Arc<SharedMapping>> {
        Directory::new(self.words.clone(), 0, Capacity::OF_A_TOPIC)
    }

    fn member(&self) -> u64 {
        self.members.fetch_add(1, Ordering::Relaxed)
    }

    fn publisher(&self, limits: PublisherLimits) -> Ours {
        self.publisher_of(limits, LogLayout::of(limits))
    }

    fn publisher_of(&self, limits: PublisherLimits, shape: LogLayout) -> Ours {
        self.publisher_as(self.member(), limits, shape)
    }

    fn publisher_as(&self, me: u64, limits: PublisherLimits, shape: LogLayout) -> Ours {
        let memory = Arc::new(MappedLog::create(shape).unwrap());
        let descriptor = memory.descriptor().unwrap();
        let known = (0x70c3 + me, descriptor);
        Publisher::open(memory, self.directory(), me, limits, shape, known).unwrap()
    }

    fn subscriber(&self, policy: Policy, lag: u64, history: History) -> Reader {
        self.subscriber_as(self.member(), (policy, lag), history, open)
    }

    fn subscriber_as(
        &self,
        me: u64,
        policy: (Policy, u64),
        history: History,
        mut open: impl FnMut(&ListingInfo) -> Result<Arc<MappedLog>, Option<String>>,
    ) -> Reader {
        let us = (me, Box::new(|| true) as _);
        let prepare = |_, _| Ok(());
        let joined =
            Subscriber::subscribe(self.directory(), us, policy, history, prepare, &mut open);
        joined.unwrap().unwrap().0
    }
}

/// Open another mapping of a publisher's log, which belongs to this process.
fn open(listed: &ListingInfo) -> Result<Arc<MappedLog>, Option<String>> {
    open_in(std::process::id() as i32, listed)
}

fn open_in(process: i32, listed: &ListingInfo) -> Result<Arc<MappedLog>, Option<String>> {
    let opened = MappedLog::open(process, listed.descriptor);
    opened.map(Arc::new).map_err(Some)
}

const WAITER: Waiter = Waiter(0);
const WAITS: OnFull = OnFull::Wait(WAITER);

/// Create the payload of a record, which identifies the record in each of its bytes.
fn payload(publisher: u64, seq: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = (seq * 31 + publisher * 7 + index as u64 / 8) as u8;
    }
    bytes
}

/// Publish a record, in a block if it is large.
fn publish(publisher: &mut Ours, bytes: &[u8]) -> Result<(), PublishError> {
    write(publisher, bytes, OnFull::Fail)?;
    assert!(publisher.publish());
    Ok(())
}

fn write(publisher: &mut Ours, bytes: &[u8], on_full: OnFull) -> Result<(), PublishError> {
    if !publisher.is_large(bytes.len() as u64) {
        return publisher.append(0, bytes, false, on_full);
    }
    let block = publisher.reserve(bytes.len() as u64, on_full)?;
    publisher.log().space().write(block.at, bytes);
    let used = bytes.len() as u64;
    publisher
        .append_block(2, block, used, on_full)
        .map_err(|(refused, block)| {
            publisher.free_block(block);
            refused
        })
}

/// Return the bytes of a message: copied, or read in place.
fn bytes_of(message: &Got, out: &[u8]) -> Vec<u8> {
    match &message.payload {
        Payload::Copied(at, len) => out[*at..at + len].to_vec(),
        Payload::Pinned(pin) => {
            let mut bytes = Vec::new();
            pin.log().space().read(pin.at, pin.len, &mut bytes);
            bytes
        }
    }
}

/// Receive up to `most` pending messages, all copied.
fn take(reader: &mut Reader, most: usize) -> Vec<(u64, Vec<u8>)> {
    let (mut out, mut messages) = (Vec::new(), Vec::new());
    if reader.is_stale() {
        reader.refresh(&mut open);
    }
    match reader.receive(most, false, &mut out, &mut messages).0 {
        Received::Messages(count) => assert_eq!(count, messages.len()),
        Received::Empty => assert!(messages.is_empty()),
        other => panic!("{other:?}"),
    }
    let bytes = |message: &Got| (message.seq, bytes_of(message, &out));
    messages.iter().map(bytes).collect()
}

fn numbers(taken: &[(u64, Vec<u8>)]) -> Vec<u64> {
    taken.iter().map(|each| each.0).collect()
}

/// Return the outcome of a call without messages.
fn trouble(reader: &mut Reader) -> Received {
    let (mut out, mut messages) = (Vec::new(), Vec::new());
    reader.receive(1, false, &mut out, &mut messages).0
}
