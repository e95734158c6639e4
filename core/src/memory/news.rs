//! What one side tells the other of its extents, with their descriptors: over a socket pair of its own, in packets of
//! sixteen bytes in the byte order of the machine:
//!
//! ```text
//!      0  kind     u32   1 an extent, with its descriptor; 2 one that is gone
//!      4  number   u32
//!      8  size     u64   bytes of the extent; 0 if it is gone
//! ```

use crate::memory::extent::Extent;
use crate::os::retry;
use crate::packet;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

const PACKET: usize = 16;
const EXTENT: u32 = 1;
const GONE: u32 = 2;

/// Why there is no news to be had.
#[derive(Debug)]
pub enum NewsError {
    /// The operating system refused. It is still the next one.
    Os(io::Error),
    /// It is not what it should be.
    Malformed(String),
}

impl fmt::Display for NewsError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NewsError::Os(error) => write!(out, "{error}"),
            NewsError::Malformed(text) => write!(out, "{text}"),
        }
    }
}

impl std::error::Error for NewsError {}

impl From<io::Error> for NewsError {
    fn from(error: io::Error) -> Self {
        NewsError::Os(error)
    }
}

/// What one side tells the other of its extents.
#[derive(Debug)]
pub enum News {
    /// There is a new one.
    Extent {
        /// Its number.
        number: u32,
        /// Its bytes, as the peer claims; [`Extent::open`] looks.
        size: u64,
        /// Its descriptor.
        file: OwnedFd,
    },
    /// One is no more in use.
    Gone {
        /// Its number.
        number: u32,
    },
}

/// Tells the peer of a new extent of ours. `WouldBlock` if the socket is full.
pub fn send_extent(socket: BorrowedFd<'_>, extent: &Extent) -> io::Result<()> {
    let packet = packet(EXTENT, extent.number(), extent.size() as u64);
    send(socket, &packet, &[extent.file()])
}

/// Tells the peer that an extent of ours is gone. `WouldBlock` if the socket is full.
pub fn send_gone(socket: BorrowedFd<'_>, number: u32) -> io::Result<()> {
    send(socket, &packet(GONE, number, 0), &[])
}

/// The next piece of news. `None` if there is none now, and at the end of the socket. After an error of the system it is
/// still the next one.
pub fn receive(socket: BorrowedFd<'_>) -> Result<Option<News>, NewsError> {
    let Some(packet) = Packet::peek(socket)? else {
        return Ok(None);
    };
    if packet.cut && packet.files.is_empty() {
        // There was room for them, so it is this process that could not take even one.
        return Err(why_untaken(socket).into());
    }
    Packet::consume(socket)?;
    let Packet { bytes, len, .. } = packet;
    if len != PACKET {
        let more = if len > PACKET { "more than " } else { "" };
        return Err(NewsError::Malformed(format!(
            "news of an extent has {more}{} bytes instead of {PACKET}",
            len.min(PACKET)
        )));
    }
    let [
        k0,
        k1,
        k2,
        k3,
        n0,
        n1,
        n2,
        n3,
        s0,
        s1,
        s2,
        s3,
        s4,
        s5,
        s6,
        s7,
        _,
    ] = bytes;
    let kind = u32::from_ne_bytes([k0, k1, k2, k3]);
    let number = u32::from_ne_bytes([n0, n1, n2, n3]);
    let size = u64::from_ne_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
    let (least, most, expected) = match kind {
        EXTENT => (1, u64::MAX, 1),
        GONE => (0, 0, 0),
        _ => {
            return Err(NewsError::Malformed(format!(
                "news of extent {number} is of the unknown kind {kind}"
            )));
        }
    };
    if !(least..=most).contains(&size) {
        return Err(NewsError::Malformed(format!(
            "news of extent {number}, of kind {kind}, tells of {size} bytes"
        )));
    }
    let count = packet.files.len();
    if packet.cut || count != expected {
        let more = if packet.cut { "more than " } else { "" };
        return Err(NewsError::Malformed(format!(
            "news of extent {number}, of kind {kind}, has {more}{count} descriptors instead of {expected}"
        )));
    }
    let file = packet.files.into_iter().next();
    Ok(Some(match file {
        Some(file) => News::Extent { number, size, file },
        None => News::Gone { number },
    }))
}

fn packet(kind: u32, number: u32, size: u64) -> [u8; PACKET] {
    let mut packet = [0; PACKET];
    packet[..4].copy_from_slice(&kind.to_ne_bytes());
    packet[4..8].copy_from_slice(&number.to_ne_bytes());
    packet[8..].copy_from_slice(&size.to_ne_bytes());
    packet
}

/// Room for the descriptors of a packet, aligned as the kernel wants it: for twelve, so that one
/// too many is seen as that.
type Control = [u64; 8];

fn send(socket: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut control: Control = [0; 8];
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: all-zero bytes are a valid `msghdr`, a struct of integers and pointers.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if !files.is_empty() {
        let len = size_of_val(files) as libc::c_uint;
        // SAFETY: arithmetic only.
        let (space, header_len) = unsafe { (libc::CMSG_SPACE(len), libc::CMSG_LEN(len)) };
        assert!(space as usize <= size_of_val(&control));
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = space as usize;
        // SAFETY: there is room for the header and for `len` bytes after it, and it is aligned.
        // A borrowed descriptor is a number, the same as what is sent.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = header_len as usize;
            let data = libc::CMSG_DATA(header);
            data.copy_from_nonoverlapping(files.as_ptr().cast(), len as usize);
        }
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // A packet goes whole or not at all.
    // SAFETY: `message` and all that it points at live until the call returns.
    retry(|| unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) })?;
    Ok(())
}

/// What came over the socket, whatever it is.
struct Packet {
    /// One byte more than there should be, so that a packet that is too long shows.
    bytes: [u8; PACKET + 1],
    len: usize,
    files: Vec<OwnedFd>,
    /// Whether there were more descriptors than have come.
    cut: bool,
}

impl Packet {
    /// The next packet, which stays where it is; its descriptors are ours by then. The kernel drops descriptors for which
    /// there is no room from a packet that is received, and from one that is only looked at it does not.
    fn peek(socket: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let (mut bytes, mut room): (_, Control) = ([0; PACKET + 1], [0; 8]);
        let received =
            receive_twice(|| packet::receive(socket, &mut bytes, &mut room, libc::MSG_PEEK));
        let packet::Packet {
            len, files, cut, ..
        } = match received {
            Ok(received) => received,
            Err(error) => {
                return match error.kind() {
                    io::ErrorKind::WouldBlock => Ok(None),
                    _ => Err(error),
                };
            }
        };
        if len == 0 && files.is_empty() && !cut && ended(socket)? {
            return Ok(None);
        }
        Ok(Some(Packet {
            bytes,
            len,
            files,
            cut,
        }))
    }

    /// Takes the packet that was looked at away. The kernel closes the descriptors for which this has no room.
    fn consume(socket: BorrowedFd<'_>) -> io::Result<()> {
        receive_twice(|| {
            let fd = socket.as_raw_fd();
            // SAFETY: nothing is written.
            retry(|| unsafe { libc::recv(fd, std::ptr::null_mut(), 0, libc::MSG_DONTWAIT) })
        })?;
        Ok(())
    }
}

/// A reset is the end before the peer has read all of ours. It is told once, and before what the peer has sent, which is
/// still there: a frame may name it.
fn receive_twice<T>(mut receive: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    receive().or_else(|error| match error.kind() {
        io::ErrorKind::ConnectionReset => receive(),
        _ => Err(error),
    })
}

/// Why this process could not take a descriptor, which the kernel does not say: the error with which it makes no other.
/// If it can, a rule of the system is in the way, or there is room again.
fn why_untaken(socket: BorrowedFd<'_>) -> io::Error {
    match socket.try_clone_to_owned() {
        Err(error) => error,
        Ok(_) => io::Error::from_raw_os_error(libc::EACCES),
    }
}

/// Whether the peer has closed the socket: an empty packet looks like its end.
fn ended(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let mut look = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLRDHUP,
        revents: 0,
    };
    // SAFETY: one writable `pollfd`.
    retry(|| unsafe { libc::poll(&raw mut look, 1, 0) as isize })?;
    Ok(look.revents & (libc::POLLRDHUP | libc::POLLHUP) != 0)
}

#[cfg(test)]
mod tests;
