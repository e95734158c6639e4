//! A hostile peer that owns the shared memory: the result is a correct answer or a violation, and never a panic, an
//! endless loop, or more memory than a frame may have.
//!
//! The short form takes seconds; `SHMRPC_TORTURE=1` selects the long one. A failure prints its seed.

#![cfg(not(loom))]

mod hostile;

use _core::connection::channel::{Channel, FrameRole, SleepMode};

use _core::Violation;
use _core::connection::parcel::{self, Entry, Location, PARCEL, RELEASE};
use _core::connection::segment::{Direction, MappedRing, Segment, size_for};
use _core::memory::arena::BlockRef;
use _core::memory::extent::Extent;
use _core::memory::extent_update;
use _core::ring::frame::{FrameReader, FrameWriter, GROW, HEADER};
use _core::ring::{Consumer, HeapMemory, Producer, RingMemory, padded};
use _core::wait::waker::{LoopWaker, Semaphore, Semaphores, Wakers};
use hostile::descriptors::{memfd, sockets};
use hostile::reading::{drain, receive};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// An allocator that records the largest request.
struct Counting;

thread_local! {
    /// Largest allocation of this thread since the value was last set to 0, in bytes.
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

fn note(size: usize) {
    let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(size)));
}

// SAFETY: all is left to the system's allocator; what is counted allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Run `work`. Return its result, and the size of its largest allocation.
fn measured<T>(work: impl FnOnce() -> T) -> (T, usize) {
    LARGEST.set(0);
    let result = work();
    (result, LARGEST.get())
}

/// Bytes that may be allocated besides a frame: a message of a test, a table of a map.
const SMALL: usize = 16 << 10;

/// Return the number of attempts of a test.
fn scaled(short: u64, long: u64) -> u64 {
    let is_long = std::env::var("SHMRPC_TORTURE").is_ok_and(|value| value == "1");
    if is_long { long } else { short }
}

/// A generator of pseudo-random numbers, the same at each run (splitmix64).
#[derive(Clone)]
struct TestRng(u64);

impl TestRng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_ne_bytes()[..chunk.len()]);
        }
        bytes
    }

    /// Return a value as a hostile peer chooses it: close to a relevant one, extreme, or arbitrary.
    fn chosen(&mut self, near: &[u64]) -> u64 {
        const ENDS: [u64; 12] = [
            0,
            1,
            7,
            8,
            u64::MAX,
            u64::MAX - 7,
            1 << 63,
            i64::MAX as u64,
            u32::MAX as u64,
            1 << 32,
            1 << 31,
            i32::MAX as u64,
        ];
        const STEPS: [i64; 10] = [0, 8, -8, 1, -1, 4, 16, -16, 2, 64];
        match self.below(4) {
            0 => ENDS[self.below(ENDS.len())],
            1 => self.next(),
            _ => {
                let near = near[self.below(near.len())];
                near.wrapping_add_signed(STEPS[self.below(STEPS.len())])
            }
        }
    }
}

/// Run a test in a thread with a generous time limit, and print its seed if it fails.
fn bounded(name: &str, test: impl FnOnce(u64) -> u64 + Send + 'static) {
    let seed = std::env::var("SHMRPC_SEED").map_or(0x5eed, |text| text.parse().expect("a number"));
    let (done, ended) = mpsc::channel();
    let begin = Instant::now();
    let thread = thread::spawn(move || {
        let frames = test(seed);
        let _ = done.send(frames);
    });
    let limit = Duration::from_secs(scaled(600, 1800));
    match ended.recv_timeout(limit) {
        Ok(frames) => {
            thread.join().expect("it has ended");
            let seconds = begin.elapsed().as_secs_f64();
            let rate = frames as f64 / seconds;
            println!("{name}: {frames} mutated frames, {seconds:.1} s, {rate:.0} per second");
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            panic!("{name} failed; again with SHMRPC_SEED={seed}")
        }
        Err(mpsc::RecvTimeoutError::Timeout) => {
            panic!("{name} has no end; again with SHMRPC_SEED={seed}")
        }
    }
}

/// Both ends of a ring, and what a hostile peer must know of it.
struct Pair<M> {
    memory: M,
    writer: FrameWriter<M>,
    reader: FrameReader<M>,
    max_frame: usize,
    /// Number of published bytes, and of bytes that were read.
    written: u64,
    /// True if nothing was corrupted.
    honest: bool,
}

impl<M: RingMemory + Clone> Pair<M> {
    fn new(memory: M, max_frame: usize) -> Self {
        Pair {
            writer: FrameWriter::new(Producer::new(memory.clone())),
            reader: FrameReader::new(Consumer::new(memory.clone()), max_frame),
            memory,
            max_frame,
            written: 0,
            honest: true,
        }
    }

    /// Corrupt one value, in the stream from `begin` on or in an index. Return its position if it is a word of the
    /// stream.
    fn corrupt_one(&mut self, rng: &mut TestRng, begin: u64, starts: &[u64]) -> Option<u64> {
        let capacity = self.memory.capacity() as u64;
        let head = self.memory.head().load(Ordering::Acquire);
        let max = self.max_frame as u64;
        let near = [
            self.written,
            head,
            head.wrapping_add(capacity),
            head.wrapping_sub(capacity),
            capacity,
            max,
        ];
        let place = match rng.below(10) {
            0..=4 if !starts.is_empty() => {
                starts[rng.below(starts.len())] + 8 * rng.below(2) as u64
            }
            0..=6 => begin + 8 * rng.below(capacity as usize / 8) as u64,
            which => {
                let value = rng.chosen(&near);
                match which {
                    7 => self.memory.tail().store(value, Ordering::Release),
                    8 => self.memory.head().store(value, Ordering::Release),
                    _ => {
                        let flags = [self.memory.reader_waits(), self.memory.writer_waits()];
                        flags[rng.below(2)].store(value as u32, Ordering::Relaxed);
                    }
                }
                return None;
            }
        };
        let index = (place % capacity / 8) as usize;
        let word = self.memory.load_word(index);
        let value = rng.chosen(&near);
        let changed = match rng.below(6) {
            0 => value,
            1 => word ^ 1 << rng.below(64),
            2 => (word & !0xffff_ffff) | (value & 0xffff_ffff),
            3 => (word & 0xffff_ffff) | (value << 32),
            // Opcodes that the core interprets.
            4 => {
                let opcode = [RELEASE, GROW][rng.below(2)];
                (word & 0xffff_ffff) | u64::from(opcode) << 32
            }
            _ => word | u64::from(PARCEL) << 32,
        };
        self.memory.store_word(index, changed);
        Some(place)
    }

    /// Send some frames, corrupt some values, and read. Return false after a violation, which ends the connection.
    fn round(&mut self, rng: &mut TestRng, frames: &mut u64) -> bool {
        let begin = self.written;
        let mut sent = Vec::new();
        let mut starts = Vec::new();
        for _ in 0..1 + rng.below(6) {
            let len = match rng.below(12) {
                0 => 0,
                1 if rng.one_in(8) => self.memory.capacity() - HEADER,
                _ => rng.below(48),
            };
            let payload = rng.bytes(len.min(self.max_frame));
            let (opcode, id) = (rng.next() as u32, rng.next());
            match self.writer.send(opcode, id, &payload) {
                Ok(true) => {
                    starts.push(self.written);
                    self.written += (HEADER + padded(payload.len())) as u64;
                    sent.push((opcode, id, payload, self.written));
                    *frames += 1;
                }
                Ok(false) => break,
                Err(_) => return false,
            }
        }
        let location = rng.below(4);
        let mut first = u64::MAX;
        let mut index = self.written;
        for _ in 0..location {
            if let Some(place) = self.corrupt_one(rng, begin, &starts) {
                first = first.min(place);
            }
            index = self.memory.tail().load(Ordering::Acquire);
        }
        let (max, capacity) = (self.max_frame, self.memory.capacity());
        let mut got = Vec::new();
        let (outcome, largest) = measured(|| {
            drain(&mut self.reader, max, capacity, |header, payload| {
                got.push((header.opcode, header.id, payload.to_vec()));
            })
        });
        assert!(
            largest <= max + SMALL,
            "{largest} bytes were asked for, a frame has up to {max}"
        );
        // Everything before the first corrupt word is as it was sent.
        if self.honest {
            for (got, (opcode, id, payload, end)) in got.iter().zip(&sent) {
                if *end > first {
                    break;
                }
                assert_eq!((got.0, got.1), (*opcode, *id));
                assert!(got.2 == *payload, "a payload is not what was sent");
            }
            if first == u64::MAX && index == self.written {
                assert_eq!((outcome, got.len()), (Ok(sent.len()), sent.len()));
            }
        }
        self.honest = self.honest && first >= begin + capacity as u64 && index == self.written;
        outcome.is_ok()
    }
}

/// Run connections to the end of each. Return the number of frames.
fn at_rest<M: RingMemory + Clone>(rng: &mut TestRng, count: u64, make: impl Fn(usize) -> M) -> u64 {
    const LIMITS: [usize; 6] = [16, 100, 600, 5000, 70_000, 3 << 20];
    let (mut frames, mut violations) = (0, 0);
    while frames < count {
        let capacity = 1024 << rng.below(3);
        let max_frame = LIMITS[rng.below(LIMITS.len())].min(1 << (6 + rng.below(16)));
        let mut pair = Pair::new(make(capacity), max_frame);
        for _ in 0..64 {
            if !pair.round(rng, &mut frames) {
                violations += 1;
                break;
            }
        }
    }
    assert!(violations > count / 1000, "location are noticed");
    frames
}

/// Create a segment as a connection has it, in a file without a name.
fn segment(capacity: usize) -> File {
    // SAFETY: a valid C string; the descriptor that comes back is ours alone.
    let file =
        unsafe { File::from_raw_fd(libc::memfd_create(c"location".as_ptr(), libc::MFD_CLOEXEC)) };
    file.set_len(size_for(capacity) as u64).expect("some pages");
    file
}

/// Return a ring of a segment that is so small that all of it is in use, so that the positions of its words are known.
fn mapped(capacity: usize) -> MappedRing {
    let capacity = capacity.min(2048);
    let region = Segment::create(segment(capacity).as_fd(), capacity).expect("a segment");
    MappedRing::new(region, Direction::ClientToServer)
}

#[test]
fn corrupt_rings_in_private_memory() {
    bounded("at rest, heap", |seed| {
        let make = |capacity| Arc::new(HeapMemory::new(capacity));
        at_rest(&mut TestRng(seed), scaled(150_000, 6_000_000), make)
    });
}

/// Growing rings with corrupt growth frames: frames are as they were sent or the connection ends, and nothing outside
/// of the ring is read.
#[test]
fn corrupt_growth_frames() {
    bounded("growth", |seed| {
        let mut rng = TestRng(seed ^ 10);
        let (mut frames, mut violations, count) = (0, 0, scaled(100_000, 3_000_000));
        while frames < count {
            let capacity = 1024 << rng.below(4);
            let memory = Arc::new(HeapMemory::growing(64 << rng.below(4), capacity));
            let mut writer = FrameWriter::new(Producer::new(memory.clone()));
            let mut reader = FrameReader::new(Consumer::new(memory.clone()), 600);
            let is_hostile = rng.one_in(2);
            let (mut sent, mut got) = (0, 0);
            'connection: for _ in 0..64 {
                for _ in 0..rng.below(12) {
                    let payload = vec![sent as u8; rng.below(80)];
                    match writer.send(1, sent, &payload) {
                        Ok(true) => sent += 1,
                        Ok(false) => break,
                        Err(_) => break 'connection,
                    }
                }
                if is_hostile && rng.one_in(2) {
                    let at = rng.below(capacity / 8 - 1);
                    memory.store_word(at, u64::from(GROW) << 32 | u64::from(rng.one_in(4)));
                    let to = rng.chosen(&[64, 128, 256, capacity as u64, 2 * capacity as u64]);
                    memory.store_word(at + 1, to);
                }
                for _ in 0..rng.below(12) {
                    match receive(&mut reader, 600) {
                        Ok(Some((header, payload))) => {
                            if !is_hostile {
                                assert_eq!((header.opcode, header.id), (1, got));
                                assert!(payload.iter().all(|&byte| byte == got as u8));
                            }
                            got += 1;
                        }
                        Ok(None) => break,
                        Err(_) => {
                            assert!(is_hostile, "a violation without corruption");
                            violations += 1;
                            break 'connection;
                        }
                    }
                }
            }
            frames += got.max(1);
        }
        assert!(violations > 0, "location are noticed");
        frames
    });
}

#[test]
fn corrupt_rings_in_a_segment() {
    bounded("at rest, mapped", |seed| {
        at_rest(&mut TestRng(seed ^ 1), scaled(100_000, 2_000_000), mapped)
    });
}

/// A writer of frames larger than the ring, with corrupt words in what is still to come.
#[test]
fn a_frame_in_pieces_allocates_at_most_its_length() {
    bounded("in pieces", |seed| {
        let mut rng = TestRng(seed ^ 8);
        let count = scaled(8, 300);
        for _ in 0..count {
            let memory = Arc::new(HeapMemory::new(1 << 14));
            let max = (1 << 20) + rng.below(3 << 20);
            let mut writer = FrameWriter::new(Producer::new(memory.clone()));
            let mut reader = FrameReader::new(Consumer::new(memory.clone()), max);
            let sent = vec![rng.next() as u8; max - rng.below(100)];
            let expected = sent.clone();
            writer.keep(1, 2, Box::new(sent), true);
            let is_hostile = rng.one_in(4);
            let (outcome, largest) = measured(|| {
                loop {
                    match receive(&mut reader, max) {
                        Ok(None) => {}
                        end => return end,
                    }
                    if writer.flush().is_err() {
                        return Ok(None);
                    }
                    if is_hostile && rng.one_in(100) {
                        memory
                            .tail()
                            .store(rng.chosen(&[1 << 14]), Ordering::Release);
                    }
                }
            });
            assert!(
                largest <= max,
                "{largest} bytes were asked for, a frame has up to {max}"
            );
            if !is_hostile {
                let (header, payload) = outcome.expect("no corruption").expect("a frame");
                assert_eq!((header.opcode, header.id), (1, 2));
                assert!(payload == expected, "a payload is not what was sent");
            }
        }
        count
    });
}

/// A hostile peer changes everything between the peek at a frame and its taking: only the first reading counts.
#[test]
fn a_frame_is_taken_as_it_was_peeked() {
    bounded("between peek and take", |seed| {
        let mut rng = TestRng(seed ^ 9);
        let count = scaled(20_000, 500_000);
        let mut pair = Pair::new(Arc::new(HeapMemory::new(1024)), 500);
        for id in 0..count {
            let len = rng.below(400);
            let payload = rng.bytes(len);
            assert_eq!(pair.writer.send(3, id, &payload), Ok(true));
            let found = pair
                .reader
                .peek()
                .expect("no corruption so far")
                .expect("a frame");
            assert_eq!((found.opcode, found.id, found.len), (3, id, len));
            for index in 0..1024 / 8 {
                pair.memory.store_word(index, rng.chosen(&[0, 1024]));
            }
            let tail = pair.memory.tail().swap(rng.next(), Ordering::AcqRel);
            pair.reader.take(&mut vec![0; len]);
            pair.memory.tail().store(tail, Ordering::Release);
        }
        count
    });
}

/// The part of the memory that a hostile process changes while the others work.
#[derive(Clone, Copy, PartialEq)]
enum Target {
    /// Flags alone: nothing else may change.
    Flags,
    /// Flags, and the second half of each frame's payload.
    Payload,
    /// All of the memory.
    All,
}

/// Return the payload of a frame, whose length and bytes follow from its id. While payloads are corrupted each has the
/// same length, so that the positions that headers never have are known.
fn told_by(id: u64, target: Target) -> Vec<u8> {
    let len = match target {
        Target::Payload => SLOT - HEADER,
        _ => (id.wrapping_mul(0x9e37_79b9) >> 7) as usize % 200,
    };
    vec![id as u8; len]
}

/// Bytes of a frame while payloads are corrupted.
const SLOT: usize = 128;

/// Stops the other threads' work, also if this thread panics.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        // Relaxed: only a request to stop.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Run a writer and a hostile process at the same time. Return the number of frames that the reader got, or the
/// violation.
fn traffic<M: RingMemory + Clone + Send + Sync>(
    memory: M,
    target: Target,
    rng: &mut TestRng,
    count: u64,
) -> (u64, Option<Violation>) {
    const MAX: usize = 200;
    let over = AtomicBool::new(false);
    let capacity = memory.capacity();
    let mut liars = rng.clone();
    rng.next();
    let mut reader = FrameReader::new(Consumer::new(memory.clone()), MAX);
    thread::scope(|scope| {
        let (over, ours, theirs) = (&over, memory.clone(), memory);
        let writing = scope.spawn(move || {
            let mut writer = FrameWriter::new(Producer::new(ours));
            for id in 0..count {
                let payload = told_by(id, target);
                loop {
                    match writer.send(1, id, &payload) {
                        Ok(true) => break,
                        Ok(false) => thread::yield_now(),
                        Err(violation) => return Some(violation),
                    }
                    // Relaxed: only a request to stop.
                    if over.load(Ordering::Relaxed) {
                        return None;
                    }
                }
            }
            None
        });
        scope.spawn(move || {
            // Relaxed: only a request to stop.
            while !over.load(Ordering::Relaxed) {
                let near = [theirs.tail().load(Ordering::Relaxed), capacity as u64];
                let value = liars.chosen(&near);
                match (liars.below(8), target) {
                    (0, _) => theirs.reader_waits().store(value as u32, Ordering::Relaxed),
                    (1, _) => theirs.writer_waits().store(value as u32, Ordering::Relaxed),
                    (2, Target::All) if liars.one_in(64) => {
                        theirs.tail().store(value, Ordering::Release);
                    }
                    (3, Target::All) if liars.one_in(64) => {
                        theirs.head().store(value, Ordering::Release);
                    }
                    (_, Target::All) => theirs.store_word(liars.below(capacity / 8), value),
                    (_, Target::Payload) => {
                        let slot = SLOT / 8 * liars.below(capacity / SLOT);
                        let last = SLOT / 8 - 1 - liars.below(SLOT / 16 - 1);
                        theirs.store_word(slot + last, value);
                    }
                    (_, Target::Flags) => {}
                }
            }
        });
        let ending = Ending(over);
        let (mut got, mut idle) = (0, 0);
        let mut violation = None;
        while got < count {
            match receive(&mut reader, MAX) {
                Err(found) => {
                    violation = Some(found);
                    break;
                }
                Ok(Some((header, payload))) => {
                    if target != Target::All {
                        assert_eq!((header.opcode, header.id), (1, got));
                        let sent = told_by(header.id, target);
                        assert_eq!(payload.len(), sent.len());
                        let intact = if target == Target::Flags {
                            sent.len()
                        } else {
                            SLOT / 2 - HEADER
                        };
                        assert_eq!(payload[..intact], sent[..intact]);
                    }
                    got += 1;
                    idle = 0;
                }
                // The writer may have seen a corrupt head, and no room.
                Ok(None) if target == Target::All && idle > 2000 => break,
                Ok(None) => {
                    idle += 1;
                    thread::yield_now();
                }
            }
        }
        drop(ending);
        let theirs = writing.join().expect("the writer does not panic");
        (got, violation.or(theirs))
    })
}

#[test]
fn corrupt_rings_during_traffic() {
    bounded("while traffic runs", |seed| {
        let mut rng = TestRng(seed ^ 2);
        let (mut frames, mut violations) = (0, 0);
        for round in 0..scaled(16, 250) {
            let capacity = 1024 << rng.below(4);
            let target =
                [Target::Flags, Target::Payload, Target::All, Target::All][round as usize % 4];
            let (got, violation) = if round % 8 < 4 {
                traffic(Arc::new(HeapMemory::new(capacity)), target, &mut rng, 1500)
            } else {
                traffic(mapped(capacity), target, &mut rng, 1500)
            };
            frames += got;
            violations += u64::from(violation.is_some());
            assert!(
                target == Target::All || violation.is_none(),
                "{violation:?}"
            );
        }
        assert!(violations > 0, "location are noticed");
        frames
    });
}

#[test]
fn corrupt_tables_of_parcels() {
    bounded("tables", |seed| {
        let mut rng = TestRng(seed ^ 3);
        let count = scaled(200_000, 3_000_000);
        let mut refused = 0u64;
        for _ in 0..count {
            let entries: Vec<Entry> = (0..rng.below(5)).map(|_| any_entry(&mut rng)).collect();
            let apart = !entries.is_empty() && rng.one_in(3);
            let mut payload = parcel::begin(&entries, apart, 0);
            let len = rng.below(80);
            payload.extend(rng.bytes(len));
            for _ in 0..rng.below(3) {
                let near = [payload.len() as u64, entries.len() as u64, len as u64];
                let value = rng.chosen(&near);
                let at = 4 * rng.below(payload.len() / 4);
                let width = [1, 4, 8][rng.below(3)].min(payload.len() - at);
                payload[at..at + width].copy_from_slice(&value.to_ne_bytes()[..width]);
            }
            payload.truncate(if rng.one_in(4) {
                rng.below(payload.len() + 1)
            } else {
                payload.len()
            });
            let (parsed, largest) = measured(|| parcel::parse(&payload));
            // A line takes 40 bytes here, and 32 there.
            assert!(largest <= payload.len() * 40 / 32, "{largest}");
            refused += u64::from(parsed.is_err());
            hostile::parcel(&payload);
        }
        assert!(refused > count / 10 && refused < count, "{refused}");
        count
    });
}

fn any_entry(rng: &mut TestRng) -> Entry {
    let place = BlockRef {
        extent: rng.chosen(&[0, 1]) as u32,
        offset: rng.chosen(&[0, 4096, 1 << 20]),
    };
    let location = [
        Location::InFrame,
        Location::AtSender(place),
        Location::AtReceiver(place),
    ][rng.below(3)];
    let len = match location {
        Location::InFrame => rng.below(20) as u64,
        _ => rng.chosen(&[1, 4096, 1 << 20]),
    };
    Entry {
        location,
        start: rng.chosen(&[0, 4096]),
        len,
    }
}

/// Run scripts of random bytes through the functions of the fuzz targets.
fn scripts(name: &'static str, seed: u64, count: u64, run: fn(&[u8])) {
    bounded(name, move |given| {
        let mut rng = TestRng(given ^ seed);
        for _ in 0..count {
            let len = rng.below(200);
            let mut bytes = rng.bytes(len);
            // Small numbers are valid steps, and zeros make plausible numbers.
            for byte in &mut bytes {
                *byte = match rng.below(4) {
                    0 => *byte % 8,
                    1 => 0,
                    _ => *byte,
                };
            }
            run(&bytes);
        }
        count
    });
}

#[test]
fn rings_that_follow_a_script() {
    scripts("rings by script", 4, scaled(20_000, 600_000), hostile::ring);
}

#[test]
fn releases_without_a_loan() {
    scripts("leases", 5, scaled(2_000, 30_000), hostile::release);
}

#[test]
fn corrupt_extent_updates() {
    let before = open_memfds();
    scripts(
        "extent_updates",
        6,
        scaled(2_000, 20_000),
        hostile::extent_updates,
    );
    // Other tests have some open meanwhile, but not for each script.
    assert!(open_memfds() < before + 200, "descriptors stay open");
}

#[test]
fn members_that_overwrite_a_shared_heap() {
    scripts(
        "shared memory",
        7,
        scaled(2_000, 100_000),
        hostile::shared_heap::shared_heap,
    );
}

#[test]
fn members_that_overwrite_an_object() {
    scripts("objects", 8, scaled(200, 10_000), hostile::objects::objects);
}

#[test]
fn members_that_overwrite_a_queue() {
    scripts("queues", 9, scaled(2_000, 100_000), hostile::queue::queue);
}

#[test]
fn members_that_overwrite_a_topic() {
    scripts("topics", 10, scaled(2_000, 100_000), hostile::topic::topic);
}

fn open_memfds() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

#[test]
fn a_sealed_extent_cannot_be_truncated_later() {
    let (peer_end, ours) = sockets();
    let file = File::from(memfd(8192, libc::F_SEAL_SHRINK, true));
    let extent = Extent::open(
        0,
        8192,
        OwnedFd::from(file.try_clone().expect("a descriptor")),
    )
    .expect("a good one");
    extent_update::send_added(peer_end.as_fd(), &extent).expect("room");
    assert!(file.set_len(0).is_err() && file.set_len(4096).is_err());
    file.set_len(1 << 20).expect("it may grow");
    // The announced extent no longer exists: refused, and the one that is mapped stays readable.
    let Ok(Some(extent_update::ExtentUpdate::Added { number, size, file })) =
        extent_update::receive(ours.as_fd())
    else {
        panic!("news of an extent")
    };
    assert!(Extent::open(number, size as usize, file).is_err());
    let mut last = [1];
    // SAFETY: one byte is writable.
    unsafe { extent.read(8191, last.as_mut_ptr(), 1) };
    assert_eq!(last, [0]);
}

/// Create semaphores of both sides, and remove their names at once.
fn semaphores() -> [Semaphore; 4] {
    let names = ["a", "b"].map(|side| {
        let name = format!("/shmrpc-location-{}-{side}", std::process::id());
        CString::new(name).expect("no zero in it")
    });
    let made = [0, 1, 1, 0].map(|side| {
        let name = &names[side];
        // SAFETY: a valid C string; with O_CREAT a mode and a value follow.
        let made = unsafe { libc::sem_open(name.as_ptr(), libc::O_CREAT, 0o600, 0) };
        assert_ne!(made, libc::SEM_FAILED);
        // SAFETY: opened above, not used again. No memory is involved in the other.
        let owner = unsafe {
            libc::sem_close(made);
            libc::geteuid()
        };
        Semaphore::open(name, owner).expect("it was just made")
    });
    for name in &names {
        // SAFETY: a valid C string.
        unsafe { libc::sem_unlink(name.as_ptr()) };
    }
    made
}

const CAPACITY: usize = 4096;
const MAX_FRAME: usize = 2000;

/// The server's side of a connection, and all that its client can access.
struct Connection {
    server: Arc<Channel>,
    out: Pair<MappedRing>,
    into: FrameReader<MappedRing>,
    peer_end: OwnedFd,
    /// Client's end of the loop waker.
    _rung: OwnedFd,
    /// Loans of the server.
    lent: Vec<Entry>,
    extents: u32,
}

impl Connection {
    fn new() -> Self {
        let file = segment(CAPACITY);
        let region = Segment::create(file.as_fd(), CAPACITY).expect("a segment");
        let theirs = Segment::open(file.as_fd(), CAPACITY).expect("the same");
        let [a, b, ..] = semaphores();
        let (rung, bell) = sockets();
        let bells = Wakers {
            loop_waker: LoopWaker::new(bell),
            semaphores: Some(Semaphores { ours: a, theirs: b }),
        };
        let (peer_end, ours) = sockets();
        let server = Channel::new(
            region,
            Direction::ServerToClient,
            bells,
            SleepMode::Loop,
            MAX_FRAME,
            0,
            ours,
            256 << 10,
        );
        let into = MappedRing::new(theirs.clone(), Direction::ServerToClient);
        Connection {
            server,
            out: Pair::new(
                MappedRing::new(theirs, Direction::ClientToServer),
                MAX_FRAME,
            ),
            into: FrameReader::new(Consumer::new(into), MAX_FRAME),
            peer_end,
            _rung: rung,
            lent: Vec::new(),
            extents: 0,
        }
    }

    /// Send a frame of any kind, mostly an almost valid one.
    fn send(&mut self, rng: &mut TestRng) -> Result<bool, Violation> {
        let (opcode, payload) = match rng.below(8) {
            0 if self.extents < 4 => {
                let file = memfd(8192, libc::F_SEAL_SHRINK, true);
                let extent = Extent::open(self.extents, 8192, file).expect("a good one");
                extent_update::send_added(self.peer_end.as_fd(), &extent).expect("room");
                self.extents += 1;
                (2, Vec::new())
            }
            0..=3 => {
                let entries: Vec<Entry> = (0..rng.below(4)).map(|_| self.entry(rng)).collect();
                let mut payload = parcel::begin(&entries, false, 0);
                payload.extend_from_slice(b"\x92\x01\x02");
                if rng.one_in(3) {
                    let at = rng.below(payload.len());
                    payload[at] ^= 1 << rng.below(8);
                }
                (2 | PARCEL, payload)
            }
            4 | 5 if !self.lent.is_empty() => {
                let entry = self.lent.swap_remove(rng.below(self.lent.len()));
                let Location::AtSender(place) = entry.location else {
                    unreachable!("what was lent location at its sender")
                };
                let mut payload = [0; 16];
                payload[..4].copy_from_slice(&place.extent.to_ne_bytes());
                payload[8..].copy_from_slice(&place.offset.to_ne_bytes());
                if rng.one_in(20) {
                    payload[rng.below(16)] ^= 1 << rng.below(8);
                }
                (RELEASE, payload.to_vec())
            }
            _ => {
                let len = rng.below(100);
                (2, rng.bytes(len))
            }
        };
        self.out.written += (HEADER + padded(payload.len())) as u64;
        self.out.writer.send(opcode, 1, &payload)
    }

    fn entry(&self, rng: &mut TestRng) -> Entry {
        match rng.below(3) {
            0 if self.extents > 0 => {
                let place = BlockRef {
                    extent: rng.below(self.extents as usize) as u32,
                    offset: 4096 * rng.below(2) as u64,
                };
                Entry {
                    location: Location::AtSender(place),
                    start: 8 * rng.below(10) as u64,
                    len: rng.below(4000) as u64,
                }
            }
            1 if !self.lent.is_empty() => {
                let Entry { location, .. } = self.lent[rng.below(self.lent.len())];
                let Location::AtSender(place) = location else {
                    unreachable!("what was lent location at its sender")
                };
                Entry {
                    location: Location::AtReceiver(place),
                    start: rng.below(100) as u64,
                    len: rng.below(300) as u64,
                }
            }
            _ if rng.one_in(8) => any_entry(rng),
            _ => Entry {
                location: Location::InFrame,
                start: 0,
                len: 0,
            },
        }
    }

    /// Serve like a server: read the pending frames and their buffers, and reply now and then with loans.
    fn serve(&mut self, rng: &mut TestRng) -> Result<(), Violation> {
        let server = self.server.clone();
        for _ in 0..=CAPACITY / HEADER {
            if server.is_stalled() {
                server.flush()?;
                return Ok(()); // The poller does the same: a client that does not read gets no more requests served.
            }
            let mut receiver = server.receiver();
            let Some(header) = receiver.peek()? else {
                server.release(&receiver);
                drop(receiver);
                server.flush()?;
                return server.fault().map_or(Ok(()), Err);
            };
            assert!(header.len <= MAX_FRAME && header.opcode != RELEASE);
            let mut payload = vec![0; header.len];
            receiver.take(&mut payload)?;
            let mut memories = Vec::new();
            if header.opcode & PARCEL != 0 {
                for entry in &parcel::parse(&payload)?.entries {
                    memories.extend(server.loans().open(entry)?);
                }
            }
            server.release(&receiver);
            drop(receiver);
            for memory in &memories {
                assert!(memory.len() <= memory.extent().size());
                let mut copy = vec![0; memory.len()];
                // SAFETY: the copy is as long as what is read.
                unsafe { memory.read(copy.as_mut_ptr()) };
            }
            if rng.one_in(4) {
                let lent = vec![7; 300];
                // SAFETY: a slice is readable.
                let _ = unsafe {
                    let buffers = [(lent.as_ptr(), lent.len())];
                    server.send_parcel(
                        0,
                        header.id,
                        b"\xc0",
                        &buffers,
                        || Box::new(vec![0xc0]),
                        FrameRole::Other,
                    )
                };
            }
        }
        panic!("more frames than the ring can hold")
    }

    /// Read like a client, to learn of the server's loans.
    fn listen(&mut self) {
        for _ in 0..=CAPACITY / HEADER {
            let Ok(Some((header, payload))) = receive(&mut self.into, MAX_FRAME) else {
                return;
            };
            if header.opcode == PARCEL {
                let parsed = parcel::parse(&payload).expect("the server is correct");
                let lent = |e: &Entry| matches!(e.location, Location::AtSender(_));
                self.lent.extend(parsed.entries.into_iter().filter(lent));
            }
        }
    }
}

#[test]
fn a_hostile_client_of_a_channel() {
    bounded("channel", |seed| {
        let mut rng = TestRng(seed ^ 7);
        let count = scaled(8_000, 150_000);
        let (mut frames, mut violations) = (0, 0);
        while frames < count {
            let mut connection = Connection::new();
            let location = rng.one_in(2);
            'connection: for _ in 0..200 {
                let mut starts = Vec::new();
                for _ in 0..1 + rng.below(5) {
                    starts.push(connection.out.written);
                    match connection.send(&mut rng) {
                        Ok(true) => frames += 1,
                        Ok(false) => break,
                        Err(_) => break 'connection, // The peer has corrupted the head itself.
                    }
                }
                if location && rng.one_in(4) {
                    let begin = starts[0];
                    connection.out.corrupt_one(&mut rng, begin, &starts);
                }
                let (outcome, largest) = measured(|| connection.serve(&mut rng));
                // The list of all owners of extents is swept each second, and may have grown.
                assert!(largest <= 8 * SMALL, "{largest}");
                connection.listen();
                let (size, used) = connection.server.loans().allocator().usage();
                assert!(used <= size && size <= 256 << 10);
                if outcome.is_err() {
                    violations += 1;
                    break;
                }
            }
        }
        assert!(violations > 0, "location are noticed");
        frames
    });
}

/// A function that reads a file of the corpus.
type Reading = fn(&[u8]);

/// All inputs of core/fuzz/corpus: initial ones, and findings of the fuzzer.
#[test]
fn the_corpus_of_the_fuzzer_causes_no_failure() {
    let targets: [(&str, Reading); 9] = [
        ("ring", hostile::ring),
        ("parcel", hostile::parcel),
        ("release", hostile::release),
        ("extent_updates", hostile::extent_updates),
        ("shared_heap", hostile::shared_heap::shared_heap),
        ("objects", hostile::objects::objects),
        ("queue", hostile::queue::queue),
        ("topic", hostile::topic::topic),
        ("store", hostile::store::store),
    ];
    for (name, run) in targets {
        let folder = format!("{}/fuzz/corpus/{name}", env!("CARGO_MANIFEST_DIR"));
        let mut count = 0;
        for entry in std::fs::read_dir(&folder).expect("the corpus is in the repository") {
            let path = entry.expect("a file").path();
            println!("{}", path.display());
            run(&std::fs::read(&path).expect("a readable file"));
            count += 1;
        }
        assert!(count >= 10, "{folder} has {count} files");
    }
}
