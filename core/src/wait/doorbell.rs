//! A wake-up that any process which knows a path can send: a local datagram socket in the file system.
//!
//! A [`LoopWaker`](super::waker::LoopWaker) joins two processes that have performed a handshake. A doorbell wakes an
//! event loop for members that never met. A wake-up carries no data: the loop checks for changes.

use super::waker::MAX_DRAINED;
use crate::os::check_syscall;
use crate::own_fd::OwnFd;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Create a non-blocking datagram socket without a name.
fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory is involved; the new descriptor is owned here alone.
    unsafe {
        Ok(OwnedFd::from_raw_fd(check_syscall(libc::socket(
            libc::AF_UNIX,
            kind,
            0,
        ))?))
    }
}

/// Return the socket address of a path. Fails with EINVAL if the path is empty, too long, or has a zero byte.
fn address(path: &Path) -> io::Result<libc::sockaddr_un> {
    // SAFETY: zeros are an address without a path.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() || bytes.contains(&0) || bytes.len() >= address.sun_path.len() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok(address)
}

/// Return the path of a doorbell: the common stem, a dot and a number.
pub fn numbered(stem: &Path, number: usize) -> PathBuf {
    let mut path = stem.to_owned().into_os_string();
    path.push(format!(".{number}"));
    path.into()
}

const ADDRESS_SIZE: libc::socklen_t = size_of::<libc::sockaddr_un>() as libc::socklen_t;

/// The receiving side, which an event loop owns. Its drop removes the file.
pub struct Doorbell {
    socket: OwnFd,
    path: PathBuf,
    /// Inode of the socket file.
    inode: Option<u64>,
}

/// Return the inode of the socket at a path, if there is one.
fn inode_of(path: &Path) -> Option<u64> {
    let found = fs::symlink_metadata(path).ok()?;
    found.file_type().is_socket().then(|| found.ino())
}

impl Doorbell {
    /// Bind a doorbell at `path`, which belongs to the caller; it replaces any socket there, as one of a dead process.
    /// Fails if another kind of file is there or the directory cannot be written, and with EINVAL if no socket can have
    /// the path.
    pub fn new(path: &Path) -> io::Result<Self> {
        let (socket, at) = (socket()?, address(path)?);
        if inode_of(path).is_some() {
            fs::remove_file(path)?;
        }
        // SAFETY: an address of that size, which the kernel reads.
        check_syscall(unsafe {
            libc::bind(socket.as_raw_fd(), (&raw const at).cast(), ADDRESS_SIZE)
        })?;
        let (path, inode) = (path.to_owned(), inode_of(path));
        Ok(Doorbell {
            socket: socket.into(),
            path,
            inode,
        })
    }

    /// Drain the socket, at most a few wake-ups at once, so that the loop does not wake again for the same ones. Never
    /// blocks. Errors are ignored.
    pub fn drain(&self) {
        let mut ring = 0u8;
        for _ in 0..MAX_DRAINED {
            let (fd, to) = (self.socket.as_raw_fd(), (&raw mut ring).cast());
            // SAFETY: one byte of `ring` is writable; longer datagrams are truncated.
            if unsafe { libc::recv(fd, to, 1, libc::MSG_DONTWAIT) } < 0 {
                break;
            }
        }
    }
}

impl AsFd for Doorbell {
    /// Return the descriptor, which is readable after a wake-up.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Doorbell {
    /// Remove the socket file, unless a later owner of the path has replaced it. Errors are ignored.
    fn drop(&mut self) {
        // The file may be gone with its directory, or belong to a later owner of the path.
        if inode_of(&self.path) == self.inode {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The sending side, for doorbells of other processes.
pub struct Ringer(OwnFd);

impl Ringer {
    /// Create a sender, without a name and without messages to receive. Fails if this process can open no descriptor.
    pub fn new() -> io::Result<Self> {
        Ok(Ringer(socket()?.into()))
    }

    /// Ring the doorbell at `path`, without blocking. Return true if it has a wake-up now, perhaps an earlier one;
    /// false if no process has it open, if no socket can have the path, or after another error.
    pub fn ring(&self, path: &Path) -> bool {
        let Ok(at) = address(path) else {
            return false;
        };
        let (fd, flags) = (self.0.as_raw_fd(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        // SAFETY: one byte is readable, and an address of that size.
        let sent = unsafe {
            let (ring, at) = ([1u8].as_ptr().cast(), (&raw const at).cast());
            libc::sendto(fd, ring, 1, flags, at, ADDRESS_SIZE)
        };
        // A full socket has unread wake-ups already.
        sent == 1 || io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FORK;

    fn is_readable(bell: &Doorbell) -> bool {
        let (fd, events, revents) = (bell.as_fd().as_raw_fd(), libc::POLLIN, 0);
        let mut asked = libc::pollfd {
            fd,
            events,
            revents,
        };
        // SAFETY: one entry.
        unsafe { libc::poll(&mut asked, 1, 0) == 1 }
    }

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("shmrpc-doorbell-{}-{name}", std::process::id()))
    }

    #[test]
    fn neither_a_full_doorbell_nor_an_empty_one_blocks() {
        let path = path("full");
        let (bell, ringer) = (Doorbell::new(&path).unwrap(), Ringer::new().unwrap());
        bell.drain();
        assert!(!is_readable(&bell));
        for _ in 0..10_000 {
            assert!(ringer.ring(&path));
        }
        while is_readable(&bell) {
            bell.drain();
        }
        assert!(ringer.ring(&path));
        assert!(is_readable(&bell));
    }

    #[test]
    fn an_empty_message_is_a_wake_up() {
        let path = path("empty");
        let bell = Doorbell::new(&path).unwrap();
        let sender = std::os::unix::net::UnixDatagram::unbound().unwrap();
        sender.send_to(&[], &path).unwrap();
        sender.send_to(&[7; 1000], &path).unwrap();
        assert!(is_readable(&bell));
        bell.drain();
        assert!(!is_readable(&bell));
    }

    #[test]
    fn the_path_of_a_dropped_doorbell_is_free() {
        let _alone = FORK.lock();
        let (path, ringer) = (path("gone"), Ringer::new().unwrap());
        assert!(!ringer.ring(&path));
        let bell = Doorbell::new(&path).unwrap();
        assert!(ringer.ring(&path));
        drop(bell);
        assert!(!path.exists());
        // The file stays behind, as after a death.
        let left = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        drop(left);
        assert!(!ringer.ring(&path));
        let bell = Doorbell::new(&path).unwrap();
        assert!(ringer.ring(&path) && is_readable(&bell));
    }

    #[test]
    fn a_late_drop_leaves_the_file_of_the_next_owner() {
        let path = path("late");
        let (late, ringer) = (Doorbell::new(&path).unwrap(), Ringer::new().unwrap());
        let next = Doorbell::new(&path).unwrap();
        drop(late);
        assert!(ringer.ring(&path) && is_readable(&next));
    }

    #[test]
    fn other_files_are_not_replaced() {
        let path = path("file");
        fs::write(&path, "notes").unwrap();
        assert!(Doorbell::new(&path).is_err());
        assert!(!Ringer::new().unwrap().ring(&path));
        assert_eq!(fs::read(&path).unwrap(), b"notes");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_path_that_no_socket_can_have_is_refused() {
        for path in ["", &"x".repeat(108)] {
            let path = Path::new(path);
            let refused = Doorbell::new(path)
                .err()
                .and_then(|error| error.raw_os_error());
            assert_eq!(refused, Some(libc::EINVAL));
            assert!(!Ringer::new().unwrap().ring(path));
        }
    }
}
