//! The segment of a connection: a region with two rings.
//!
//! Behind the header of a [`region`], offsets in bytes:
//!
//! ```text
//!      36  capacity      u32   bytes of one ring, a power of two
//!      40  first         u32   bytes of it that are in use at first, a power of two
//!     128  ring 0, client to server: control
//!     640  ring 1, server to client: control
//!    1152  woken at      u64   time at which the server was last woken, in nanoseconds of CLOCK_MONOTONIC
//!    1280  woken at      u64   the same of the client
//!    1408  cpu           u32   number of the CPU on which the server has last sent, plus one
//!    1536  cpu           u32   the same of the client
//!    2048  ring 0: data
//!    2048 + capacity  ring 1: data
//! ```
//!
//! Only the first bytes of the data have memory at first. A writer allocates more as its ring grows ([`crate::ring`]).
//!
//! The times and CPUs are hints, each on a pair of cache lines of its own. A side that does not store them leaves
//! zeros, so they are no part of the signature.
//!
//! The control of a ring is four words, each on a pair of cache lines of its own: `tail` +0, `head` +128,
//! `reader_waits` +256, `writer_waits` +384.

use crate::memory::mapping::{SharedMapping, can_populate};
use crate::memory::region::{self, HEADER_SIZE, Kind, Layout, RegionError};
use crate::ring::frame::HEADER;
use crate::ring::{RingMemory, WORD};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use thiserror::Error;

const AT_CAPACITY: usize = HEADER_SIZE;
const AT_FIRST: usize = HEADER_SIZE + 4;
const RINGS: usize = 2;
const AT_CONTROL: usize = 128;
const CONTROL_SIZE: usize = 512;
const TAIL: usize = 0;
const HEAD: usize = 128;
const READER_WAITS: usize = 256;
const WRITER_WAITS: usize = 384;
const AT_WOKEN: usize = AT_CONTROL + RINGS * CONTROL_SIZE;
const AT_CPU: usize = AT_WOKEN + 2 * HINT_SIZE;
const HINT_SIZE: usize = 128;
const AT_DATA: usize = 2048;

/// Minimum size of a ring, in bytes: a header, a word, and some.
pub const MIN_CAPACITY: usize = 1024;
/// Maximum size of a ring, in bytes.
pub const MAX_CAPACITY: usize = 1 << 30;

/// Bytes of a ring that have memory from the beginning: the rest of the first page behind the control, and as much for
/// the other ring. They suffice for a connection with small calls now and then.
const FIRST: usize = 2048;

/// Signature of the offsets.
pub const SIGNATURE: u64 = region::signature(&[
    AT_CONTROL,
    CONTROL_SIZE,
    TAIL,
    HEAD,
    READER_WAITS,
    WRITER_WAITS,
    AT_DATA,
    WORD,
    HEADER,
    AT_FIRST,
]);

/// The reason why a segment cannot be used.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the texts say what the fields hold")]
pub enum SegmentError {
    #[error(
        "ring capacity {capacity} is not a power of two between {MIN_CAPACITY} and {MAX_CAPACITY}"
    )]
    Capacity { capacity: usize },
    #[error("segment has rings that begin with {first} bytes of {capacity}")]
    First { first: usize, capacity: usize },
    /// The region is invalid, or has another layout.
    #[error("segment {0}")]
    Region(#[from] RegionError),
}

/// Return the bytes of a segment whose rings hold `capacity` bytes each, a value that is not checked here.
pub const fn size_for(capacity: usize) -> usize {
    AT_DATA + RINGS * capacity
}

/// Return the bytes of a ring that have memory from the beginning: all, if the kernel cannot allocate more later
/// without the risk of a SIGBUS.
fn first(capacity: usize) -> usize {
    match can_populate() {
        true => capacity.min(FIRST),
        false => capacity,
    }
}

/// Return the ranges of a segment that need memory before it is mapped.
pub fn used_at_first(capacity: usize) -> [Range<usize>; 2] {
    let first = first(capacity);
    let second = AT_DATA + capacity;
    [0..AT_DATA + first, second..second + first]
}

/// Return the layout of a segment, or an error if the capacity is impossible.
fn layout(capacity: usize) -> Result<Layout, SegmentError> {
    if !capacity.is_power_of_two() || !(MIN_CAPACITY..=MAX_CAPACITY).contains(&capacity) {
        return Err(SegmentError::Capacity { capacity });
    }
    Ok(Layout {
        kind: Kind::Connection,
        size: size_for(capacity),
        signature: SIGNATURE,
    })
}

/// A segment, which stays mapped as long as any of its rings is in use.
pub struct Segment {
    mapping: SharedMapping,
    capacity: usize,
    /// Bytes of each ring that are in use at first.
    first: usize,
}

impl Segment {
    /// Lay out a new segment in `file`, which has its size, holds zeros, and has memory as [`used_at_first`] returns.
    /// Fails with `Capacity` for an impossible capacity, and with `Region` if the file has another size or cannot be
    /// mapped. The caller may close the file afterwards.
    pub fn create(file: BorrowedFd<'_>, capacity: usize) -> Result<Arc<Self>, SegmentError> {
        let first = first(capacity);
        let mapping = region::create(file, layout(capacity)?, |mapping| {
            // Relaxed, both: published with the header.
            let store = |at, value| mapping.u32_at(at).store(value, Ordering::Relaxed);
            store(AT_CAPACITY, capacity as u32);
            store(AT_FIRST, first as u32);
        })?;
        Ok(Arc::new(Segment {
            mapping,
            capacity,
            first,
        }))
    }

    /// Map a segment that the peer has laid out with rings of `capacity` bytes, and check its header, not the contents
    /// of its rings. Fails with `Capacity` or `First` for an impossible size, and with `Region` for another header or
    /// file size. The caller may close the file afterwards.
    pub fn open(file: BorrowedFd<'_>, capacity: usize) -> Result<Arc<Self>, SegmentError> {
        let mapping = region::open(file, layout(capacity)?)?;
        // Relaxed, both: covered by the header. Read once.
        let load = |at| mapping.u32_at(at).load(Ordering::Relaxed);
        region::check("capacity", u64::from(load(AT_CAPACITY)), capacity as u64)?;
        let first = load(AT_FIRST) as usize;
        if !first.is_power_of_two() || !(MIN_CAPACITY..=capacity).contains(&first) {
            return Err(SegmentError::First { first, capacity });
        }
        Ok(Arc::new(Segment {
            mapping,
            capacity,
            first,
        }))
    }

    /// Return the word with the time at which the client, or else the server, was last woken, in nanoseconds; 0 if
    /// never. An untrusted hint.
    pub fn woken_at(&self, is_client: bool) -> &AtomicU64 {
        let place = usize::from(is_client);
        self.mapping.u64_at(AT_WOKEN + place * HINT_SIZE)
    }

    /// Return the word with the number of the CPU on which the client, or else the server, has last sent, plus one; 0
    /// if unknown. An untrusted hint.
    #[inline]
    pub fn cpu(&self, is_client: bool) -> &AtomicU32 {
        let place = usize::from(is_client);
        self.mapping.u32_at(AT_CPU + place * HINT_SIZE)
    }

    /// Mark the segment as truncated, because another file of its connection was: each later load of an index fails.
    pub fn mark_truncated(&self) {
        self.mapping.mark_truncated();
    }
}

/// The direction of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Ring 0.
    ClientToServer,
    /// Ring 1.
    ServerToClient,
}

/// A ring of a segment.
#[derive(Clone)]
pub struct MappedRing {
    segment: Arc<Segment>,
    control: usize,
    data: usize,
}

impl MappedRing {
    /// Return the ring of `segment` in this direction.
    pub fn new(segment: Arc<Segment>, direction: Direction) -> Self {
        let number = match direction {
            Direction::ClientToServer => 0,
            Direction::ServerToClient => 1,
        };
        let data = AT_DATA + number * segment.capacity;
        MappedRing {
            segment,
            control: AT_CONTROL + number * CONTROL_SIZE,
            data,
        }
    }

    /// Return the word at `index` of the data.
    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < self.segment.capacity / WORD);
        self.segment.mapping.u64_at(self.data + index * WORD)
    }
}

impl RingMemory for MappedRing {
    #[inline]
    fn capacity(&self) -> usize {
        self.segment.capacity
    }
    #[inline]
    fn first(&self) -> usize {
        self.segment.first
    }
    fn populate(&self, from: usize, to: usize) -> bool {
        let mapping = &self.segment.mapping;
        mapping.populate(self.data + from, to - from).is_ok()
    }
    #[inline]
    fn load_word(&self, index: usize) -> u64 {
        // Relaxed: see the table in `ring`.
        self.word(index).load(Ordering::Relaxed)
    }
    #[inline]
    fn store_word(&self, index: usize, value: u64) {
        // Relaxed: see the table in `ring`.
        self.word(index).store(value, Ordering::Relaxed);
    }
    #[inline]
    fn tail(&self) -> &AtomicU64 {
        self.segment.mapping.u64_at(self.control + TAIL)
    }
    #[inline]
    fn head(&self) -> &AtomicU64 {
        self.segment.mapping.u64_at(self.control + HEAD)
    }
    #[inline]
    fn reader_waits(&self) -> &AtomicU32 {
        self.segment.mapping.u32_at(self.control + READER_WAITS)
    }
    #[inline]
    fn writer_waits(&self) -> &AtomicU32 {
        self.segment.mapping.u32_at(self.control + WRITER_WAITS)
    }
    #[inline]
    fn is_truncated(&self) -> bool {
        self.segment.mapping.is_truncated()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::extent::tests::memfd;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn two_mappings_of_a_segment_see_the_same_rings() {
        let file = memfd(size_for(4096), 0);
        let ours = Segment::create(file.as_fd(), 4096).unwrap();
        let theirs = Segment::open(file.as_fd(), 4096).unwrap();
        for direction in [Direction::ClientToServer, Direction::ServerToClient] {
            let (a, b) = (
                MappedRing::new(ours.clone(), direction),
                MappedRing::new(theirs.clone(), direction),
            );
            a.tail().store(8, Ordering::Relaxed);
            a.store_word(511, 42);
            assert_eq!(b.tail().load(Ordering::Relaxed), 8);
            assert_eq!(b.load_word(511), 42);
        }
    }

    #[test]
    fn a_file_of_another_size_is_refused_before_it_is_mapped() {
        let file = memfd(size_for(4096) - 1, 0);
        let error = Segment::open(file.as_fd(), 4096).err().unwrap();
        assert!(
            matches!(error, SegmentError::Region(RegionError::Size { found, .. }) if found == size_for(4096) as u64 - 1)
        );
    }

    #[test]
    fn every_field_of_the_header_is_checked() {
        for offset in [0, 8, 12, 16, 24, 32, AT_CAPACITY, AT_FIRST] {
            let file = memfd(size_for(4096), 0);
            let segment = Segment::create(file.as_fd(), 4096).unwrap();
            segment
                .mapping
                .u32_at(offset)
                .fetch_xor(1, Ordering::Relaxed);
            let error = Segment::open(file.as_fd(), 4096).err().unwrap();
            let found = match offset {
                AT_FIRST => matches!(error, SegmentError::First { .. }),
                _ => matches!(error, SegmentError::Region(RegionError::Header { .. })),
            };
            assert!(found, "offset {offset}: {error}");
        }
    }

    #[test]
    fn a_capacity_that_is_no_power_of_two_is_refused() {
        let file = memfd(8192, 0);
        assert!(matches!(
            Segment::create(file.as_fd(), 3000),
            Err(SegmentError::Capacity { capacity: 3000 })
        ));
    }

    #[test]
    fn an_impossible_first_part_is_refused() {
        for value in [0, 512, 3000, 1 << 17, u32::MAX] {
            let file = memfd(size_for(1 << 16), 0);
            let segment = Segment::create(file.as_fd(), 1 << 16).unwrap();
            let first = segment.mapping.u32_at(AT_FIRST);
            first.store(value, Ordering::Relaxed);
            let error = Segment::open(file.as_fd(), 1 << 16).err().unwrap();
            assert!(matches!(error, SegmentError::First { first, .. } if first == value as usize));
        }
    }

    #[test]
    fn a_ring_gets_memory_when_it_grows_and_not_before() {
        let file = File::from(memfd(0, 0));
        file.set_len(size_for(1 << 16) as u64).unwrap();
        let ring = MappedRing::new(
            Segment::create(file.as_fd(), 1 << 16).unwrap(),
            Direction::ServerToClient,
        );
        let used = || file.metadata().unwrap().blocks() * 512;
        if ring.first() == ring.capacity() {
            return; // A kernel that cannot be asked.
        }
        let before = used();
        assert!(ring.populate(FIRST, 4 * FIRST));
        assert!(used() >= before + 3 * FIRST as u64);
        assert!(used() < before + (1 << 15));
        file.set_len(0).unwrap();
        assert!(
            !ring.populate(4 * FIRST, 1 << 16),
            "a refused growth is an error and no failure"
        );
    }
}
