//! A part of an extent, mapped for a program to write.

use crate::memory::mapping::{MappedRange, WRITABLE};
use crate::own_fd::OwnFd;
use crate::sync::lock;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex};

/// Minimum page size, in bytes.
const PAGE: usize = 4096;

/// The visibility of what is written into a [`View`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// This process alone: a page is copied when it is first written. For libraries that accept no read-only arrays. A
    /// page that was not written shows what others write.
    Private,
    /// All processes that have mapped the extent.
    Shared,
}

/// A writable mapping of a part of an extent, which may outlive the extent.
#[derive(Debug)]
pub struct View {
    span: MappedRange,
    file: Arc<OwnFd>,
    start: usize,
    mode: Mutex<Mode>,
}

#[expect(
    clippy::len_without_is_empty,
    reason = "a mapping has at least one byte"
)]
impl View {
    /// Map `len` bytes of `file` from `start` on, which is a multiple of a page. The file has these bytes. Fails if the
    /// system refuses the mapping.
    pub(crate) fn new(file: Arc<OwnFd>, start: usize, len: usize, mode: Mode) -> io::Result<Self> {
        let flags = match mode {
            Mode::Private => libc::MAP_PRIVATE,
            Mode::Shared => libc::MAP_SHARED,
        };
        Ok(View {
            span: MappedRange::new(file.as_fd(), start, len, WRITABLE, flags)?,
            file,
            start,
            mode: Mutex::new(mode),
        })
    }

    /// Return the address of the first byte, valid as long as `self`.
    pub fn base(&self) -> *mut u8 {
        self.span.base()
    }

    /// Return the length, in bytes.
    pub fn len(&self) -> usize {
        self.span.len()
    }

    /// Turn a shared mapping into a private one, at the same address: later writes are invisible to other processes,
    /// and earlier ones stay in the extent. Each page is copied now; a byte that another thread writes at
    /// that moment may keep its old value. Fails if the system refuses the new mapping: the old one stays. Idempotent.
    pub fn detach(&self) -> io::Result<()> {
        // A lock, because a second remapping would undo writes since the first.
        let mut mode = lock(&self.mode);
        if *mode == Mode::Private {
            return Ok(());
        }
        // SAFETY: the range is ours until `drop`, and always mapped: the kernel replaces the mapping in one step.
        let base = unsafe {
            libc::mmap(
                self.base().cast(),
                self.len(),
                WRITABLE,
                libc::MAP_PRIVATE | libc::MAP_FIXED,
                self.file.as_raw_fd(),
                self.start as libc::off_t,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        *mode = Mode::Private;
        // A page that was not written here still shows what its owner writes, so each page is written.
        for offset in (0..self.len()).step_by(PAGE) {
            // SAFETY: within the mapping, which is writable. The same byte is written again, so that only a thread that
            // writes it at this very moment can notice.
            unsafe {
                let byte = self.base().add(offset);
                byte.write_volatile(byte.read_volatile());
            }
        }
        Ok(())
    }
}
