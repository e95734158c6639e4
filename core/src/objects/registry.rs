//! The registry of the objects that this process has open: each once, however many handles it has.

use super::error::ObjectError;
use super::files::is_own_regular_file;
use super::lifecycle;
use super::members::lock_file::LockFile;
use super::members::watcher::remove_doorbells;
use super::memory::shape::Shape;
use super::memory::{ObjectAddress, ObjectMemory, find_poison, memory_name};
use super::object::{Kinds, Object};
use crate::crash;
use crate::fork_guard::PerProcess;
use crate::memory::named;
use crate::sync::lock;
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// The time for which another process may hold the entry lock of an object.
const ENTRY_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for which a leaving process waits for the entry lock. The next member, or a clean-up, removes the rest.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// The number of attempts to open an object whose lock file or memory other processes remove.
const OPEN_ATTEMPTS: usize = 100;

/// An object that this process has open.
struct OpenObject {
    object: Arc<dyn Object>,
    handles: usize,
    memory_name: String,
}

/// The open objects by the paths of their lock files.
type Objects = HashMap<PathBuf, OpenObject>;

/// An object that was just created or joined, and the name of its memory.
type EnteredObject = (Arc<dyn Object>, String);

/// The registry of a process.
pub struct Registry {
    kinds: &'static dyn Kinds,
    /// Locked while an object is opened or closed: a process must not have two descriptors of one lock file.
    objects: PerProcess<Mutex<Objects>>,
    /// The thread in which this process leaves all objects, because it ends.
    exit_thread: OnceLock<ThreadId>,
}

/// A handle of an object. Dropping it closes it. With the last handle this process leaves the object, unless the handle
/// was only dropped, and the object must stay open.
pub struct Handle {
    registry: &'static Registry,
    object: Arc<dyn Object>,
    path: PathBuf,
    is_closed: AtomicBool,
}

impl Handle {
    /// Returns the object.
    #[inline]
    pub fn object(&self) -> &Arc<dyn Object> {
        &self.object
    }

    /// Notes that the user has closed the handle, and not only dropped it.
    pub fn close(&self) {
        // Relaxed: released by the thread that drops it, and read under the lock of the registry.
        self.is_closed.store(true, Relaxed);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let Some(mut objects) = self.registry.objects().ok().map(lock) else {
            return;
        };
        let is_ours = |open: &&mut OpenObject| Arc::ptr_eq(&open.object, &self.object);
        let Some(open) = objects.get_mut(&self.path).filter(is_ours) else {
            return; // All were closed at once, or this is a forked child, which has not opened it.
        };
        open.handles -= 1;
        if open.handles == 0 && (*self.is_closed.get_mut() || !open.object.must_stay_open()) {
            if let Some(open) = objects.remove(&self.path) {
                leave(&open, &self.path);
                open.object.membership().release_memory();
            }
        }
    }
}

/// Leaves an object, and removes its files if this process was its last member. Errors are ignored.
fn leave(open: &OpenObject, path: &Path) {
    let remove = |lock_file: &LockFile| {
        let _ = named::remove(&open.memory_name);
        open.object.memory_removed();
        crash::point!(MemoryRemoved);
        // Otherwise the path leads to the lock file of other members.
        if let Ok(true) = lock_file.is_current() {
            remove_doorbells(&path.with_extension(""));
            let _ = lock_file.remove();
        }
    };
    lifecycle::leave(&*open.object, &remove, LEAVE_TIMEOUT);
}

impl Registry {
    /// Makes an empty registry of these kinds of object.
    pub const fn new(kinds: &'static dyn Kinds) -> Self {
        Registry {
            kinds,
            objects: PerProcess::empty(),
            exit_thread: OnceLock::new(),
        }
    }

    /// Returns the open objects of this process.
    fn objects(&'static self) -> Result<&'static Mutex<Objects>, ObjectError> {
        self.objects
            .get()
            .map_err(ObjectError::os("this process has no identity of its own"))
    }

    /// Returns true once another thread has begun `leave_all`, as the process ends: waits here must raise no error.
    pub fn is_exiting_elsewhere(&self) -> bool {
        let exiting = self.exit_thread.get();
        exiting.is_some_and(|&exiting| exiting != thread::current().id())
    }

    /// Leaves all objects, as the process ends; errors are ignored. Operations of remaining handles raise errors.
    pub fn leave_all(&'static self) {
        let _ = self.exit_thread.set(thread::current().id());
        let Some(mut objects) = self.objects().ok().map(lock) else {
            return;
        };
        for (path, open) in objects.drain() {
            leave(&open, &path);
        }
    }

    /// Opens an object of this shape: creates it if it has no members, joins them otherwise. Without a shape, returns
    /// None for an object without members. Raises `Mismatch` for another shape, `LeftOver` for values that killed
    /// members have left in another shape, `Busy` if a process holds the entry lock for too long, `Full`, `OfUser`,
    /// `Foreign`, `Poisoned` or `Os`.
    pub fn open(
        &'static self,
        address: &ObjectAddress,
        shape: Option<Shape>,
    ) -> Result<Option<Handle>, ObjectError> {
        let mut objects = lock(self.objects()?);
        let new_handle = |open: &OpenObject| Handle {
            registry: self,
            object: open.object.clone(),
            path: address.lock_file.clone(),
            is_closed: AtomicBool::new(false),
        };
        if let Some(open) = objects.get_mut(&address.lock_file) {
            let membership = open.object.membership();
            membership.check()?;
            check_shape(membership.shape(), shape)?;
            if shape.is_some() {
                open.object.reopen()?;
            }
            open.handles += 1;
            return Ok(Some(new_handle(open)));
        }
        let Some((object, memory_name)) = self.enter(address, shape, &objects)? else {
            return Ok(None);
        };
        let open = OpenObject {
            object,
            handles: 1,
            memory_name,
        };
        let handle = new_handle(&open);
        objects.insert(address.lock_file.clone(), open);
        Ok(Some(handle))
    }

    /// Calls `report` with an object, also one of which this process is no member; returns None if it has no members.
    /// Raises the errors of `report`, and `OfUser`, `Foreign` or `Os` if the object cannot be opened.
    pub fn inspect<R>(
        &'static self,
        address: &ObjectAddress,
        report: impl Fn(&Arc<dyn Object>) -> Result<R, ObjectError>,
    ) -> Result<Option<R>, ObjectError> {
        let mut objects = lock(self.objects()?);
        if let Some(open) = objects.get_mut(&address.lock_file) {
            return report(&open.object).map(Some);
        }
        let failed = || ObjectError::os("its lock file cannot be read");
        let mut before: Option<(Vec<u8>, ObjectError)> = None;
        for _ in 0..OPEN_ATTEMPTS {
            let Some(lock_file) = open_lock_file(address, false, &objects)? else {
                return Ok(None);
            };
            if !lock_file.has_other_members().map_err(failed())? {
                return Ok(None);
            }
            let text = lock_file.read_text().map_err(failed())?;
            let inspected = ObjectMemory::open(address, &text)
                .and_then(|memory| lifecycle::inspect(self.kinds, address, memory, lock_file));
            match (inspected, before) {
                (Ok(object), _) => return report(&object).map(Some),
                (Err(error), Some((seen, _))) if seen == text => return Err(error),
                // The last member may have removed the memory meanwhile, or the object exists anew.
                (Err(error), _) => before = Some((text, error)),
            }
        }
        before.map_or(Ok(None), |(_, error)| Err(error))
    }

    /// Creates or joins an object that this process does not have open, and holds the entry lock meanwhile. Without a
    /// shape, returns None for an object without members.
    fn enter(
        &'static self,
        address: &ObjectAddress,
        shape: Option<Shape>,
        objects: &Objects,
    ) -> Result<Option<EnteredObject>, ObjectError> {
        let failed = |what: &str| {
            let path = address.lock_file.display();
            ObjectError::os(format!("its lock file {path} {what}"))
        };
        for _ in 0..OPEN_ATTEMPTS {
            let Some(lock_file) = open_lock_file(address, shape.is_some(), objects)? else {
                return Ok(None);
            };
            let lock_file = Arc::new(lock_file);
            let locked = lock_file
                .lock_entry(ENTRY_TIMEOUT)
                .map_err(failed("cannot be locked"))?;
            let seconds = ENTRY_TIMEOUT.as_secs_f64();
            locked.map_err(|holder| ObjectError::Busy { holder, seconds })?;
            crash::point!(EntryLockHeld);
            if !lock_file
                .is_current()
                .map_err(failed("cannot be inspected"))?
            {
                continue; // Its last member has removed it.
            }
            let has_members = lock_file
                .has_other_members()
                .map_err(failed("cannot be read"))?;
            let text = lock_file.read_text().map_err(failed("cannot be read"))?;
            let entered = match (has_members, shape) {
                (true, shape) => self.join_members(address, &lock_file, &text, shape),
                (false, Some(shape)) => self.become_first(address, &lock_file, &text, shape),
                (false, None) => return Ok(None),
            };
            return entered.map(Some);
        }
        let what = "its lock file was removed by other processes again and again";
        Err(ObjectError::from_errno(what, libc::EBUSY))
    }

    /// Joins the members of an object, whose entry lock this process has, and releases the lock. `text` is the contents
    /// of the lock file.
    fn join_members(
        &self,
        address: &ObjectAddress,
        lock_file: &Arc<LockFile>,
        text: &[u8],
        shape: Option<Shape>,
    ) -> Result<EnteredObject, ObjectError> {
        let memory = ObjectMemory::open(address, text)?;
        check_shape(memory.shape, shape)?;
        if let Some(corruption) = find_poison(&memory.mapping) {
            return Err(corruption.into());
        }
        let name = memory.name.clone();
        let object = lifecycle::join(self.kinds, address, memory, lock_file, shape.is_some())?;
        admit_others(address, &*object, false)?;
        Ok((object, name))
    }

    /// Becomes the first member of an object, whose entry lock this process has, in memory that dead members have left
    /// or in new memory, and releases the lock. After an error, removes what it has created.
    fn become_first(
        &self,
        address: &ObjectAddress,
        lock_file: &Arc<LockFile>,
        text: &[u8],
        shape: Shape,
    ) -> Result<EnteredObject, ObjectError> {
        let mut lost_items = 0;
        let found = self.take_over(address, text, shape, &mut lost_items)?;
        let join = |memory: ObjectMemory| {
            let name = memory.name.clone();
            let object = lifecycle::join(self.kinds, address, memory, lock_file, true)?;
            object.note_lost_items(lost_items);
            admit_others(address, &*object, true)?;
            Ok((object, name))
        };
        if let Some(memory) = found {
            return join(memory);
        }
        let created = ObjectMemory::create(address, lock_file, shape);
        created
            .and_then(|memory| {
                let name = memory.name.clone();
                join(memory).inspect_err(|_| {
                    let _ = named::remove(&name);
                })
            })
            .inspect_err(|_| {
                // The entry lock is held still: processes that wait for it then open another lock file.
                if let Ok(true) = lock_file.is_current() {
                    remove_doorbells(&address.doorbell_stem());
                    let _ = lock_file.remove();
                }
            })
    }

    /// Takes over memory whose members were all killed. Returns the memory if it is intact, of this shape, and of a
    /// kind that reuses memory; otherwise removes the memory. Sets `lost_items` to the number of items of a queue in
    /// the memory. Raises an error for memory of another shape with values of users, which must not be lost silently.
    fn take_over(
        &self,
        address: &ObjectAddress,
        text: &[u8],
        shape: Shape,
        lost_items: &mut u64,
    ) -> Result<Option<ObjectMemory>, ObjectError> {
        let Some(name) = memory_name(address, text) else {
            return Ok(None);
        };
        let found = ObjectMemory::open(address, text).ok();
        let leftover = found
            .as_ref()
            .map(|memory| self.kinds.inspect_leftover(memory));
        *lost_items = leftover.as_ref().map_or(0, |leftover| leftover.items);
        let copy = leftover.and_then(|leftover| leftover.copy);
        let is_intact = |memory: &ObjectMemory| {
            copy.as_ref().is_none_or(|copy| named::open(copy).is_ok())
                && find_poison(&memory.mapping).is_none()
        };
        if let Some(memory) = &found
            && memory.shape != shape
            && memory.shape.keeps_values()
            && is_intact(memory)
        {
            return Err(ObjectError::LeftOver {
                found: memory.shape.to_string(),
                asked: shape.to_string(),
            });
        }
        let reused = found
            .filter(|memory| memory.shape == shape && shape.is_reusable() && is_intact(memory));
        if reused.is_none() {
            let _ = named::remove(name);
            let _ = copy.map(|copy| named::remove(&copy));
        }
        Ok(reused)
    }
}

/// Releases the entry lock, so that others can join: see [`Membership::admit_others`].
fn admit_others(
    address: &ObjectAddress,
    object: &dyn Object,
    is_first: bool,
) -> Result<(), ObjectError> {
    let path = address.lock_file.display();
    let what = format!("its lock file {path} cannot be unlocked or touched");
    object
        .membership()
        .admit_others(is_first)
        .map_err(ObjectError::os(what))
}

/// Opens the lock file of an object that this process does not have open. Returns None if the file is missing.
fn open_lock_file(
    address: &ObjectAddress,
    create: bool,
    objects: &Objects,
) -> Result<Option<LockFile>, ObjectError> {
    let path = address.lock_file.display();
    let is_open = |file| {
        objects
            .values()
            .any(|open| open.object.membership().has_lock_file(file))
    };
    LockFile::open(&address.lock_file, create, is_open).map_err(|error| {
        if error.raw_os_error() == Some(libc::EPERM)
            && let Ok(found) = fs::symlink_metadata(&address.lock_file)
            && found.is_file()
            && !is_own_regular_file(&found)
        {
            return ObjectError::OfUser(found.uid());
        }
        let what = match error.raw_os_error() {
            Some(libc::EMLINK) => format!("its lock file {path} is that of another name"),
            Some(libc::EPERM) => format!("its lock file {path} is no regular file of this user"),
            _ => format!("its lock file {path} cannot be opened"),
        };
        ObjectError::os(what)(error)
    })
}

/// Raises an error if an object is of another shape than asked.
fn check_shape(found: Shape, asked: Option<Shape>) -> Result<(), ObjectError> {
    match asked {
        Some(asked) if asked != found => Err(ObjectError::Mismatch {
            found: found.to_string(),
            asked: asked.to_string(),
        }),
        _ => Ok(()),
    }
}
