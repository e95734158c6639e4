//! A topic with a publisher that corrupts its own log, and members that corrupt the directory, used by others.

use super::Script;
use super::descriptors::memfd;
use _core::memory::mapping::SharedMapping;
use _core::queue::parcel::{MOST_BUFFERS, Parts};
use _core::shared_heap::Words;
use _core::topic::directory::{Capacity, Directory, ListingInfo};
use _core::topic::log_layout::{LogLayout, PublisherLimits};
use _core::topic::mapped_log::MappedLog;
use _core::topic::publisher::{OnFull, Publisher, Waiter};
use _core::topic::subscriber::{History, Message, Payload, Received, Subscriber};
use _core::topic::{LogMemory, Policy};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const LIMITS: PublisherLimits = PublisherLimits {
    high: 8,
    low: 4,
    memory: 64 << 10,
};
/// Offset and number of the first words of a log, and offset of its index: see `topic/log_layout.rs`.
const HEADER: u64 = 40;
const INDEX: u64 = 4096;
/// Offsets of the parts of the directory: see `topic/directory/mod.rs`.
const LISTINGS: u64 = 64;
const CLAIMS: u64 = 6208;

type Directed = Directory<Arc<SharedMapping>>;
type Ours = Publisher<Arc<MappedLog>, Arc<SharedMapping>>;
type Got = Message<Arc<MappedLog>, Arc<SharedMapping>>;

/// A subscriber, and what it has seen.
struct Reader {
    us: Subscriber<Arc<MappedLog>, Arc<SharedMapping>>,
    policy: Policy,
    /// Number after the last message of the honest publisher.
    next: u64,
    kept: Vec<Got>,
}

/// Run an honest publisher and three subscribers while others write what the bytes say.
pub fn topic(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    // In every other script the directory stays intact: then all messages of the honest publisher must be received.
    let lies_everywhere = script.byte() % 2 == 0;
    let size = Capacity::OF_A_TOPIC.size();
    let file = memfd(size, 0, false);
    let words = Arc::new(SharedMapping::new(file.as_fd(), size as usize).expect("a mapping"));
    let directory = Directory::new(words.clone(), 0, Capacity::OF_A_TOPIC);
    let mut publishers = [1, 2].map(|me| publisher(&directory, me));
    let policies = [Policy::Block, Policy::KeepLast, Policy::Disconnect];
    let mut readers = policies.map(|policy| reader(&directory, policy));
    while !script.is_over() {
        match script.byte() % 8 {
            0 | 1 => {
                let log = publishers[1].log().space();
                write_over(log, in_log(&mut script, log.size() as u64), &mut script);
            }
            2 if lies_everywhere => {
                write_over(&*words, in_directory(&mut script, size), &mut script);
            }
            2..5 => {
                let index = usize::from(script.byte() % 2);
                publish(&mut publishers[index], index, &mut script);
            }
            _ => {
                let index = script.byte() % 3;
                let reader = &mut readers[usize::from(index)];
                let out_of_order = read(reader, &mut script);
                assert!(lies_everywhere || !out_of_order, "{:?}", reader.policy);
            }
        }
    }
}

/// Create a publisher with small limits.
fn publisher(directory: &Directed, me: u64) -> Ours {
    let shape = LogLayout {
        entries: 16,
        ring: 4096,
        ..LogLayout::of(LIMITS)
    };
    let memory = Arc::new(MappedLog::create(shape).expect("some pages"));
    let known = (7 + me, memory.descriptor().expect("our own"));
    Publisher::open(memory, directory.clone(), me, LIMITS, shape, known).expect("a listing")
}

fn reader(directory: &Directed, policy: Policy) -> Reader {
    let us = (10, Box::new(|| true) as _);
    let how = (policy, 4);
    let prepare = |_, _| Ok(());
    let joined = Subscriber::subscribe(
        directory.clone(),
        us,
        how,
        History::Oldest,
        prepare,
        &mut open,
    );
    Reader {
        us: joined.expect("memory").expect("a seat").0,
        policy,
        next: 0,
        kept: Vec::new(),
    }
}

fn open(listed: &ListingInfo) -> Result<Arc<MappedLog>, Option<String>> {
    let opened = MappedLog::open(std::process::id() as i32, listed.descriptor);
    opened.map(Arc::new).map_err(Some)
}

/// Return the payload of the message of this number.
fn payload(publisher: usize, seq: u64, len: usize) -> Vec<u8> {
    let byte = |at: usize| (seq as usize * 31 + publisher * 7 + at / 8) as u8;
    (0..len).map(byte).collect()
}

fn publish(publisher: &mut Ours, index: usize, script: &mut Script) {
    let len = match script.byte() {
        small @ 0..192 => usize::from(small) * 2,
        large => usize::from(large - 191) * 600,
    };
    let bytes = payload(index, publisher.next(), len);
    let patience = match script.byte() % 2 {
        0 => OnFull::Fail,
        _ => OnFull::Wait(Waiter(0)),
    };
    if !publisher.is_large(len as u64) {
        let _ = publisher.append(0, &bytes, false, patience);
    } else if let Ok(block) = publisher.reserve(len as u64, patience) {
        publisher.log().space().write(block.at, &bytes);
        if let Err((_, block)) = publisher.append_block(2, block, len as u64, patience) {
            publisher.free_block(block);
        }
    }
    publisher.publish();
    publisher.is_attached_by_all(patience);
}

/// Receive some messages and read all of them. Return true if a message of the honest publisher was missed, or is
/// wrong.
fn read(reader: &mut Reader, script: &mut Script) -> bool {
    if reader.us.is_stale() {
        reader.us.refresh(&mut open);
    }
    while reader.us.next_unreadable().is_some() {}
    let (most, pins) = (1 + usize::from(script.byte() % 8), script.byte() % 2 == 0);
    let (mut out, mut messages) = (Vec::new(), Vec::new());
    let taken = reader.us.receive(most, pins, &mut out, &mut messages).0;
    match taken {
        Received::Messages(count) => assert!(count == messages.len() && count <= most && count > 0),
        _ => assert!(messages.is_empty()),
    }
    let mut is_wrong = match taken {
        // Only the disconnect subscriber may be cut off.
        Received::CutOff(source, _) => source.owner == 1 && reader.policy != Policy::Disconnect,
        Received::Corrupt(source, _) | Received::PublisherGone(source) => source.owner == 1,
        Received::Messages(_) | Received::Empty => false,
    };
    for message in messages {
        let bytes = bytes_of(&message, &out);
        if message.source.owner == 1 {
            is_wrong |= bytes != payload(0, message.seq, bytes.len());
            is_wrong |= match reader.policy {
                Policy::KeepLast => message.seq < reader.next,
                _ => message.seq != reader.next,
            };
            reader.next = message.seq.wrapping_add(1);
        }
        reader.kept.push(message);
    }
    reader.kept.truncate(usize::from(script.byte() % 40));
    is_wrong
}

/// Return all bytes of a message, and read the parts that it claims to have.
fn bytes_of(message: &Got, out: &[u8]) -> Vec<u8> {
    let bytes = match &message.payload {
        &Payload::Copied(at, len) => out[at..at + len].to_vec(),
        Payload::Pinned(pin) => {
            let mut bytes = Vec::new();
            pin.log().space().read(pin.at, pin.len, &mut bytes);
            bytes
        }
    };
    let len = bytes.len() as u64;
    let parts = Parts::read(len, |at, to| {
        to.copy_from_slice(&bytes[at as usize..at as usize + to.len()]);
    });
    if let Some(parts) = parts {
        assert!(parts.buffers.len() <= MOST_BUFFERS);
        for (at, part) in parts.buffers.into_iter().chain([parts.body]) {
            assert!(at + part <= len);
        }
    }
    bytes
}

/// Return an offset in the header of a log, in its index, or anywhere.
fn in_log(script: &mut Script, size: u64) -> u64 {
    let (kind, index) = (script.byte(), u64::from(script.byte()) * 8);
    match kind {
        0..64 => index % HEADER,
        64..96 => 64,
        96..128 => 128,
        128..160 => 192 + index % 32,
        160..240 => INDEX + index % 256,
        _ => (script.u64() % size) & !7,
    }
}

/// Return an offset in the used part of the directory, or anywhere.
fn in_directory(script: &mut Script, size: u64) -> u64 {
    let (kind, index) = (script.byte(), u64::from(script.byte()) * 8);
    let seats = Capacity::OF_A_TOPIC.seats_at();
    match kind {
        0..16 => 0,
        16..80 => LISTINGS + index % 128,
        80..112 => CLAIMS + 1024 * (index / 8 % 3) + index % 32,
        112..144 => seats + 4096 * (index / 8 % 3) + 8 * u64::from(script.byte() % 32),
        144..240 => seats + 4096 * (index / 8 % 3) + 256 + 8 * u64::from(script.byte() % 8),
        _ => (script.u64() % size) & !7,
    }
}

/// Write a value close to the current one, or an arbitrary one.
fn write_over(words: &impl Words, at: u64, script: &mut Script) {
    let Some(word) = words.word(at) else {
        return;
    };
    let found = word.load(Ordering::Relaxed);
    let value = match script.byte() {
        0..32 => 0,
        32..64 => u64::MAX,
        64..96 => found.wrapping_add(1),
        96..128 => found.wrapping_sub(1),
        128..160 => u64::from(script.byte()),
        160..192 => found ^ 1 << (script.byte() % 64),
        192..224 => found.wrapping_add_signed(i64::from(script.byte() as i8) * 8),
        224..240 => u64::from(script.u32()),
        _ => script.u64(),
    };
    word.store(value, Ordering::Relaxed);
}
