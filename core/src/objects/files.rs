//! Helpers for files and random numbers.

use super::error::ObjectError;
use crate::os::check_syscall;
use std::fs::Metadata;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// Returns the effective user of this process.
pub fn effective_user() -> libc::uid_t {
    // SAFETY: it cannot fail, and no memory is involved.
    unsafe { libc::geteuid() }
}

/// Returns true for a regular file of this user.
pub fn is_own_regular_file(file: &Metadata) -> bool {
    file.is_file() && file.uid() == effective_user()
}

/// Makes `descriptor`, which keeps its number, refer to `file`. Closes the file that `descriptor` had; after an error,
/// `descriptor` keeps that file.
pub fn replace_descriptor(descriptor: &OwnedFd, file: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: no memory is involved; both are open, and `descriptor` stays open, as another file.
    check_syscall(unsafe { libc::dup3(file.as_raw_fd(), descriptor.as_raw_fd(), libc::O_CLOEXEC) })
        .map(drop)
}

/// Returns 128 random bits of the system. Raises `Os` if the system provides none.
pub fn random() -> Result<u128, ObjectError> {
    let mut bytes = [0u8; 16];
    // SAFETY: the buffer has this many writable bytes. So few come at once.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got != bytes.len() as isize {
        let error = io::Error::last_os_error();
        return Err(ObjectError::os("the system has no random numbers")(error));
    }
    Ok(u128::from_ne_bytes(bytes))
}
