//! Fork-safe descriptors: a drop in a forked child closes no file of the child.
//!
//! A forked child has copies of its parent's objects and descriptors. The child may have closed the descriptors, as
//! daemons do, and have opened files of its own under the same numbers. If it then drops such an object, a plain
//! `OwnedFd` would close a file of the child.

use crate::fork_guard::OriginProcess;
use crate::os::fstat;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// The identity of a file: its device and its number there.
type FileId = (libc::dev_t, libc::ino_t);

/// A descriptor of this process. Its drop in a forked child closes a copy of the parent's descriptor, and leaves the
/// number alone if the child may have another file under it.
#[derive(Debug)]
pub struct OwnFd {
    fd: ManuallyDrop<OwnedFd>,
    /// Process that opened it; None if processes cannot be identified: then it counts as this one.
    origin: Option<OriginProcess>,
    file: Option<FileId>,
}

impl From<OwnedFd> for OwnFd {
    /// Take over a descriptor of this process. Never fails.
    fn from(fd: OwnedFd) -> Self {
        OwnFd {
            file: file_of(fd.as_raw_fd()).ok(),
            origin: OriginProcess::current().ok(),
            fd: ManuallyDrop::new(fd),
        }
    }
}

impl OwnFd {
    /// Return the descriptor itself, for a call that takes it over, without the protection in forked children.
    pub fn into_inner(self) -> OwnedFd {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so nothing uses the descriptor afterwards.
        unsafe { ManuallyDrop::take(&mut this.fd) }
    }
}

impl Drop for OwnFd {
    /// Close the descriptor; in a forked child only if the same file is still under its number.
    fn drop(&mut self) {
        let is_current = self.origin.is_none_or(OriginProcess::is_current);
        let is_copy = || self.file.is_some() && file_of(self.fd.as_raw_fd()).ok() == self.file;
        if is_current || is_copy() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

impl AsFd for OwnFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for OwnFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Return the identity of the file under a descriptor. Fails if the descriptor has no file of its own.
fn file_of(fd: RawFd) -> io::Result<FileId> {
    // SAFETY: borrowed for this call alone; a number that is no open descriptor is an error.
    let status = fstat(unsafe { BorrowedFd::borrow_raw(fd) })?;
    match status.st_mode & libc::S_IFMT {
        // Descriptors without a file, such as those of epoll and inotify, share one number.
        0 => Err(io::Error::from_raw_os_error(libc::ENOTSUP)),
        _ => Ok((status.st_dev, status.st_ino)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::file_in_memory;
    use std::os::fd::FromRawFd;

    /// Returns the result of `act` in a forked child, which makes system calls only.
    fn in_child(act: impl FnOnce() -> bool) -> bool {
        let _alone = crate::FORK.lock();
        // SAFETY: the child makes system calls only.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let is_right = act();
            // SAFETY: no memory is involved.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        let mut status = 1;
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        status == 0
    }

    fn own() -> (OwnFd, RawFd) {
        let own = OwnFd::from(OwnedFd::from(file_in_memory()));
        let number = own.as_raw_fd();
        (own, number)
    }

    #[test]
    fn a_child_closes_its_copy() {
        let (own, number) = own();
        let mut own = Some(own);
        assert!(in_child(|| {
            drop(own.take());
            file_of(number).is_err()
        }));
        assert!(file_of(number).is_ok());
        drop(own);
        assert!(file_of(number).is_err());
    }

    #[test]
    fn a_child_keeps_another_file_of_that_number() {
        let (own, number) = own();
        let other = file_in_memory();
        let mut own = Some(own);
        assert!(in_child(|| {
            // SAFETY: no memory is involved.
            let replaced = unsafe { libc::dup2(other.as_raw_fd(), number) } == number;
            drop(own.take());
            replaced && file_of(number).is_ok()
        }));
    }

    #[test]
    fn a_child_keeps_another_descriptor_that_has_no_file() {
        let anonymous = || {
            // SAFETY: no memory is involved, and what comes is ours.
            unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) }
        };
        let (ours, other) = (anonymous(), anonymous());
        let number = ours.as_raw_fd();
        let mut own = Some(OwnFd::from(ours));
        assert!(in_child(|| {
            // SAFETY: no memory is involved.
            let replaced = unsafe { libc::dup2(other.as_raw_fd(), number) } == number;
            drop(own.take());
            // SAFETY: no memory is involved.
            replaced && unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0
        }));
    }
}
