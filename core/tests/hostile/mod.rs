//! Bytes of a hostile peer, and the parts of the core that read them. Each function accepts any bytes, and panics only
//! if the core violates its contract. The targets of core/fuzz and the tests of core/tests/hostile_peer.rs call the
//! same functions.

#![allow(dead_code)] // Each of the programs that have this module uses a part of it.

pub mod descriptors;
pub mod objects;
pub mod queue;
pub mod reading;
pub mod shared_heap;
pub mod store;
pub mod topic;

use _core::connection::channel::Channel;
use _core::connection::parcel::{self, Entry, Location, RELEASE_SIZE};
use _core::connection::{buffer::Buffer, loans::Loans};
use _core::memory::arena::{BlockRef, GRANULE};
use _core::memory::extent::Extent;
use _core::memory::extent_update::{self, ExtentUpdate};
use _core::ring::frame::{FrameReader, FrameWriter};
use _core::ring::{Consumer, HeapMemory, Producer, RingMemory};
use _core::shared_heap::Members;
use descriptors::{ScriptedUpdate, sockets};
use reading::drain;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// A deadline that has passed: each lock is acquired at once, or not at all.
const AT_ONCE: u64 = 0;

/// The only member that is alive.
struct Alone;

impl Members for Alone {
    fn self_id(&self) -> u64 {
        1 << 32 | 1
    }
    fn is_alive(&self, member: u64) -> bool {
        member == self.self_id()
    }
}

/// Numbers read from bytes; zeros after their end.
pub struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Script(bytes)
    }

    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (first, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        first
    }

    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    pub fn u32(&mut self) -> u32 {
        self.number(4) as u32
    }

    pub fn u64(&mut self) -> u64 {
        self.number(8)
    }

    fn number(&mut self, len: usize) -> u64 {
        let mut bytes = [0; 8];
        let taken = self.take(len);
        bytes[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(bytes)
    }
}

/// Run a reader and a writer of a ring whose other side follows the bytes.
pub fn ring(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let shape = script.byte();
    let capacity = 16usize << (shape % 8);
    let first = (capacity >> (shape / 8 % 8)).max(16);
    let max_frame = [0, 1, 8, 100, 1 << 10, 1 << 16, 1 << 20][script.byte() as usize % 7];
    let memory = Arc::new(HeapMemory::growing(first, capacity));
    let mut writer = FrameWriter::new(Producer::new(memory.clone()));
    let mut reader = FrameReader::new(Consumer::new(memory.clone()), max_frame);
    let (mut writes, mut reads) = (true, true);
    while !script.is_over() {
        match script.byte() % 8 {
            0 => memory.tail().store(script.u64(), Ordering::Release),
            1 => memory.head().store(script.u64(), Ordering::Release),
            2 => memory.store_word(script.byte() as usize % (capacity / 8), script.u64()),
            3 => memory.reader_waits().store(script.u32(), Ordering::Relaxed),
            4 => memory.writer_waits().store(script.u32(), Ordering::Relaxed),
            // Values close to a valid index are accepted the longest.
            5 => {
                let tail = memory.tail().load(Ordering::Acquire);
                let step = i64::from(script.byte() as i8) * 8;
                memory
                    .tail()
                    .store(tail.wrapping_add_signed(step), Ordering::Release);
            }
            6 if writes => {
                let (opcode, len) = (script.u32(), script.byte() as usize);
                let payload = script.take(len).to_vec();
                match writer.send(opcode, 1, &payload) {
                    Ok(true) => {}
                    Ok(false) => writer.keep(opcode, 1, Box::new(payload), true),
                    Err(_) => writes = false, // The connection is over.
                }
                writes = writes && writer.flush().is_ok() && writer.announce_wait(1).is_ok();
                assert!(writer.backlog() <= bytes.len());
            }
            _ if reads => reads = drain(&mut reader, max_frame, capacity, |_, _| ()).is_ok(),
            _ => {}
        }
    }
}

/// Parse the payload of a parcel: what is read from it lies in it.
pub fn parcel(payload: &[u8]) {
    let Ok(parsed) = parcel::parse(payload) else {
        return;
    };
    let end = 8 + 32 * parsed.entries.len();
    assert!(end <= parsed.here && parsed.here <= payload.len());
    let here = parsed
        .entries
        .iter()
        .filter(|e| e.location == Location::InFrame);
    let sum: u128 = here.map(|entry| u128::from(entry.len)).sum();
    assert_eq!(sum, (payload.len() - parsed.here) as u128);
    match &parsed.body {
        Some(body) => assert_eq!(*body, end..parsed.here),
        None => assert!(!parsed.entries.is_empty() && parsed.here == end),
    }
    let again = parcel::begin(&parsed.entries, parsed.body.is_none(), 0);
    let again = [&again[..], &payload[end..]].concat();
    assert_eq!(parcel::parse(&again), Ok(parsed));
}

/// Lend blocks to a peer that releases and sends back blocks as the bytes say.
pub fn release(bytes: &[u8]) {
    const BLOCK: usize = GRANULE as usize;
    const LIMIT: u64 = 16 * GRANULE;
    let (_peer, socket) = sockets();
    let loans = Loans::new(Weak::<Channel>::new(), socket, LIMIT);
    let mut script = Script::new(bytes);
    let mut lent: Vec<Entry> = Vec::new();
    let mut regained = Vec::new();
    let mut ever: Vec<BlockRef> = Vec::new();
    while !script.is_over() {
        match script.byte() % 5 {
            0 => {
                let bytes = vec![script.byte(); BLOCK];
                // SAFETY: a slice is readable.
                lent.extend(unsafe { loans.lend(bytes.as_ptr(), BLOCK) });
                ever.extend(lent.last().map(place_of));
            }
            // A valid release, or nearly so.
            1 if !lent.is_empty() => {
                let index = script.byte() as usize % lent.len();
                let mut payload = release_of(place_of(&lent[index]));
                payload[script.byte() as usize % RELEASE_SIZE] ^= script.byte();
                give_back(&loans, &payload, &mut lent);
            }
            2 => {
                let place = BlockRef {
                    extent: script.u32(),
                    offset: script.u64(),
                };
                let (start, len) = (script.u64(), script.u64());
                regained.extend(send_back(&loans, &lent, place, start, len));
            }
            // A block that was lent before, and may be free or held since.
            3 if !ever.is_empty() => {
                let place = ever[script.byte() as usize % ever.len()];
                match script.byte() % 4 {
                    0 => give_back(&loans, &release_of(place), &mut lent),
                    1 => regained.clear(),
                    _ => {
                        let (start, len) = (u64::from(script.byte()), u64::from(script.byte()));
                        regained.extend(send_back(&loans, &lent, place, start, len << 5));
                    }
                }
            }
            _ => {
                let mut payload = [0; RELEASE_SIZE];
                let taken = script.take(RELEASE_SIZE);
                payload[..taken.len()].copy_from_slice(taken);
                give_back(&loans, &payload, &mut lent);
            }
        }
        let (size, used) = loans.allocator().usage();
        assert!(used <= size && size <= LIMIT);
    }
    for entry in std::mem::take(&mut lent) {
        loans.cancel(&entry);
    }
    drop(regained);
    assert_eq!(loans.allocator().usage().1, 0, "what is back is free");
}

/// Send a buffer of this side back, which works if the peer has a loan of it.
fn send_back(
    loans: &Arc<Loans>,
    lent: &[Entry],
    place: BlockRef,
    start: u64,
    len: u64,
) -> Option<Buffer> {
    let location = Location::AtReceiver(place);
    let known = lent.iter().any(|entry| place_of(entry) == place);
    let memory = loans
        .open(&Entry {
            location,
            start,
            len,
        })
        .ok()??;
    assert!(known && start + len <= GRANULE && memory.len() as u64 == len);
    Some(memory)
}

fn release_of(place: BlockRef) -> [u8; RELEASE_SIZE] {
    let mut payload = [0; RELEASE_SIZE];
    payload[..4].copy_from_slice(&place.extent.to_ne_bytes());
    payload[8..].copy_from_slice(&place.offset.to_ne_bytes());
    payload
}

fn place_of(entry: &Entry) -> BlockRef {
    match entry.location {
        Location::AtSender(place) => place,
        _ => unreachable!("what was placed location at its sender"),
    }
}

/// Release a loan: one less if there is one, and a violation if there is none.
fn give_back(loans: &Loans, payload: &[u8; RELEASE_SIZE], lent: &mut Vec<Entry>) {
    let place = BlockRef {
        extent: u32::from_ne_bytes(payload[..4].try_into().expect("four bytes")),
        offset: u64::from_ne_bytes(payload[8..].try_into().expect("eight bytes")),
    };
    let known = lent.iter().position(|entry| place_of(entry) == place);
    assert_eq!(loans.release(payload).is_ok(), known.is_some());
    if let Some(index) = known {
        lent.swap_remove(index);
    }
}

/// Send extent updates as the bytes say, with wrong descriptors, and a frame that names one of the extents.
pub fn extent_updates(bytes: &[u8]) {
    let (peer_end, ours) = sockets();
    let mut script = Script::new(bytes);
    let entry = |script: &mut Script| Entry {
        location: Location::AtSender(BlockRef {
            extent: u32::from(script.byte() % 4),
            offset: script.u64(),
        }),
        start: script.u64(),
        len: script.u64(),
    };
    if script.byte() % 2 == 0 {
        let loans = Loans::new(Weak::<Channel>::new(), ours, 0);
        let mut memories = Vec::new();
        while !script.is_over() {
            ScriptedUpdate::read(&mut script).send(peer_end.as_fd());
            let entry = entry(&mut script);
            match loans.open(&entry) {
                Ok(memory) => {
                    let memory = memory.expect("a lease");
                    let size = memory.extent().size();
                    let begin = memory.address().addr() - memory.extent().base().addr();
                    assert!(begin + memory.len() <= size && memory.len() as u64 == entry.len);
                    let mut copy = vec![0; memory.len()];
                    // SAFETY: the copy is as long as what is read.
                    unsafe { memory.read(copy.as_mut_ptr()) };
                    memories.push(memory);
                }
                Err(_) => break, // The connection is over.
            }
        }
        return;
    }
    while !script.is_over() {
        let update = ScriptedUpdate::read(&mut script);
        update.send(peer_end.as_fd());
        match extent_update::receive(ours.as_fd()) {
            Ok(Some(ExtentUpdate::Added { number, size, file })) => {
                assert!(update.is_one_extent(number, size));
                match Extent::open(number, size as usize, file) {
                    Ok(opened) => {
                        assert!(update.is_true(), "{update:?}");
                        let mut last = [0];
                        // SAFETY: one byte is writable.
                        unsafe { opened.read(size - 1, last.as_mut_ptr(), 1) };
                    }
                    Err(_) => assert!(!update.is_true(), "{update:?}"),
                }
            }
            Ok(Some(ExtentUpdate::Removed { number })) => assert!(update.is_gone(number)),
            Ok(None) => {}
            Err(_) => assert!(!update.is_well_formed(), "{update:?}"),
        }
    }
}
