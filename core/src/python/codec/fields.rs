//! Fields that an instance itself has. For other fields the attribute of the class is the default.

use pyo3::exceptions::PyAttributeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyString;

/// Names of attributes, interned as the names in an instance's `__dict__` are.
pub struct FieldNames(Vec<Py<PyString>>);

impl FieldNames {
    /// Interns these names. Raises UnicodeEncodeError for a name with lone surrogates.
    pub fn new(names: &[Bound<'_, PyString>]) -> PyResult<Self> {
        let interned = |name: &Bound<'_, PyString>| {
            let name = PyString::intern(name.py(), name.to_str()?);
            Ok(name.unbind())
        };
        Ok(FieldNames(
            names.iter().map(interned).collect::<PyResult<_>>()?,
        ))
    }

    /// Returns true if the `__dict__` of `instance` has all of these names. May return false for an instance that has
    /// one of the names as a str that is not interned.
    pub fn all_in(&self, instance: &Bound<'_, PyAny>) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let py = instance.py();
        // SAFETY: the instance is alive; the result is a new reference, or null with an exception.
        let own = unsafe {
            let own = ffi::PyObject_GenericGetDict(instance.as_ptr(), std::ptr::null_mut());
            Bound::from_owned_ptr_or_err(py, own)
        };
        let Ok(own) = own else { return false };
        let mut position = 0;
        self.0.iter().all(|name| {
            // They usually stand in order, so that the next one is found at once.
            let before = position;
            find_key(&own, name, &mut position, ffi::Py_ssize_t::MAX) || {
                position = 0;
                find_key(&own, name, &mut position, before)
            }
        })
    }

    /// Iterates over the values of these attributes of an instance; None for an attribute that the instance lacks. Runs
    /// the program's code for a property, and yields the exception that it raises, unless that is AttributeError.
    pub fn values_in<'a, 'py>(
        &'a self,
        instance: &'a Bound<'py, PyAny>,
    ) -> impl Iterator<Item = PyResult<Option<Bound<'py, PyAny>>>> + 'a {
        let py = instance.py();
        self.0
            .iter()
            .map(move |name| match instance.getattr(name.bind(py)) {
                Err(error) if error.is_instance_of::<PyAttributeError>(py) => Ok(None),
                found => found.map(Some),
            })
    }
}

/// Searches the keys of a dict for this name object, from `position` on up to `end`. Returns true if it is found, and
/// moves `position` behind the key.
fn find_key(
    dict: &Bound<'_, PyAny>,
    name: &Py<PyString>,
    position: &mut ffi::Py_ssize_t,
    end: ffi::Py_ssize_t,
) -> bool {
    let mut key = std::ptr::null_mut();
    while *position < end {
        // SAFETY: the dict is alive, and nothing runs here that could change it. `PyDict_Next` finds no keys in an
        // object that is no dict.
        let found =
            unsafe { ffi::PyDict_Next(dict.as_ptr(), position, &mut key, std::ptr::null_mut()) };
        if found == 0 {
            return false;
        }
        if key == name.as_ptr() {
            return true;
        }
    }
    false
}

/// A `__post_init__` for a decoder that leaves fields to the class: calls `complete` to set the fields that an instance
/// lacks, and then the class's own `__post_init__`, if it has one.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct PostInit {
    names: FieldNames,
    complete: Py<PyAny>,
    own: Option<Py<PyAny>>,
}

#[pymethods]
impl PostInit {
    #[new]
    #[pyo3(signature = (names, complete, own))]
    #[allow(clippy::needless_pass_by_value)] // PyO3 extracts them.
    fn new(
        names: Vec<Bound<'_, PyString>>,
        complete: Py<PyAny>,
        own: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        Ok(PostInit {
            names: FieldNames::new(&names)?,
            complete,
            own,
        })
    }

    fn __call__(&self, instance: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = instance.py();
        if !self.names.all_in(instance) {
            self.complete.bind(py).call1((instance,))?;
        }
        if let Some(own) = &self.own {
            own.bind(py).call1((instance,))?;
        }
        Ok(())
    }
}
