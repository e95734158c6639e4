//! Packets of a hostile peer for the socket of extent updates, and descriptors of all kinds.

use super::Script;
use _core::packet;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Size of each announced file, except for those that are too small.
pub const SIZE: u64 = 8192;

/// Return both ends of a socket for extent updates.
pub fn sockets() -> (OwnedFd, OwnedFd) {
    packet::pair().expect("two descriptors").into()
}

/// Create a memfd of this size with these seals; with `whole`, all of its memory is allocated.
pub fn memfd(size: u64, seals: libc::c_int, whole: bool) -> OwnedFd {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a valid C string; the descriptor that comes back is ours alone.
    let file = unsafe { File::from_raw_fd(libc::memfd_create(c"hostile".as_ptr(), flags)) };
    file.set_len(size).expect("a small file");
    // SAFETY: no memory is involved, twice.
    unsafe {
        if whole && size > 0 {
            libc::posix_fallocate(file.as_raw_fd(), 0, size as libc::off_t);
        }
        assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals), 0);
    }
    file.into()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Good,
    Unsealed,
    TooSmall,
    TooLarge,
    Sparse,
    Empty,
    Socket,
    Pipe,
    Device,
    Directory,
    WriteOnly,
    Event,
}

const KINDS: [Kind; 12] = [
    Kind::Good,
    Kind::Unsealed,
    Kind::TooSmall,
    Kind::TooLarge,
    Kind::Sparse,
    Kind::Empty,
    Kind::Socket,
    Kind::Pipe,
    Kind::Device,
    Kind::Directory,
    Kind::WriteOnly,
    Kind::Event,
];

impl Kind {
    fn make(self) -> OwnedFd {
        let seal = libc::F_SEAL_SHRINK;
        match self {
            Kind::Good => memfd(SIZE, seal, true),
            Kind::Unsealed => memfd(SIZE, libc::F_SEAL_GROW, true),
            Kind::TooSmall => memfd(SIZE - 4096, seal, true),
            Kind::TooLarge => memfd(SIZE + 4096, seal, true),
            Kind::Sparse => memfd(SIZE, seal, false),
            Kind::Empty => memfd(0, seal, true),
            Kind::Socket => sockets().0,
            Kind::Pipe => pipe(),
            Kind::Device => File::open("/dev/zero").expect("a device").into(),
            Kind::Directory => File::open("/").expect("a directory").into(),
            Kind::WriteOnly => {
                let good = memfd(SIZE, seal, true);
                let path = format!("/proc/self/fd/{}", good.as_raw_fd());
                let opened = File::options().write(true).open(path);
                opened.expect("a file of ours").into()
            }
            // SAFETY: the descriptor that comes back is ours alone.
            Kind::Event => unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) },
        }
    }
}

fn pipe() -> OwnedFd {
    let mut pair = [0; 2];
    // SAFETY: two descriptors are writable; what comes back is ours alone.
    unsafe {
        assert_eq!(libc::pipe2(pair.as_mut_ptr(), libc::O_CLOEXEC), 0);
        drop(OwnedFd::from_raw_fd(pair[1]));
        OwnedFd::from_raw_fd(pair[0])
    }
}

/// An extent update of a script: a packet, and its descriptors.
#[derive(Debug)]
pub struct ScriptedUpdate {
    packet: Vec<u8>,
    files: Vec<Kind>,
}

impl ScriptedUpdate {
    /// Return the next packet of a script.
    pub fn read(script: &mut Script) -> ScriptedUpdate {
        // Most packets have the right length, because otherwise no other rule would be checked.
        let len = match script.byte() {
            len @ 0..32 => usize::from(len),
            _ => 16,
        };
        let kind = match script.byte() {
            kind @ 0..8 => u32::from(kind),
            255 => script.u32(),
            even if even % 2 == 0 => 2,
            _ => 1,
        };
        let number = match script.byte() {
            255 => script.u32(),
            number => u32::from(number % 4),
        };
        let size = match script.byte() {
            0..16 => 0,
            16..32 => script.u64(),
            32..48 => SIZE - 1,
            48..56 => 1 << 44,
            _ if kind == 2 => 0,
            _ => SIZE,
        };
        let mut packet = Vec::with_capacity(32);
        packet.extend_from_slice(&kind.to_ne_bytes());
        packet.extend_from_slice(&number.to_ne_bytes());
        packet.extend_from_slice(&size.to_ne_bytes());
        packet.resize(len, 0);
        let files = match script.byte() {
            count @ 0..16 => usize::from(count),
            _ if kind == 2 => 0,
            _ => 1,
        };
        let files = (0..files)
            .map(|_| match script.byte() {
                kind @ 0..24 => KINDS[usize::from(kind) % KINDS.len()],
                _ => Kind::Good,
            })
            .collect();
        ScriptedUpdate { packet, files }
    }

    /// Send the packet. A full socket takes no more, which is no error.
    pub fn send(&self, socket: BorrowedFd<'_>) {
        let files: Vec<OwnedFd> = self.files.iter().map(|kind| kind.make()).collect();
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let _ = packet::send(socket, &self.packet, &files);
    }

    fn number(&self, at: usize) -> Option<u32> {
        let bytes = self.packet.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    }

    fn size(&self) -> Option<u64> {
        let bytes = self.packet.get(8..16)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    }

    /// Return true if the packet is valid, whatever file comes with it.
    pub fn is_well_formed(&self) -> bool {
        let (kind, size, files) = (self.number(0), self.size(), self.files.len());
        let new = kind == Some(1) && size != Some(0) && files == 1;
        let gone = kind == Some(2) && size == Some(0) && files == 0;
        self.packet.len() == 16 && (new || gone)
    }

    /// Return true if it announces this extent.
    pub fn is_one_extent(&self, number: u32, size: u64) -> bool {
        self.is_well_formed() && self.number(4) == Some(number) && self.size() == Some(size)
    }

    /// Return true if it announces the removal of this extent.
    pub fn is_gone(&self, number: u32) -> bool {
        self.is_well_formed() && self.number(0) == Some(2) && self.number(4) == Some(number)
    }

    /// Return true if its announcement is correct.
    pub fn is_true(&self) -> bool {
        let size = match self.files[..] {
            [Kind::Good] => SIZE,
            [Kind::TooSmall] => SIZE - 4096,
            [Kind::TooLarge] => SIZE + 4096,
            _ => return false,
        };
        self.size() == Some(size)
    }
}
