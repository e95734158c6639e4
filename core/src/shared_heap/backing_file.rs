//! The memory of a shared file: set aside before it is used, and given back when it is free.
//!
//! The file has its greatest size from the beginning, is sparse, and is mapped whole by every member. So neither growing
//! nor shrinking moves anything or stops anybody: a part gets memory (`fallocate`: a lack of it is an error, and nothing
//! has changed), or loses it (a hole is punched).
//!
//! Both take time for large parts, and so happen outside of the lease. The part is first recorded as this member's,
//! used by nobody; then its memory comes or goes; then it is used, or free without memory. A member that dies in between
//! leaves its record, and whoever recovers it punches the part again: either way nothing is lost.

use crate::memory::arena::GRANULE;
use crate::os::{fallocate, status};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Weak};

/// Bytes of a page here: at least one of the kernel's, so that each can be given back.
pub const PAGE: u64 = GRANULE;

/// Pages by which memory grows at least, and at most unless more are needed: a call of the kernel costs as much as
/// to fill a few pages with zeros.
const STEP: (u64, u64) = (16, 1024);

/// Pages to ask for while this many have memory.
pub(super) fn step(backed: u64) -> u64 {
    (backed / 16).clamp(STEP.0, STEP.1)
}

/// Pages that may be spare while this many are in use, `least` if those are few.
pub(super) fn spare_limit(used: u64, least: u64) -> u64 {
    (used / 8).max(least)
}

/// The file, of whose parts some have memory.
pub struct BackingFile(Weak<OwnedFd>);

impl BackingFile {
    /// For a file of tmpfs, open for writing, which the caller keeps open: once that is closed, everything fails with EBADF.
    pub fn new(file: &Arc<OwnedFd>) -> Self {
        BackingFile(Arc::downgrade(file))
    }

    fn file(&self) -> io::Result<Arc<OwnedFd>> {
        let file = self.0.upgrade();
        file.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    /// Sets memory aside for this part. What has some keeps it.
    pub fn allocate(&self, start: u64, len: u64) -> io::Result<()> {
        // The size is kept: one that a member has cut off is not for us to mend.
        self.change(libc::FALLOC_FL_KEEP_SIZE, start, len)
    }

    /// Gives the memory of this part back; it reads as zeros from then on.
    pub fn punch(&self, start: u64, len: u64) -> io::Result<()> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        self.change(mode, start, len)
    }

    /// Bytes of memory that the file has, as the kernel counts them.
    pub fn allocated(&self) -> io::Result<u64> {
        Ok(status(self.file()?.as_fd())?.st_blocks as u64 * 512)
    }

    /// The parts from `start` on, up to `end`, that have been written: where each begins, and where it ends.
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

    fn change(&self, mode: libc::c_int, start: u64, len: u64) -> io::Result<()> {
        fallocate(self.file()?.as_fd(), mode, start, len)
    }
}
