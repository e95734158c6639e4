//! An extent: a memfd that its owner writes and the peer reads.
//!
//! # The contract
//!
//! * All of an extent's memory is allocated when it is created, and its seals fix its size. So the other side cannot
//!   truncate the file under our mapping; it can only change bytes, or make them zeros.
//! * The other side may write any of it at any time: memory that is mapped by both can be mapped writable by both. So
//!   no reference or slice into it is made here, bytes are copied by raw pointers, and every byte read is untrusted.

use crate::crash;
use crate::memory::bytes;
use crate::memory::copier::Copier;
use crate::memory::mapping::{MappedRange, WRITABLE};
use crate::memory::sealed;
use crate::memory::view::{Mode, View};
use crate::os::{check_syscall, fallocate, fstat};
use crate::own_fd::OwnFd;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use thiserror::Error;

/// Maximum number of extents of an owner: each costs every process that maps it a descriptor.
pub const MAX_EXTENTS: usize = 256;

/// Extents by their numbers.
pub type Extents = BTreeMap<u32, Arc<Extent>>;

/// Return the number of the extent that contains all of the `len` bytes at `address`, and their offset in it; None if
/// no extent does.
pub(crate) fn find(extents: &Extents, address: usize, len: usize) -> Option<(u32, u64)> {
    let mut extents = extents.values();
    extents.find_map(|extent| Some((extent.number(), extent.offset_of(address, len)?)))
}

/// Bytes that one call allocates. A signal makes the kernel undo the call that it interrupts, so with a profiler's
/// timer one call for all of a large extent might never end.
const STRIDE: usize = 16 << 20;

/// The reason why an extent of the peer cannot be used.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the texts say what the fields hold")]
pub enum ExtentError {
    #[error(transparent)]
    Os(#[from] io::Error),
    /// The file could be truncated while it is read.
    #[error(
        "extent {number} has the seals {found:#x} without {:#x}, the one against shrinking",
        libc::F_SEAL_SHRINK
    )]
    Unsealed { number: u32, found: i32 },
    #[error("extent {number} has {found} bytes instead of {expected}")]
    Size {
        number: u32,
        found: u64,
        expected: u64,
    },
    #[error("the descriptor of extent {number} can only be written")]
    Unreadable { number: u32 },
    /// The memory of the file is not allocated, or was given back.
    #[error("extent {number} has only {found} bytes set aside")]
    Sparse { number: u32, found: u64 },
}

/// A mapped extent: writable if it belongs to this side, read-only if it belongs to the peer.
///
/// The extent stays mapped until it is dropped. Its descriptor is closed with the last of the extent and its [`View`]s.
#[derive(Debug)]
pub struct Extent {
    number: u32,
    span: MappedRange,
    file: Arc<OwnFd>,
    ours: bool,
}

impl Extent {
    /// Create an extent of this side, all zeros, of `size` bytes. All of its memory is allocated now, so that a lack of
    /// memory is an error here, and its size is sealed. Fails with `InvalidInput` for the size 0.
    ///
    /// A machine without enough memory does not always refuse: unless shared memory has a limit of its own, the kernel
    /// may kill a process instead. The limit to rely on is that of the arena.
    pub fn create(number: u32, size: usize) -> io::Result<Extent> {
        if size == 0 || libc::off_t::try_from(size).is_err() {
            return Err(invalid(format!("an extent cannot have {size} bytes")));
        }
        let file = sealed::create(c"shmrpc-extent", size as u64)?;
        for start in (0..size).step_by(STRIDE) {
            let length = STRIDE.min(size - start);
            fallocate(file.as_fd(), 0, start as u64, length as u64)?;
        }
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: the descriptor is open; no memory is involved.
        check_syscall(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
        crash::point!(ExtentSealed);
        let span = MappedRange::new(file.as_fd(), 0, size, WRITABLE, POPULATED)?;
        Ok(Extent {
            number,
            span,
            file: Arc::new(file.into()),
            ours: true,
        })
    }

    /// Map an extent of the peer for reading. Checks and fails as [`open_shared`](Self::open_shared) does.
    pub fn open(number: u32, size: usize, file: impl Into<OwnFd>) -> Result<Extent, ExtentError> {
        Extent::open_shared(number, size, Arc::new(file.into()))
    }

    /// Map an extent of the peer, whose file is shared with other objects, for reading. Fails with an [`ExtentError`]
    /// if the file can shrink, cannot be read, does not have `size` bytes, or does not have all of its memory
    /// allocated.
    pub fn open_shared(number: u32, size: usize, file: Arc<OwnFd>) -> Result<Extent, ExtentError> {
        let fd = file.as_raw_fd();
        // SAFETY: the descriptor is open; no memory is involved.
        let found = match check_syscall(unsafe { libc::fcntl(fd, libc::F_GET_SEALS) }) {
            Ok(seals) => seals,
            // The file cannot be sealed at all.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => 0,
            Err(error) => return Err(error.into()),
        };
        if found & libc::F_SEAL_SHRINK == 0 {
            return Err(ExtentError::Unsealed { number, found });
        }
        // SAFETY: the descriptor is open; no memory is involved.
        let mode = check_syscall(unsafe { libc::fcntl(fd, libc::F_GETFL) })? & libc::O_ACCMODE;
        if mode == libc::O_WRONLY {
            return Err(ExtentError::Unreadable { number });
        }
        // After the seals, because only then it can no longer shrink.
        let stat = fstat(file.as_fd())?;
        let found = stat.st_size as u64;
        if found != size as u64 {
            return Err(ExtentError::Size {
                number,
                found,
                expected: size as u64,
            });
        }
        // Mapping the file would allocate memory that its owner has not allocated, or has given back.
        let found = stat.st_blocks as u64 * 512;
        if found < size as u64 {
            return Err(ExtentError::Sparse { number, found });
        }
        // A new extent must not delay the reader of a frame for long.
        let populated = if size <= QUICKLY_MAPPED {
            POPULATED
        } else {
            libc::MAP_SHARED
        };
        let span = MappedRange::new(file.as_fd(), 0, size, libc::PROT_READ, populated)?;
        Ok(Extent {
            number,
            span,
            file,
            ours: false,
        })
    }

    /// Return the number that its owner has given it.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Return the size, in bytes.
    pub fn size(&self) -> usize {
        self.span.len()
    }

    /// Return the address of the mapping, valid as long as `self`. An extent of the peer must not be written.
    pub fn base(&self) -> *mut u8 {
        self.span.base()
    }

    /// Return the descriptor.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Return the offset of the `len` bytes at `address`; None if not all of them are in this extent. An empty range
    /// must begin in it.
    pub fn offset_of(&self, address: usize, len: usize) -> Option<u64> {
        let offset = address.checked_sub(self.base().addr())?;
        let within = offset < self.size() && len <= self.size() - offset;
        within.then_some(offset as u64)
    }

    /// Copy bytes into the extent. Panics if it belongs to the peer, or does not have the range.
    ///
    /// # Safety
    ///
    /// `len` bytes at `from` are readable, and none of them is in the range that is written.
    pub unsafe fn write(&self, offset: u64, from: *const u8, len: usize, copier: &Copier) {
        assert!(self.ours, "extent {} is the peer's to write", self.number);
        let to = self.at(offset, len);
        // SAFETY: `from` by the caller's promise, `to` by the check of its bounds. The peer may access the range
        // meanwhile, which the copier tolerates.
        unsafe { copier.copy(to, from, len) };
    }

    /// Copy bytes out of the extent. Panics if it does not have the range.
    ///
    /// # Safety
    ///
    /// `len` bytes at `to` are writable, no other thread writes them meanwhile, and they are outside the range that is
    /// read.
    pub unsafe fn read(&self, offset: u64, to: *mut u8, len: usize) {
        let from = self.at(offset, len);
        // SAFETY: as in `write`.
        unsafe { bytes::copy(to, from, len) };
    }

    /// Give the memory back to the system now, although processes may still have it mapped: they read zeros from then
    /// on. For an extent of this side that is no longer used. Errors are ignored: the memory then goes with the last
    /// mapping.
    pub fn punch(&self) {
        debug_assert!(self.ours, "extent {} is the peer's to punch", self.number);
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // A failure is harmless: the memory then goes with the last mapping.
        let _ = fallocate(self.file.as_fd(), mode, 0, self.size() as u64);
    }

    /// Map the `len` bytes from `offset` on, a multiple of a page, once more, writable. Fails with `InvalidInput` for
    /// another offset, an empty range and one that is not within the extent, and else if the system refuses the
    /// mapping.
    pub fn map(&self, offset: u64, len: usize, mode: Mode) -> io::Result<View> {
        let size = self.size();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        if len == 0 || start >= size || len > size - start {
            return Err(invalid(format!(
                "extent {} has {size} bytes, not {len} from {offset} on (and a mapping has at least 1)",
                self.number
            )));
        }
        // SAFETY: no memory is involved.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        if start % page != 0 {
            return Err(invalid(format!(
                "a mapping begins with a page, at a multiple of {page}, not at {offset}"
            )));
        }
        View::new(self.file.clone(), start, len, mode)
    }

    /// Return the address of a range. Panics if the extent does not have it.
    fn at(&self, offset: u64, len: usize) -> *mut u8 {
        let size = self.size();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        assert!(
            start <= size && len <= size - start,
            "extent {} has {size} bytes, not {len} from {offset} on",
            self.number
        );
        // SAFETY: within the mapping, or one past its end.
        unsafe { self.base().add(start) }
    }
}

/// Shared, with all pages mapped at once, so that no copy causes a page fault.
const POPULATED: libc::c_int = libc::MAP_SHARED | libc::MAP_POPULATE;

/// Maximum size of an extent of the peer that is mapped at once, in bytes; a larger one is mapped as it is read.
const QUICKLY_MAPPED: usize = 4 << 20;

/// Return an error for invalid arguments.
fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

#[cfg(test)]
pub(crate) mod tests;
