//! What wakes a sleeper: a bell, which is a socket, for an event loop; a named semaphore for a blocked thread.
//!
//! Both are wake-ups and never locks. Nothing is lost when a holder dies, because nobody holds one.

use crate::crash;
use crate::guard::Guard;
use std::ffi::CStr;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// Rings that are taken at a time: what is left wakes the loop again, so a peer that rings without end keeps nobody.
const TAKEN_AT_ONCE: usize = 8;

/// Our end of the pair of sockets that joins the loops of both sides: what one sends, the other hears.
///
/// Each call says itself that it does not wait. The flags of the open socket say so too, but whoever has a copy of
/// the descriptor can change those; that is why it is no eventfd, whose writes know no other way.
pub struct Bell(OwnedFd);

impl Bell {
    /// Takes over `fd`, one end of a pair of `SOCK_SEQPACKET` sockets.
    pub fn new(fd: OwnedFd) -> Self {
        Bell(fd)
    }

    /// Wakes the loop on the other side.
    pub fn ring(&self) {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: one byte is readable. A full socket (EAGAIN) is a ring that is still unheard, and a peer that has
        // closed its end hears nothing, so the result does not matter.
        unsafe { libc::send(self.0.as_raw_fd(), [1u8].as_ptr().cast(), 1, flags) };
    }

    /// Silences it, so that the loop does not wake for the same ring twice. False if it will never ring again: the
    /// peer has closed or shut down its end. Then it is readable for ever.
    pub fn silence(&self) -> bool {
        let mut ring = 0u8;
        for _ in 0..TAKEN_AT_ONCE {
            let (fd, to) = (self.0.as_raw_fd(), (&raw mut ring).cast());
            // SAFETY: one byte of `ring` is writable; what is longer is cut off.
            let taken = unsafe { libc::recv(fd, to, 1, libc::MSG_DONTWAIT) };
            match taken {
                1 => {}
                0 => return false,
                _ => {
                    let error = io::Error::last_os_error().kind();
                    return matches!(
                        error,
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    );
                }
            }
        }
        true
    }
}

/// A named POSIX semaphore that somebody else has created.
pub struct Semaphore {
    semaphore: *mut libc::sem_t,
    guard: ManuallyDrop<Guard>,
}

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
        // SAFETY: glibc maps each semaphore's file by itself, and has not touched it yet; `drop` lets go of the guard
        // before it closes. A semaphore of zeros is one that nobody has rung.
        let guard = unsafe { Guard::new(semaphore.cast(), size_of::<libc::sem_t>()) };
        let guard = ManuallyDrop::new(guard);
        Ok(Semaphore { semaphore, guard })
    }

    /// Wakes the thread on the other side.
    pub fn ring(&self) {
        // SAFETY: open until `drop`. An overflow (EOVERFLOW) is a ring that is still unheard.
        unsafe { libc::sem_post(self.semaphore) };
    }

    /// Whether the peer has cut it off: nobody hears it, and it will not ring.
    pub fn is_cut_off(&self) -> bool {
        self.guard.is_cut_off()
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
        unsafe { sem_clockwait(self.semaphore, libc::CLOCK_MONOTONIC, &until) };
    }
}

impl Drop for Semaphore {
    fn drop(&mut self) {
        // SAFETY: not used again, here or later.
        unsafe { ManuallyDrop::drop(&mut self.guard) };
        // SAFETY: opened by `open`, closed once.
        unsafe { libc::sem_close(self.semaphore) };
    }
}

/// What wakes either side of a connection, as one side has it.
pub struct Bells {
    /// Wakes an event loop: theirs if we ring it, ours if they do.
    pub bell: Bell,
    /// Wakes a thread of ours.
    pub ours: Semaphore,
    /// Wakes a thread of theirs.
    pub theirs: Semaphore,
}

impl Bells {
    /// Wakes the peer, in the way that the flag named. A value that no side of ours stores wakes nobody.
    pub fn ring(&self, how: u32) {
        match how {
            crate::wait::ON_BELL => {
                crash::point!(WakeClaimed);
                self.bell.ring();
                crash::point!(BellRung);
            }
            crate::wait::ON_SEMAPHORE => {
                crash::point!(WakeClaimed);
                self.theirs.ring();
                crash::point!(BellRung);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;

    fn pair() -> [Bell; 2] {
        let mut fds = [0; 2];
        // SAFETY: room for two descriptors, which are ours alone. They block: the calls have to say that they do not.
        unsafe {
            let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
            let made = libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr());
            assert_eq!(made, 0);
            fds.map(|fd| Bell::new(OwnedFd::from_raw_fd(fd)))
        }
    }

    fn is_readable(bell: &Bell) -> bool {
        let (fd, events, revents) = (bell.0.as_raw_fd(), libc::POLLIN, 0);
        let mut asked = libc::pollfd {
            fd,
            events,
            revents,
        };
        // SAFETY: one entry.
        unsafe { libc::poll(&mut asked, 1, 0) == 1 }
    }

    #[test]
    fn neither_a_full_bell_nor_a_silent_one_blocks() {
        let [ours, theirs] = pair();
        assert!(ours.silence());
        for _ in 0..10_000 {
            theirs.ring();
        }
        assert!(!is_readable(&theirs), "each hears the other alone");
        while is_readable(&ours) {
            assert!(ours.silence());
        }
        theirs.ring();
        assert!(is_readable(&ours));
    }

    #[test]
    fn a_look_takes_some_rings_and_no_more() {
        let [ours, theirs] = pair();
        for _ in 0..=TAKEN_AT_ONCE {
            theirs.ring();
        }
        assert!(ours.silence());
        assert!(is_readable(&ours));
        assert!(ours.silence());
        assert!(!is_readable(&ours));
    }

    #[test]
    fn the_end_of_the_peer_is_the_end_of_its_bell() {
        let _alone = crate::FORK.lock();
        let [ours, theirs] = pair();
        theirs.ring();
        drop(theirs);
        // What it rang before is heard, or is not: the end is.
        assert!(!ours.silence());
        ours.ring();

        let [ours, theirs] = pair();
        ours.ring();
        drop(theirs); // With a ring unheard: an error first.
        assert!(!ours.silence());
        assert!(!ours.silence());

        let [ours, theirs] = pair();
        // SAFETY: it is open.
        unsafe { libc::shutdown(theirs.0.as_raw_fd(), libc::SHUT_RDWR) };
        assert!(!ours.silence());
        ours.ring();
    }
}
