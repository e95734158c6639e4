//! A named semaphore that wakes a thread.

use super::error::{SEMAPHORE_SIZE, SemaphoreError};
use crate::memory::mapping::SharedMapping;
use crate::sync::{AtomicU64, Ordering};
use crate::wait::futex::{self, Reach};
use std::ffi::CStr;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::time::Duration;

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
pub(super) const WAITER: u64 = 1 << 32;

/// The highest value of a semaphore, glibc's too. What is rung beyond it is not counted.
const MAX_VALUE: u32 = i32::MAX as u32;

const _: () = assert!(
    size_of::<usize>() == 8,
    "glibc's semaphores have another layout on a machine of 32 bits"
);

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
pub struct Semaphore(pub(super) SharedMapping);

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
    pub(super) fn word(&self) -> &AtomicU64 {
        self.0.u64_at(0)
    }

    /// Wakes a thread on the other side, or the next that goes to sleep.
    pub fn wake(&self) {
        // Relaxed: what a liar writes in between is its own loss.
        let unheard = self.word().load(Ordering::Relaxed) as u32;
        // Release: pairs with the Acquire in `take`, also where nothing is added to what is full: a sleeper that has heard the
        // ring sees what was before it.
        self.word()
            .fetch_add(u64::from(unheard < MAX_VALUE), Ordering::Release);
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
