//! Extent updates: messages that tell the peer about the extents of a side, with their descriptors. They go over a
//! socket pair of their own, in packets of sixteen bytes in the byte order of the machine:
//!
//! ```text
//!      0  kind     u32   1 a new extent, with its descriptor; 2 a removed one
//!      4  number   u32
//!      8  size     u64   bytes of the extent; 0 if it is removed
//! ```

use crate::bytes::{u32_at, u64_at};
use crate::memory::extent::Extent;
use crate::os::retry_interrupted;
use crate::packet;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use thiserror::Error;

const PACKET: usize = 16;
const EXTENT: u32 = 1;
const GONE: u32 = 2;
/// Words of room for a header and twelve descriptors.
const ROOM: usize = 8;

/// The reason why the next update cannot be received.
#[derive(Debug, Error)]
pub enum UpdateError {
    /// A system call failed. The update stays the next one.
    #[error(transparent)]
    Os(#[from] io::Error),
    /// The packet is malformed, as the text says.
    #[error("{0}")]
    Malformed(String),
}

/// A change of the peer's extents.
#[derive(Debug)]
pub enum ExtentUpdate {
    /// An extent was added.
    Added {
        /// Number of the extent.
        number: u32,
        /// Size that the peer states, in bytes; [`Extent::open`] checks it.
        size: u64,
        /// Descriptor of the extent.
        file: OwnedFd,
    },
    /// An extent was removed.
    Removed {
        /// Number of the extent.
        number: u32,
    },
}

/// Tell the peer about a new extent of this side, with its descriptor. Does not block: fails with `WouldBlock` if the
/// socket is full, and with `BrokenPipe` or `ConnectionReset` if the peer has closed its end.
pub fn send_added(socket: BorrowedFd<'_>, extent: &Extent) -> io::Result<()> {
    let packet = packet(EXTENT, extent.number(), extent.size() as u64);
    packet::send(socket, &packet, &[extent.file()])
}

/// Tell the peer that an extent of this side was removed. Fails as [`send_added`] does.
pub fn send_removed(socket: BorrowedFd<'_>, number: u32) -> io::Result<()> {
    packet::send(socket, &packet(GONE, number, 0), &[])
}

/// Receive the next update, without blocking. Return None if there is none now, and at the end of the socket. After a
/// failed system call, also if this process can open no descriptor, the same update is next; a malformed one is
/// consumed.
pub fn receive(socket: BorrowedFd<'_>) -> Result<Option<ExtentUpdate>, UpdateError> {
    // One byte more than a valid packet has, so that a longer one is detected; and room for one descriptor too many.
    let (mut bytes, mut room) = ([0; PACKET + 1], [0; ROOM]);
    // The packet stays in the socket, and its descriptors are already open here. From a packet that is received, the
    // kernel drops the descriptors for which there is no room; from one that is only peeked at, it does not.
    let peeked =
        retry_after_reset(|| packet::receive(socket, &mut bytes, &mut room, libc::MSG_PEEK));
    let packet::Packet {
        len, files, cut, ..
    } = match peeked {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        peeked => peeked?,
    };
    let count = files.len();
    if len == 0 && count == 0 && !cut && ended(socket)? {
        return Ok(None);
    }
    if cut && count == 0 {
        // There was room for descriptors, so this process could not open even one.
        return Err(descriptor_error(socket).into());
    }
    // The kernel closes the descriptors for which this has no room. SAFETY: nothing is written.
    let consume = || unsafe {
        libc::recv(
            socket.as_raw_fd(),
            std::ptr::null_mut(),
            0,
            libc::MSG_DONTWAIT,
        )
    };
    retry_after_reset(|| retry_interrupted(consume))?;
    let more = |is_more: bool| if is_more { "more than " } else { "" };
    if len != PACKET {
        return Err(UpdateError::Malformed(format!(
            "an update of an extent has {}{} bytes instead of {PACKET}",
            more(len > PACKET),
            len.min(PACKET)
        )));
    }
    let (kind, number, size) = (u32_at(&bytes, 0), u32_at(&bytes, 4), u64_at(&bytes, 8));
    let (least, most, expected) = match kind {
        EXTENT => (1, u64::MAX, 1),
        GONE => (0, 0, 0),
        _ => {
            return Err(UpdateError::Malformed(format!(
                "the update of extent {number} is of the unknown kind {kind}"
            )));
        }
    };
    if !(least..=most).contains(&size) {
        return Err(UpdateError::Malformed(format!(
            "the update of extent {number}, of kind {kind}, has the size {size}"
        )));
    }
    if cut || count != expected {
        return Err(UpdateError::Malformed(format!(
            "the update of extent {number}, of kind {kind}, has {}{count} descriptors instead of {expected}",
            more(cut)
        )));
    }
    Ok(Some(match files.into_iter().next() {
        Some(file) => ExtentUpdate::Added { number, size, file },
        None => ExtentUpdate::Removed { number },
    }))
}

/// Encode an update as the bytes of a packet.
fn packet(kind: u32, number: u32, size: u64) -> [u8; PACKET] {
    let mut packet = [0; PACKET];
    packet[..4].copy_from_slice(&kind.to_ne_bytes());
    packet[4..8].copy_from_slice(&number.to_ne_bytes());
    packet[8..].copy_from_slice(&size.to_ne_bytes());
    packet
}

/// Receive once more after a reset, which the peer causes by closing before it has read everything. The kernel reports
/// it once, ahead of what the peer has sent, which is still there and which a frame may name.
fn retry_after_reset<T>(mut receive: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    receive().or_else(|error| match error.kind() {
        io::ErrorKind::ConnectionReset => receive(),
        _ => Err(error),
    })
}

/// Return the error for a descriptor that this process could not receive. The kernel does not report it, so this
/// duplicates a descriptor and returns the error. If that succeeds, a rule of the system is in the way, or there is
/// room again.
fn descriptor_error(socket: BorrowedFd<'_>) -> io::Error {
    match socket.try_clone_to_owned() {
        Err(error) => error,
        Ok(_) => io::Error::from_raw_os_error(libc::EACCES),
    }
}

/// Return true if the peer has closed or shut down its end of the socket: an empty packet looks like its end.
fn ended(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let mut asked = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLRDHUP,
        revents: 0,
    };
    // SAFETY: one writable `pollfd`.
    retry_interrupted(|| unsafe { libc::poll(&raw mut asked, 1, 0) as isize })?;
    Ok(asked.revents & (libc::POLLRDHUP | libc::POLLHUP) != 0)
}

#[cfg(test)]
mod tests;
