//! A socket that wakes an event loop.

use crate::own_fd::OwnFd;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Maximum number of wake-ups that are drained at once: more of them wake the loop again, so a flood does not block it.
pub(in crate::wait) const MAX_DRAINED: usize = 8;

/// One end of the pair of sockets that joins the event loops of both sides: a wake-up sent at one end arrives at the
/// other.
///
/// Each call passes its own non-blocking flag. The open socket has such a flag, too, but a process with a copy of the
/// descriptor could clear it; this is why the waker is no eventfd, whose writes have no flags of their own.
pub struct LoopWaker(pub(super) OwnFd);

impl LoopWaker {
    /// Take over `fd`, one end of a pair of `SOCK_SEQPACKET` sockets.
    pub fn new(fd: OwnedFd) -> Self {
        LoopWaker(fd.into())
    }

    /// Wake the event loop of the other side. Errors are ignored: a full socket has wake-ups, and a closed one has no
    /// reader.
    pub fn wake(&self) {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: one byte is readable. A full socket (EAGAIN) has unread wake-ups, and a closed one has no reader, so
        // the result does not matter.
        unsafe { libc::send(self.0.as_raw_fd(), [1u8].as_ptr().cast(), 1, flags) };
    }

    /// Drain the socket, at most a few wake-ups at once, so that the loop does not wake again for the same wake-ups.
    /// Never blocks. Return false if no wake-up will ever come, because the peer has closed or shut down its end: the
    /// socket then stays readable. Return false also after an error.
    pub fn drain(&self) -> bool {
        let mut ring = 0u8;
        for _ in 0..MAX_DRAINED {
            let (fd, to) = (self.0.as_raw_fd(), (&raw mut ring).cast());
            // SAFETY: one byte of `ring` is writable; longer packets are truncated.
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

    /// Return true if the peer has closed or shut down its end. Nothing is drained.
    pub fn is_closed(&self) -> bool {
        let mut asked = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: libc::POLLRDHUP,
            revents: 0,
        };
        // SAFETY: one entry.
        unsafe { libc::poll(&raw mut asked, 1, 0) == 1 }
    }
}
