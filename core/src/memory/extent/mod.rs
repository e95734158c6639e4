//! One piece of a side's arena: a memfd that its owner writes and the peer reads.
//!
//! # The contract
//!
//! * All of an extent's memory is set aside when it is made, and its seals keep its size for ever. So the other side
//!   cannot cut the file off under our mapping; what it can do is to change bytes, or to make them zeros.
//! * The other side may write any of it at any time: what has been mapped for both can be mapped writable by both. So
//!   no reference or slice into it is made here, bytes are copied by raw pointers, and what is read may be anything.

use crate::crash;
use crate::memory::bytes;
use crate::memory::copier::Copier;
use crate::memory::mapping::{Span, WRITABLE};
use crate::memory::view::{Mode, View};
use crate::os::{done, fallocate, status};
use crate::own_fd::OwnFd;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use thiserror::Error;

/// Extents that an owner has at most: each costs every process that maps it a descriptor.
pub const MAX_EXTENTS: usize = 256;

/// Extents by their numbers.
pub type Extents = BTreeMap<u32, Arc<Extent>>;

/// The extent that all of these bytes lie in, and where in it they begin.
pub(crate) fn find(extents: &Extents, address: usize, len: usize) -> Option<(u32, u64)> {
    let mut extents = extents.values();
    extents.find_map(|extent| Some((extent.number(), extent.offset_of(address, len)?)))
}

/// Bytes that are set aside in one call. A signal makes the kernel undo the call that it interrupts, so with a
/// profiler's timer one call for all of a large extent might never end.
const STRIDE: usize = 16 << 20;

/// Why an extent of the peer's cannot be used.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the texts say what the fields hold")]
pub enum ExtentError {
    #[error(transparent)]
    Os(#[from] io::Error),
    /// The file could be cut off while we read it.
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
    /// The memory of the file is not set aside, or was given back.
    #[error("extent {number} has only {found} bytes set aside")]
    Sparse { number: u32, found: u64 },
}

/// A mapped extent: ours, writable, or the peer's, read-only.
///
/// It stays mapped until it is dropped; its descriptor is closed with the last of it and of the [`View`]s made of it.
#[derive(Debug)]
pub struct Extent {
    number: u32,
    span: Span,
    file: Arc<OwnFd>,
    ours: bool,
}

impl Extent {
    /// Makes new memory, all zeros. All of it is set aside now, so that a lack of memory is an error here, and its size
    /// is sealed.
    ///
    /// A machine without enough memory does not always refuse: unless shared memory has a bound of its own, the kernel
    /// may kill a process instead. The bound to rely on is the arena's limit.
    pub fn create(number: u32, size: usize) -> io::Result<Extent> {
        let length = libc::off_t::try_from(size).unwrap_or(0);
        if length == 0 {
            return Err(invalid(format!("an extent cannot have {size} bytes")));
        }
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a valid C string.
        let made = |flags| done(unsafe { libc::memfd_create(c"shmrpc-extent".as_ptr(), flags) });
        // Some hosts require the flag that it is never executed; older kernels do not know it.
        let fd = made(flags | libc::MFD_NOEXEC_SEAL).or_else(|_| made(flags))?;
        // SAFETY: it is new, so it is ours alone.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the descriptor is open; no memory is involved.
        done(unsafe { libc::ftruncate(fd, length) })?;
        for start in (0..size).step_by(STRIDE) {
            let length = STRIDE.min(size - start);
            fallocate(file.as_fd(), 0, start as u64, length as u64)?;
        }
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: as above.
        done(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) })?;
        crash::point!(ExtentSealed);
        let span = Span::new(file.as_fd(), 0, size, WRITABLE, POPULATED)?;
        Ok(Extent {
            number,
            span,
            file: Arc::new(file.into()),
            ours: true,
        })
    }

    /// Maps one that the peer has made, after a look at its seals and its size.
    pub fn open(number: u32, size: usize, file: impl Into<OwnFd>) -> Result<Extent, ExtentError> {
        Extent::open_shared(number, size, Arc::new(file.into()))
    }

    /// The same for a file that others refer to, too.
    pub fn open_shared(number: u32, size: usize, file: Arc<OwnFd>) -> Result<Extent, ExtentError> {
        let fd = file.as_raw_fd();
        // SAFETY: the descriptor is open; no memory is involved.
        let found = match done(unsafe { libc::fcntl(fd, libc::F_GET_SEALS) }) {
            Ok(seals) => seals,
            // A file that cannot be sealed at all.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => 0,
            Err(error) => return Err(error.into()),
        };
        if found & libc::F_SEAL_SHRINK == 0 {
            return Err(ExtentError::Unsealed { number, found });
        }
        // SAFETY: as above.
        let mode = done(unsafe { libc::fcntl(fd, libc::F_GETFL) })? & libc::O_ACCMODE;
        if mode == libc::O_WRONLY {
            return Err(ExtentError::Unreadable { number });
        }
        // After the seals: only now can it not shrink any more.
        let stat = status(file.as_fd())?;
        let found = stat.st_size as u64;
        if found != size as u64 {
            return Err(ExtentError::Size {
                number,
                found,
                expected: size as u64,
            });
        }
        // Mapping it would set aside the memory that its maker has not, or has given back.
        let found = stat.st_blocks as u64 * 512;
        if found < size as u64 {
            return Err(ExtentError::Sparse { number, found });
        }
        // Whoever takes a frame must not be held up for long by a new extent.
        let populated = if size <= QUICKLY_MAPPED {
            POPULATED
        } else {
            libc::MAP_SHARED
        };
        let span = Span::new(file.as_fd(), 0, size, libc::PROT_READ, populated)?;
        Ok(Extent {
            number,
            span,
            file,
            ours: false,
        })
    }

    /// Its number, which its owner has given it.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its bytes.
    pub fn size(&self) -> usize {
        self.span.len()
    }

    /// Where it begins in our memory. What the peer has made must not be written there.
    pub fn base(&self) -> *mut u8 {
        self.span.base()
    }

    /// Its descriptor.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Where in this extent the bytes from `address` on are, if all of them are. An empty range is where it begins.
    pub fn offset_of(&self, address: usize, len: usize) -> Option<u64> {
        let offset = address.checked_sub(self.base().addr())?;
        let within = offset < self.size() && len <= self.size() - offset;
        within.then_some(offset as u64)
    }

    /// Copies bytes in. Panics if the extent is the peer's, or does not have the range.
    ///
    /// # Safety
    ///
    /// `len` bytes at `from` are readable, and none of them lies in the range that is written.
    pub unsafe fn write(&self, offset: u64, from: *const u8, len: usize, copier: &Copier) {
        assert!(self.ours, "extent {} is the peer's to write", self.number);
        let to = self.at(offset, len);
        // SAFETY: `from` by the caller's word, `to` by the look at its bounds. The peer may touch the range meanwhile,
        // and the copier does not mind.
        unsafe { copier.copy(to, from, len) };
    }

    /// Copies bytes out. Panics if the extent does not have the range.
    ///
    /// # Safety
    ///
    /// `len` bytes at `to` are writable, no other thread writes them meanwhile, and they lie outside the range that is
    /// read.
    pub unsafe fn read(&self, offset: u64, to: *mut u8, len: usize) {
        let from = self.at(offset, len);
        // SAFETY: as in `write`.
        unsafe { bytes::copy(to, from, len) };
    }

    /// Gives the memory back to the system now, although processes may still have it mapped: they read zeros from then
    /// on. For the owner of an extent that is no longer used.
    pub fn punch(&self) {
        debug_assert!(self.ours, "extent {} is the peer's to punch", self.number);
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // A failure is no harm: the memory then goes with the last mapping.
        let _ = fallocate(self.file.as_fd(), mode, 0, self.size() as u64);
    }

    /// Maps a part that begins with a page once more, writable.
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

/// Shared, with all pages mapped at once, so that no copy meets a page fault.
const POPULATED: libc::c_int = libc::MAP_SHARED | libc::MAP_POPULATE;

/// An extent of the peer's is mapped page by page, as it is read, if it is larger than this, in bytes.
const QUICKLY_MAPPED: usize = 4 << 20;

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

#[cfg(test)]
pub(crate) mod tests;
