//! Helpers for system calls.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Return the result of a system call that has just been made; if it is negative, return `errno` as the error.
pub(crate) fn check_syscall<T: Default + PartialOrd>(result: T) -> io::Result<T> {
    if result < T::default() {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// Repeat a call as long as signals interrupt it. Return its result; if that is negative, return `errno` as the error.
pub(crate) fn retry_interrupted(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(result) => return Ok(result),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Return the status of an open file, or the error of fstat(2).
pub(crate) fn fstat(file: BorrowedFd<'_>) -> io::Result<libc::stat> {
    // SAFETY: zeros are a valid `stat`, which is written.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        check_syscall(libc::fstat(file.as_raw_fd(), &raw mut status))?;
        Ok(status)
    }
}

/// Allocate memory for a range of a file, in bytes, or free it, depending on the mode of fallocate(2). Begin again as
/// long as signals interrupt the call: a long range may take many attempts.
pub(crate) fn fallocate(
    file: BorrowedFd<'_>,
    mode: libc::c_int,
    start: u64,
    len: u64,
) -> io::Result<()> {
    let (start, len) = (start as libc::off_t, len as libc::off_t);
    // SAFETY: mappings stay, only their content changes.
    retry_interrupted(|| unsafe { libc::fallocate(file.as_raw_fd(), mode, start, len) as isize })?;
    Ok(())
}
