//! Packets of a socket, with descriptors and the process that sent them.

use crate::clock;
use crate::os::{check_syscall, retry_interrupted};
use crate::wait::cpu_contention::CpuContention;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Words of room for the control data of a packet, aligned as the kernel requires: its sender, and eight descriptors.
pub const ROOM: usize = 10;

/// A received packet.
#[derive(Debug)]
pub struct Packet {
    /// Bytes that were stored in the buffer.
    pub len: usize,
    /// Descriptors: as many as there was room for and as this process may open.
    pub files: Vec<OwnedFd>,
    /// True if there were more descriptors.
    pub cut: bool,
    /// Process that sent it, by its id in our pid namespace; 0 if it has none there, or the socket does not request it
    /// (`SO_PASSCRED`).
    pub sender: libc::pid_t,
}

/// Send a packet with descriptors, whole or not at all, without blocking. The descriptors stay the caller's. Fails with
/// `WouldBlock` if the socket is full, and with `BrokenPipe` or `ConnectionReset` if the peer has closed its end.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let len = size_of_val(files) as libc::c_uint;
    // SAFETY: arithmetic only.
    let (space, header_len) = unsafe { (libc::CMSG_SPACE(len), libc::CMSG_LEN(len)) };
    let mut control = vec![0u64; (space as usize).div_ceil(8)];
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: all-zero bytes are a valid `msghdr`, a struct of integers and pointers.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if !files.is_empty() {
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = space as usize;
        // SAFETY: there is room for the header and for `len` bytes after it, and it is aligned. A borrowed descriptor
        // is a number, the same as what is sent.
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
    // SAFETY: `message` and all that it points at live until the call returns.
    retry_interrupted(|| unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) })?;
    Ok(())
}

/// Wait for a packet or the end of the socket, for up to `limit` nanoseconds. A signal ends the wait, too. The caller
/// then checks: nothing is received, and errors are ignored.
///
/// For the first `spin` nanoseconds it polls, unless another process needs this CPU, because a process that has slept
/// runs more slowly for a while.
pub fn wait(socket: BorrowedFd<'_>, spin: u64, limit: u64) {
    let start = clock::now();
    let mut contention = CpuContention::default();
    let mut waited = 0;
    while waited < spin.min(limit) && !contention.yield_after(waited) {
        if has_packet(socket.as_raw_fd()) {
            return;
        }
        waited = clock::now() - start;
    }
    poll(socket.as_raw_fd(), limit.saturating_sub(waited));
}

/// Return true if a packet or the end of the socket is pending, or the descriptor is not open. Does not
/// wait, and receives nothing.
pub fn has_packet(socket: RawFd) -> bool {
    poll(socket, 0)
}

/// Return true if a packet or the end of the socket is pending within `limit` nanoseconds, or after an error or a
/// signal.
fn poll(socket: RawFd, limit: u64) -> bool {
    let mut asked = libc::pollfd {
        fd: socket,
        events: libc::POLLIN,
        revents: 0,
    };
    let limit = libc::timespec {
        tv_sec: (limit / 1_000_000_000) as libc::time_t,
        tv_nsec: (limit % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: one entry, and a limit that lives until the call returns. Whatever the result, the caller checks.
    unsafe { libc::ppoll(&raw mut asked, 1, &raw const limit, std::ptr::null()) != 0 }
}

/// Return the length of the next packet, in bytes, without blocking; 0 for an empty one and at the end. The packet
/// stays in the socket. Fails with `WouldBlock` if there is none.
pub fn next_len(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let flags = libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    // SAFETY: nothing is written, because there is no buffer.
    retry_interrupted(|| unsafe { libc::recv(socket.as_raw_fd(), std::ptr::null_mut(), 0, flags) })
}

/// Receive the next packet, without blocking; an empty one at the end. A packet that is too long for `bytes` is
/// truncated. `room` is for the control data, see [`ROOM`]; descriptors beyond it are dropped. The received ones are
/// closed on exec. Fails with `WouldBlock` if there is no packet. `flags` may contain `MSG_PEEK`: the packet then
/// stays, and the descriptors are copies.
pub fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    room: &mut [u64],
    flags: libc::c_int,
) -> io::Result<Packet> {
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: all-zero bytes are a valid `msghdr`, a struct of integers and pointers.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = room.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(room);
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: `message` and all that it points at are writable until the call returns.
    let len = retry_interrupted(|| unsafe {
        libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags)
    })?;
    // SAFETY: the kernel has just filled `message`, and `room` is still there.
    let (files, sender) = unsafe { parse_control(&message) };
    let cut = message.msg_flags & libc::MSG_CTRUNC != 0;
    Ok(Packet {
        len,
        files,
        cut,
        sender,
    })
}

/// Return all descriptors that came with a message, so that none stays open by mistake, and the process that sent it.
///
/// # Safety
///
/// `recvmsg` has filled `message`, the buffers that it points at still exist, and this is called once for it.
unsafe fn parse_control(message: &libc::msghdr) -> (Vec<OwnedFd>, libc::pid_t) {
    let (mut files, mut sender) = (Vec::new(), 0);
    // SAFETY: the headers are the kernel's, within `msg_control`; each descriptor in them is open and no other code
    // knows of it, and credentials are whole if their length is that of the struct.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header);
            let len = (*header).cmsg_len - libc::CMSG_LEN(0) as usize;
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for index in 0..len / size_of::<RawFd>() {
                        let fd = data.cast::<RawFd>().add(index).read_unaligned();
                        files.push(OwnedFd::from_raw_fd(fd));
                    }
                }
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if len >= size_of::<libc::ucred>() => {
                    sender = data.cast::<libc::ucred>().read_unaligned().pid;
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    (files, sender)
}

/// Create a pair of connected packet sockets, which are blocking and closed on exec.
pub fn pair() -> io::Result<[OwnedFd; 2]> {
    let mut pair = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: there is room for two descriptors.
    check_syscall(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) })?;
    // SAFETY: the new descriptors are owned here alone.
    Ok(pair.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Return true if a file is a local packet socket, as [`pair`] creates them.
pub fn is_local_packets(file: BorrowedFd<'_>) -> bool {
    let option = |name: libc::c_int| -> Option<libc::c_int> {
        let (mut value, mut len) = (0, size_of::<libc::c_int>() as libc::socklen_t);
        // SAFETY: `value` and `len` are writable, and `len` is the size of `value`. A file that is no socket is an
        // error.
        let result = unsafe {
            let value = (&raw mut value).cast();
            libc::getsockopt(
                file.as_raw_fd(),
                libc::SOL_SOCKET,
                name,
                value,
                &raw mut len,
            )
        };
        (result == 0).then_some(value)
    };
    option(libc::SO_DOMAIN) == Some(libc::AF_UNIX)
        && option(libc::SO_TYPE) == Some(libc::SOCK_SEQPACKET)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_sender_is_reported_with_so_passcred() {
        let [ours, theirs] = pair().unwrap();
        let send = || {
            // SAFETY: two bytes are readable.
            let sent = unsafe { libc::send(theirs.as_raw_fd(), c"hi".as_ptr().cast(), 2, 0) };
            assert_eq!(sent, 2);
        };
        send();
        let (mut bytes, mut room) = ([0; 4], [0; ROOM]);
        let packet = receive(ours.as_fd(), &mut bytes, &mut room, 0).unwrap();
        assert_eq!((packet.len, packet.sender, packet.cut), (2, 0, false));
        let (on, len) = (1, size_of::<libc::c_int>() as libc::socklen_t);
        // SAFETY: one integer is readable.
        let set = unsafe {
            let on = (&raw const on).cast();
            libc::setsockopt(
                ours.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PASSCRED,
                on,
                len,
            )
        };
        assert_eq!(set, 0);
        send();
        let packet = receive(ours.as_fd(), &mut bytes, &mut room, 0).unwrap();
        assert_eq!(packet.sender as u32, std::process::id());
        let none = receive(ours.as_fd(), &mut bytes, &mut room, 0).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_local_packet_socket_differs_from_other_files() {
        let [ours, _] = pair().unwrap();
        assert!(is_local_packets(ours.as_fd()));
        let (datagrams, _) = UnixDatagram::pair().unwrap();
        assert!(!is_local_packets(datagrams.as_fd()));
        assert!(!is_local_packets(
            std::fs::File::open("/dev/null").unwrap().as_fd()
        ));
    }

    #[test]
    fn a_wait_ends_with_a_packet_or_with_the_other_side() {
        let long = 3600 * 1_000_000_000;
        for spin in [0, 1_000_000, u64::MAX] {
            let [ours, theirs] = pair().unwrap();
            wait(ours.as_fd(), spin, 0);
            send(theirs.as_fd(), b"here", &[]).unwrap();
            wait(ours.as_fd(), spin, long);
            assert_eq!(next_len(ours.as_fd()).unwrap(), 4);
            let [ours, theirs] = pair().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| wait(ours.as_fd(), spin, long));
                drop(theirs);
            });
            assert_eq!(next_len(ours.as_fd()).unwrap(), 0);
        }
    }
}
