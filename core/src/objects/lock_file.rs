//! The lock file of a name: whose bytes say which members live, and who is at the door.
//!
//! A *record lock* (`F_SETLK`) belongs to a process. The kernel drops it when that dies, however it dies, and even if a
//! forked child has the descriptor still. It also drops it when the process closes *any* descriptor of the file: so a
//! process has one for each name, which the [registry](super::registry) sees to, and a forked child never closes the
//! one that it has inherited, which would cost it the locks of its own.
//!
//! ```text
//!      0          the door: held while a process joins or leaves
//!      1 + slot   held by the member of this slot as long as it lives
//!      257        held by the owner of a store that has one, as long as it lives
//! ```
//!
//! The text of the file is the name of the memory.

use super::members::{Holder, Proofs, SLOTS};
use crate::fork_guard::Origin;
use crate::os::{done, retry};
use crate::sync::lock;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

const DOOR: i64 = 0;
const FIRST_MEMBER: i64 = 1;
const OWNER: i64 = FIRST_MEMBER + SLOTS as i64;
/// The longest name of a memory, in bytes.
const LONGEST: usize = 255;
/// Between two knocks at a door that another process holds: each time twice as long, within these.
const SHORTEST_KNOCK: Duration = Duration::from_micros(50);
const LONGEST_KNOCK: Duration = Duration::from_millis(5);

/// A file, whatever its names: its device and inode.
pub type FileId = (u64, u64);

/// An open lock file.
pub struct LockFile {
    path: PathBuf,
    id: FileId,
    origin: Origin,
    /// None once it was closed.
    file: Mutex<Option<ManuallyDrop<File>>>,
}

impl LockFile {
    /// Opens the file at `path`; with `make` also if it is missing, else None.
    ///
    /// `is_open` tells of a file whether this process has it open as the lock file of another name. Then it is not
    /// opened, since to close it would cost that name its locks: EMLINK. EPERM if it is no regular file of this user.
    pub fn open(
        path: &Path,
        make: bool,
        is_open: impl Fn(FileId) -> bool,
    ) -> io::Result<Option<Self>> {
        let origin = Origin::here()?;
        let check = |found: &fs::Metadata| {
            // SAFETY: it cannot fail, and no memory is involved.
            let user = unsafe { libc::geteuid() };
            let error = if !found.is_file() || found.uid() != user {
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
            Err(error) if error.kind() == io::ErrorKind::NotFound && !make => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let mut options = OpenOptions::new();
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        options.read(true).write(true).custom_flags(flags);
        let file = match options.create(make).mode(0o600).open(path) {
            // Not closed unless it is known whose it is: it may be another one by now.
            Ok(file) => ManuallyDrop::new(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !make => return Ok(None),
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

    /// Which file it is.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Whether it is what has the name now.
    pub fn is_current(&self) -> io::Result<bool> {
        match fs::symlink_metadata(&self.path) {
            Ok(found) => Ok(self.id == (found.dev(), found.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Comes through the door; who holds it, if that lasts longer than `patience`.
    pub fn enter(&self, patience: Duration) -> io::Result<Result<(), Holder>> {
        let end = Instant::now() + patience;
        let mut knock = SHORTEST_KNOCK;
        loop {
            if self.lock(DOOR)? {
                return Ok(Ok(()));
            }
            if Instant::now() >= end
                && let Some((_, holder)) = self.first_lock(DOOR, 1)?
            {
                return Ok(Err(holder));
            }
            thread::sleep(knock);
            knock = (knock * 2).min(LONGEST_KNOCK);
        }
    }

    /// Lets others through the door.
    pub fn pass(&self) -> io::Result<()> {
        self.unlock(DOOR)
    }

    /// Takes the byte of the owner. False if another process has it.
    pub fn own(&self) -> io::Result<bool> {
        self.lock(OWNER)
    }

    /// Gives the byte of the owner back.
    pub fn disown(&self) -> io::Result<()> {
        self.unlock(OWNER)
    }

    /// Which other process is the owner, if any.
    pub fn owner(&self) -> io::Result<Option<Holder>> {
        Ok(self.first_lock(OWNER, 1)?.map(|(_, holder)| holder))
    }

    /// Tells those that wait for the name that they may knock: see [`arrivals`](super::arrivals).
    pub fn announce(&self) -> io::Result<()> {
        self.with(|file| {
            // SAFETY: no times are given, which means now.
            done(unsafe { libc::futimens(file.as_raw_fd(), std::ptr::null()) }).map(drop)
        })
    }

    /// Whether any other process has the byte of a member.
    pub fn has_others(&self) -> io::Result<bool> {
        Ok(self.first_lock(FIRST_MEMBER, i64::from(SLOTS))?.is_some())
    }

    /// The text: the beginning of it, if it is longer than the name of a memory can be.
    pub fn text(&self) -> io::Result<Vec<u8>> {
        let mut text = [0; LONGEST + 1];
        let len = self.with(|file| file.read_at(&mut text, 0))?;
        Ok(text[..len].to_vec())
    }

    /// Writes the name of the memory.
    pub fn set_memory(&self, name: &str) -> io::Result<()> {
        self.with(|file| {
            file.set_len(0)?;
            file.write_all_at(format!("{name}\n").as_bytes(), 0)
        })
    }

    /// Removes the file, whose door is held.
    pub fn remove(&self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }

    /// Closes it, and with it gives back all that this process has of it. Again: nothing.
    pub fn close(&self) {
        let file = lock(&self.file).take();
        if self.origin.is_here()
            && let Some(file) = file
        {
            drop(ManuallyDrop::into_inner(file));
        }
    }

    fn lock(&self, at: i64) -> io::Result<bool> {
        match self.set(libc::F_WRLCK, at) {
            Ok(()) => Ok(true),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EACCES) => Ok(false),
                _ => Err(error),
            },
        }
    }

    fn unlock(&self, at: i64) -> io::Result<()> {
        self.set(libc::F_UNLCK, at)
    }

    fn set(&self, kind: libc::c_int, at: i64) -> io::Result<()> {
        let wanted = record(kind, at, 1);
        self.with(|file| {
            // SAFETY: the structure lives through the call.
            let call =
                || unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const wanted) };
            retry(|| call() as isize).map(drop)
        })
    }

    /// A byte of a range that another process has, and which.
    fn first_lock(&self, start: i64, len: i64) -> io::Result<Option<(i64, Holder)>> {
        let mut asked = record(libc::F_WRLCK, start, len);
        self.with(|file| {
            // SAFETY: the structure lives through the call.
            done(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut asked) })
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

    fn with<R>(&self, use_it: impl FnOnce(&File) -> io::Result<R>) -> io::Result<R> {
        let file = lock(&self.file);
        let file = file.as_ref();
        use_it(file.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?)
    }
}

impl Proofs for LockFile {
    fn take(&self, slot: u32) -> io::Result<bool> {
        self.lock(FIRST_MEMBER + i64::from(slot))
    }

    fn give_back(&self, slot: u32) -> io::Result<()> {
        self.unlock(FIRST_MEMBER + i64::from(slot))
    }

    fn holder(&self, slot: u32) -> io::Result<Option<Holder>> {
        let found = self.first_lock(FIRST_MEMBER + i64::from(slot), 1)?;
        Ok(found.map(|(_, holder)| holder))
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        self.close();
    }
}

fn record(kind: libc::c_int, start: i64, len: i64) -> libc::flock {
    // SAFETY: zeros are a lock of nothing; what other fields a machine has stay zero.
    let mut record: libc::flock = unsafe { std::mem::zeroed() };
    record.l_type = kind as libc::c_short;
    record.l_whence = libc::SEEK_SET as libc::c_short;
    record.l_start = start;
    record.l_len = len;
    record
}
