//! Names that appear: what whoever waits for one sleeps on, instead of looking again and again.
//!
//! The first member of a name touches its lock file before it lets others in ([`LockFile::announce`]), which the kernel tells
//! all that watch the directory (inotify). Whoever watches before it looks for a name misses none.
//!
//! [`LockFile::announce`]: super::lock_file::LockFile::announce

use crate::os::done;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// A file was touched, or the directory is gone.
const ASKED: u32 = libc::IN_ATTRIB | libc::IN_DELETE_SELF | libc::IN_MOVE_SELF | libc::IN_ONLYDIR;

/// A descriptor that is readable once a name may have appeared in one of these directories. Then it is of no more use:
/// watch anew, and look. Fails with EMFILE if the user has as many watches as the system allows.
pub fn watch(directories: &[PathBuf]) -> io::Result<OwnedFd> {
    let flags = libc::IN_CLOEXEC | libc::IN_NONBLOCK;
    // SAFETY: no memory is involved; what comes back is ours alone.
    let made = unsafe { OwnedFd::from_raw_fd(done(libc::inotify_init1(flags))?) };
    for directory in directories {
        let path = CString::new(directory.as_os_str().as_bytes());
        let path = path.map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: the path ends with a zero, and lives through the call.
        done(unsafe { libc::inotify_add_watch(made.as_raw_fd(), path.as_ptr(), ASKED) })?;
    }
    Ok(made)
}
