//! The files of copies of a store, in which its members continue without one that has stopped.
//!
//! The file of a copy is named as the object's memory, with the number of the copy in the place of the last 16 digits.
//! The file is of the same size, and has the contents at the same offset, and nothing before them.

use crate::memory::mapping::{Access, SharedMapping};
use crate::memory::named;
use crate::objects::error::ObjectError;
use crate::objects::files::{is_own_regular_file, random, replace_descriptor};
use crate::objects::memory::layout::AT_CONTENTS;
use crate::objects::memory::shape::Shape;
use crate::store::failover::ids_to_skip;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Acquire;

/// The number of times that an operation moves to another copy. A member that keeps to the rules makes one rarely.
pub const MOVE_ATTEMPTS: usize = 16;

/// Makes the error for a store that is replaced without end.
#[cold]
pub fn replaced_too_often() -> ObjectError {
    ObjectError::from_errno("it was replaced by a copy again and again", libc::EBUSY)
}

/// Returns the number of container ids that a copy skips, so that no number is given twice.
pub fn skipped_ids() -> Result<u64, ObjectError> {
    Ok(ids_to_skip(random()? as u64))
}

/// Returns the name of the file of a copy, or None if the memory has no name of ours.
fn copy_name_of(memory: &str, number: u64) -> Option<String> {
    let (stem, random) = memory.rsplit_once('.')?;
    Some(format!("{stem}.{}{number:016x}", random.get(..16)?))
}

/// Returns the name of the file of a copy.
pub fn copy_name(memory: &str, number: u64) -> Result<String, ObjectError> {
    let name = copy_name_of(memory, number);
    name.ok_or_else(|| ObjectError::Foreign("has no copy of this name".to_owned()))
}

/// Returns the number of the copy that has the contents of a store now; 0 for the object's memory itself.
pub fn copy_number(mapping: &SharedMapping) -> u64 {
    // Acquire: pairs with the release of the process that has made the copy.
    mapping.u64_at(AT_CONTENTS).load(Acquire)
}

/// Returns the name of the copy that has the contents of a store now, if there is one.
pub fn copy_of(mapping: &SharedMapping, shape: Shape, memory: &str) -> Option<String> {
    match copy_number(mapping) {
        0 => None,
        _ if shape.is_owned() => None,
        number => copy_name_of(memory, number),
    }
}

/// Maps the copy that has the contents of a store now, if there is one, in their place. Returns its number, or 0.
pub fn map_current_copy(
    mapping: &SharedMapping,
    file: &OwnedFd,
    shape: Shape,
    memory: &str,
) -> Result<u64, ObjectError> {
    let mut attempts = 0;
    loop {
        let number = copy_number(mapping);
        if number == 0 {
            return Ok(0);
        }
        match open_copy(memory, number, shape) {
            Ok(copy) => {
                map_copy(mapping, file, &copy, shape)
                    .map_err(ObjectError::os("its memory cannot be mapped"))?;
                return Ok(number);
            }
            // A process that only inspects the store may come while there is another copy.
            Err(_) if copy_number(mapping) != number && attempts < MOVE_ATTEMPTS => attempts += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Opens a copy, and locks it against clean-ups.
pub fn open_copy(memory: &str, number: u64, shape: Shape) -> Result<File, ObjectError> {
    let name = copy_name(memory, number)?;
    let failed = || ObjectError::os(format!("its memory {name} cannot be opened"));
    let file = File::from(named::open(&name).map_err(failed())?);
    let status = file.metadata().map_err(failed())?;
    let size = shape.layout().size as u64;
    if !is_own_regular_file(&status) || status.len() != size {
        return Err(ObjectError::Foreign(format!(
            "{name} is no regular file of this user with {size} bytes"
        )));
    }
    match named::lock_shared(&file).map_err(failed())? {
        true => Ok(file),
        false => Err(failed()(io::Error::from_raw_os_error(libc::EAGAIN))),
    }
}

/// Replaces the contents that this process has by a copy: in the mapping, and behind the descriptor.
pub fn map_copy(
    mapping: &SharedMapping,
    file: &OwnedFd,
    copy: &File,
    shape: Shape,
) -> io::Result<()> {
    mapping.exchange(copy.as_fd(), shape.contents_at(), Access::Shared)?;
    replace_descriptor(file, copy)
}
