//! A lent block: its owner writes it again only after the peer has released it.
//!
//! The arena, the table of the frame and the RELEASE are those of the product. The block's bytes are plain memory, as
//! they are to the program: only the rings keep the two sides' accesses apart.

use crate::model::{Arc, Mutex, Plain, Shared, model, receive, thread};
use _core::connection::parcel::{self, Entry, Location, PARCEL, RELEASE, RELEASE_SIZE};
use _core::memory::arena::{Arena, BlockRef, GRANULE, Holder};
use _core::ring::frame::{FrameReader, FrameWriter};
use _core::ring::{Consumer, HeapMemory, Producer};

const WORDS: usize = 2;
const PEER: Holder = Holder(1);

/// The only block that there is room for.
struct Block([Plain; WORDS]);

impl Block {
    fn new() -> Arc<Self> {
        Arc::new(Block([Plain::new(), Plain::new()]))
    }

    fn write(&self, value: u64) {
        for word in &self.0 {
            word.write(value);
        }
    }

    fn read(&self) -> [u64; WORDS] {
        [self.0[0].read(), self.0[1].read()]
    }
}

fn arena() -> Arena {
    let mut arena = Arena::new(GRANULE);
    arena.add(0, GRANULE);
    arena
}

/// Create both ends of a ring with room for a parcel of two entries, or for two releases.
fn ring() -> (FrameWriter<Shared>, FrameReader<Shared>) {
    let memory: Shared = std::sync::Arc::new(HeapMemory::new(128));
    let writer = FrameWriter::new(Producer::new(memory.clone()));
    (writer, FrameReader::new(Consumer::new(memory), 128))
}

/// Lend a block by a frame, `leases` times, and drop the hold on it.
fn lend(arena: &mut Arena, place: BlockRef, leases: usize, writer: &mut FrameWriter<Shared>) {
    let location = Location::AtSender(place);
    let len = (WORDS * 8) as u64;
    let start = 0;
    let entries = vec![
        Entry {
            location,
            start,
            len
        };
        leases
    ];
    for _ in 0..leases {
        arena.lend(place, PEER);
    }
    let payload = parcel::begin(&entries, false, 0);
    assert!(writer.send(PARCEL, 1, &payload).unwrap());
    arena.release_hold(place);
}

/// Return the blocks that the next frame names.
fn await_parcel(reader: &mut FrameReader<Shared>) -> Vec<BlockRef> {
    let frame = loop {
        match receive(reader) {
            Some(frame) => break frame,
            None => thread::yield_now(),
        }
    };
    assert_eq!(frame.opcode, PARCEL);
    let entries = parcel::parse(&frame.payload).unwrap().entries;
    let place = |entry: &Entry| match entry.location {
        Location::AtSender(place) => place,
        other => panic!("the sender's block, and not {other:?}"),
    };
    entries.iter().map(place).collect()
}

fn send_release(writer: &mut FrameWriter<Shared>, place: BlockRef) {
    assert!(writer.send(RELEASE, 0, &parcel::release(place)).unwrap());
}

/// Process a release if there is one.
fn take_release(reader: &mut FrameReader<Shared>, arena: &Mutex<Arena>) -> bool {
    let Some(frame) = receive(reader) else {
        return false;
    };
    assert_eq!(frame.opcode, RELEASE);
    let payload: [u8; RELEASE_SIZE] = frame.payload.try_into().unwrap();
    let known = arena
        .lock()
        .unwrap()
        .end_loan(parcel::released(&payload), PEER);
    assert!(known, "the peer had this lease");
    true
}

/// The same block is lent and released repeatedly, and written anew each time.
#[test]
fn a_block_is_reused_only_after_its_release() {
    const ROUNDS: u64 = 2;
    model(|| {
        let (block, arena) = (Block::new(), Mutex::new(arena()));
        let (mut parcels, mut their_parcels) = ring();
        let (mut their_releases, mut releases) = ring();
        let theirs = block.clone();
        let peer = thread::spawn(move || {
            for round in 1..=ROUNDS {
                let places = await_parcel(&mut their_parcels);
                assert_eq!(theirs.read(), [round; WORDS]);
                send_release(&mut their_releases, places[0]);
            }
        });
        for round in 1..=ROUNDS {
            let place = loop {
                if let Some(place) = arena.lock().unwrap().allocate(GRANULE) {
                    break place;
                }
                if !take_release(&mut releases, &arena) {
                    thread::yield_now();
                }
            };
            block.write(round);
            lend(&mut arena.lock().unwrap(), place, 1, &mut parcels);
        }
        peer.join().unwrap();
    });
}

/// Two loans of one block end in two threads of the peer, each after its own reads of the bytes.
#[test]
fn a_block_with_two_loans_is_free_after_both() {
    model(|| {
        let (block, arena) = (Block::new(), Mutex::new(arena()));
        let (mut parcels, mut their_parcels) = ring();
        let (their_releases, mut releases) = ring();
        let their_releases = Arc::new(Mutex::new(their_releases));
        let place = arena.lock().unwrap().allocate(GRANULE).unwrap();
        block.write(1);
        lend(&mut arena.lock().unwrap(), place, 2, &mut parcels);
        let theirs = block.clone();
        let peer = thread::spawn(move || {
            let places = await_parcel(&mut their_parcels);
            assert_eq!(places, [place; 2]);
            let (also_theirs, also_releases) = (theirs.clone(), their_releases.clone());
            let other = thread::spawn(move || {
                assert_eq!(also_theirs.read(), [1; WORDS]);
                send_release(&mut also_releases.lock().unwrap(), place);
            });
            assert_eq!(theirs.read(), [1; WORDS]);
            send_release(&mut their_releases.lock().unwrap(), place);
            other.join().unwrap();
        });
        loop {
            if let Some(again) = arena.lock().unwrap().allocate(GRANULE) {
                assert_eq!(again, place);
                break;
            }
            if !take_release(&mut releases, &arena) {
                thread::yield_now();
            }
        }
        block.write(2);
        peer.join().unwrap();
    });
}

/// One thread of the owner processes the release, another one allocates the block.
#[test]
fn a_block_released_in_one_thread_may_be_written_in_another() {
    model(|| {
        let (block, arena) = (Block::new(), Arc::new(Mutex::new(arena())));
        let (mut parcels, mut their_parcels) = ring();
        let (mut their_releases, mut releases) = ring();
        let place = arena.lock().unwrap().allocate(GRANULE).unwrap();
        block.write(1);
        lend(&mut arena.lock().unwrap(), place, 1, &mut parcels);
        let theirs = block.clone();
        let peer = thread::spawn(move || {
            let places = await_parcel(&mut their_parcels);
            assert_eq!(theirs.read(), [1; WORDS]);
            send_release(&mut their_releases, places[0]);
        });
        let taken = arena.clone();
        let taker = thread::spawn(move || {
            while !take_release(&mut releases, &taken) {
                thread::yield_now();
            }
        });
        let found = arena.lock().unwrap().allocate(GRANULE);
        if found.is_some() {
            block.write(2);
        }
        peer.join().unwrap();
        taker.join().unwrap();
        let left = arena.lock().unwrap().allocate(GRANULE);
        assert!(
            found.is_some() != left.is_some(),
            "one block, and only once"
        );
    });
}
