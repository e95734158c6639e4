//! The file of a log: a memfd that one process writes, and that no other can.
//!
//! # The contract
//!
//! * The publisher maps it writable, and then seals it: see [`sealed`](crate::memory::sealed).
//! * A subscriber opens it by the descriptor of the publisher's process, looks at the seals and at the size, and maps it for
//!   reading. What it maps can be changed by the publisher at any time, and by nobody else. So no reference or slice into
//!   it is made.

use super::log_layout::LogLayout;
use super::log_memory::LogMemory;
use crate::memory::bytes::{append_from, copy};
use crate::memory::mapping::{Span, WRITABLE};
use crate::memory::sealed;
use crate::os::fallocate;
use crate::own_fd::OwnFd;
use crate::shared_heap::Words;
use crate::sync::AtomicU64;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;

/// The most bytes of a log: what its entries can name, and more than any machine has.
const MOST: u64 = 1 << 40;
/// Bytes that are set aside in one call, which a signal may interrupt.
const STRIDE: u64 = 16 << 20;

/// Bytes of a block, as files count what they have.
pub const BLOCK: u64 = 512;

/// Bytes of memory that the log has which a process has under this descriptor; 0 if that cannot be seen from here.
pub fn allocated(process: libc::pid_t, descriptor: RawFd) -> u64 {
    let status = std::fs::metadata(sealed::path(process, descriptor));
    status.map_or(0, |status| BLOCK * status.blocks())
}

/// A mapped log.
#[derive(Debug)]
pub struct MappedLog {
    span: Span,
    /// Of our own.
    file: Option<OwnFd>,
}

impl MappedLog {
    /// Makes a log's file, all zeros, with memory for what is always used.
    pub fn create(shape: LogLayout) -> io::Result<Self> {
        let size = shape.size();
        let file = sealed::create(c"shmrpc-topic", size)?;
        let span = Span::new(file.as_fd(), 0, size as usize, WRITABLE, libc::MAP_SHARED)?;
        sealed::seal(&file)?;
        let memory = MappedLog {
            span,
            file: Some(file.into()),
        };
        memory.set_aside(0, shape.used())?;
        Ok(memory)
    }

    /// Maps the log that a process has under this descriptor; or why it cannot be had.
    pub fn open(process: libc::pid_t, descriptor: RawFd) -> Result<Self, String> {
        let opened = sealed::open(process, descriptor);
        MappedLog::map(&opened.map_err(|error| format!("its memory cannot be opened: {error}"))?)
    }

    fn map(file: &File) -> Result<Self, String> {
        let failed = |what: &str, error: io::Error| format!("its memory cannot be {what}: {error}");
        if !sealed::is_sealed(file) {
            return Err("its memory is not sealed, so others could write it".to_owned());
        }
        // After the seals: the size stays as it is.
        let status = file
            .metadata()
            .map_err(|error| failed("looked at", error))?;
        let size = status.len();
        if size == 0 || size > MOST || size % 8 != 0 {
            return Err(format!("its memory has {size} bytes"));
        }
        let (read, shared) = (libc::PROT_READ, libc::MAP_SHARED);
        let span = Span::new(file.as_fd(), 0, size as usize, read, shared);
        Ok(MappedLog {
            span: span.map_err(|error| failed("mapped", error))?,
            file: None,
        })
    }

    /// The descriptor of our own log, by which others open it.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.file.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Where bytes lie in our memory, for as long as this lives. Only those of our own log may be written; those of another
    /// one's may change at any time.
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
        // SAFETY: within the mapping and aligned, since that begins with a page; it is accessed atomically, or by C's
        // memcpy. Of one that is read-only, nobody stores to a word: only a `Publisher` does, whose log is its own.
        within.then(|| unsafe { AtomicU64::from_ptr(self.span.base().add(at as usize).cast()) })
    }
}

impl LogMemory for MappedLog {
    #[inline]
    fn write(&self, at: u64, bytes: &[u8]) {
        assert!(self.file.is_some(), "the log of another process");
        let to = self.address(at, bytes.len() as u64);
        // SAFETY: `to` is within the mapping, which is writable, and `bytes` are ours, and not there.
        unsafe { copy(to, bytes.as_ptr(), bytes.len()) };
    }

    #[inline]
    fn read(&self, at: u64, len: u64, out: &mut Vec<u8>) {
        let from = self.address(at, len);
        // SAFETY: `from` is within the mapping, where `out` is not.
        unsafe { append_from(out, from, len as usize) };
    }

    fn set_aside(&self, at: u64, len: u64) -> io::Result<()> {
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
