//! Discovery of objects that appear, without polling.
//!
//! The first member of an object touches its lock file before it lets others in ([`LockFile::announce`]). The kernel
//! reports that to all that watch the directory (inotify). A process that watches before it looks for an object misses
//! none.
//!
//! [`LockFile::announce`]: super::members::lock_file::LockFile::announce

use crate::os::check_syscall;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The events of a watch: a file was touched, or the directory is gone.
const EVENTS: u32 = libc::IN_ATTRIB | libc::IN_DELETE_SELF | libc::IN_MOVE_SELF | libc::IN_ONLYDIR;

/// Returns a descriptor that becomes readable once an object may have appeared in one of these directories. Such a
/// descriptor is of no further use: the caller watches again, then looks for the object.
///
/// Raises EMFILE if the user has as many inotify instances, or this process as many descriptors, as the system allows;
/// ENOSPC if the user has as many watches; and ENOENT or ENOTDIR for a path that is no directory.
pub fn watch(directories: &[PathBuf]) -> io::Result<OwnedFd> {
    let flags = libc::IN_CLOEXEC | libc::IN_NONBLOCK;
    // SAFETY: no memory is involved; the descriptor is ours alone.
    let watch = unsafe { OwnedFd::from_raw_fd(check_syscall(libc::inotify_init1(flags))?) };
    for directory in directories {
        let path = CString::new(directory.as_os_str().as_bytes());
        let path = path.map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: the path ends with a zero, and lives through the call.
        check_syscall(unsafe {
            libc::inotify_add_watch(watch.as_raw_fd(), path.as_ptr(), EVENTS)
        })?;
    }
    Ok(watch)
}
