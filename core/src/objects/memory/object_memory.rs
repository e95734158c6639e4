//! The memory of an object: a named file in /dev/shm, whose name stands in the object's lock file.

use super::layout::{AT_POISON, MIN_BYTES};
use super::shape::Shape;
use crate::crash;
use crate::memory::mapping::SharedMapping;
use crate::memory::named;
use crate::memory::region::{self, Kind, RegionError};
use crate::objects::error::ObjectError;
use crate::objects::files::{is_own_regular_file, random};
use crate::objects::members::lock_file::LockFile;
use crate::shared_heap::{Corruption, Poison};
use crate::sync::Ordering::Relaxed;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// The number of attempts to create memory, if a clean-up removes each before it is locked.
const CREATE_ATTEMPTS: usize = 100;

/// The address of an object.
#[derive(Clone, Debug)]
pub struct ObjectAddress {
    /// The name.
    pub name: String,
    /// The path of the lock file, which ends with `.lock`. The paths of the doorbells begin the same way.
    pub lock_file: PathBuf,
}

impl ObjectAddress {
    /// Returns the prefix of the paths of the object's doorbells.
    pub(in crate::objects) fn doorbell_stem(&self) -> PathBuf {
        self.lock_file.with_extension("")
    }
}

/// The memory of an object, mapped. A lock of its file tells a clean-up that the memory is needed.
pub struct ObjectMemory {
    pub(in crate::objects) name: String,
    pub(in crate::objects) file: File,
    pub(in crate::objects) mapping: Arc<SharedMapping>,
    pub(in crate::objects) shape: Shape,
}

impl ObjectMemory {
    /// Creates memory of this shape, locks it against clean-ups, and writes its name to the lock file. The caller has
    /// the entry lock. Raises EBUSY if clean-ups remove the memory again and again, and `Os` if the system refuses
    /// memory. After an error no memory is left, but the lock file may hold its name.
    pub(in crate::objects) fn create(
        address: &ObjectAddress,
        lock_file: &LockFile,
        shape: Shape,
    ) -> Result<Self, ObjectError> {
        for _ in 0..CREATE_ATTEMPTS {
            if let Some(memory) = Self::try_create(address, lock_file, shape)? {
                return Ok(memory);
            }
        }
        let what = format!(
            "its memory was removed {CREATE_ATTEMPTS} times as it was created; stop the process that keeps cleaning /dev/shm"
        );
        Err(ObjectError::from_errno(what, libc::EBUSY))
    }

    /// Creates memory once. Returns None if a clean-up locked or removed the memory before this process had locked it.
    fn try_create(
        address: &ObjectAddress,
        lock_file: &LockFile,
        shape: Shape,
    ) -> Result<Option<Self>, ObjectError> {
        let name = format!(
            "shmrpc.{}@{}.{:032x}",
            address.name,
            shape.kind.word(),
            random()?
        );
        // First the name, then the file: a process that died in between would leave a file that no lock file names.
        lock_file
            .write_memory_name(&name)
            .map_err(ObjectError::os("its lock file cannot be written"))?;
        crash::point!(MemoryNamed);
        let used = shape.initial_bytes();
        let remove = || {
            let _ = named::remove(&name);
        };
        let created = named::create(&name, shape.layout().size, std::slice::from_ref(&(0..used)))
            .map_err(|error| {
            remove();
            ObjectError::no_memory(&format!("its {used} bytes"))(error)
        })?;
        let Some(file) = created else {
            remove();
            return Ok(None);
        };
        crash::point!(MemoryMade);
        let mapping = region::create(file.as_fd(), shape.layout(), |mapping| shape.write(mapping));
        let memory = mapping.map_err(from_region).and_then(|mapping| {
            crash::point!(MemoryReady);
            Self::lock(name.clone(), file.into(), mapping, shape)
        });
        if !matches!(memory, Ok(Some(_))) {
            remove();
        }
        memory
    }

    /// Opens the memory that the text of a lock file names, and locks it against clean-ups. Raises `Foreign` for memory
    /// that is not of this user, or that no object of this version has; `Os` with ENOENT if the memory is gone; and
    /// EAGAIN if a clean-up removes it now. Does not check that the memory is poisoned.
    pub(in crate::objects) fn open(
        address: &ObjectAddress,
        text: &[u8],
    ) -> Result<Self, ObjectError> {
        let name = memory_name(address, text).ok_or_else(|| {
            let text = text.escape_ascii();
            ObjectError::Foreign(format!(
                "has no name: its lock file {} says '{text}'",
                address.lock_file.display()
            ))
        })?;
        let file: OwnedFd = named::open(name).map_err(ObjectError::os(format!(
            "its memory {name} cannot be opened"
        )))?;
        let failed = || ObjectError::os("its memory cannot be read");
        let file = File::from(file);
        let status = file.metadata().map_err(failed())?;
        if !is_own_regular_file(&status) {
            return Err(ObjectError::Foreign(format!(
                "{name} is no regular file of this user"
            )));
        }
        let size = status.len();
        if size < MIN_BYTES {
            return Err(ObjectError::Foreign(format!(
                "has {size} bytes, and each has at least {MIN_BYTES}"
            )));
        }
        let kind = region::kind(&file).map_err(failed())?;
        let kind = Kind::shared_object(kind)
            .ok_or_else(|| ObjectError::Foreign(format!("is of kind {kind}")))?;
        // The shape that the memory states is checked against its size.
        let shape = Shape::read(kind, |at| read_word(&file, at)).map_err(failed())?;
        let shape = shape
            .ok_or_else(|| ObjectError::Foreign("is of no size that it may have".to_owned()))?;
        if shape.layout().size as u64 != size {
            let text = format!("has {size} bytes instead of {}", shape.layout().size);
            return Err(ObjectError::Foreign(text));
        }
        let mapping = region::open(file.as_fd(), shape.layout()).map_err(from_region)?;
        Self::lock(name.to_owned(), file, mapping, shape)?
            .ok_or_else(|| ObjectError::from_errno("its memory was removed", libc::EAGAIN))
    }

    /// Takes the shared lock that protects the memory from clean-ups. Returns None if a clean-up has locked or removed
    /// the file. Does not wait.
    fn lock(
        name: String,
        file: File,
        mapping: SharedMapping,
        shape: Shape,
    ) -> Result<Option<Self>, ObjectError> {
        let is_locked =
            named::lock_shared(&file).map_err(ObjectError::os("its memory cannot be locked"))?;
        Ok(is_locked.then(|| ObjectMemory {
            name,
            file,
            mapping: Arc::new(mapping),
            shape,
        }))
    }
}

/// Returns the name of the memory that the text of a lock file holds: the text without its line end. Returns None if
/// the name does not begin with that of the address, or does not have the form of `try_create`.
pub(in crate::objects) fn memory_name<'a>(
    address: &ObjectAddress,
    text: &'a [u8],
) -> Option<&'a str> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('\n')?;
    let stem = format!("shmrpc.{}@", address.name);
    let (kind, random) = text.strip_prefix(&stem)?.split_once('.')?;
    let is_valid = Kind::SHARED_OBJECTS.iter().any(|each| each.word() == kind)
        && random.len() == 32
        && random.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_valid.then_some(text)
}

/// Reads the word at byte `at` of a file.
fn read_word(file: &File, at: usize) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at as u64)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Converts the error of a region: `Os` for a failed system call, otherwise `Foreign`.
fn from_region(error: RegionError) -> ObjectError {
    match error {
        RegionError::Os(error) => ObjectError::os("its memory cannot be mapped")(error),
        other => ObjectError::Foreign(other.to_string()),
    }
}

/// Returns the words by which all members learn of corruption.
pub(in crate::objects) fn poison_words(mapping: &SharedMapping) -> Poison<'_> {
    Poison([0, 8, 16].map(|at| mapping.u64_at(AT_POISON + at)))
}

/// Returns the corruption that was found in a region, if any.
pub(in crate::objects) fn find_poison(mapping: &SharedMapping) -> Option<Corruption> {
    // Relaxed: `Poison::read` reads the words again.
    let is_poisoned = mapping.u64_at(AT_POISON).load(Relaxed) != 0;
    is_poisoned.then(|| poison_words(mapping).read())
}
