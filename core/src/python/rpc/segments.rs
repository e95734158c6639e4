//! The files of segments, by name.

use crate::connection::segment;
use crate::memory::named;
use crate::os;
use crate::python::support::descriptor::Descriptor;
use crate::python::support::errors::os_error;
use crate::wait::waker;
use pyo3::prelude::*;
use std::ffi::CString;
use std::os::fd::AsFd;

/// Bytes that are set aside for a segment as it is made whose rings hold ``capacity`` bytes each.
#[pyfunction]
pub fn segment_memory(capacity: usize) -> usize {
    segment::used_at_first(capacity)
        .iter()
        .map(|each| each.len())
        .sum()
}

/// Makes the file of a segment whose rings hold ``capacity`` bytes each, locked and with the memory set aside that they
/// begin with; None if a clean-up took it for
/// dead before it was locked. Unless it comes back, whatever has the name is the caller's to remove.
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

/// Makes a semaphore of this name, without a slash.
#[pyfunction]
pub fn create_semaphore(name: &str) -> PyResult<()> {
    waker::create_semaphore(&CString::new(format!("/{name}"))?).map_err(|error| os_error(&error))
}

/// Opens the file of a segment that somebody else has made; and the user whose it is.
#[pyfunction]
pub fn open_segment(name: &str) -> PyResult<(Descriptor, u32)> {
    let file = named::open(name).map_err(|error| os_error(&error))?;
    let status = os::status(file.as_fd()).map_err(|error| os_error(&error))?;
    Ok((Descriptor::new(file), status.st_uid))
}
