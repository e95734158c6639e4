//! Named files in the directory of POSIX shared memory, for a peer to open.

use crate::os::{check_syscall, retry_interrupted};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

/// Return the options to open a file for reading and writing that is no link and no pipe.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    options.read(true).write(true).custom_flags(flags);
    options
}

/// Return the path of a file. Fails with EINVAL if the name is a path.
fn path(name: &str) -> io::Result<String> {
    if name.contains('/') {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    Ok(format!("/dev/shm/{name}"))
}

/// Create a file of `size` bytes that only this user may open, locked as long as it is open or mapped, and with memory
/// for the ranges that are `used`: a lack of memory is an error here, ENOSPC, and not a SIGBUS later. Return None if
/// another process had the lock, or has removed the name, before this one had the lock: a clean-up, which takes a file
/// without a lock for that of a dead server.
///
/// Fails with `AlreadyExists` if the name exists, and with EINVAL if it contains a slash. After any other failure the
/// caller removes the name.
pub fn create(name: &str, size: usize, used: &[Range<usize>]) -> io::Result<Option<OwnedFd>> {
    let file = options().create_new(true).mode(0o600).open(path(name)?)?;
    if !lock_new(&file)? {
        return Ok(None);
    }
    file.set_len(size as u64)?;
    allocate(&file, used)?;
    Ok(Some(file.into()))
}

/// Share the lock that proves that a user of a file is alive, without waiting. Return false if another process has it
/// exclusively, or has removed the name: a clean-up. In the latter case the lock is held nevertheless.
pub fn lock_shared(file: &File) -> io::Result<bool> {
    Ok(flock(file, libc::LOCK_SH)? && file.metadata()?.nlink() > 0)
}

/// Release the lock of [`lock_shared`]. Closing the file would not suffice, because its mapping keeps it open. Errors
/// are ignored.
pub fn unlock(file: &impl AsRawFd) {
    let _ = flock(file, libc::LOCK_UN);
}

/// Lock a file that was just created, without waiting. Return false if another process has the lock, or has removed the
/// name.
fn lock_new(file: &File) -> io::Result<bool> {
    Ok(lock(file)? && file.metadata()?.nlink() > 0)
}

/// Open a file that another process has created, for reading and writing. Nothing is locked, and its size and owner
/// are not checked. Fails with `NotFound` if there is none, and with ELOOP for a link.
pub fn open(name: &str) -> io::Result<OwnedFd> {
    Ok(options().open(path(name)?)?.into())
}

/// Remove a file. Processes that have it open can continue to use it. Fails with `NotFound` if there is none.
pub fn remove(name: &str) -> io::Result<()> {
    std::fs::remove_file(path(name)?)
}

/// Take the exclusive lock that proves that the creator of a file is alive, without waiting. Return false if another
/// open file has a lock.
fn lock(file: &File) -> io::Result<bool> {
    flock(file, libc::LOCK_EX)
}

/// Take or release a lock, as `kind` says, without blocking. Return false if another open file has one that excludes
/// it; any other failure is an error.
fn flock(file: &impl AsRawFd, kind: libc::c_int) -> io::Result<bool> {
    // SAFETY: no memory is involved.
    let locked = retry_interrupted(|| unsafe {
        libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) as isize
    });
    match locked {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// Allocate memory for these ranges. Fails with ENOSPC if the file system has too little.
fn allocate(file: &File, used: &[Range<usize>]) -> io::Result<()> {
    // The kernel allocates page by page and frees all of them if memory runs out: meanwhile no other process would have
    // any.
    if free_space(file)? < used.iter().map(|each| each.len() as u64).sum() {
        return Err(io::Error::from_raw_os_error(libc::ENOSPC));
    }
    used.iter().try_for_each(|each| allocate_range(file, each))
}

/// Allocate memory for a range, in bytes, despite signals. Fails with ENOSPC if there is too little.
fn allocate_range(file: &File, range: &Range<usize>) -> io::Result<()> {
    let (start, len) = (range.start as libc::off_t, range.len() as libc::off_t);
    loop {
        // SAFETY: no memory is involved.
        let error = unsafe { libc::posix_fallocate(file.as_raw_fd(), start, len) };
        match error {
            0 => return Ok(()),
            libc::EINTR => {}
            _ => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Return the free bytes of the file system; `u64::MAX` if it has no limit.
fn free_space(file: &File) -> io::Result<u64> {
    // SAFETY: zeros are a valid `statvfs`, which is written.
    let status = unsafe {
        let mut status: libc::statvfs = std::mem::zeroed();
        check_syscall(libc::fstatvfs(file.as_raw_fd(), &raw mut status))?;
        status
    };
    // A file system without a limit reports no blocks at all.
    if status.f_blocks == 0 {
        return Ok(u64::MAX);
    }
    Ok(status.f_bavail.saturating_mul(status.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A name that no other test has, removed at the end.
    struct Name(String);

    impl Name {
        fn new(test: &str) -> Self {
            Name(format!("shmrpc-core-named-{test}-{}", std::process::id()))
        }
    }

    impl Drop for Name {
        fn drop(&mut self) {
            let _ = fs::remove_file(path(&self.0).unwrap());
        }
    }

    #[test]
    fn a_new_file_is_private_locked_and_allocated() {
        let name = Name::new("made");
        let made = File::from(
            create(&name.0, 10_000, std::slice::from_ref(&(0..10_000)))
                .unwrap()
                .unwrap(),
        );
        let status = made.metadata().unwrap();
        assert_eq!((status.len(), status.mode() & 0o777), (10_000, 0o600));
        assert!(status.blocks() * 512 >= 10_000);
        let other = File::from(open(&name.0).unwrap());
        assert!(!lock(&other).unwrap());
        drop(made);
        assert!(lock(&other).unwrap(), "the lock ends with its holder");
    }

    #[test]
    fn an_existing_file_is_not_created_again() {
        let name = Name::new("there");
        let made = create(&name.0, 4096, std::slice::from_ref(&(0..4096))).unwrap();
        assert!(made.is_some());
        let error = create(&name.0, 4096, std::slice::from_ref(&(0..4096))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn a_file_that_a_clean_up_locked_first_is_not_used() {
        let name = Name::new("overtaken");
        let made = || {
            let made = options().create_new(true).open(path(&name.0).unwrap());
            made.unwrap()
        };
        let file = made();
        let cleaning = File::from(open(&name.0).unwrap());
        assert!(lock(&cleaning).unwrap());
        assert!(!lock_new(&file).unwrap(), "a clean-up has locked it");
        fs::remove_file(path(&name.0).unwrap()).unwrap();
        drop(cleaning);
        assert!(!lock_new(&file).unwrap(), "the clean-up has removed it");
        drop(file);
        assert!(lock_new(&made()).unwrap());
    }

    #[test]
    fn a_link_or_a_path_is_not_opened() {
        let name = Name::new("link");
        std::os::unix::fs::symlink("/dev/null", path(&name.0).unwrap()).unwrap();
        assert_eq!(open(&name.0).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        assert_eq!(
            open("../null").unwrap_err().raw_os_error(),
            Some(libc::EINVAL)
        );
    }
}
