//! The pages of a shared file: allocated before they are used, and returned to the system when they are free.
//!
//! The file has its greatest size from the beginning, is sparse, and each member maps all of it. So growing and
//! shrinking move nothing and stop no member: a range is backed by pages (`fallocate`; a lack of memory is an error and
//! changes nothing) or loses them (by a punched hole).
//!
//! Both take long for large ranges. An [`allocator`](super::allocator) therefore does them without the lock: it first
//! records the range as this member's and unused, then backs or punches it, and then records it as used or free. A
//! member that dies in between leaves its record, and the member that recovers it punches the range again, so nothing
//! is lost.

use crate::memory::arena::GRANULE;
use crate::os::{fallocate, fstat};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Weak};

/// Bytes of a page: a multiple of the kernel's page size, so that each page can be returned.
pub const PAGE: u64 = GRANULE;

/// The fewest and the most pages by which memory grows, unless more are needed. A system call costs as much as filling
/// a few pages with zeros.
const STEP: (u64, u64) = (16, 1024);

/// Returns the number of pages by which memory grows that has this many backed pages.
pub(super) fn growth_step(backed: u64) -> u64 {
    (backed / 16).clamp(STEP.0, STEP.1)
}

/// Returns the number of backed pages that may stay free while this many are used: an eighth, but at least `least`.
pub(super) fn spare_limit(used: u64, least: u64) -> u64 {
    (used / 8).max(least)
}

/// The sparse file behind the memory.
pub struct BackingFile(Weak<OwnedFd>);

impl BackingFile {
    /// Wraps a file of tmpfs that is open for writing. The caller keeps it open: once it is closed, all operations fail
    /// with EBADF.
    pub fn new(file: &Arc<OwnedFd>) -> Self {
        BackingFile(Arc::downgrade(file))
    }

    /// Returns the file, or EBADF once the caller has closed it.
    fn file(&self) -> io::Result<Arc<OwnedFd>> {
        let file = self.0.upgrade();
        file.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    /// Backs this range with pages, beyond the end of the file too, whose size stays. Backed pages keep their contents.
    /// Fails with ENOSPC, and changes nothing, if the system has too little memory.
    pub fn allocate(&self, start: u64, len: u64) -> io::Result<()> {
        // Keeps the size: a file that a member has truncated stays so.
        self.change(libc::FALLOC_FL_KEEP_SIZE, start, len)
    }

    /// Returns the pages of this range to the system. It reads as zeros from then on.
    pub fn punch(&self, start: u64, len: u64) -> io::Result<()> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        self.change(mode, start, len)
    }

    /// Returns the bytes of pages that the file has, as the kernel counts them.
    pub fn allocated(&self) -> io::Result<u64> {
        Ok(fstat(self.file()?.as_fd())?.st_blocks as u64 * 512)
    }

    /// Returns the written ranges between `start` and `end`: the beginning and the end of each. A range that was backed
    /// and never written is not among them.
    pub fn written(&self, start: u64, end: u64) -> io::Result<Vec<(u64, u64)>> {
        let file = self.file()?;
        let seek = |at: u64, what| {
            // SAFETY: no memory is involved.
            let found = unsafe { libc::lseek(file.as_raw_fd(), at as libc::off_t, what) };
            match u64::try_from(found) {
                Ok(found) => Ok(Some(found)),
                Err(_) => match io::Error::last_os_error() {
                    error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
                    error => Err(error),
                },
            }
        };
        let (mut parts, mut at) = (Vec::new(), start);
        while at < end {
            let Some(from) = seek(at, libc::SEEK_DATA)?.filter(|&from| from < end) else {
                break;
            };
            let to = seek(from, libc::SEEK_HOLE)?.unwrap_or(end).min(end);
            parts.push((from, to));
            at = to.max(from + 1);
        }
        Ok(parts)
    }

    /// Calls `fallocate` with this mode on a range.
    fn change(&self, mode: libc::c_int, start: u64, len: u64) -> io::Result<()> {
        fallocate(self.file()?.as_fd(), mode, start, len)
    }
}
