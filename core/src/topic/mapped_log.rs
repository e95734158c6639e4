//! A log in a memfd that one process writes and that no other can write.
//!
//! # The contract
//!
//! * The publisher maps the file writable, and then seals it: see [`sealed`](crate::memory::sealed).
//! * A subscriber opens the file by the descriptor of the publisher's process, checks the seals and the size, and maps
//!   it for reading. The publisher may change the mapped bytes at any time, and no other process can. So no reference
//!   or slice into the mapping is made.

use super::log_layout::LogLayout;
use super::log_memory::LogMemory;
use crate::memory::bytes::{append_from, copy};
use crate::memory::mapping::{MappedRange, WRITABLE};
use crate::memory::sealed;
use crate::os::fallocate;
use crate::own_fd::OwnFd;
use crate::shared_heap::Words;
use crate::sync::AtomicU64;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;

/// Maximum size of a log, in bytes: what its entries can address, and more than any machine has.
const MOST: u64 = 1 << 40;
/// Bytes that one call allocates, because a signal may interrupt it.
const STRIDE: u64 = 16 << 20;

/// Bytes of a block in which file systems count allocated memory.
pub const BLOCK: u64 = 512;

/// Return the bytes of memory that the kernel has allocated for the log under this descriptor of a process; 0 if the
/// descriptor cannot be read from here.
pub fn allocated(process: libc::pid_t, descriptor: RawFd) -> u64 {
    let status = std::fs::metadata(sealed::path(process, descriptor));
    status.map_or(0, |status| BLOCK * status.blocks())
}

/// A mapped log.
#[derive(Debug)]
pub struct MappedLog {
    span: MappedRange,
    /// File of the log; None if another process publishes it.
    file: Option<OwnFd>,
}

impl MappedLog {
    /// Create the file of a log, all zeros, and allocate the memory that is always used. The file is sealed: only this
    /// mapping can write it. Fails if the system has too little memory, or refuses the file, its mapping or its seals.
    pub fn create(shape: LogLayout) -> io::Result<Self> {
        let size = shape.size();
        let file = sealed::create(c"shmrpc-topic", size)?;
        let span = MappedRange::new(file.as_fd(), 0, size as usize, WRITABLE, libc::MAP_SHARED)?;
        sealed::seal(&file)?;
        let memory = MappedLog {
            span,
            file: Some(file.into()),
        };
        memory.populate(0, shape.used())?;
        Ok(memory)
    }

    /// Map the log under this descriptor of a process for reading. The error is a sentence with the reason: the file
    /// cannot be opened or mapped, is not sealed, or has an impossible size.
    pub fn open(process: libc::pid_t, descriptor: RawFd) -> Result<Self, String> {
        let opened = sealed::open(process, descriptor);
        MappedLog::map(&opened.map_err(|error| format!("its memory cannot be opened: {error}"))?)
    }

    /// Map a file for reading, after a check of its seals and its size. Return the reason if that fails.
    fn map(file: &File) -> Result<Self, String> {
        let failed = |what: &str, error: io::Error| format!("its memory cannot be {what}: {error}");
        if !sealed::is_sealed(file) {
            return Err("its memory is not sealed, so others could write it".to_owned());
        }
        // After the check of the seals, because only then the size is fixed.
        let status = file
            .metadata()
            .map_err(|error| failed("inspected", error))?;
        let size = status.len();
        if size == 0 || size > MOST || size % 8 != 0 {
            return Err(format!("its memory has {size} bytes"));
        }
        let (read, shared) = (libc::PROT_READ, libc::MAP_SHARED);
        let span = MappedRange::new(file.as_fd(), 0, size as usize, read, shared);
        Ok(MappedLog {
            span: span.map_err(|error| failed("mapped", error))?,
            file: None,
        })
    }

    /// Return the descriptor of a log of this process, by which others open it; None for the log of another process.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.file.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Return the address of bytes of the log, valid as long as `self`. Only the bytes of a log of this process may be
    /// written; those of another process's log may change at any time.
    ///
    /// # Panics
    /// If they are not within the mapping.
    pub fn address(&self, at: u64, len: u64) -> *mut u8 {
        assert!(
            at.checked_add(len)
                .is_some_and(|end| end <= self.span.len() as u64)
        );
        self.span.base().wrapping_add(at as usize)
    }
}

impl Words for MappedLog {
    #[inline]
    fn size(&self) -> usize {
        self.span.len()
    }

    #[inline]
    fn word(&self, at: u64) -> Option<&AtomicU64> {
        let size = self.span.len() as u64;
        let within = at % 8 == 0 && size >= 8 && at <= size - 8;
        // SAFETY: within the mapping and aligned, because the mapping begins with a page; all access is atomic or by
        // C's memcpy. A read-only mapping is never stored to, because only a `Publisher` stores, and only to its own
        // log.
        within.then(|| unsafe { AtomicU64::from_ptr(self.span.base().add(at as usize).cast()) })
    }
}

impl LogMemory for MappedLog {
    #[inline]
    fn write(&self, at: u64, bytes: &[u8]) {
        assert!(self.file.is_some(), "the log of another process");
        let to = self.address(at, bytes.len() as u64);
        // SAFETY: `to` is within the mapping, which is writable; `bytes` are private and outside of it.
        unsafe { copy(to, bytes.as_ptr(), bytes.len()) };
    }

    #[inline]
    fn read(&self, at: u64, len: u64, out: &mut Vec<u8>) {
        let from = self.address(at, len);
        // SAFETY: `from` is within the mapping; `out` is outside of it.
        unsafe { append_from(out, from, len as usize) };
    }

    /// Allocate memory for the range in steps; after an error a part of it may have memory.
    fn populate(&self, at: u64, len: u64) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        };
        let mut done = 0;
        while done < len {
            let some = STRIDE.min(len - done);
            fallocate(file.as_fd(), 0, at + done, some)?;
            done += some;
        }
        Ok(())
    }
}
