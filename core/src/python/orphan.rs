//! Ends this process when another one has ended, whatever it does at that time.

use super::errors::os_error;
use crate::os::done;
use pyo3::prelude::*;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Kills this process as soon as the process `master`, a pidfd, has ended: by a thread of the core's, which needs no GIL.
#[pyfunction]
pub fn die_with(master: i32) -> PyResult<()> {
    watch(master).map_err(|error| os_error(&error))
}

fn watch(master: i32) -> io::Result<()> {
    // SAFETY: no memory is involved.
    let fd = done(unsafe { libc::fcntl(master, libc::F_DUPFD_CLOEXEC, 0) })?;
    // SAFETY: it is new, so it is ours alone.
    let process = unsafe { OwnedFd::from_raw_fd(fd) };
    let blocked = AllBlocked::new();
    let watcher = std::thread::Builder::new().name("shmrpc-orphan".into());
    watcher.spawn(move || {
        let mut poll = libc::pollfd {
            fd: process.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        loop {
            // SAFETY: one structure, which lives.
            if unsafe { libc::poll(&raw mut poll, 1, -1) } > 0 {
                end();
            }
        }
    })?;
    drop(blocked);
    Ok(())
}

/// Ends this process, as nothing else could keep it from.
fn end() -> ! {
    // SAFETY: no memory is involved.
    unsafe {
        libc::kill(libc::getpid(), libc::SIGKILL);
        libc::_exit(1)
    }
}

/// All signals are blocked in this thread, and in those that it starts, for as long as this lives.
struct AllBlocked(libc::sigset_t);

impl AllBlocked {
    fn new() -> Self {
        // SAFETY: both sets are ours.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            AllBlocked(before)
        }
    }
}

impl Drop for AllBlocked {
    fn drop(&mut self) {
        // SAFETY: the set that there was.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut());
        }
    }
}
