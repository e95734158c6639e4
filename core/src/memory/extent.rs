//! One piece of a side's arena: a memfd that its owner writes and the peer reads.
//!
//! # The contract
//!
//! * All of an extent's memory is set aside when it is made, and its seals keep its size for ever.
//!   So the other side cannot cut the file off under our mapping; what it can do is to change
//!   bytes, or to make them zeros.
//! * The other side may write any of it at any time: what has been mapped for both can be mapped
//!   writable by both. So no reference or slice into it is made here, bytes are copied by raw
//!   pointers, and what is read may be anything.
//! * News of extents, with their descriptors, travels over a socket pair of its own, in packets of
//!   sixteen bytes in the byte order of the machine:
//!
//! ```text
//!      0  kind     u32   1 an extent, with its descriptor; 2 one that is gone
//!      4  number   u32
//!      8  size     u64   bytes of the extent; 0 if it is gone
//! ```

use crate::crash;
use crate::memory::mapping::{Span, WRITABLE};
use crate::packet;
use crate::sync::lock;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

const PACKET: usize = 16;
const EXTENT: u32 = 1;
const GONE: u32 = 2;

/// Bytes that are set aside in one go. A signal makes the kernel undo the go it interrupts, so
/// with a profiler's timer one go for all of a large extent might never end.
const STRIDE: usize = 16 << 20;

/// Why an extent of the peer's cannot be used.
#[derive(Debug)]
pub enum ExtentError {
    /// The operating system refused.
    Os(io::Error),
    /// The file is not sealed against shrinking: it could be cut off while we read it.
    Unsealed {
        /// The extent's number.
        number: u32,
        /// The seals that the file has, as `F_GET_SEALS` tells them.
        found: i32,
    },
    /// The file is not of the size that the peer has told.
    Size {
        /// The extent's number.
        number: u32,
        /// What the file has, in bytes.
        found: u64,
        /// What it should have, in bytes.
        expected: u64,
    },
    /// The file cannot be read by this descriptor.
    Unreadable {
        /// The extent's number.
        number: u32,
    },
    /// The memory of the file is not set aside, or was given back.
    Sparse {
        /// The extent's number.
        number: u32,
        /// What is set aside, in bytes.
        found: u64,
    },
    /// The peer's news is not what it should be.
    Protocol(String),
}

impl fmt::Display for ExtentError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExtentError::Os(error) => write!(out, "{error}"),
            ExtentError::Unsealed { number, found } => write!(
                out,
                "extent {number} has the seals {found:#x} without {:#x}, the one against shrinking",
                libc::F_SEAL_SHRINK
            ),
            ExtentError::Size {
                number,
                found,
                expected,
            } => {
                write!(
                    out,
                    "extent {number} has {found} bytes instead of {expected}"
                )
            }
            ExtentError::Unreadable { number } => {
                write!(out, "the descriptor of extent {number} can only be written")
            }
            ExtentError::Sparse { number, found } => {
                write!(out, "extent {number} has only {found} bytes set aside")
            }
            ExtentError::Protocol(text) => write!(out, "{text}"),
        }
    }
}

impl std::error::Error for ExtentError {}

impl From<io::Error> for ExtentError {
    fn from(error: io::Error) -> Self {
        ExtentError::Os(error)
    }
}

/// Who sees what is written into a [`Mapping`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nobody else: a page is copied when it is first written. For libraries that know no
    /// read-only arrays. A page not yet written shows what others write.
    Private,
    /// Everybody who has mapped the extent.
    Shared,
}

/// A mapped extent: ours, writable, or the peer's, read-only.
///
/// It stays mapped until it is dropped; its descriptor is closed with the last of it and of the
/// [`Mapping`]s made of it.
#[derive(Debug)]
pub struct Extent {
    number: u32,
    span: Span,
    file: Arc<OwnedFd>,
    ours: bool,
}

impl Extent {
    /// New memory, all zeros. All of it is set aside now, so that a want of memory is an error
    /// here, and sealed in its size.
    ///
    /// What the machine has not it does not always refuse: without a bound of its own on shared
    /// memory the kernel may rather end a process. The bound to rely on is the arena's limit.
    pub fn create(number: u32, size: usize) -> io::Result<Extent> {
        let length = libc::off_t::try_from(size).unwrap_or(0);
        if length == 0 {
            return Err(invalid(format!("an extent cannot have {size} bytes")));
        }
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a valid C string.
        let made = |flags| done(unsafe { libc::memfd_create(c"shmrpc-extent".as_ptr(), flags) });
        // Some hosts want it said that nobody executes it; older kernels do not know the flag.
        let fd = made(flags | libc::MFD_NOEXEC_SEAL).or_else(|_| made(flags))?;
        // SAFETY: it is new, so it is ours alone.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the descriptor is open; no memory is involved.
        done(unsafe { libc::ftruncate(fd, length) })?;
        for start in (0..size).step_by(STRIDE) {
            let length = STRIDE.min(size - start) as libc::off_t;
            // SAFETY: as above.
            retry(|| unsafe { libc::fallocate(fd, 0, start as libc::off_t, length) as isize })?;
        }
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: as above.
        done(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) })?;
        crash::point!(ExtentSealed);
        let span = Span::new(file.as_fd(), 0, size, WRITABLE, POPULATED)?;
        Ok(Extent {
            number,
            span,
            file: Arc::new(file),
            ours: true,
        })
    }

    /// One that the peer has made. Its seals and its size are looked at before it is mapped.
    pub fn open(
        number: u32,
        size: usize,
        file: impl Into<Arc<OwnedFd>>,
    ) -> Result<Extent, ExtentError> {
        let file = file.into();
        let fd = file.as_raw_fd();
        // SAFETY: the descriptor is open; no memory is involved.
        let found = match done(unsafe { libc::fcntl(fd, libc::F_GET_SEALS) }) {
            Ok(seals) => seals,
            // A file that cannot be sealed at all.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => 0,
            Err(error) => return Err(error.into()),
        };
        if found & libc::F_SEAL_SHRINK == 0 {
            return Err(ExtentError::Unsealed { number, found });
        }
        // SAFETY: as above.
        let mode = done(unsafe { libc::fcntl(fd, libc::F_GETFL) })? & libc::O_ACCMODE;
        if mode == libc::O_WRONLY {
            return Err(ExtentError::Unreadable { number });
        }
        // After the seals: only now can it not shrink any more.
        let stat = stat(file.as_fd())?;
        let found = stat.st_size as u64;
        if found != size as u64 {
            return Err(ExtentError::Size {
                number,
                found,
                expected: size as u64,
            });
        }
        // Mapping it would set aside what its maker has not, or has given back.
        let found = stat.st_blocks as u64 * 512;
        if found < size as u64 {
            return Err(ExtentError::Sparse { number, found });
        }
        // Whoever takes a frame must not be held up for long by a new extent.
        let populated = if size <= QUICKLY_MAPPED {
            POPULATED
        } else {
            libc::MAP_SHARED
        };
        let span = Span::new(file.as_fd(), 0, size, libc::PROT_READ, populated)?;
        Ok(Extent {
            number,
            span,
            file,
            ours: false,
        })
    }

    /// Its number, which its owner has given it.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its bytes.
    pub fn size(&self) -> usize {
        self.span.len()
    }

    /// Where it begins in our memory. What the peer has made must not be written there.
    pub fn base(&self) -> *mut u8 {
        self.span.base()
    }

    /// Its descriptor.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Where in this extent the bytes from `address` on are, if all of them are. An empty range
    /// is where it begins.
    pub fn offset_of(&self, address: usize, len: usize) -> Option<u64> {
        let offset = address.checked_sub(self.base().addr())?;
        let within = offset < self.size() && len <= self.size() - offset;
        within.then_some(offset as u64)
    }

    /// Copies bytes in. Panics if the extent is the peer's, or has not the range.
    ///
    /// # Safety
    ///
    /// `len` bytes at `from` are readable, and none of them lies in the range that is written.
    pub unsafe fn write(&self, offset: u64, from: *const u8, len: usize) {
        assert!(self.ours, "extent {} is the peer's to write", self.number);
        let to = self.at(offset, len);
        // SAFETY: `from` by the caller's word, `to` by the look at its bounds. By C's memcpy,
        // because the peer may touch the range meanwhile: the compiler assumes nothing of it.
        unsafe { libc::memcpy(to.cast(), from.cast(), len) };
    }

    /// Copies bytes out. Panics if the extent has not the range.
    ///
    /// # Safety
    ///
    /// `len` bytes at `to` are writable, by nobody else meanwhile, and outside the range that is
    /// read.
    pub unsafe fn read(&self, offset: u64, to: *mut u8, len: usize) {
        let from = self.at(offset, len);
        // SAFETY: as in `write`.
        unsafe { libc::memcpy(to.cast(), from.cast(), len) };
    }

    /// Gives the memory back to the system now, whoever has it mapped yet; who reads it then
    /// reads zeros. For the owner of an extent that nobody uses any more.
    pub fn punch(&self) {
        debug_assert!(self.ours, "extent {} is the peer's to punch", self.number);
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let length = self.size() as libc::off_t;
        // A failure is no harm: the memory then goes with the last mapping.
        // SAFETY: the descriptor is open; the mappings stay, only their contents become zeros.
        let _ =
            retry(|| unsafe { libc::fallocate(self.file.as_raw_fd(), mode, 0, length) as isize });
    }

    /// Another mapping, writable, of a part that begins with a page.
    pub fn map(&self, offset: u64, len: usize, mode: Mode) -> io::Result<Mapping> {
        let size = self.size();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        if len == 0 || start >= size || len > size - start {
            return Err(invalid(format!(
                "extent {} has {size} bytes, not {len} from {offset} on (and a mapping has at least 1)",
                self.number
            )));
        }
        // SAFETY: no memory is involved.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        if start % page != 0 {
            return Err(invalid(format!(
                "a mapping begins with a page, at a multiple of {page}, not at {offset}"
            )));
        }
        let flags = match mode {
            Mode::Private => libc::MAP_PRIVATE,
            Mode::Shared => libc::MAP_SHARED,
        };
        Ok(Mapping {
            span: Span::new(self.file(), start, len, WRITABLE, flags)?,
            file: self.file.clone(),
            start,
            mode: Mutex::new(mode),
        })
    }

    fn at(&self, offset: u64, len: usize) -> *mut u8 {
        let size = self.size();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        assert!(
            start <= size && len <= size - start,
            "extent {} has {size} bytes, not {len} from {offset} on",
            self.number
        );
        // SAFETY: within the mapping, or one past its end.
        unsafe { self.base().add(start) }
    }
}

/// A mapping of its own of a part of an extent. It may outlive the [`Extent`] that it was made of.
#[derive(Debug)]
pub struct Mapping {
    span: Span,
    file: Arc<OwnedFd>,
    start: usize,
    mode: Mutex<Mode>,
}

#[expect(
    clippy::len_without_is_empty,
    reason = "a mapping has at least one byte"
)]
impl Mapping {
    /// Where it begins in our memory.
    pub fn base(&self) -> *mut u8 {
        self.span.base()
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.span.len()
    }

    /// From now on what is written here stays here: a shared mapping becomes a private one, at
    /// the same address. What has been written is in the extent; for a private one nothing
    /// changes.
    pub fn detach(&self) -> io::Result<()> {
        // A lock, because a second remapping would undo what was written since the first.
        let mut mode = lock(&self.mode);
        if *mode == Mode::Private {
            return Ok(());
        }
        // SAFETY: the range is ours until `drop`, and there is something at each address of it
        // all the time: the kernel puts the new mapping in the place of the old in one step.
        let base = unsafe {
            libc::mmap(
                self.base().cast(),
                self.len(),
                WRITABLE,
                libc::MAP_PRIVATE | libc::MAP_FIXED,
                self.file.as_raw_fd(),
                self.start as libc::off_t,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        *mode = Mode::Private;
        // A page that nobody has written still shows what its owner writes: all of them are written.
        for offset in (0..self.len()).step_by(PAGE) {
            // SAFETY: within the mapping, which is writable. The same byte is written again, so that
            // only who writes it at this very moment can notice.
            unsafe {
                let byte = self.base().add(offset);
                byte.write_volatile(byte.read_volatile());
            }
        }
        Ok(())
    }
}

/// Shared, and each page at hand at once, so that no copy meets a page fault.
const POPULATED: libc::c_int = libc::MAP_SHARED | libc::MAP_POPULATE;

/// An extent of the peer's is mapped page by page, as it is read, if it is larger than this, in bytes.
const QUICKLY_MAPPED: usize = 4 << 20;

/// The smallest page that there is, in bytes.
const PAGE: usize = 4096;

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
    let packet = packet(EXTENT, extent.number, extent.size() as u64);
    send(socket, &packet, &[extent.file()])
}

/// Tells the peer that an extent of ours is gone. `WouldBlock` if the socket is full.
pub fn send_gone(socket: BorrowedFd<'_>, number: u32) -> io::Result<()> {
    send(socket, &packet(GONE, number, 0), &[])
}

/// The next piece of news. `None` if there is none now, and at the end of the socket. After an error of the system it is
/// still the next one.
pub fn receive(socket: BorrowedFd<'_>) -> Result<Option<News>, ExtentError> {
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
        return Err(ExtentError::Protocol(format!(
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
            return Err(ExtentError::Protocol(format!(
                "news of extent {number} is of the unknown kind {kind}"
            )));
        }
    };
    if !(least..=most).contains(&size) {
        return Err(ExtentError::Protocol(format!(
            "news of extent {number}, of kind {kind}, tells of {size} bytes"
        )));
    }
    let count = packet.files.len();
    if packet.cut || count != expected {
        let more = if packet.cut { "more than " } else { "" };
        return Err(ExtentError::Protocol(format!(
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

fn stat(file: BorrowedFd<'_>) -> io::Result<libc::stat> {
    // SAFETY: all-zero bytes are a valid `stat`, a struct of integers.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open for the borrow's time and `stat` is writable.
    done(unsafe { libc::fstat(file.as_raw_fd(), &raw mut stat) })?;
    Ok(stat)
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// What a system call returned, unless it failed.
fn done(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// Calls again as long as only a signal came between.
fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(result) => return Ok(result),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FORK;
    use std::fs::{self, File};
    use std::io::{Read, Write};
    use std::os::fd::RawFd;
    use std::os::unix::fs::MetadataExt;

    const SIZE: usize = 1 << 16;

    fn page() -> usize {
        // SAFETY: no memory is involved.
        unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
    }

    fn memfd(size: usize, seals: libc::c_int) -> OwnedFd {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a valid C string; the descriptor that comes back is ours alone.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"test".as_ptr(), flags)) };
        file.set_len(size as u64).unwrap();
        // SAFETY: no memory is involved, twice.
        unsafe {
            libc::posix_fallocate(file.as_raw_fd(), 0, size as libc::off_t);
            done(libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals)).unwrap();
        }
        file.into()
    }

    #[test]
    fn a_file_whose_memory_was_given_back_is_refused_before_it_is_mapped() {
        let extent = Extent::create(3, 1 << 20).unwrap();
        extent.punch();
        let file = extent.file().try_clone_to_owned().unwrap();
        let error = Extent::open(3, 1 << 20, file).err().unwrap();
        assert!(matches!(
            error,
            ExtentError::Sparse {
                number: 3,
                found: 0
            }
        ));
    }

    /// The peer's view of an extent of ours.
    fn opened(extent: &Extent) -> Extent {
        let file = extent.file().try_clone_to_owned().unwrap();
        Extent::open(extent.number(), extent.size(), file).unwrap()
    }

    fn write(extent: &Extent, offset: u64, bytes: &[u8]) {
        // SAFETY: `bytes` are readable, and on the heap or the stack.
        unsafe { extent.write(offset, bytes.as_ptr(), bytes.len()) };
    }

    fn read<const N: usize>(extent: &Extent, offset: u64) -> [u8; N] {
        let mut bytes = [0xaa; N];
        // SAFETY: `bytes` are writable and ours.
        unsafe { extent.read(offset, bytes.as_mut_ptr(), N) };
        bytes
    }

    fn peek(mapping: &Mapping, at: usize) -> u8 {
        assert!(at < mapping.len());
        // SAFETY: within the mapping.
        unsafe { mapping.base().add(at).read_volatile() }
    }

    fn poke(mapping: &Mapping, at: usize, value: u8) {
        assert!(at < mapping.len());
        // SAFETY: within the mapping, which is writable.
        unsafe { mapping.base().add(at).write_volatile(value) };
    }

    /// How many descriptors and how many mappings this process has of a file. By its inode, since
    /// other tests open and close files meanwhile.
    fn traces(inode: u64) -> (usize, usize) {
        let any = File::from(memfd(1, 0));
        let device = any.metadata().unwrap().dev();
        let descriptors = fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|entry| fs::metadata(entry.ok()?.path()).ok())
            .filter(|file| (file.dev(), file.ino()) == (device, inode))
            .count();
        let inode = inode.to_string();
        let mappings = fs::read_to_string("/proc/self/maps")
            .unwrap()
            .lines()
            .filter(|line| line.contains("/memfd:"))
            .filter(|line| line.split_whitespace().nth(4) == Some(&inode))
            .count();
        (descriptors, mappings)
    }

    fn inode(file: BorrowedFd<'_>) -> u64 {
        stat(file).unwrap().st_ino
    }

    /// Bytes of memory that a file takes.
    fn taken(file: BorrowedFd<'_>) -> usize {
        stat(file).unwrap().st_blocks as usize * 512
    }

    fn sockets() -> (OwnedFd, OwnedFd) {
        let mut pair = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: two descriptors are writable; what comes back is ours alone.
        unsafe {
            done(libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr())).unwrap();
            (OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1]))
        }
    }

    #[test]
    fn what_the_owner_writes_the_opener_reads() {
        let ours = Extent::create(7, SIZE).unwrap();
        let theirs = opened(&ours);
        assert_eq!((theirs.number(), theirs.size()), (7, SIZE));
        assert_ne!(ours.base(), theirs.base());
        assert_eq!(read(&theirs, 0), [0; SIZE], "new memory is all zeros");
        write(&ours, 3, b"hello");
        write(&ours, SIZE as u64 - 5, b"world");
        assert_eq!(&read(&theirs, 2), b"\0hello\0");
        assert_eq!(&read(&theirs, SIZE as u64 - 5), b"world");
        assert_eq!(&read(&ours, 3), b"hello");
        write(&ours, SIZE as u64, b"");
        assert_eq!(read(&theirs, SIZE as u64), []);
    }

    #[test]
    fn the_openers_mapping_cannot_be_written() {
        let ours = Extent::create(0, SIZE).unwrap();
        let theirs = opened(&ours);
        // The kernel writes there for us, and says what it finds instead of a SIGSEGV.
        let read_into = |base: *mut u8| {
            let mut zero = File::open("/dev/zero").unwrap();
            assert_eq!(zero.read(&mut [0]).unwrap(), 1);
            // SAFETY: `base` is a mapping of at least one byte, to which nothing refers.
            retry(|| unsafe { libc::read(zero.as_raw_fd(), base.cast(), 1) })
        };
        assert_eq!(read_into(ours.base()).unwrap(), 1);
        let error = read_into(theirs.base()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }

    #[test]
    fn all_memory_is_set_aside_at_once() {
        // More than one stride, and not a whole number of them.
        let size = STRIDE + 3 * page();
        let extent = Extent::create(0, size).unwrap();
        assert!(taken(extent.file()) >= size);
        assert_eq!(extent.size(), size);
    }

    #[test]
    fn an_extent_without_bytes_or_with_too_many_is_refused() {
        for size in [0, usize::MAX, i64::MAX as usize + 1] {
            let error = Extent::create(0, size).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert_eq!(
                error.to_string(),
                format!("an extent cannot have {size} bytes")
            );
        }
    }

    #[test]
    fn nobody_cuts_off_an_extent_or_makes_it_longer() {
        let extent = Extent::create(0, SIZE).unwrap();
        let file = File::from(extent.file().try_clone_to_owned().unwrap());
        for size in [0, SIZE - 1, SIZE + 1] {
            let error = file.set_len(size as u64).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EPERM), "to {size}");
        }
        // SAFETY: no memory is involved.
        let more = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) };
        let error = done(more).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM), "a further seal");
        write(&extent, SIZE as u64 - 1, b"!");
    }

    #[test]
    fn a_file_that_is_not_sealed_is_refused_before_it_is_mapped() {
        for seals in [0, libc::F_SEAL_GROW, libc::F_SEAL_GROW | libc::F_SEAL_SEAL] {
            let file = memfd(SIZE, seals);
            let ino = inode(file.as_fd());
            let error = Extent::open(5, SIZE, file).unwrap_err();
            assert!(
                matches!(error, ExtentError::Unsealed { number: 5, found } if found == seals),
                "{error}"
            );
            assert_eq!(traces(ino), (0, 0));
        }
    }

    #[test]
    fn what_is_no_memory_file_at_all_is_refused() {
        let device = File::open("/dev/zero").unwrap();
        let (socket, _other) = sockets();
        for file in [device.into(), socket] {
            let error = Extent::open(5, SIZE, file).unwrap_err();
            assert_eq!(
                error.to_string(),
                "extent 5 has the seals 0x0 without 0x2, the one against shrinking"
            );
        }
    }

    #[test]
    fn a_file_of_another_size_is_refused_before_it_is_mapped() {
        for found in [0, 1, SIZE - 1, SIZE + 1, 2 * SIZE] {
            let file = memfd(found, libc::F_SEAL_SHRINK);
            let ino = inode(file.as_fd());
            let error = Extent::open(5, SIZE, file).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("extent 5 has {found} bytes instead of {SIZE}")
            );
            assert_eq!(traces(ino), (0, 0));
        }
    }

    #[test]
    fn a_file_sealed_against_shrinking_only_will_do() {
        let file = memfd(SIZE, libc::F_SEAL_SHRINK);
        let mut writer = File::from(file.try_clone().unwrap());
        let extent = Extent::open(0, SIZE, file).unwrap();
        writer.write_all(b"written").unwrap();
        assert_eq!(&read(&extent, 0), b"written");
    }

    #[test]
    fn addresses_in_an_extent_are_told_from_others() {
        let extent = Extent::create(0, SIZE).unwrap();
        let base = extent.base().addr();
        for (address, len, expected) in [
            (base, SIZE, Some(0)),
            (base + 9, SIZE - 9, Some(9)),
            (base + SIZE - 1, 1, Some(SIZE as u64 - 1)),
            (base + SIZE - 1, 0, Some(SIZE as u64 - 1)),
            (base + 9, SIZE - 8, None),
            (base + SIZE, 0, None),
            (base - 1, 2, None),
            (base + 1, usize::MAX, None),
            (usize::MAX, 1, None),
            (0, 0, None),
        ] {
            assert_eq!(extent.offset_of(address, len), expected);
        }
    }

    #[test]
    fn a_copy_beyond_the_end_is_a_panic_and_copies_nothing() {
        let extent = Extent::create(0, SIZE).unwrap();
        let theirs = opened(&extent);
        let mut bytes = [1; 2];
        for (offset, len) in [
            (SIZE as u64 - 1, 2),
            (SIZE as u64 + 1, 0),
            (u64::MAX, 1),
            (1, usize::MAX),
        ] {
            let mut bounds = |copy: &mut dyn FnMut(*mut u8)| {
                let copy = std::panic::AssertUnwindSafe(|| copy(bytes.as_mut_ptr()));
                assert!(std::panic::catch_unwind(copy).is_err());
            };
            // SAFETY: both panic before they touch anything.
            bounds(&mut |at| unsafe { extent.write(offset, at, len) });
            // SAFETY: as above.
            bounds(&mut |at| unsafe { theirs.read(offset, at, len) });
        }
        assert_eq!(read(&extent, SIZE as u64 - 1), [0]);
        assert_eq!(bytes, [1; 2]);
    }

    #[test]
    #[should_panic(expected = "extent 3 is the peer's to write")]
    fn what_the_peer_has_made_is_not_written() {
        let theirs = opened(&Extent::create(3, SIZE).unwrap());
        write(&theirs, 0, b"?");
    }

    #[test]
    fn what_is_written_to_a_private_mapping_nobody_else_sees() {
        let ours = Extent::create(0, 3 * page()).unwrap();
        let theirs = opened(&ours);
        let offset = page() as u64;
        write(&ours, offset, b"owner");
        let mapping = theirs.map(offset, page() + 1, Mode::Private).unwrap();
        assert_eq!((mapping.len(), peek(&mapping, 0)), (page() + 1, b'o'));
        poke(&mapping, 0, b'O');
        poke(&mapping, page(), b'!');
        assert_eq!(&read(&ours, offset), b"owner");
        assert_eq!(read(&ours, 2 * offset), [0]);
        mapping.detach().unwrap();
        assert_eq!(peek(&mapping, 0), b'O', "there was nothing to detach");
        write(&ours, offset, b"other");
        assert_eq!(
            peek(&mapping, 1),
            b'w',
            "a page that was written is its own"
        );
    }

    #[test]
    fn what_is_written_to_a_shared_mapping_the_owner_sees_until_it_is_detached() {
        let ours = Extent::create(0, 4 * page()).unwrap();
        let offset = page() as u64;
        let mapping = opened(&ours).map(offset, 2 * page(), Mode::Shared).unwrap();
        let base = mapping.base();
        poke(&mapping, 0, 1);
        poke(&mapping, page(), 2);
        assert_eq!((read(&ours, offset), read(&ours, 2 * offset)), ([1], [2]));

        mapping.detach().unwrap();
        assert_eq!(mapping.base(), base);
        assert_eq!((peek(&mapping, 0), peek(&mapping, page())), (1, 2));
        poke(&mapping, 0, 3);
        assert_eq!((read(&ours, offset), peek(&mapping, 0)), ([1], 3));

        mapping.detach().unwrap();
        assert_eq!(peek(&mapping, 0), 3, "a second time undoes nothing");
    }

    #[test]
    fn a_mapping_outlives_its_extent() {
        let extent = Extent::create(0, SIZE).unwrap();
        write(&extent, 0, b"x");
        let mapping = extent.map(0, SIZE, Mode::Shared).unwrap();
        let ino = inode(extent.file());
        drop(extent);
        assert_eq!(
            traces(ino),
            (1, 1),
            "the mapping, and what it may detach by"
        );
        mapping.detach().unwrap();
        assert_eq!(peek(&mapping, 0), b'x');
        drop(mapping);
        assert_eq!(traces(ino), (0, 0));
    }

    #[test]
    fn a_mapping_is_of_a_part_that_begins_with_a_page() {
        let extent = Extent::create(4, 2 * page()).unwrap();
        let (p, size) = (page() as u64, 2 * page());
        for (offset, len) in [
            (0, 0),
            (0, size + 1),
            (p, page() + 1),
            (2 * p, 1),
            (p, usize::MAX),
            (u64::MAX, 1),
            (u64::MAX - p + 1, page()),
        ] {
            let error = extent.map(offset, len, Mode::Shared).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert_eq!(
                error.to_string(),
                format!(
                    "extent 4 has {size} bytes, not {len} from {offset} on (and a mapping has at least 1)"
                )
            );
        }
        for offset in [1, p - 1, p + 8] {
            let error = extent.map(offset, 1, Mode::Private).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains("begins with a page"), "{error}");
        }
        assert_eq!(traces(inode(extent.file())).1, 1, "none was mapped");
    }

    #[test]
    fn a_punched_extent_has_no_memory_whoever_has_it_mapped() {
        let ours = Extent::create(0, SIZE).unwrap();
        let theirs = opened(&ours);
        let private = theirs.map(0, page(), Mode::Private).unwrap();
        write(&ours, 0, b"full");
        poke(&private, 3, b'L');
        assert!(taken(ours.file()) >= SIZE);
        ours.punch();
        assert_eq!(taken(ours.file()), 0);
        assert_eq!(stat(ours.file()).unwrap().st_size, SIZE as libc::off_t);
        assert_eq!(read(&theirs, 0), [0; 4]);
        assert_eq!(
            (peek(&private, 0), peek(&private, 3)),
            (b'f', b'L'),
            "a private copy stays"
        );
    }

    #[test]
    fn an_extent_leaves_nothing_behind() {
        let extent = Extent::create(0, SIZE).unwrap();
        let ino = inode(extent.file());
        assert_eq!(traces(ino), (1, 1));
        let theirs = opened(&extent);
        assert_eq!(traces(ino), (2, 2));
        drop((extent, theirs));
        assert_eq!(traces(ino), (0, 0));
    }

    #[test]
    fn news_arrives_in_order_and_an_extent_with_its_memory() {
        let (a, b) = sockets();
        assert!(receive(b.as_fd()).unwrap().is_none(), "none yet");
        let ours = Extent::create(u32::MAX, SIZE).unwrap();
        send_extent(a.as_fd(), &ours).unwrap();
        send_gone(a.as_fd(), 9).unwrap();
        let ino = inode(ours.file());
        let Some(News::Extent { number, size, file }) = receive(b.as_fd()).unwrap() else {
            panic!("an extent was sent");
        };
        assert_eq!((number, size), (u32::MAX, SIZE as u64));
        // SAFETY: no memory is involved.
        let flags = done(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) }).unwrap();
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        let theirs = Extent::open(number, SIZE, file).unwrap();
        write(&ours, 0, b"hello");
        assert_eq!(&read(&theirs, 0), b"hello");
        assert_eq!(traces(ino), (2, 2));
        assert!(matches!(
            receive(b.as_fd()).unwrap(),
            Some(News::Gone { number: 9 })
        ));
        assert!(receive(b.as_fd()).unwrap().is_none(), "none any more");
        drop((ours, theirs));
        assert_eq!(traces(ino), (0, 0));
    }

    #[test]
    fn news_that_was_sent_before_the_end_arrives() {
        let _alone = FORK.lock();
        let (a, b) = sockets();
        send_gone(a.as_fd(), 1).unwrap();
        send_gone(b.as_fd(), 1).unwrap();
        drop(a);
        // It has not read ours, and the kernel tells that before all else: who looks once finds the news all the same.
        let seen: Vec<_> = (0..4).map(|_| receive(b.as_fd()).unwrap()).collect();
        assert!(seen[0].is_some());
        let count = seen.iter().flatten().count();
        assert_eq!(count, 1, "{seen:?}");
        let error = send_gone(b.as_fd(), 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_full_socket_is_told_and_nothing_waits() {
        let (a, b) = sockets();
        let extent = Extent::create(0, SIZE).unwrap();
        let mut sent = 0;
        let error = loop {
            match send_extent(a.as_fd(), &extent) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let seen = std::iter::from_fn(|| receive(b.as_fd()).unwrap()).count();
        assert!(seen == sent && sent > 0, "{seen} of {sent}");
        assert_eq!(traces(inode(extent.file())), (1, 1));
        send_extent(a.as_fd(), &extent).unwrap();
    }

    #[test]
    fn a_malformed_packet_is_refused_and_none_of_its_descriptors_stays_open() {
        let file = memfd(SIZE, libc::F_SEAL_SHRINK);
        let ino = inode(file.as_fd());
        let extent = packet(EXTENT, 3, SIZE as u64);
        let gone = packet(GONE, 3, 0);
        let cases: [(&[u8], usize, &str); 14] = [
            (&extent, 0, "of kind 1, has 0 descriptors instead of 1"),
            (&extent, 2, "of kind 1, has 2 descriptors instead of 1"),
            (&gone, 1, "of kind 2, has 1 descriptors instead of 0"),
            (&gone, 2, "of kind 2, has 2 descriptors instead of 0"),
            (&packet(EXTENT, 3, 0), 1, "of kind 1, tells of 0 bytes"),
            (&packet(GONE, 3, 9), 0, "of kind 2, tells of 9 bytes"),
            (&packet(0, 3, 0), 0, "extent 3 is of the unknown kind 0"),
            (&packet(3, 3, 9), 1, "extent 3 is of the unknown kind 3"),
            (&packet(u32::MAX, 3, 9), 2, "the unknown kind 4294967295"),
            (&extent[..15], 1, "has 15 bytes instead of 16"),
            (&extent[..1], 2, "has 1 bytes instead of 16"),
            (&[], 1, "has 0 bytes instead of 16"),
            (&[], 0, "has 0 bytes instead of 16"),
            (&[1; 17], 1, "has more than 16 bytes instead of 16"),
        ];
        let (a, b) = sockets();
        for (bytes, count, expected) in cases {
            send(a.as_fd(), bytes, &vec![file.as_fd(); count]).unwrap();
            send_gone(a.as_fd(), 8).unwrap();
            let error = receive(b.as_fd()).unwrap_err();
            assert!(matches!(error, ExtentError::Protocol(_)));
            assert!(error.to_string().contains(expected), "{error}");
            assert_eq!(traces(ino), (1, 0), "{expected}");
            let next = receive(b.as_fd()).unwrap();
            assert!(matches!(next, Some(News::Gone { number: 8 })));
        }
        // The same file, as it should come.
        send(a.as_fd(), &extent, &[file.as_fd()]).unwrap();
        let news = receive(b.as_fd()).unwrap();
        assert!(matches!(news, Some(News::Extent { number: 3, .. })));
        assert_eq!(traces(ino), (2, 0));
        drop(news);
        assert_eq!(traces(ino), (1, 0));
    }

    #[test]
    fn more_descriptors_than_there_is_room_for_are_refused_and_closed() {
        let file = memfd(SIZE, libc::F_SEAL_SHRINK);
        let ino = inode(file.as_fd());
        let (a, b) = sockets();
        // `send` has no room for so many either, so by hand: a header and 20 descriptors.
        let mut bytes = packet(EXTENT, 3, SIZE as u64);
        let mut control = [0u64; 12];
        let mut part = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: a valid `msghdr` of zeros; the header and 80 bytes after it fit into 96, and
        // all of it lives until the call returns.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(80) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(80) as usize;
            let data: *mut RawFd = libc::CMSG_DATA(header).cast();
            (0..20).for_each(|index| data.add(index).write(file.as_raw_fd()));
            assert_eq!(libc::sendmsg(a.as_raw_fd(), &raw const message, 0), 16);
        }
        let error = receive(b.as_fd()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "news of extent 3, of kind 1, has more than 12 descriptors instead of 1"
        );
        assert_eq!(traces(ino), (1, 0));
    }

    #[test]
    fn a_process_without_room_for_a_descriptor_blames_itself_and_not_the_peer() {
        // Its limit is the whole process's, so this test runs itself again, alone in another.
        const ALONE: &str = "SHMRPC_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let name = "memory::extent::tests::a_process_without_room_for_a_descriptor_blames_itself_and_not_the_peer";
            let _alone = FORK.lock();
            let out = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name])
                .env(ALONE, "1")
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&out.stdout);
            assert!(out.status.success() && text.contains("1 passed"), "{text}");
            return;
        }
        let (a, b) = sockets();
        let extent = Extent::create(3, SIZE).unwrap();
        let ino = inode(extent.file());
        let next = extent.file().try_clone_to_owned().unwrap().as_raw_fd() as libc::rlim_t;
        let receive_below = |bound: libc::rlim_t| {
            let mut before = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            // SAFETY: one writable `rlimit`, and then readable ones.
            unsafe {
                done(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before)).unwrap();
                let low = libc::rlimit {
                    rlim_cur: bound,
                    ..before
                };
                done(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const low)).unwrap();
                let news = receive(b.as_fd());
                done(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const before)).unwrap();
                news.unwrap_err()
            }
        };
        send_extent(a.as_fd(), &extent).unwrap();
        let error = receive_below(next);
        assert!(
            matches!(&error, ExtentError::Os(e) if e.raw_os_error() == Some(libc::EMFILE)),
            "{error}"
        );
        // Once there is room, it is there still.
        let Some(News::Extent { number, size, .. }) = receive(b.as_fd()).unwrap() else {
            panic!("the news is gone");
        };
        assert_eq!((number, size), (3, SIZE as u64));
        assert!(receive(b.as_fd()).unwrap().is_none());
        // One of two has room, and is not taken for the one that there should be.
        let packet = packet(EXTENT, 3, SIZE as u64);
        send(a.as_fd(), &packet, &[extent.file(); 2]).unwrap();
        let error = receive_below(next + 1).to_string();
        assert!(
            error.contains("has more than 1 descriptors instead of 1"),
            "{error}"
        );
        assert_eq!(traces(ino), (1, 1));
    }
}
