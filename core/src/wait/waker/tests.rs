use super::semaphore::WAITER;
use super::*;
use crate::sync::{AtomicU64, Ordering};
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::FromRawFd;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicBool;
use std::thread;

const LONG: Duration = Duration::from_secs(3600);

/// A semaphore of glibc's, as a peer in C has it; and its name.
struct Theirs {
    name: CString,
    semaphore: *mut libc::sem_t,
}

// SAFETY: glibc's functions may be called from any thread.
unsafe impl Sync for Theirs {}

impl Theirs {
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: each gets another number.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("/shmrpc-core-loop_waker-{}-{number}", std::process::id());
        let name = CString::new(name).unwrap();
        // SAFETY: a valid C string; with O_CREAT a mode and a value follow.
        let semaphore = unsafe { libc::sem_open(name.as_ptr(), libc::O_CREAT, 0o600, 0) };
        assert_ne!(semaphore, libc::SEM_FAILED);
        Theirs { name, semaphore }
    }

    fn path(&self) -> String {
        let name = self.name.to_str().unwrap();
        format!("/dev/shm/sem.{}", &name[1..])
    }

    /// Another mapping of it, as this side has it.
    fn ours(&self) -> Semaphore {
        Semaphore::open(&self.name, us()).unwrap()
    }

    fn post(&self) {
        // SAFETY: it is open.
        assert_eq!(unsafe { libc::sem_post(self.semaphore) }, 0);
    }

    fn wait(&self) {
        // SAFETY: it is open.
        assert_eq!(unsafe { libc::sem_wait(self.semaphore) }, 0);
    }

    /// Return true if a wait would end at once; that consumes one wake-up.
    fn try_wait(&self) -> bool {
        // SAFETY: it is open.
        unsafe { libc::sem_trywait(self.semaphore) == 0 }
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        // SAFETY: it is open, and not used again; a valid C string.
        unsafe {
            libc::sem_close(self.semaphore);
            libc::sem_unlink(self.name.as_ptr());
        }
    }
}

fn us() -> u32 {
    // SAFETY: no memory is involved.
    unsafe { libc::geteuid() }
}

/// Return when a thread sleeps on it, or is about to.
fn until_waited_for(semaphore: &Semaphore) {
    while semaphore.word().load(Ordering::Relaxed) < WAITER {
        thread::yield_now();
    }
}

#[test]
fn a_new_semaphore_file_equals_that_of_glibc() {
    let theirs = Theirs::new();
    let name = format!("/shmrpc-core-made-{}", std::process::id());
    let ours = CString::new(name.clone()).unwrap();
    create_semaphore(&ours).unwrap();
    let file = format!("/dev/shm/sem.{}", &name[1..]);
    let again = create_semaphore(&ours).unwrap_err();
    let (made, mode) = (fs::read(&file), fs::metadata(&file).unwrap().mode());
    let opened = Semaphore::open(&ours, us());
    fs::remove_file(&file).unwrap();
    assert_eq!(made.unwrap(), fs::read(theirs.path()).unwrap());
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
    opened.unwrap().wake();
}

#[test]
fn a_wake_up_wakes_the_sleeper() {
    let theirs = Theirs::new();
    let (ours, other) = (theirs.ours(), theirs.ours());
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| ours.wait(LONG));
        until_waited_for(&other);
        other.wake();
        sleeper.join().unwrap();
    });
    assert_eq!(ours.word().load(Ordering::Relaxed), 0);
}

#[test]
fn pending_wake_ups_end_one_sleep_at_once() {
    let theirs = Theirs::new();
    let ours = theirs.ours();
    for _ in 0..5 {
        ours.wake();
    }
    ours.wait(LONG);
    assert!(!theirs.try_wait(), "all are taken at once");
    ours.wait(Duration::from_millis(1));
}

#[test]
fn a_peer_that_posts_by_glibc_wakes_us() {
    let theirs = Theirs::new();
    let ours = theirs.ours();
    theirs.post();
    ours.wait(LONG);
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| ours.wait(LONG));
        until_waited_for(&ours);
        theirs.post();
        sleeper.join().unwrap();
    });
}

#[test]
fn a_peer_that_waits_by_glibc_is_woken_and_counts_each_wake_up() {
    let theirs = Theirs::new();
    let ours = theirs.ours();
    ours.wake();
    ours.wake();
    assert!(theirs.try_wait() && theirs.try_wait() && !theirs.try_wait());
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| theirs.wait());
        until_waited_for(&ours);
        ours.wake();
        sleeper.join().unwrap();
    });
}

#[test]
fn the_count_of_waiters_that_a_death_leaves_is_harmless() {
    let theirs = Theirs::new();
    let ours = theirs.ours();
    ours.word().fetch_add(3 * WAITER, Ordering::Relaxed);
    theirs.post();
    ours.wait(LONG);
    ours.wake();
    theirs.wait();
    assert_eq!(ours.word().load(Ordering::Relaxed), 3 * WAITER);
}

/// Words of a hostile process: extreme values of each half, and others that glibc would accept.
const CORRUPT_WORDS: [u64; 9] = [
    1,
    i32::MAX as u64,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 63,
    i32::MAX as u64 | 1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

#[test]
fn a_corrupt_semaphore_still_wakes_and_every_wait_ends() {
    let theirs = Theirs::new();
    let ours = theirs.ours();
    for (word, private) in CORRUPT_WORDS
        .into_iter()
        .flat_map(|word| CORRUPT_WORDS.map(|other| (word, other)))
    {
        let after = ours.0.u64_at(8);
        after.store(private, Ordering::Relaxed);
        ours.word().store(word, Ordering::Relaxed);
        ours.wake();
        ours.wait(LONG); // A ring is there, or what passes for one.
        assert_eq!(ours.word().load(Ordering::Relaxed) as u32, 0, "{word:#x}");
        ours.wait(Duration::from_micros(1));
        assert_eq!(after.load(Ordering::Relaxed), private, "not ours to write");
    }
}

#[test]
fn a_peer_that_overwrites_the_word_in_a_loop_blocks_no_thread() {
    let theirs = Theirs::new();
    let (ours, other) = (theirs.ours(), theirs.ours());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for word in CORRUPT_WORDS {
                    other.word().store(word, Ordering::Relaxed);
                }
            }
        });
        for _ in 0..20_000 {
            ours.wake();
            ours.wait(Duration::from_micros(10));
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_truncated_semaphore_is_detected_by_waker_and_sleeper() {
    for waits in [false, true] {
        let theirs = Theirs::new();
        let ours = theirs.ours();
        File::options()
            .write(true)
            .open(theirs.path())
            .unwrap()
            .set_len(0)
            .unwrap();
        assert!(!ours.is_truncated());
        if waits {
            ours.wait(Duration::ZERO);
        } else {
            ours.wake();
        }
        assert!(ours.is_truncated());
    }
}

#[test]
fn a_semaphore_truncated_during_a_sleep_is_detected_afterwards() {
    let theirs = Theirs::new();
    let ours = theirs.ours();
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| ours.wait(Duration::from_millis(50)));
        until_waited_for(&ours);
        let file = File::options().write(true).open(theirs.path()).unwrap();
        file.set_len(0).unwrap();
        sleeper.join().unwrap();
    });
    assert!(ours.is_truncated());
}

#[test]
fn other_files_are_not_opened_as_semaphores() {
    let open = |name: &str, owner| Semaphore::open(&CString::new(name).unwrap(), owner).err();
    let theirs = Theirs::new();
    let (name, path) = (theirs.name.to_str().unwrap(), theirs.path());
    let foreign = open(name, us() + 1);
    assert!(matches!(foreign, Some(SemaphoreError::Owner { found, .. }) if found == us()));
    for name in [
        "",
        "/",
        "shmrpc",
        "/../x",
        "/a/b",
        "/shmrpc-core-loop_waker-none",
    ] {
        assert!(
            matches!(open(name, us()), Some(SemaphoreError::Os(_))),
            "{name}"
        );
    }
    File::create(&path).unwrap().set_len(31).unwrap();
    assert!(matches!(
        open(name, us()),
        Some(SemaphoreError::Size { found: 31 })
    ));
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    assert!(matches!(open(name, us()), Some(SemaphoreError::Os(_))));
    fs::remove_file(&path).unwrap();
    let fifo = CString::new(path.clone()).unwrap();
    // SAFETY: a valid C string.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    assert!(matches!(open(name, us()), Some(SemaphoreError::Kind)));
}

fn pair() -> [LoopWaker; 2] {
    let mut fds = [0; 2];
    // SAFETY: room for two descriptors, which are ours alone. They block: the calls have to say that they do not.
    unsafe {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        let made = libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr());
        assert_eq!(made, 0);
        fds.map(|fd| LoopWaker::new(OwnedFd::from_raw_fd(fd)))
    }
}

fn is_readable(loop_waker: &LoopWaker) -> bool {
    let (fd, events, revents) = (loop_waker.0.as_raw_fd(), libc::POLLIN, 0);
    let mut asked = libc::pollfd {
        fd,
        events,
        revents,
    };
    // SAFETY: one entry.
    unsafe { libc::poll(&mut asked, 1, 0) == 1 }
}

#[test]
fn neither_a_full_socket_nor_an_empty_one_blocks() {
    let [ours, theirs] = pair();
    assert!(ours.drain());
    for _ in 0..10_000 {
        theirs.wake();
    }
    assert!(!is_readable(&theirs), "each hears the other alone");
    while is_readable(&ours) {
        assert!(ours.drain());
    }
    theirs.wake();
    assert!(is_readable(&ours));
}

#[test]
fn a_drain_takes_a_bounded_number_of_wake_ups() {
    let [ours, theirs] = pair();
    for _ in 0..=MAX_DRAINED {
        theirs.wake();
    }
    assert!(ours.drain());
    assert!(is_readable(&ours));
    assert!(ours.drain());
    assert!(!is_readable(&ours));
}

#[test]
fn a_closed_peer_closes_the_loop_waker() {
    let _alone = crate::FORK.lock();
    let [ours, theirs] = pair();
    theirs.wake();
    assert!(!ours.is_closed());
    drop(theirs);
    assert!(ours.is_closed());
    // Earlier wake-ups may be drained or not; the end is reported.
    assert!(!ours.drain());
    ours.wake();

    let [ours, theirs] = pair();
    ours.wake();
    drop(theirs); // With a ring unheard: an error first.
    assert!(!ours.drain());
    assert!(!ours.drain());

    let [ours, theirs] = pair();
    // SAFETY: it is open.
    unsafe { libc::shutdown(theirs.0.as_raw_fd(), libc::SHUT_RDWR) };
    assert!(!ours.drain());
    ours.wake();
}
