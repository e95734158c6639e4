//! What wakes a sleeper: an eventfd for an event loop, a named semaphore for a blocked thread.
//!
//! Both are wake-ups and never locks. Nothing is lost when a holder dies, because nobody holds one.

use crate::crash;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// The eventfd that a loop has among its readers.
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Takes over `fd`, a non-blocking eventfd.
    pub fn new(fd: OwnedFd) -> Self {
        EventFd(fd)
    }

    /// Wakes the loop on the other side.
    pub fn ring(&self) {
        let one = 1u64;
        // SAFETY: eight bytes of `one` are readable. A full counter (EAGAIN) is a
        // ring that is still unheard, so the result does not matter.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Silences it, so that the loop does not wake for the same ring twice.
    pub fn silence(&self) {
        let mut count = 0u64;
        // SAFETY: eight bytes of `count` are writable. EAGAIN means it was silent.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
    }
}

/// A named POSIX semaphore that somebody else has created.
pub struct Semaphore(*mut libc::sem_t);

// SAFETY: sem_post and sem_clockwait may be called from any thread at any time; the
// handle itself does not change until `drop`.
unsafe impl Send for Semaphore {}
// SAFETY: as above.
unsafe impl Sync for Semaphore {}

unsafe extern "C" {
    // glibc >= 2.30; the libc crate does not have it.
    fn sem_clockwait(
        semaphore: *mut libc::sem_t,
        clock: libc::clockid_t,
        until: *const libc::timespec,
    ) -> libc::c_int;
}

impl Semaphore {
    /// Opens an existing semaphore by name.
    pub fn open(name: &CStr) -> io::Result<Self> {
        // SAFETY: `name` is a valid C string; without O_CREAT no further argument is read.
        let semaphore = unsafe { libc::sem_open(name.as_ptr(), 0) };
        if semaphore == libc::SEM_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Semaphore(semaphore))
    }

    /// Wakes the thread on the other side.
    pub fn ring(&self) {
        // SAFETY: open until `drop`. An overflow (EOVERFLOW) is a ring that is still unheard.
        unsafe { libc::sem_post(self.0) };
    }

    /// Sleeps until it rings, a signal comes, or `limit` has passed.
    pub fn wait(&self, limit: Duration) {
        let until = crate::clock::now() + limit.as_nanos() as u64;
        let until = libc::timespec {
            tv_sec: (until / 1_000_000_000) as libc::time_t,
            tv_nsec: (until % 1_000_000_000) as libc::c_long,
        };
        // SAFETY: open until `drop`; `until` is a valid timespec. Whatever ended the
        // sleep, the caller looks again.
        unsafe { sem_clockwait(self.0, libc::CLOCK_MONOTONIC, &until) };
    }
}

impl Drop for Semaphore {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, closed once.
        unsafe { libc::sem_close(self.0) };
    }
}

/// The two bells of one side of a connection: whichever it says it sleeps on is rung.
pub struct Bells {
    /// For an event loop.
    pub eventfd: EventFd,
    /// For a blocked thread.
    pub semaphore: Semaphore,
}

impl Bells {
    /// Rings the bell that the flag named. A value that no side of ours stores rings nothing.
    pub fn ring(&self, how: u32) {
        match how {
            crate::wait::ON_EVENTFD => {
                crash::point!(WakeClaimed);
                self.eventfd.ring();
                crash::point!(BellRung);
            }
            crate::wait::ON_SEMAPHORE => {
                crash::point!(WakeClaimed);
                self.semaphore.ring();
                crash::point!(BellRung);
            }
            _ => {}
        }
    }
}
