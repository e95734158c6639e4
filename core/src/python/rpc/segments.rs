//! Files of segments and their semaphores, by name.

use crate::connection::segment;
use crate::memory::named;
use crate::os;
use crate::python::support::descriptor::Descriptor;
use crate::python::support::errors::os_error;
use crate::wait::waker;
use pyo3::prelude::*;
use std::ffi::CString;
use std::os::fd::AsFd;

/// Returns the number of bytes that are allocated at first for a segment whose rings hold ``capacity`` bytes each.
#[pyfunction]
pub fn segment_memory(capacity: usize) -> usize {
    segment::used_at_first(capacity)
        .iter()
        .map(|each| each.len())
        .sum()
}

/// Creates the file of a segment whose rings hold ``capacity`` bytes each, locks it, and allocates the memory that the
/// rings begin with.
///
/// Returns None if a clean-up has locked or removed the file first. Unless this returns a descriptor, the caller has to
/// remove the file of this name. Raises OSError.
#[pyfunction]
pub fn create_segment(py: Python<'_>, name: &str, capacity: usize) -> PyResult<Option<Descriptor>> {
    let (size, used) = (
        segment::size_for(capacity),
        segment::used_at_first(capacity),
    );
    let made = py.detach(|| named::create(name, size, &used));
    let made = made.map_err(|error| os_error(&error))?;
    Ok(made.map(Descriptor::new))
}

/// Creates a semaphore of this name, which has no slash. Raises OSError.
#[pyfunction]
pub fn create_semaphore(name: &str) -> PyResult<()> {
    waker::create_semaphore(&CString::new(format!("/{name}"))?).map_err(|error| os_error(&error))
}

/// Opens the file of a segment that another process has created. Returns the file and the id of its owner. Raises
/// OSError.
#[pyfunction]
pub fn open_segment(name: &str) -> PyResult<(Descriptor, u32)> {
    let file = named::open(name).map_err(|error| os_error(&error))?;
    let status = os::fstat(file.as_fd()).map_err(|error| os_error(&error))?;
    Ok((Descriptor::new(file), status.st_uid))
}
