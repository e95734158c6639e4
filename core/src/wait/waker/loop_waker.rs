//! A socket that wakes an event loop.

use crate::own_fd::OwnFd;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Rings that are taken at a time: what is left wakes the loop again, so endless ringing does not hold it up.
pub(in crate::wait) const MAX_DRAINED: usize = 8;

/// Our end of the pair of sockets that joins the loops of both sides: what one sends, the other hears.
///
/// Each call says itself that it does not wait. The flags of the open socket say so too, but whoever has a copy of
/// the descriptor can change those; that is why it is no eventfd, whose writes know no other way.
pub struct LoopWaker(pub(super) OwnFd);

impl LoopWaker {
    /// Takes over `fd`, one end of a pair of `SOCK_SEQPACKET` sockets.
    pub fn new(fd: OwnedFd) -> Self {
        LoopWaker(fd.into())
    }

    /// Wakes the loop on the other side.
    pub fn wake(&self) {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: one byte is readable. A full socket (EAGAIN) is a ring that is still unheard, and a peer that has
        // closed its end hears nothing, so the result does not matter.
        unsafe { libc::send(self.0.as_raw_fd(), [1u8].as_ptr().cast(), 1, flags) };
    }

    /// Silences it, so that the loop does not wake for the same ring twice. False if it will never ring again: the
    /// peer has closed or shut down its end. Then it is readable for ever.
    pub fn drain(&self) -> bool {
        let mut ring = 0u8;
        for _ in 0..MAX_DRAINED {
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

    /// Whether the peer has closed or shut down its end. Nothing is taken.
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
