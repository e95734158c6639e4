//! One segment of shared memory, mapped: a header and two rings.
//!
//! The layout, all numbers in the byte order of the machine, offsets in bytes:
//!
//! ```text
//!      0  magic         u64   the bytes "shmrpc\0\1"
//!      8  version       u32
//!     12  capacity      u32   bytes of one ring, a power of two
//!     16  size          u64   bytes of the whole segment
//!     24  signature     u64   of the offsets below
//!     32  ready         u32   1 once all the rest is in place
//!    128  ring 0, client to server: control
//!    640  ring 1, server to client: control
//!   2048  ring 0: data
//!   2048 + capacity  ring 1: data
//! ```
//!
//! The control of a ring is four words, each on a pair of cache lines of its own:
//! `tail` +0, `head` +128, `reader_waits` +256, `writer_waits` +384.

use crate::memory::sigbus::Guard;
use crate::ring::{RingMemory, WORD};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

const MAGIC: u64 = u64::from_ne_bytes(*b"shmrpc\0\x01");
/// The version of the layout and of the frames.
pub const VERSION: u32 = 1;

const AT_VERSION: usize = 8;
const AT_CAPACITY: usize = 12;
const AT_SIZE: usize = 16;
const AT_SIGNATURE: usize = 24;
const AT_READY: usize = 32;
const RINGS: usize = 2;
const AT_CONTROL: usize = 128;
const CONTROL_SIZE: usize = 512;
const TAIL: usize = 0;
const HEAD: usize = 128;
const READER_WAITS: usize = 256;
const WRITER_WAITS: usize = 384;
const AT_DATA: usize = 2048;

/// The smallest ring: a header, a word, and some.
pub const MIN_CAPACITY: usize = 1024;
/// The largest ring.
pub const MAX_CAPACITY: usize = 1 << 30;

/// What the offsets are, in one number, so that two builds that differ do not meet:
/// FNV-1a over the numbers, each as eight little-endian bytes.
pub const SIGNATURE: u64 = {
    let numbers = [
        AT_CONTROL,
        CONTROL_SIZE,
        TAIL,
        HEAD,
        READER_WAITS,
        WRITER_WAITS,
        AT_DATA,
        WORD,
        crate::ring::frame::HEADER,
    ];
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut i = 0;
    while i < numbers.len() {
        let bytes = (numbers[i] as u64).to_le_bytes();
        let mut j = 0;
        while j < bytes.len() {
            hash = (hash ^ bytes[j] as u64).wrapping_mul(0x0000_0100_0000_01b3);
            j += 1;
        }
        i += 1;
    }
    hash
};

/// Why a segment cannot be used.
#[derive(Debug)]
pub enum RegionError {
    /// The operating system refused.
    Os(io::Error),
    /// The ring's capacity is not a power of two within the bounds.
    Capacity {
        /// What was asked for, in bytes.
        capacity: usize,
    },
    /// The file is not of the size that its layout needs.
    Size {
        /// What the file has, in bytes.
        found: u64,
        /// What it should have, in bytes.
        expected: u64,
    },
    /// A field of the header is not what it should be.
    Header {
        /// Its name.
        field: &'static str,
        /// What it holds.
        found: u64,
        /// What it should hold.
        expected: u64,
    },
}

impl fmt::Display for RegionError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegionError::Os(error) => write!(out, "{error}"),
            RegionError::Capacity { capacity } => write!(
                out,
                "ring capacity {capacity} is not a power of two between {MIN_CAPACITY} and {MAX_CAPACITY}"
            ),
            RegionError::Size { found, expected } => {
                write!(out, "segment has {found} bytes instead of {expected}")
            }
            RegionError::Header {
                field,
                found,
                expected,
            } => {
                write!(
                    out,
                    "segment {field} is {found:#x} instead of {expected:#x}"
                )
            }
        }
    }
}

impl std::error::Error for RegionError {}

impl From<io::Error> for RegionError {
    fn from(error: io::Error) -> Self {
        RegionError::Os(error)
    }
}

/// Bytes of a segment whose rings hold `capacity` bytes each.
pub const fn size_for(capacity: usize) -> usize {
    AT_DATA + RINGS * capacity
}

/// A mapped segment. It stays mapped as long as any ring in it is in use.
pub struct Region {
    base: NonNull<u8>,
    size: usize,
    capacity: usize,
    guard: ManuallyDrop<Guard>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is accessed by atomics only.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Lays out a new segment in `file`, which has the size for it and holds zeros.
    pub fn create(file: BorrowedFd<'_>, capacity: usize) -> Result<Arc<Self>, RegionError> {
        let region = Region::map(file, capacity)?;
        // Relaxed, all of these: published by the Release of `ready`.
        region.u32_at(AT_VERSION).store(VERSION, Ordering::Relaxed);
        region
            .u32_at(AT_CAPACITY)
            .store(capacity as u32, Ordering::Relaxed);
        region
            .u64_at(AT_SIZE)
            .store(region.size as u64, Ordering::Relaxed);
        region
            .u64_at(AT_SIGNATURE)
            .store(SIGNATURE, Ordering::Relaxed);
        region.u64_at(0).store(MAGIC, Ordering::Relaxed);
        // Release: whoever sees `ready` sees the header.
        region.u32_at(AT_READY).store(1, Ordering::Release);
        Ok(Arc::new(region))
    }

    /// Maps a segment that the peer has laid out with rings of `capacity` bytes, and checks its header.
    pub fn open(file: BorrowedFd<'_>, capacity: usize) -> Result<Arc<Self>, RegionError> {
        let region = Region::map(file, capacity)?;
        // Acquire: pairs with the Release in `create`.
        let ready = region.u32_at(AT_READY).load(Ordering::Acquire);
        // Relaxed, the rest: covered by it.
        let fields = [
            ("ready", u64::from(ready), 1),
            ("magic", region.u64_at(0).load(Ordering::Relaxed), MAGIC),
            (
                "version",
                u64::from(region.u32_at(AT_VERSION).load(Ordering::Relaxed)),
                u64::from(VERSION),
            ),
            (
                "signature",
                region.u64_at(AT_SIGNATURE).load(Ordering::Relaxed),
                SIGNATURE,
            ),
            (
                "capacity",
                u64::from(region.u32_at(AT_CAPACITY).load(Ordering::Relaxed)),
                capacity as u64,
            ),
            (
                "size",
                region.u64_at(AT_SIZE).load(Ordering::Relaxed),
                region.size as u64,
            ),
        ];
        for (field, found, expected) in fields {
            if found != expected {
                return Err(RegionError::Header {
                    field,
                    found,
                    expected,
                });
            }
        }
        Ok(Arc::new(region))
    }

    fn map(file: BorrowedFd<'_>, capacity: usize) -> Result<Self, RegionError> {
        if !capacity.is_power_of_two() || !(MIN_CAPACITY..=MAX_CAPACITY).contains(&capacity) {
            return Err(RegionError::Capacity { capacity });
        }
        let size = size_for(capacity);
        // SAFETY: all-zero bytes are a valid `stat`, a struct of integers.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open for the borrow's time and `stat` is writable.
        if unsafe { libc::fstat(file.as_raw_fd(), &mut stat) } != 0 {
            return Err(io::Error::last_os_error().into());
        }
        // Before mapping: what lies beyond the end of the file would be a SIGBUS.
        if stat.st_size != size as libc::off_t {
            return Err(RegionError::Size {
                found: stat.st_size as u64,
                expected: size as u64,
            });
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing of ours.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().into());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at null"))?;
        // SAFETY: mapped above and not yet touched; `drop` lets go of the guard first. What a peer shares with us may
        // be anything, so also zeros.
        let guard = ManuallyDrop::new(unsafe { Guard::new(base.as_ptr(), size) });
        Ok(Region {
            base,
            size,
            capacity,
            guard,
        })
    }

    /// Marks it as cut off, since something else of its connection was.
    pub fn cut_off(&self) {
        self.guard.cut_off();
    }

    #[inline]
    fn u64_at(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset % 8 == 0 && offset + 8 <= self.size);
        // SAFETY: within the mapping (its size was checked against the layout, and every
        // offset used is of the layout), aligned (the base is page-aligned), and in this
        // process never accessed other than atomically.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    #[inline]
    fn u32_at(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset % 4 == 0 && offset + 4 <= self.size);
        // SAFETY: as in `u64_at`.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: not used again, here or later.
        unsafe { ManuallyDrop::drop(&mut self.guard) };
        // SAFETY: mapped by `map` with this size; no reference outlives the region.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.size) };
    }
}

/// Which of the two rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Ring 0.
    ClientToServer,
    /// Ring 1.
    ServerToClient,
}

/// One ring of a region.
#[derive(Clone)]
pub struct MappedRing {
    region: Arc<Region>,
    control: usize,
    data: usize,
}

impl MappedRing {
    /// The ring of `region` in this direction.
    pub fn new(region: Arc<Region>, direction: Direction) -> Self {
        let number = match direction {
            Direction::ClientToServer => 0,
            Direction::ServerToClient => 1,
        };
        let data = AT_DATA + number * region.capacity;
        MappedRing {
            region,
            control: AT_CONTROL + number * CONTROL_SIZE,
            data,
        }
    }
}

impl MappedRing {
    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < self.region.capacity / WORD);
        self.region.u64_at(self.data + index * WORD)
    }
}

impl RingMemory for MappedRing {
    #[inline]
    fn capacity(&self) -> usize {
        self.region.capacity
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
        self.region.u64_at(self.control + TAIL)
    }
    #[inline]
    fn head(&self) -> &AtomicU64 {
        self.region.u64_at(self.control + HEAD)
    }
    #[inline]
    fn reader_waits(&self) -> &AtomicU32 {
        self.region.u32_at(self.control + READER_WAITS)
    }
    #[inline]
    fn writer_waits(&self) -> &AtomicU32 {
        self.region.u32_at(self.control + WRITER_WAITS)
    }
    #[inline]
    fn is_cut_off(&self) -> bool {
        self.region.guard.is_cut_off()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::{AsFd, FromRawFd};

    fn file(size: usize) -> File {
        // SAFETY: a valid C string; the descriptor that comes back is ours alone.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"test".as_ptr(), 0)) };
        file.set_len(size as u64).unwrap();
        file
    }

    #[test]
    fn two_mappings_of_a_segment_see_the_same_rings() {
        let file = file(size_for(4096));
        let ours = Region::create(file.as_fd(), 4096).unwrap();
        let theirs = Region::open(file.as_fd(), 4096).unwrap();
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
        let file = file(size_for(4096) - 1);
        let error = Region::open(file.as_fd(), 4096).err().unwrap();
        assert!(
            matches!(error, RegionError::Size { found, .. } if found == size_for(4096) as u64 - 1)
        );
    }

    #[test]
    fn every_field_of_the_header_is_checked() {
        for offset in [0, AT_VERSION, AT_CAPACITY, AT_SIZE, AT_SIGNATURE, AT_READY] {
            let file = file(size_for(4096));
            let region = Region::create(file.as_fd(), 4096).unwrap();
            region.u32_at(offset).fetch_xor(1, Ordering::Relaxed);
            let error = Region::open(file.as_fd(), 4096).err().unwrap();
            assert!(
                matches!(error, RegionError::Header { .. }),
                "offset {offset}: {error}"
            );
        }
    }

    #[test]
    fn a_capacity_that_is_no_power_of_two_is_refused() {
        let file = file(8192);
        assert!(matches!(
            Region::create(file.as_fd(), 3000),
            Err(RegionError::Capacity { capacity: 3000 })
        ));
    }
}
