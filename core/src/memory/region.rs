//! A region of shared memory of any kind: a mapping that begins with a header.
//!
//! The header, all numbers in the byte order of the machine, offsets in bytes:
//!
//! ```text
//!      0  magic         u64   the bytes "shmrpc\0\1"
//!      8  version       u32   of the layouts of all kinds
//!     12  kind          u32   the kind of the region
//!     16  size          u64   bytes of the whole region
//!     24  signature     u64   of the offsets of its kind
//!     32  ready         u32   1 once all the rest is in place
//!     36  the contents of its kind
//! ```

use crate::memory::mapping::SharedMapping;
use crate::os::fstat;
use crate::sync::Ordering;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use thiserror::Error;

const MAGIC: u64 = u64::from_ne_bytes(*b"shmrpc\0\x01");
/// Version of the layouts.
pub const VERSION: u32 = 2;

const AT_VERSION: usize = 8;
const AT_KIND: usize = 12;
const AT_SIZE: usize = 16;
const AT_SIGNATURE: usize = 24;
const AT_READY: usize = 32;
/// Bytes of the header. The contents of the kind follow.
pub const HEADER_SIZE: usize = 36;

/// The kind of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// The rings between the two sides of a connection.
    Connection = 1,
    /// Bytes that the members of an object share.
    Memory = 2,
    /// Permits that the members of an object share.
    Semaphore = 3,
    /// A semaphore of one permit.
    Lock = 4,
    /// A flag that the members of an object wait for.
    Event = 5,
    /// Items that the members of an object put and get.
    Queue = 6,
    /// The publishers and subscribers of a topic, and how far each subscriber has read.
    Topic = 7,
    /// Values that the members of an object change in place.
    Store = 8,
    /// Signals that members of an object send, and each of which ends one wait.
    Signal = 9,
}

impl Kind {
    /// Kinds of shared objects.
    pub const SHARED_OBJECTS: [Self; 8] = [
        Kind::Memory,
        Kind::Semaphore,
        Kind::Lock,
        Kind::Event,
        Kind::Queue,
        Kind::Topic,
        Kind::Store,
        Kind::Signal,
    ];

    /// Return the kind of shared object with this number; None for a connection and an unknown number.
    pub fn shared_object(number: u32) -> Option<Self> {
        let mut all = Kind::SHARED_OBJECTS.into_iter();
        all.find(|&kind| kind as u32 == number)
    }
}

/// A kind of region, and its layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Kind of the region.
    pub kind: Kind,
    /// Size, in bytes.
    pub size: usize,
    /// Signature of its offsets, by [`signature`].
    pub signature: u64,
}

/// Return a signature of the offsets of a layout, so that two builds with different layouts do not connect: FNV-1a over
/// the numbers, each as eight little-endian bytes.
pub const fn signature(numbers: &[usize]) -> u64 {
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
}

/// The reason why a region cannot be used. The texts follow the name of its kind.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the texts say what the fields hold")]
pub enum RegionError {
    #[error(transparent)]
    Os(#[from] io::Error),
    #[error("has {found} bytes instead of {expected}")]
    Size { found: u64, expected: u64 },
    #[error("{field} is {found:#x} instead of {expected:#x}")]
    Header {
        field: &'static str,
        found: u64,
        expected: u64,
    },
}

/// Lay out a new region in `file`, which has its size, holds zeros, and has memory for what is stored. `fill` stores
/// the contents of the kind, before peers can open the region. Fails with `Size` if the file has another size, and with
/// `Os` if it cannot be mapped. The caller may close the file afterwards.
pub fn create(
    file: BorrowedFd<'_>,
    layout: Layout,
    fill: impl FnOnce(&SharedMapping),
) -> Result<SharedMapping, RegionError> {
    let mapping = map(file, layout.size)?;
    let short = |at, value| mapping.u32_at(at).store(value, Ordering::Relaxed);
    let long = |at, value| mapping.u64_at(at).store(value, Ordering::Relaxed);
    // Relaxed, all: published by the Release of `ready`.
    long(0, MAGIC);
    short(AT_VERSION, VERSION);
    short(AT_KIND, layout.kind as u32);
    long(AT_SIZE, layout.size as u64);
    long(AT_SIGNATURE, layout.signature);
    fill(&mapping);
    // Release: a process that sees `ready` sees the header.
    mapping.u32_at(AT_READY).store(1, Ordering::Release);
    Ok(mapping)
}

/// Map a region that a peer has laid out, and check its header. The contents of its kind are visible then, and not
/// checked. Fails with `Size` or `Os` as [`create`] does, and with a [`RegionError::Header`] for the first field of the
/// header that differs: `ready` while the peer still lays it out.
pub fn open(file: BorrowedFd<'_>, layout: Layout) -> Result<SharedMapping, RegionError> {
    let mapping = map(file, layout.size)?;
    // Acquire: pairs with the Release in `create`.
    let ready = mapping.u32_at(AT_READY).load(Ordering::Acquire);
    // Relaxed, the rest: covered by `ready`.
    let short = |at| u64::from(mapping.u32_at(at).load(Ordering::Relaxed));
    let long = |at| mapping.u64_at(at).load(Ordering::Relaxed);
    check("ready", u64::from(ready), 1)?;
    check("magic", long(0), MAGIC)?;
    check("version", short(AT_VERSION), u64::from(VERSION))?;
    check("kind", short(AT_KIND), layout.kind as u64)?;
    check("signature", long(AT_SIGNATURE), layout.signature)?;
    check("size", long(AT_SIZE), layout.size as u64)?;
    Ok(mapping)
}

/// Return the number of a region's kind, before it is mapped: an unchecked value. Fails with `UnexpectedEof` if the
/// file is too short.
pub fn kind(file: &File) -> io::Result<u32> {
    let mut kind = [0; 4];
    file.read_exact_at(&mut kind, AT_KIND as u64)?;
    Ok(u32::from_ne_bytes(kind))
}

/// Fail with a [`RegionError::Header`] if a field of the header has an unexpected value.
pub fn check(field: &'static str, found: u64, expected: u64) -> Result<(), RegionError> {
    if found == expected {
        return Ok(());
    }
    Err(RegionError::Header {
        field,
        found,
        expected,
    })
}

/// Map a file. Fails with `Size` if it does not have this size, and with `Os` if a system call fails.
fn map(file: BorrowedFd<'_>, size: usize) -> Result<SharedMapping, RegionError> {
    // Before the mapping, because an access beyond the end of the file would be a SIGBUS.
    let found = fstat(file)?.st_size as u64;
    let expected = size as u64;
    if found != expected {
        return Err(RegionError::Size { found, expected });
    }
    Ok(SharedMapping::new(file, size)?)
}
