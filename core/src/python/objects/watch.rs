//! Notice of new shared objects.

use crate::objects::discovery;
use crate::python::support::descriptor::Descriptor;
use crate::python::support::errors::os_error;
use pyo3::prelude::*;
use std::path::PathBuf;

/// Watches directories for new shared objects. Returns a descriptor that is readable once one may have appeared: look
/// for it then, and watch anew.
///
/// Raises OSError if the system refuses.
#[pyfunction]
pub fn watch_for_names(directories: Vec<PathBuf>) -> PyResult<Descriptor> {
    let watched = discovery::watch(&directories).map_err(|error| os_error(&error))?;
    Ok(Descriptor::new(watched))
}
