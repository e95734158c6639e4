//! `Encoder`: values to bytes, natively for values that MessagePack carries as they are.

use crate::python::codec::msgpack::outgoing_body::OutgoingBody;
use crate::python::codec::msgpack::unsupported::Unsupported;
use crate::python::codec::msgpack::writer::{Rules, Writer};
use crate::python::codec::parcel::{ByteView, Parcel};
use crate::python::codec::plain_checker::PlainChecker;
use crate::python::support::buffer::copy_of;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyMemoryView, PyTuple};
use std::sync::atomic::AtomicBool;

/// Returns a written body as bytes, or as a parcel if there are buffers.
#[inline]
fn body_of(py: Python<'_>, written: OutgoingBody) -> PyResult<Bound<'_, PyAny>> {
    let body = copy_of(py, &written.bytes)?;
    if written.buffers.is_empty() {
        return Ok(body.into_any());
    }
    let bytes = written.buffers.iter().map(ByteView::len).sum();
    let mut buffers = Vec::with_capacity(written.buffers.len());
    for flat in &written.buffers {
        let owner = flat.owner().bind(py);
        buffers.push(match owner.cast_exact::<PyMemoryView>() {
            // A view of its own, which the program cannot release.
            Ok(_) => PyMemoryView::from(owner)?.into_any(),
            Err(_) => owner.clone(),
        });
    }
    let buffers = PyTuple::new(py, buffers)?;
    Ok(Bound::new(py, Parcel::from_parts(body, buffers, bytes))?.into_any())
}

/// Encoder of values. The core writes a value of MessagePack's own types, unless `reference` is set. The function
/// `encode_plain` encodes a value that the codec carries as it is, `encode_value` any other value, and `encode_values`
/// an array of values.
///
/// The encoder calls `is_plain` once for each further type. The function returns True if `encode_plain` carries the
/// type as it is, and False if not. It returns two tuples of fields if an instance is plain that itself has the fields
/// of the first tuple, and has plain values in the fields of the second. It returns None if the core writes the usual
/// NumPy arrays, or memoryviews.
///
/// A bytes object of at least `large` bytes is not plain. Such objects, and arrays of at least `large_array` bytes,
/// travel beside the body. With `whole`, an object that occurs twice in a value arrives as one object: only
/// `encode_value` and `encode_values` encode such values. An argument that is a tuple is then an array whose items are
/// one value, and each item of an argument that is a list is a value of its own.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Encoder {
    encode_plain: Py<PyAny>,
    encode_value: Py<PyAny>,
    encode_values: Py<PyAny>,
    /// True if the codec encodes every value.
    reference: bool,
    checker: PlainChecker,
}

impl Encoder {
    /// Returns a writer of MessagePack's own types. Fails if the codec has to encode every value.
    #[inline]
    pub(crate) fn writer<'a>(
        &'a self,
        to: &'a mut OutgoingBody,
    ) -> Result<Writer<'a>, Unsupported> {
        if self.reference {
            return Err(Unsupported);
        }
        Ok(Writer::new(to, &self.checker.rules))
    }

    /// Writes a value. Fails if the core cannot write a part of the value: `to` may hold other parts then.
    #[inline]
    pub(crate) fn write(
        &self,
        value: &Bound<'_, PyAny>,
        to: &mut OutgoingBody,
    ) -> Result<(), Unsupported> {
        self.writer(to)?.value(value)
    }

    /// Writes an array of arguments. Fails if the core cannot write a part of one: `to` may hold other parts then.
    #[inline]
    fn write_all(
        &self,
        values: &[Bound<'_, PyAny>],
        to: &mut OutgoingBody,
    ) -> Result<(), Unsupported> {
        let mut writer = self.writer(to)?;
        writer.array(values.len())?;
        values.iter().try_for_each(|value| writer.argument(value))
    }

    /// Returns what `encode_plain` returns for `value` if that is plain, and what `otherwise` returns if not, if values
    /// keep their identity, or if `encode_plain` raises OverflowError. Raises any other exception of these functions.
    fn encode_by<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        plain: bool,
        otherwise: &Py<PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = value.py();
        if plain && !self.checker.rules.keeps_identity {
            match self.encode_plain.bind(py).call1((value,)) {
                Err(error) if error.is_instance_of::<PyOverflowError>(py) => {}
                done => return done,
            }
        }
        otherwise.bind(py).call1((value,))
    }
}

#[pymethods]
impl Encoder {
    #[new]
    #[pyo3(signature = (*, encode_plain, encode_value, encode_values, is_plain, large, large_array, reference, whole))]
    #[allow(clippy::too_many_arguments)] // By keyword alone, in one place.
    fn new(
        encode_plain: Py<PyAny>,
        encode_value: Py<PyAny>,
        encode_values: Py<PyAny>,
        is_plain: Py<PyAny>,
        large: usize,
        large_array: usize,
        reference: bool,
        whole: bool,
    ) -> Self {
        let rules = Rules {
            large,
            large_array,
            arrays: AtomicBool::new(false),
            views: AtomicBool::new(false),
            keeps_identity: whole,
        };
        Encoder {
            encode_plain,
            encode_value,
            encode_values,
            reference,
            checker: PlainChecker::new(is_plain, rules),
        }
    }

    /// Returns the body of one value: bytes, or a parcel. Raises what the functions raise.
    pub(crate) fn encode<'py>(
        &self,
        py: Python<'py>,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut written = OutgoingBody::new();
        if self.write(value, &mut written).is_ok() {
            return body_of(py, written);
        }
        let plain = self.checker.all_plain(py, |types, pending| {
            self.checker.check(types, value.as_ptr(), 0, pending)
        })?;
        self.encode_by(value, plain, &self.encode_value)
    }

    /// Returns the body of an array of values: bytes, or a parcel. Raises TypeError if `values` is no tuple or list,
    /// also for an instance of a subclass of list.
    fn encode_all<'py>(
        &self,
        py: Python<'py>,
        values: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut written = OutgoingBody::new();
        let done = match values.cast::<PyTuple>() {
            Ok(values) => self.write_all(values.as_slice(), &mut written),
            Err(_) => match values.cast_exact::<PyList>() {
                Ok(values) => self.write_all(&values.iter().collect::<Vec<_>>(), &mut written),
                Err(_) => Err(Unsupported),
            },
        };
        if done.is_ok() {
            return body_of(py, written);
        }
        let plain = if let Ok(values) = values.cast::<PyTuple>() {
            self.checker.all_plain(py, |types, pending| {
                let mut values = values.as_slice().iter();
                values.try_for_each(|item| self.checker.check(types, item.as_ptr(), 0, pending))
            })?
        } else if values.is_exact_instance_of::<PyList>() {
            self.checker.all_plain(py, |types, pending| {
                self.checker.check(types, values.as_ptr(), 0, pending)
            })?
        } else {
            return Err(PyTypeError::new_err("expected a tuple or a list of values"));
        };
        self.encode_by(values, plain, &self.encode_values)
    }

    /// Clears the cache of types, because a program has registered a type: `is_plain` is called anew for each type.
    fn forget(&self) {
        self.checker.forget();
    }
}
