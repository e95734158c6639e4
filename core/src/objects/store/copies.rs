//! The files of copies of a store. In a copy the members continue without a member that has stopped.
//!
//! The name of the file is the name of the object's memory, with the number of the copy in the place of the last 16
//! digits. The file has the same size and the contents at the same offset, and nothing before the contents.

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

/// The maximum number of times that an operation moves to another copy. Correct members make copies rarely.
pub const MOVE_ATTEMPTS: usize = 16;

/// Makes the error EBUSY for a store that other members replace again and again.
#[cold]
pub fn replaced_too_often() -> ObjectError {
    ObjectError::from_errno("it was replaced by a copy again and again", libc::EBUSY)
}

/// Returns a random number of container ids, which a copy skips so that no id occurs twice.
pub fn skipped_ids() -> Result<u64, ObjectError> {
    Ok(ids_to_skip(random()? as u64))
}

/// Returns the name of the file of a copy; None if the name of the memory is not one that this library gives.
fn copy_name_of(memory: &str, number: u64) -> Option<String> {
    let (stem, random) = memory.rsplit_once('.')?;
    Some(format!("{stem}.{}{number:016x}", random.get(..16)?))
}

/// Returns the name of the file of a copy. Raises `Foreign` where [`copy_name_of`] returns None.
pub fn copy_name(memory: &str, number: u64) -> Result<String, ObjectError> {
    let name = copy_name_of(memory, number);
    name.ok_or_else(|| ObjectError::Foreign("has no copy of this name".to_owned()))
}

/// Returns the number of the copy that holds the current contents of a store; 0 if the object's memory holds them.
pub fn copy_number(mapping: &SharedMapping) -> u64 {
    // Acquire: pairs with the release of the process that has made the copy.
    mapping.u64_at(AT_CONTENTS).load(Acquire)
}

/// Returns the name of the copy that holds the current contents of a store; None if the object's memory holds them.
pub fn copy_of(mapping: &SharedMapping, shape: Shape, memory: &str) -> Option<String> {
    match copy_number(mapping) {
        0 => None,
        _ if shape.has_single_writer() => None,
        number => copy_name_of(memory, number),
    }
}

/// Maps the copy that holds the current contents of a store, in the place of the contents that are mapped. Returns the
/// number of the copy; 0 if there is none. Raises the errors of `open_copy`, after some attempts if there is another
/// copy meanwhile.
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

/// Opens the file of a copy, and locks it against clean-ups. Raises `Foreign` if the file is not of this user and size,
/// `Os` if it cannot be opened, and EAGAIN if a clean-up has locked or removed it.
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

/// Replaces the mapped contents by those of a copy, and makes the descriptor `file` refer to the copy. The caller
/// ensures that no other thread of this process uses the contents.
pub fn map_copy(
    mapping: &SharedMapping,
    file: &OwnedFd,
    copy: &File,
    shape: Shape,
) -> io::Result<()> {
    mapping.exchange(copy.as_fd(), shape.contents_at(), Access::Shared)?;
    replace_descriptor(file, copy)
}
