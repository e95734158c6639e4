//! End of this process when another process has ended, whatever this process does at that time.

use crate::os::check_syscall;
use crate::python::support::errors::os_error;
use pyo3::prelude::*;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Kills this process as soon as the process of the pidfd `master` has ended. Starts a thread for that, which needs no
/// GIL.
///
/// The process of the pidfd `first` is killed before. `life` is a pipe whose other end `master` holds: the end of the
/// pipe counts as the end of `master`, which may have become another program. Raises OSError if they cannot be watched.
#[pyfunction]
#[pyo3(signature = (master, first = None, life = None))]
pub fn die_with(master: i32, first: Option<i32>, life: Option<i32>) -> PyResult<()> {
    start_watching(master, first, life).map_err(|error| os_error(&error))
}

/// Returns a duplicate of a descriptor.
fn duplicate(fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    let fd = check_syscall(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) })?;
    // SAFETY: the descriptor is new, so no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Starts the thread that kills this process: see `die_with`. The caller keeps its descriptors.
fn start_watching(master: i32, first: Option<i32>, life: Option<i32>) -> io::Result<()> {
    let process = duplicate(master)?;
    let first = first.map(duplicate).transpose()?;
    let life = life.map(duplicate).transpose()?;
    let blocked = BlockedSignals::new();
    let watcher = std::thread::Builder::new().name("shmrpc-orphan".into());
    watcher.spawn(move || {
        // poll() ignores a descriptor below zero.
        let watched = [
            process.as_raw_fd(),
            life.as_ref().map_or(-1, OwnedFd::as_raw_fd),
        ];
        let mut polls = watched.map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        loop {
            // SAFETY: both structures live.
            if unsafe { libc::poll(polls.as_mut_ptr(), 2, -1) } > 0 {
                kill_both(first.as_ref());
            }
        }
    })?;
    drop(blocked);
    Ok(())
}

/// Kills the process `first`, and then this process, by SIGKILL.
fn kill_both(first: Option<&OwnedFd>) -> ! {
    // SAFETY: no memory is involved; a null pointer stands for the details of the signal.
    unsafe {
        if let Some(first) = first {
            let none = std::ptr::null::<libc::siginfo_t>();
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                first.as_raw_fd(),
                libc::SIGKILL,
                none,
                0,
            );
        }
        libc::kill(libc::getpid(), libc::SIGKILL);
        libc::_exit(1)
    }
}

/// Blocks all signals in this thread, and in those that it starts, while this lives.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn new() -> Self {
        // SAFETY: both sets are local.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            BlockedSignals(before)
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set that was in force before.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut());
        }
    }
}
