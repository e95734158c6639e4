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

/// Initial content of the file, as glibc writes it: value 0, no waiters, and the mark of a shared futex
/// (`FUTEX_SHARED`, which only glibc reads).
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

/// Increment of the word for one waiter: waiters are counted in the high half.
pub(super) const WAITER: u64 = 1 << 32;

/// Highest value of a semaphore, in glibc too. Further wake-ups are not counted.
const MAX_VALUE: u32 = i32::MAX as u32;

const _: () = assert!(
    size_of::<usize>() == 8,
    "glibc's semaphores have another layout on a machine of 32 bits"
);

/// Create a semaphore with value 0, by a name that begins with a slash. The file is the same as that of glibc's
/// `sem_open`, which is several times slower because it first creates the file under another name. The name is still
/// unknown to other processes. Fails with `AlreadyExists` if the name exists, and with EINVAL if it is no name of a
/// semaphore; after any other error the file may be left.
pub fn create_semaphore(name: &CStr) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path(name)?)?;
    // Written at once, so that a lack of memory is an error here and not a SIGBUS later.
    file.write_all(&FRESH)
}

/// Return the path of the file of a semaphore. Fails with EINVAL if the name does not begin with a slash, has another
/// one, or is not UTF-8.
fn path(name: &CStr) -> io::Result<String> {
    let name = name.to_str().ok().and_then(|name| name.strip_prefix('/'));
    match name.filter(|name| !name.contains('/')) {
        Some(name) => Ok(format!("/dev/shm/sem.{name}")),
        None => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

/// A named POSIX semaphore that another process has created.
///
/// The peer can write it. glibc would choose its system call by its content, and would end the process if the call
/// fails. So its file is mapped here, and one word of it is used as glibc uses it:
///
/// ```text
///   wake                             wait
///   value += 1        (release)      value = 0         (acquire) was there a value? then return
///   FUTEX_WAKE, one                  waiters += 1
///                                    FUTEX_WAIT while the value is 0, until the limit
///                                    waiters -= 1, value = 0 (acquire), return
/// ```
///
/// The whole value is consumed at once: wake-ups are not counted, and a peer that writes a large value wakes this side
/// once. A waiter counts itself for a peer with glibc's `sem_post`, which makes no system call without waiters; `wake`
/// always makes it. Whatever a peer writes, each wait ends at its limit, and each wake-up is two steps.
pub struct Semaphore(pub(super) SharedMapping);

impl Semaphore {
    /// Open an existing semaphore by name, which begins with a slash. Fails with `Kind`, `Owner` or `Size` if its file
    /// is no regular one, does not belong to the user `owner`, or is too short, and else with `Os`.
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
        // A file of zeros is a semaphore of value 0.
        let mapping = SharedMapping::new(file.as_fd(), SEMAPHORE_SIZE as usize)?;
        Ok(Semaphore(mapping))
    }

    /// Return the word: the value in the low half, the number of waiters in the high half.
    pub(super) fn word(&self) -> &AtomicU64 {
        self.0.u64_at(0)
    }

    /// Wake a thread that waits, or let the next wait end at once. Never blocks, and never fails.
    pub fn wake(&self) {
        // Relaxed: a hostile peer that writes in between harms only itself.
        let unheard = self.word().load(Ordering::Relaxed) as u32;
        // Release: pairs with the Acquire in `take`, also if nothing is added to a full value: a woken thread sees what
        // is before the wake-up.
        self.word()
            .fetch_add(u64::from(unheard < MAX_VALUE), Ordering::Release);
        futex::wake(self.value(), Reach::Host);
    }

    /// Return true if the peer has truncated the file: no wake-up reaches or comes from it.
    pub fn is_truncated(&self) -> bool {
        self.0.is_truncated()
    }

    /// Sleep until a wake-up or a signal comes or `limit` has passed. The caller then checks again.
    pub fn wait(&self, limit: Duration) {
        if self.take() {
            return;
        }
        // Relaxed: only the order of changes to this one word matters. If the value is increased before this, the
        // kernel refuses to wait; if after, the waker sees the waiter.
        self.word().fetch_add(WAITER, Ordering::Relaxed);
        futex::wait(self.value(), 0, limit, Reach::Host);
        // Relaxed: seen late, it costs the peer a needless system call. If the file was truncated meanwhile, which is
        // an error for the kernel, this access detects it.
        self.word().fetch_sub(WAITER, Ordering::Relaxed);
        self.take();
    }

    /// Consume all wake-ups, however many they are. Return false if there are none.
    fn take(&self) -> bool {
        // Relaxed: zero is a complete answer.
        self.word().load(Ordering::Relaxed) as u32 != 0
            // Acquire: pairs with the Release in `wake`.
            && self.word().fetch_and(!u64::from(u32::MAX), Ordering::Acquire) as u32 != 0
    }

    /// Return the address of the value, the half of the word that is the futex.
    fn value(&self) -> *const u32 {
        futex::low_half(self.word().as_ptr())
    }
}
