//! The lock file of an object. Locks of its bytes tell which members are alive, and admit one process at a time.
//!
//! A *record lock* (`F_SETLK`) belongs to a process. The kernel releases it when the process dies, even if a forked
//! child still has the descriptor. The kernel also releases it when the process closes *any* descriptor of the file. So
//! a process has one descriptor for each lock file, which the [registry](crate::objects::registry) ensures, and a
//! forked child never closes an inherited one, because that would release the locks of its own.
//!
//! ```text
//!      0          the entry lock: held while a process joins or leaves
//!      1 + slot   held by the member of this slot as long as it is alive
//!      257        held by the owner of a single-writer store as long as it is alive
//! ```
//!
//! The text of the file is the name of the object's memory.
//!
//! All locks belong to the whole process: a thread takes one at once, and successfully, that another thread of the
//! process has. Methods raise EBADF once the file is closed. Only `lock_entry` waits.

use super::holder::Holder;
use super::table::{MemberLocks, Members, SLOTS};
use crate::fork_guard::OriginProcess;
use crate::memory::mapping::SharedMapping;
use crate::objects::files::is_own_regular_file;
use crate::os::{check_syscall, retry_interrupted};
use crate::sync::lock;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const ENTRY: i64 = 0;
const FIRST_MEMBER: i64 = 1;
const OWNER: i64 = FIRST_MEMBER + SLOTS as i64;
/// The longest name of a memory, in bytes.
const LONGEST_NAME: usize = 255;
/// The pause between two attempts to take the entry lock: doubled after each, within these bounds.
const SHORTEST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// The members of an object, whose liveness its lock file proves.
pub type ObjectMembers = Members<Arc<SharedMapping>, Arc<LockFile>>;

/// The identity of a file, whatever its paths: device and inode.
pub type FileId = (u64, u64);

/// An open lock file.
pub struct LockFile {
    path: PathBuf,
    id: FileId,
    origin: OriginProcess,
    /// The file; None once it is closed.
    file: Mutex<Option<ManuallyDrop<File>>>,
}

impl LockFile {
    /// Opens the file at `path`, and creates it if `create` is set. Returns None if it is missing.
    ///
    /// `is_open` returns true for a file that this process has open as the lock file of another object. Such a file is
    /// not opened, because closing it would release the other object's locks: EMLINK. Raises EPERM if the file is no
    /// regular file of this user.
    pub fn open(
        path: &Path,
        create: bool,
        is_open: impl Fn(FileId) -> bool,
    ) -> io::Result<Option<Self>> {
        let origin = OriginProcess::current()?;
        let check = |found: &fs::Metadata| {
            let error = if !is_own_regular_file(found) {
                libc::EPERM
            } else if is_open((found.dev(), found.ino())) {
                libc::EMLINK
            } else {
                return Ok(());
            };
            Err(io::Error::from_raw_os_error(error))
        };
        match fs::symlink_metadata(path) {
            Ok(found) => check(&found)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !create => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let mut options = OpenOptions::new();
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        options.read(true).write(true).custom_flags(flags);
        let file = match options.create(create).mode(0o600).open(path) {
            // Closed only after the check: by now the path may lead to the lock file of another object.
            Ok(file) => ManuallyDrop::new(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !create => return Ok(None),
            Err(error) => return Err(error),
        };
        let found = file.metadata()?;
        check(&found)?;
        Ok(Some(LockFile {
            path: path.to_owned(),
            id: (found.dev(), found.ino()),
            origin,
            file: Mutex::new(Some(file)),
        }))
    }

    /// Returns the identity of the file.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Returns true if the path still leads to this file.
    pub fn is_current(&self) -> io::Result<bool> {
        match fs::symlink_metadata(&self.path) {
            Ok(found) => Ok(self.id == (found.dev(), found.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes the entry lock. Sleeps and tries again while another process holds the lock; returns that process as the
    /// inner error once `timeout` has passed. Tries at least once.
    pub fn lock_entry(&self, timeout: Duration) -> io::Result<Result<(), Holder>> {
        let end = Instant::now() + timeout;
        let mut pause = SHORTEST_PAUSE;
        loop {
            if self.try_lock(ENTRY)? {
                return Ok(Ok(()));
            }
            if Instant::now() >= end
                && let Some((_, holder)) = self.first_lock(ENTRY, 1)?
            {
                return Ok(Err(holder));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Releases the entry lock. Idempotent.
    pub fn unlock_entry(&self) -> io::Result<()> {
        self.unlock(ENTRY)
    }

    /// Takes the lock of a store's owner. Returns false if another process has it, true if this process has it now.
    pub fn try_lock_owner(&self) -> io::Result<bool> {
        self.try_lock(OWNER)
    }

    /// Releases the lock of a store's owner. Idempotent.
    pub fn unlock_owner(&self) -> io::Result<()> {
        self.unlock(OWNER)
    }

    /// Returns the other process that is the store's owner; None if there is no owner, or if this process is the owner.
    pub fn owner(&self) -> io::Result<Option<Holder>> {
        Ok(self.first_lock(OWNER, 1)?.map(|(_, holder)| holder))
    }

    /// Notifies the processes that wait for the object to appear: see [`discovery`](crate::objects::discovery).
    pub fn announce(&self) -> io::Result<()> {
        self.with(|file| {
            // SAFETY: no times are given, which means now.
            check_syscall(unsafe { libc::futimens(file.as_raw_fd(), std::ptr::null()) }).map(drop)
        })
    }

    /// Returns true if a process other than this one holds the lock of a slot.
    pub fn has_other_members(&self) -> io::Result<bool> {
        Ok(self.first_lock(FIRST_MEMBER, i64::from(SLOTS))?.is_some())
    }

    /// Returns the contents of the file, up to one byte more than the longest name of a memory.
    pub fn read_text(&self) -> io::Result<Vec<u8>> {
        let mut text = [0; LONGEST_NAME + 1];
        let len = self.with(|file| file.read_at(&mut text, 0))?;
        Ok(text[..len].to_vec())
    }

    /// Replaces the contents of the file by the name of the memory and a line end.
    pub fn write_memory_name(&self, name: &str) -> io::Result<()> {
        self.with(|file| {
            file.set_len(0)?;
            file.write_all_at(format!("{name}\n").as_bytes(), 0)
        })
    }

    /// Removes the file at the path from its directory. The caller holds the entry lock, and has checked with
    /// `is_current` that the path leads to this file.
    pub fn remove(&self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }

    /// Closes the file, which releases all locks that this process has of it. Idempotent. Leaves the descriptor open in
    /// a forked child, where it would release the child's locks.
    pub fn close(&self) {
        let file = lock(&self.file).take();
        if self.origin.is_current()
            && let Some(file) = file
        {
            drop(ManuallyDrop::into_inner(file));
        }
    }

    /// Takes the lock of a byte. Returns false if another process holds it, and true if this process has it already.
    fn try_lock(&self, at: i64) -> io::Result<bool> {
        match self.set_lock(libc::F_WRLCK, at) {
            Ok(()) => Ok(true),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EACCES) => Ok(false),
                _ => Err(error),
            },
        }
    }

    /// Releases the lock of a byte. Idempotent.
    fn unlock(&self, at: i64) -> io::Result<()> {
        self.set_lock(libc::F_UNLCK, at)
    }

    /// Sets or releases the lock of a byte, without a wait. Raises EAGAIN or EACCES if another process holds the lock.
    fn set_lock(&self, kind: libc::c_int, at: i64) -> io::Result<()> {
        let wanted = record_lock(kind, at, 1);
        self.with(|file| {
            // SAFETY: the structure lives through the call.
            let call =
                || unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const wanted) };
            retry_interrupted(|| call() as isize).map(drop)
        })
    }

    /// Returns the first byte of a range that another process has locked, and the process; None if no byte is locked.
    fn first_lock(&self, start: i64, len: i64) -> io::Result<Option<(i64, Holder)>> {
        let mut asked = record_lock(libc::F_WRLCK, start, len);
        self.with(|file| {
            // SAFETY: the structure lives through the call.
            check_syscall(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut asked) })
        })?;
        if asked.l_type == libc::F_UNLCK as libc::c_short {
            return Ok(None);
        }
        let holder = match asked.l_pid {
            pid if pid > 0 => Holder::Process(pid),
            _ => Holder::Elsewhere,
        };
        Ok(Some((asked.l_start, holder)))
    }

    /// Calls `operate` with the file. Raises EBADF once the file is closed.
    fn with<R>(&self, operate: impl FnOnce(&File) -> io::Result<R>) -> io::Result<R> {
        let file = lock(&self.file);
        let file = file.as_ref();
        operate(file.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?)
    }
}

impl MemberLocks for LockFile {
    fn try_lock_slot(&self, slot: u32) -> io::Result<bool> {
        self.try_lock(FIRST_MEMBER + i64::from(slot))
    }

    fn unlock_slot(&self, slot: u32) -> io::Result<()> {
        self.unlock(FIRST_MEMBER + i64::from(slot))
    }

    fn slot_holder(&self, slot: u32) -> io::Result<Option<Holder>> {
        let found = self.first_lock(FIRST_MEMBER + i64::from(slot), 1)?;
        Ok(found.map(|(_, holder)| holder))
    }
}

impl Drop for LockFile {
    /// Closes the file as `close` does: not in a forked child.
    fn drop(&mut self) {
        self.close();
    }
}

/// Returns a lock of the type `kind` (F_WRLCK or F_UNLCK) for `len` bytes from `start` on, for fcntl.
fn record_lock(kind: libc::c_int, start: i64, len: i64) -> libc::flock {
    // SAFETY: zeros are a lock of nothing; other fields that a machine has stay zero.
    let mut record: libc::flock = unsafe { std::mem::zeroed() };
    record.l_type = kind as libc::c_short;
    record.l_whence = libc::SEEK_SET as libc::c_short;
    record.l_start = start;
    record.l_len = len;
    record
}
