use super::*;
use crate::FORK;
use crate::memory::extent::tests::*;
use crate::os::check_syscall;
use std::os::fd::AsFd;

fn sockets() -> (OwnedFd, OwnedFd) {
    packet::pair().unwrap().into()
}

#[test]
fn updates_arrive_in_order_and_an_extent_with_its_memory() {
    let (a, b) = sockets();
    assert!(receive(b.as_fd()).unwrap().is_none(), "none yet");
    let ours = Extent::create(u32::MAX, SIZE).unwrap();
    send_added(a.as_fd(), &ours).unwrap();
    send_removed(a.as_fd(), 9).unwrap();
    let ino = inode(ours.file());
    let Some(ExtentUpdate::Added { number, size, file }) = receive(b.as_fd()).unwrap() else {
        panic!("an extent was sent");
    };
    assert_eq!((number, size), (u32::MAX, SIZE as u64));
    // SAFETY: no memory is involved.
    let flags = check_syscall(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) }).unwrap();
    assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    let theirs = Extent::open(number, SIZE, file).unwrap();
    write(&ours, 0, b"hello");
    assert_eq!(&read(&theirs, 0), b"hello");
    assert_eq!(traces(ino), (2, 2));
    assert!(matches!(
        receive(b.as_fd()).unwrap(),
        Some(ExtentUpdate::Removed { number: 9 })
    ));
    assert!(receive(b.as_fd()).unwrap().is_none(), "no update is left");
    drop((ours, theirs));
    assert_eq!(traces(ino), (0, 0));
}

#[test]
fn updates_that_were_sent_before_the_end_arrive() {
    let _alone = FORK.lock();
    let (a, b) = sockets();
    send_removed(a.as_fd(), 1).unwrap();
    send_removed(b.as_fd(), 1).unwrap();
    drop(a);
    // The peer has not read everything, which the kernel reports first: the first call finds the update nevertheless.
    let seen: Vec<_> = (0..4).map(|_| receive(b.as_fd()).unwrap()).collect();
    assert!(seen[0].is_some());
    let count = seen.iter().flatten().count();
    assert_eq!(count, 1, "{seen:?}");
    let error = send_removed(b.as_fd(), 1).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn a_full_socket_is_an_error_and_does_not_block() {
    let (a, b) = sockets();
    let extent = Extent::create(0, SIZE).unwrap();
    let mut sent = 0;
    let error = loop {
        match send_added(a.as_fd(), &extent) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    let seen = std::iter::from_fn(|| receive(b.as_fd()).unwrap()).count();
    assert!(seen == sent && sent > 0, "{seen} of {sent}");
    assert_eq!(traces(inode(extent.file())), (1, 1));
    send_added(a.as_fd(), &extent).unwrap();
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
        (&packet(EXTENT, 3, 0), 1, "of kind 1, has the size 0"),
        (&packet(GONE, 3, 9), 0, "of kind 2, has the size 9"),
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
        packet::send(a.as_fd(), bytes, &vec![file.as_fd(); count]).unwrap();
        send_removed(a.as_fd(), 8).unwrap();
        let error = receive(b.as_fd()).unwrap_err();
        assert!(matches!(error, UpdateError::Malformed(_)));
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(traces(ino), (1, 0), "{expected}");
        let next = receive(b.as_fd()).unwrap();
        assert!(matches!(next, Some(ExtentUpdate::Removed { number: 8 })));
    }
    // The same file in a valid packet.
    packet::send(a.as_fd(), &extent, &[file.as_fd()]).unwrap();
    let news = receive(b.as_fd()).unwrap();
    assert!(matches!(news, Some(ExtentUpdate::Added { number: 3, .. })));
    assert_eq!(traces(ino), (2, 0));
    drop(news);
    assert_eq!(traces(ino), (1, 0));
}

#[test]
fn more_descriptors_than_there_is_room_for_are_refused_and_closed() {
    let file = memfd(SIZE, libc::F_SEAL_SHRINK);
    let ino = inode(file.as_fd());
    let (a, b) = sockets();
    let bytes = packet(EXTENT, 3, SIZE as u64);
    packet::send(a.as_fd(), &bytes, &[file.as_fd(); 20]).unwrap();
    let error = receive(b.as_fd()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the update of extent 3, of kind 1, has more than 12 descriptors instead of 1"
    );
    assert_eq!(traces(ino), (1, 0));
}

#[test]
fn a_process_without_free_descriptors_reports_its_own_limit() {
    // The limit applies to the whole process, so this test runs itself again, alone in another process.
    const ALONE: &str = "SHMRPC_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = "memory::extent_update::tests::a_process_without_free_descriptors_reports_its_own_limit";
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
            check_syscall(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before)).unwrap();
            let low = libc::rlimit {
                rlim_cur: bound,
                ..before
            };
            check_syscall(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const low)).unwrap();
            let news = receive(b.as_fd());
            check_syscall(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const before)).unwrap();
            news.unwrap_err()
        }
    };
    send_added(a.as_fd(), &extent).unwrap();
    let error = receive_below(next);
    assert!(
        matches!(&error, UpdateError::Os(e) if e.raw_os_error() == Some(libc::EMFILE)),
        "{error}"
    );
    // Once there is room, the update is still there.
    let Some(ExtentUpdate::Added { number, size, .. }) = receive(b.as_fd()).unwrap() else {
        panic!("the news is gone");
    };
    assert_eq!((number, size), (3, SIZE as u64));
    assert!(receive(b.as_fd()).unwrap().is_none());
    // One of two descriptors has room, and does not count as the single expected one.
    let packet = packet(EXTENT, 3, SIZE as u64);
    packet::send(a.as_fd(), &packet, &[extent.file(); 2]).unwrap();
    let error = receive_below(next + 1).to_string();
    assert!(
        error.contains("has more than 1 descriptors instead of 1"),
        "{error}"
    );
    assert_eq!(traces(ino), (1, 1));
}
