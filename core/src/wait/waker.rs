//! What wakes a sleeper: a bell, which is a socket, for an event loop; a named semaphore for a blocked thread.
//!
//! Both are wake-ups and never locks. Nothing is lost when a holder dies, because nobody holds one.

use crate::crash;
use crate::memory::mapping::SharedMapping;
use crate::own_fd::OwnFd;
use crate::sync::{AtomicU64, Ordering};
use crate::wait::futex::{self, Reach};
use std::ffi::CStr;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::time::Duration;

/// Rings that are taken at a time: what is left wakes the loop again, so endless ringing does not hold it up.
pub(super) const TAKEN_AT_ONCE: usize = 8;

/// Our end of the pair of sockets that joins the loops of both sides: what one sends, the other hears.
///
/// Each call says itself that it does not wait. The flags of the open socket say so too, but whoever has a copy of
/// the descriptor can change those; that is why it is no eventfd, whose writes know no other way.
pub struct Bell(OwnFd);

impl Bell {
    /// Takes over `fd`, one end of a pair of `SOCK_SEQPACKET` sockets.
    pub fn new(fd: OwnedFd) -> Self {
        Bell(fd.into())
    }

    /// Wakes the loop on the other side.
    pub fn ring(&self) {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: one byte is readable. A full socket (EAGAIN) is a ring that is still unheard, and a peer that has
        // closed its end hears nothing, so the result does not matter.
        unsafe { libc::send(self.0.as_raw_fd(), [1u8].as_ptr().cast(), 1, flags) };
    }

    /// Silences it, so that the loop does not wake for the same ring twice. False if it will never ring again: the
    /// peer has closed or shut down its end. Then it is readable for ever.
    pub fn silence(&self) -> bool {
        let mut ring = 0u8;
        for _ in 0..TAKEN_AT_ONCE {
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
    pub fn has_ended(&self) -> bool {
        let mut asked = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: libc::POLLRDHUP,
            revents: 0,
        };
        // SAFETY: one entry.
        unsafe { libc::poll(&raw mut asked, 1, 0) == 1 }
    }
}

/// Bytes of glibc's `sem_t` on a machine of 64 bits: the word below, whether the semaphore is private, and padding.
const SEMAPHORE_SIZE: u64 = 32;
/// What glibc puts there: a value of 0, nobody who waits, and that its futex is not one of a single process
/// (`FUTEX_SHARED`, which only glibc looks at).
const FRESH: [u8; SEMAPHORE_SIZE as usize] = {
    let mut bytes = [0; SEMAPHORE_SIZE as usize];
    let shared = (libc::FUTEX_PRIVATE_FLAG as u32).to_ne_bytes();
    let mut at = 0;
    while at < shared.len() {
        bytes[8 + at] = shared[at];
        at += 1;
    }
    bytes
};
/// One waiter, in the word: they are counted in its high half.
const WAITER: u64 = 1 << 32;
/// The highest value of a semaphore, glibc's too. What is rung beyond it is not counted.
const MOST: u32 = i32::MAX as u32;
const _: () = assert!(
    size_of::<usize>() == 8,
    "glibc's semaphores have another layout on a machine of 32 bits"
);

/// Why a semaphore cannot be used.
#[derive(Debug)]
pub enum SemaphoreError {
    /// The operating system refused.
    Os(io::Error),
    /// Its file is no regular file.
    Kind,
    /// Its file belongs to another user.
    Owner {
        /// Whom it belongs to.
        found: u32,
        /// Whom it should belong to.
        expected: u32,
    },
    /// Its file is too short.
    Size {
        /// What it has, in bytes.
        found: u64,
    },
}

impl fmt::Display for SemaphoreError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SemaphoreError::Os(error) => write!(out, "{error}"),
            SemaphoreError::Kind => write!(out, "is no regular file"),
            SemaphoreError::Owner { found, expected } => {
                write!(out, "belongs to uid {found} instead of {expected}")
            }
            SemaphoreError::Size { found } => {
                write!(out, "has {found} bytes instead of {SEMAPHORE_SIZE}")
            }
        }
    }
}

impl std::error::Error for SemaphoreError {}

impl From<io::Error> for SemaphoreError {
    fn from(error: io::Error) -> Self {
        SemaphoreError::Os(error)
    }
}

/// Makes a semaphore that nobody has rung, by a name that begins with a slash: the very file that glibc's `sem_open`
/// makes, which takes several times as long, since it makes it under another name first. Nobody knows the name yet.
pub fn create_semaphore(name: &CStr) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path(name)?)?;
    // All at once, and so with its memory: a lack of it is an error here, and not a SIGBUS later.
    file.write_all(&FRESH)
}

/// Where the file of a semaphore lies.
fn path(name: &CStr) -> io::Result<String> {
    let name = name.to_str().ok().and_then(|name| name.strip_prefix('/'));
    match name.filter(|name| !name.contains('/')) {
        Some(name) => Ok(format!("/dev/shm/sem.{name}")),
        None => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

/// A named POSIX semaphore that somebody else has created.
///
/// The peer can write it. glibc would take from it which system call to make, and would end the process if that
/// fails. So its file is mapped here, and one word of it is used as glibc uses it:
///
/// ```text
///   ring                             wait
///   value += 1        (release)      value = 0         (acquire) what was there? then awake
///   FUTEX_WAKE, one                  waiters += 1
///                                    FUTEX_WAIT while the value is 0, until the limit
///                                    waiters -= 1, value = 0 (acquire), awake
/// ```
///
/// All of the value is taken at once: rings are not counted, and a peer that writes a large one wakes us once. A
/// waiter counts itself for the sake of a peer with glibc's `sem_post`, which wakes nobody where nobody is counted;
/// our ring asks the kernel in any case. Whatever a peer writes, each wait has an end, and each ring is two steps.
pub struct Semaphore(SharedMapping);

impl Semaphore {
    /// Opens an existing semaphore by name, which begins with a slash. Its file must belong to the user `owner`.
    pub fn open(name: &CStr, owner: u32) -> Result<Self, SemaphoreError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path(name)?)?;
        let status = file.metadata()?;
        if !status.is_file() {
            return Err(SemaphoreError::Kind);
        }
        if status.uid() != owner {
            let (found, expected) = (status.uid(), owner);
            return Err(SemaphoreError::Owner { found, expected });
        }
        if status.len() < SEMAPHORE_SIZE {
            let found = status.len();
            return Err(SemaphoreError::Size { found });
        }
        // A semaphore of zeros is one that nobody has rung.
        let mapping = SharedMapping::new(file.as_fd(), SEMAPHORE_SIZE as usize)?;
        Ok(Semaphore(mapping))
    }

    /// The value, in the low half, and how many wait, in the high one.
    fn word(&self) -> &AtomicU64 {
        self.0.u64_at(0)
    }

    /// Wakes a thread on the other side, or the next that goes to sleep.
    pub fn ring(&self) {
        // Relaxed: what a liar writes in between is its own loss.
        let unheard = self.word().load(Ordering::Relaxed) as u32;
        // Release: pairs with the Acquire in `take`, also where nothing is added to what is full: a sleeper that has heard the
        // ring sees what was before it.
        self.word()
            .fetch_add(u64::from(unheard < MOST), Ordering::Release);
        futex::wake(self.value(), Reach::Host);
    }

    /// Whether the peer has cut it off: nobody hears it, and it will not ring.
    pub fn is_cut_off(&self) -> bool {
        self.0.is_cut_off()
    }

    /// Sleeps until it rings, a signal comes, or `limit` has passed. Whatever ended it, the caller looks again.
    pub fn wait(&self, limit: Duration) {
        if self.take() {
            return;
        }
        // Relaxed: all that counts here is the order of changes to this one word. An addition to the value before this
        // makes the kernel refuse to wait; one after it sees that a thread waits.
        self.word().fetch_add(WAITER, Ordering::Relaxed);
        futex::wait(self.value(), 0, limit, Reach::Host);
        // Relaxed: seen late, it costs the peer a look for a waiter in vain. If the file was cut off meanwhile, which
        // is an error for the kernel, this is the access that finds it out.
        self.word().fetch_sub(WAITER, Ordering::Relaxed);
        self.take();
    }

    /// Takes all rings that there are. False if there is none.
    fn take(&self) -> bool {
        // Relaxed: none is an answer of its own.
        self.word().load(Ordering::Relaxed) as u32 != 0
            // Acquire: pairs with the Release in `ring`.
            && self.word().fetch_and(!u64::from(u32::MAX), Ordering::Acquire) as u32 != 0
    }

    /// The half of the word that the kernel looks at.
    fn value(&self) -> *const u32 {
        futex::low_half(self.word().as_ptr())
    }
}

/// The semaphores of a connection of which a side sleeps in threads, as one side has them.
pub struct Semaphores {
    /// Wakes a thread of ours.
    pub ours: Semaphore,
    /// Wakes a thread of theirs.
    pub theirs: Semaphore,
}

/// What wakes either side of a connection, as one side has it.
pub struct Bells {
    /// Wakes an event loop: theirs if we ring it, ours if they do.
    pub bell: Bell,
    /// None if both sides sleep in loops.
    pub semaphores: Option<Semaphores>,
}

impl Bells {
    /// Wakes a thread of ours, or the next that goes to sleep.
    pub fn interrupt(&self) {
        if let Some(semaphores) = &self.semaphores {
            semaphores.ours.ring();
        }
    }

    /// Lets a thread of ours sleep until it is woken, or `limit` has passed; not at all without semaphores.
    pub fn sleep(&self, limit: Duration) {
        if let Some(semaphores) = &self.semaphores {
            semaphores.ours.wait(limit);
        }
    }

    /// Whether the peer has cut off a semaphore: a thread of either side sleeps on.
    pub fn is_cut_off(&self) -> bool {
        let semaphores = self.semaphores.as_ref();
        semaphores.is_some_and(|both| both.ours.is_cut_off() || both.theirs.is_cut_off())
    }

    /// Wakes the peer, in the way that the flag named. A value that no side of ours stores wakes nobody.
    pub fn ring(&self, how: u32) {
        match how {
            crate::wait::flags::ON_BELL => {
                crash::point!(WakeClaimed);
                self.bell.ring();
                crash::point!(BellRung);
            }
            crate::wait::flags::ON_SEMAPHORE => {
                crash::point!(WakeClaimed);
                if let Some(semaphores) = &self.semaphores {
                    semaphores.theirs.ring();
                }
                crash::point!(BellRung);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::fs::{self, File};
    use std::os::fd::FromRawFd;
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
            let name = format!("/shmrpc-core-bell-{}-{number}", std::process::id());
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

        /// Whether a wait would end at once; then it takes one ring.
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

    /// Goes on when somebody sleeps on it, or is about to.
    fn until_waited_for(semaphore: &Semaphore) {
        while semaphore.word().load(Ordering::Relaxed) < WAITER {
            thread::yield_now();
        }
    }

    #[test]
    fn what_we_make_is_byte_for_byte_what_glibc_makes() {
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
        opened.unwrap().ring();
    }

    #[test]
    fn a_ring_wakes_who_sleeps() {
        let theirs = Theirs::new();
        let (ours, other) = (theirs.ours(), theirs.ours());
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| ours.wait(LONG));
            until_waited_for(&other);
            other.ring();
            sleeper.join().unwrap();
        });
        assert_eq!(ours.word().load(Ordering::Relaxed), 0);
    }

    #[test]
    fn rings_that_nobody_heard_keep_one_sleep_from_beginning() {
        let theirs = Theirs::new();
        let ours = theirs.ours();
        for _ in 0..5 {
            ours.ring();
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
    fn a_peer_that_waits_by_glibc_is_woken_and_counts_each_ring() {
        let theirs = Theirs::new();
        let ours = theirs.ours();
        ours.ring();
        ours.ring();
        assert!(theirs.try_wait() && theirs.try_wait() && !theirs.try_wait());
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| theirs.wait());
            until_waited_for(&ours);
            ours.ring();
            sleeper.join().unwrap();
        });
    }

    #[test]
    fn the_count_of_waiters_that_a_death_leaves_is_no_matter() {
        let theirs = Theirs::new();
        let ours = theirs.ours();
        ours.word().fetch_add(3 * WAITER, Ordering::Relaxed);
        theirs.post();
        ours.wait(LONG);
        ours.ring();
        theirs.wait();
        assert_eq!(ours.word().load(Ordering::Relaxed), 3 * WAITER);
    }

    /// What a liar writes: each half of the word at its ends, and the rest that glibc would believe.
    const LIES: [u64; 9] = [
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
    fn whatever_stands_in_it_a_ring_is_a_ring_and_a_wait_ends() {
        let theirs = Theirs::new();
        let ours = theirs.ours();
        for (lie, private) in LIES
            .into_iter()
            .flat_map(|lie| LIES.map(|other| (lie, other)))
        {
            let after = ours.0.u64_at(8);
            after.store(private, Ordering::Relaxed);
            ours.word().store(lie, Ordering::Relaxed);
            ours.ring();
            ours.wait(LONG); // A ring is there, or what passes for one.
            assert_eq!(ours.word().load(Ordering::Relaxed) as u32, 0, "{lie:#x}");
            ours.wait(Duration::from_micros(1));
            assert_eq!(after.load(Ordering::Relaxed), private, "not ours to write");
        }
    }

    #[test]
    fn a_peer_that_scribbles_without_end_keeps_nobody() {
        let theirs = Theirs::new();
        let (ours, other) = (theirs.ours(), theirs.ours());
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for lie in LIES {
                        other.word().store(lie, Ordering::Relaxed);
                    }
                }
            });
            for _ in 0..20_000 {
                ours.ring();
                ours.wait(Duration::from_micros(10));
            }
            over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn one_that_is_cut_off_is_known_by_who_rings_and_by_who_waits() {
        for waits in [false, true] {
            let theirs = Theirs::new();
            let ours = theirs.ours();
            File::options()
                .write(true)
                .open(theirs.path())
                .unwrap()
                .set_len(0)
                .unwrap();
            assert!(!ours.is_cut_off());
            if waits {
                ours.wait(Duration::ZERO);
            } else {
                ours.ring();
            }
            assert!(ours.is_cut_off());
        }
    }

    #[test]
    fn one_that_is_cut_off_under_a_sleeper_is_known_when_it_wakes() {
        let theirs = Theirs::new();
        let ours = theirs.ours();
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| ours.wait(Duration::from_millis(50)));
            until_waited_for(&ours);
            let file = File::options().write(true).open(theirs.path()).unwrap();
            file.set_len(0).unwrap();
            sleeper.join().unwrap();
        });
        assert!(ours.is_cut_off());
    }

    #[test]
    fn what_is_no_semaphore_is_not_opened() {
        let open = |name: &str, owner| Semaphore::open(&CString::new(name).unwrap(), owner).err();
        let theirs = Theirs::new();
        let (name, path) = (theirs.name.to_str().unwrap(), theirs.path());
        let stranger = open(name, us() + 1);
        assert!(matches!(stranger, Some(SemaphoreError::Owner { found, .. }) if found == us()));
        for name in ["", "/", "shmrpc", "/../x", "/a/b", "/shmrpc-core-bell-none"] {
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

    fn pair() -> [Bell; 2] {
        let mut fds = [0; 2];
        // SAFETY: room for two descriptors, which are ours alone. They block: the calls have to say that they do not.
        unsafe {
            let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
            let made = libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr());
            assert_eq!(made, 0);
            fds.map(|fd| Bell::new(OwnedFd::from_raw_fd(fd)))
        }
    }

    fn is_readable(bell: &Bell) -> bool {
        let (fd, events, revents) = (bell.0.as_raw_fd(), libc::POLLIN, 0);
        let mut asked = libc::pollfd {
            fd,
            events,
            revents,
        };
        // SAFETY: one entry.
        unsafe { libc::poll(&mut asked, 1, 0) == 1 }
    }

    #[test]
    fn neither_a_full_bell_nor_a_silent_one_blocks() {
        let [ours, theirs] = pair();
        assert!(ours.silence());
        for _ in 0..10_000 {
            theirs.ring();
        }
        assert!(!is_readable(&theirs), "each hears the other alone");
        while is_readable(&ours) {
            assert!(ours.silence());
        }
        theirs.ring();
        assert!(is_readable(&ours));
    }

    #[test]
    fn a_look_takes_some_rings_and_no_more() {
        let [ours, theirs] = pair();
        for _ in 0..=TAKEN_AT_ONCE {
            theirs.ring();
        }
        assert!(ours.silence());
        assert!(is_readable(&ours));
        assert!(ours.silence());
        assert!(!is_readable(&ours));
    }

    #[test]
    fn the_end_of_the_peer_is_the_end_of_its_bell() {
        let _alone = crate::FORK.lock();
        let [ours, theirs] = pair();
        theirs.ring();
        assert!(!ours.has_ended());
        drop(theirs);
        assert!(ours.has_ended());
        // What it rang before is heard, or is not: the end is.
        assert!(!ours.silence());
        ours.ring();

        let [ours, theirs] = pair();
        ours.ring();
        drop(theirs); // With a ring unheard: an error first.
        assert!(!ours.silence());
        assert!(!ours.silence());

        let [ours, theirs] = pair();
        // SAFETY: it is open.
        unsafe { libc::shutdown(theirs.0.as_raw_fd(), libc::SHUT_RDWR) };
        assert!(!ours.silence());
        ours.ring();
    }
}
