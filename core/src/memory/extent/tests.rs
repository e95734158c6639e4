use super::*;
use crate::os::{fstat, retry_interrupted};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

pub(crate) const SIZE: usize = 1 << 16;

pub(crate) fn page() -> usize {
    // SAFETY: no memory is involved.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

pub(crate) fn memfd(size: usize, seals: libc::c_int) -> OwnedFd {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a valid C string; the descriptor that comes back is ours alone.
    let file = unsafe { File::from_raw_fd(libc::memfd_create(c"test".as_ptr(), flags)) };
    file.set_len(size as u64).unwrap();
    // SAFETY: no memory is involved, twice.
    unsafe {
        libc::posix_fallocate(file.as_raw_fd(), 0, size as libc::off_t);
        check_syscall(libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals)).unwrap();
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

/// Open an extent as the peer does.
pub(crate) fn opened(extent: &Extent) -> Extent {
    let file = extent.file().try_clone_to_owned().unwrap();
    Extent::open(extent.number(), extent.size(), file).unwrap()
}

pub(crate) fn write(extent: &Extent, offset: u64, bytes: &[u8]) {
    // SAFETY: `bytes` are readable, and on the heap or the stack.
    unsafe { extent.write(offset, bytes.as_ptr(), bytes.len(), &Copier::default()) };
}

pub(crate) fn read<const N: usize>(extent: &Extent, offset: u64) -> [u8; N] {
    let mut bytes = [0xaa; N];
    // SAFETY: `bytes` are writable and ours.
    unsafe { extent.read(offset, bytes.as_mut_ptr(), N) };
    bytes
}

pub(crate) fn peek(mapping: &View, at: usize) -> u8 {
    assert!(at < mapping.len());
    // SAFETY: within the mapping.
    unsafe { mapping.base().add(at).read_volatile() }
}

pub(crate) fn poke(mapping: &View, at: usize, value: u8) {
    assert!(at < mapping.len());
    // SAFETY: within the mapping, which is writable.
    unsafe { mapping.base().add(at).write_volatile(value) };
}

/// Return the number of descriptors and of mappings that this process has of a file, by its inode, because other tests
/// open and close files meanwhile.
pub(crate) fn traces(inode: u64) -> (usize, usize) {
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

pub(crate) fn inode(file: BorrowedFd<'_>) -> u64 {
    fstat(file).unwrap().st_ino
}

/// Return the bytes of memory of a file.
pub(crate) fn taken(file: BorrowedFd<'_>) -> usize {
    fstat(file).unwrap().st_blocks as usize * 512
}

#[test]
fn the_peer_reads_what_the_owner_writes() {
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
fn the_mapping_of_the_peer_is_read_only() {
    let ours = Extent::create(0, SIZE).unwrap();
    let theirs = opened(&ours);
    // The kernel writes there on our behalf, and returns an error instead of a SIGSEGV.
    let read_into = |base: *mut u8| {
        let mut zero = File::open("/dev/zero").unwrap();
        assert_eq!(zero.read(&mut [0]).unwrap(), 1);
        // SAFETY: `base` is a mapping of at least one byte, to which nothing refers.
        retry_interrupted(|| unsafe { libc::read(zero.as_raw_fd(), base.cast(), 1) })
    };
    assert_eq!(read_into(ours.base()).unwrap(), 1);
    let error = read_into(theirs.base()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
}

#[test]
fn all_memory_of_an_extent_is_allocated_at_once() {
    // More than one stride, and not a whole number of strides.
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
fn an_extent_cannot_be_truncated_or_extended() {
    let extent = Extent::create(0, SIZE).unwrap();
    let file = File::from(extent.file().try_clone_to_owned().unwrap());
    for size in [0, SIZE - 1, SIZE + 1] {
        let error = file.set_len(size as u64).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM), "to {size}");
    }
    // SAFETY: no memory is involved.
    let more = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) };
    let error = check_syscall(more).unwrap_err();
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
fn a_file_without_seals_is_refused() {
    let device = File::open("/dev/zero").unwrap();
    let [socket, _other] = crate::packet::pair().unwrap();
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
fn a_seal_against_shrinking_suffices() {
    let file = memfd(SIZE, libc::F_SEAL_SHRINK);
    let mut writer = File::from(file.try_clone().unwrap());
    let extent = Extent::open(0, SIZE, file).unwrap();
    writer.write_all(b"written").unwrap();
    assert_eq!(&read(&extent, 0), b"written");
}

#[test]
fn offset_of_finds_only_addresses_within_the_extent() {
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
        bounds(&mut |at| unsafe { extent.write(offset, at, len, &Copier::default()) });
        // SAFETY: as above.
        bounds(&mut |at| unsafe { theirs.read(offset, at, len) });
    }
    assert_eq!(read(&extent, SIZE as u64 - 1), [0]);
    assert_eq!(bytes, [1; 2]);
}

#[test]
#[should_panic(expected = "extent 3 is the peer's to write")]
fn an_extent_of_the_peer_cannot_be_written() {
    let theirs = opened(&Extent::create(3, SIZE).unwrap());
    write(&theirs, 0, b"?");
}

#[test]
fn writes_to_a_private_mapping_are_invisible_to_others() {
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
fn writes_to_a_shared_mapping_are_visible_until_it_is_detached() {
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
fn a_punched_extent_has_no_memory_in_any_mapping() {
    let ours = Extent::create(0, SIZE).unwrap();
    let theirs = opened(&ours);
    let private = theirs.map(0, page(), Mode::Private).unwrap();
    write(&ours, 0, b"full");
    poke(&private, 3, b'L');
    assert!(taken(ours.file()) >= SIZE);
    ours.punch();
    assert_eq!(taken(ours.file()), 0);
    assert_eq!(fstat(ours.file()).unwrap().st_size, SIZE as libc::off_t);
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
