//! Discovery of new shared objects.

use crate::objects::discovery;
use crate::python::support::descriptor::Descriptor;
use crate::python::support::errors::os_error;
use pyo3::prelude::*;
use std::path::PathBuf;

/// Watches directories for new shared objects. Returns a descriptor that becomes readable once an object may have
/// appeared: the caller then looks for the object, and watches again.
///
/// Raises OSError if the system refuses.
#[pyfunction]
pub fn watch_for_names(directories: Vec<PathBuf>) -> PyResult<Descriptor> {
    let watched = discovery::watch(&directories).map_err(|error| os_error(&error))?;
    Ok(Descriptor::new(watched))
}
