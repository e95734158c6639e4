//! `Encoder`: values to bytes, natively for values that MessagePack carries as they are.

use crate::sync::lock;
use pyo3::exceptions::{PyOverflowError, PyRecursionError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{
    PyDateTime, PyList, PyMemoryView, PyString, PyTime, PyTimeAccess, PyTuple, PyType, PyTzInfo,
    PyTzInfoAccess,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::python::codec::fields::FieldNames;
use crate::python::codec::msgpack::outgoing_body::OutgoingBody;
use crate::python::codec::msgpack::unsupported::Unsupported;
use crate::python::codec::msgpack::writer::{Rules, Writer};
use crate::python::codec::numpy::NumPy;
use crate::python::codec::parcel::{ByteView, Parcel};
use crate::python::support::buffer::copy_of;

/// Kinds of types, by the addresses of the types, which are kept alive.
type Types = HashMap<usize, (Py<PyType>, Kind)>;

/// The check that decides if an instance of a type is plain.
enum Kind {
    /// No check: the codec carries the instance as it is.
    Plain,
    /// No check: the instance needs more than the codec.
    NotPlain,
    /// No check: the instance needs more than the codec, but the core itself writes the usual forms of the type.
    Native,
    /// A check of the fields.
    Fields(Arc<Fields>),
}

/// Conditions under which an instance of a class with fields is plain.
struct Fields {
    /// Fields that the instance itself must have, because the codec does not ask the class.
    own: FieldNames,
    /// Fields whose values must be plain.
    open: FieldNames,
}

/// An instance whose fields are still to be checked, which may run Python code.
struct PendingInstance {
    instance: Py<PyAny>,
    fields: Arc<Fields>,
    depth: u32,
}

/// The maximum nesting of arrays and maps on the wire, for which a reader has enough stack.
const MAX_DEPTH: u32 = 500;
/// The maximum number of cached types: more than a program has, unless it makes types at run time.
const MAX_TYPES: usize = 4096;

/// The reason for which a check does not find a value plain.
enum Obstacle {
    /// The value is nested deeper than the check goes.
    TooDeep,
    /// An object needs more than the codec.
    NotPlain,
    /// A type is not classified.
    Unknown(*mut ffi::PyTypeObject),
}

type Check = Result<(), Obstacle>;

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
    is_plain: Py<PyAny>,
    rules: Rules,
    /// True if the codec encodes every value.
    reference: bool,
    types: Mutex<Types>,
    /// The number of times that the cache was cleared.
    changes: AtomicU64,
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
        Ok(Writer::new(to, &self.rules))
    }

    /// Writes a value. Fails if the core cannot write a part of the value.
    #[inline]
    pub(crate) fn write(
        &self,
        value: &Bound<'_, PyAny>,
        to: &mut OutgoingBody,
    ) -> Result<(), Unsupported> {
        self.writer(to)?.value(value)
    }

    /// Writes an array of arguments. Fails if the core cannot write a part of one.
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

    /// Locks the cache of types.
    fn types(&self) -> MutexGuard<'_, Types> {
        lock(&self.types)
    }

    /// Checks that `value` is plain, provided that all instances which this adds to `pending` are. Runs no Python code,
    /// so that nothing changes meanwhile.
    #[inline]
    fn check(
        &self,
        types: &Types,
        value: *mut ffi::PyObject,
        depth: u32,
        pending: &mut Vec<PendingInstance>,
    ) -> Check {
        // SAFETY: `value` is alive, because the caller holds it or its container, and the GIL is held. The types are
        // static, and the macros are used on objects of exactly their type.
        unsafe {
            let kind = ffi::Py_TYPE(value);
            // A too large int is rare, and `encode_plain` raises the error.
            if kind == &raw mut ffi::PyUnicode_Type
                || kind == &raw mut ffi::PyLong_Type
                || kind == &raw mut ffi::PyFloat_Type
            {
                return Ok(());
            }
            self.check_uncommon(types, kind, value, depth, pending)
        }
    }

    /// Checks that `value` is plain, for all but the most common types; `kind` is its type.
    unsafe fn check_uncommon(
        &self,
        types: &Types,
        kind: *mut ffi::PyTypeObject,
        value: *mut ffi::PyObject,
        depth: u32,
        pending: &mut Vec<PendingInstance>,
    ) -> Check {
        let is = |other: *mut ffi::PyTypeObject| kind == other;
        // SAFETY: as in `check`.
        unsafe {
            if is(&raw mut ffi::PyBool_Type) || value == ffi::Py_None() {
                return Ok(());
            }
            if is(&raw mut ffi::PyBytes_Type) {
                let small = (ffi::PyBytes_Size(value) as usize) < self.rules.large;
                return if small {
                    Ok(())
                } else {
                    Err(Obstacle::NotPlain)
                };
            }
            if depth == MAX_DEPTH {
                return Err(Obstacle::TooDeep);
            }
            if is(&raw mut ffi::PyList_Type) {
                for index in 0..ffi::PyList_GET_SIZE(value) {
                    self.check(
                        types,
                        ffi::PyList_GET_ITEM(value, index),
                        depth + 1,
                        pending,
                    )?;
                }
                return Ok(());
            }
            if is(&raw mut ffi::PyDict_Type) {
                let mut position: ffi::Py_ssize_t = 0;
                let mut key = std::ptr::null_mut();
                let mut item = std::ptr::null_mut();
                while ffi::PyDict_Next(value, &mut position, &mut key, &mut item) != 0 {
                    self.check(types, key, depth + 1, pending)?;
                    self.check(types, item, depth + 1, pending)?;
                }
                return Ok(());
            }
        }
        match types.get(&kind.addr()) {
            Some((_, Kind::Plain)) => Ok(()),
            Some((_, Kind::NotPlain | Kind::Native)) => Err(Obstacle::NotPlain),
            Some((_, Kind::Fields(fields))) => {
                // SAFETY: as in `check`.
                let instance =
                    unsafe { Bound::from_borrowed_ptr(Python::assume_attached(), value) }.unbind();
                let fields = Arc::clone(fields);
                pending.push(PendingInstance {
                    instance,
                    fields,
                    depth,
                });
                Ok(())
            }
            None => Err(Obstacle::Unknown(kind)),
        }
    }

    /// Runs a check, and repeats it until all types are classified. Returns the answer, or None if that depends on the
    /// instances in `pending` alone. Raises RecursionError for a value that is nested too deep.
    fn check_classified(
        &self,
        py: Python<'_>,
        pending: &mut Vec<PendingInstance>,
        check: impl Fn(&Types, &mut Vec<PendingInstance>) -> Check,
    ) -> PyResult<Option<bool>> {
        let before = pending.len();
        loop {
            let checked = check(&self.types(), pending);
            match checked {
                Ok(()) => return Ok(None),
                // The value is pickled then, or pickling it raises the error.
                Err(Obstacle::TooDeep) if self.rules.keeps_identity => return Ok(Some(true)),
                Err(Obstacle::TooDeep) => {
                    return Err(PyRecursionError::new_err(format!(
                        "it contains itself, or lists and dicts are nested more than {MAX_DEPTH} deep"
                    )));
                }
                Err(Obstacle::NotPlain) => return Ok(Some(false)),
                Err(Obstacle::Unknown(kind)) => {
                    pending.truncate(before);
                    self.classify(py, kind)?;
                }
            }
        }
    }

    /// Returns true if `check` finds only plain values.
    fn all_plain(
        &self,
        py: Python<'_>,
        check: impl Fn(&Types, &mut Vec<PendingInstance>) -> Check,
    ) -> PyResult<bool> {
        let mut pending = Vec::new();
        match self.check_classified(py, &mut pending, check)? {
            Some(answer) => Ok(answer),
            None if pending.is_empty() => Ok(true),
            None => self.are_plain(py, pending),
        }
    }

    /// Returns true if these instances are plain, with all instances in them.
    #[cold]
    fn are_plain(&self, py: Python<'_>, mut pending: Vec<PendingInstance>) -> PyResult<bool> {
        while let Some(PendingInstance {
            instance,
            fields,
            depth,
        }) = pending.pop()
        {
            let instance = instance.bind(py);
            if !fields.own.all_in(instance) {
                return Ok(false);
            }
            for value in fields.open.values_in(instance) {
                let Some(value) = value? else { continue };
                if is_plain_time(&value) {
                    continue;
                }
                let check = |types: &Types, pending: &mut Vec<PendingInstance>| {
                    self.check(types, value.as_ptr(), depth + 1, pending)
                };
                if let Some(answer) = self.check_classified(py, &mut pending, check)? {
                    return Ok(answer);
                }
            }
        }
        Ok(true)
    }

    /// Returns what `encode_plain` returns for `value` if that is plain, and what `otherwise` returns if not.
    fn encode_by<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        plain: bool,
        otherwise: &Py<PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = value.py();
        if plain && !self.rules.keeps_identity {
            match self.encode_plain.bind(py).call1((value,)) {
                Err(error) if error.is_instance_of::<PyOverflowError>(py) => {}
                done => return done,
            }
        }
        otherwise.bind(py).call1((value,))
    }

    /// Makes the writer write arrays, or memoryviews, from now on if `kind` is that type.
    fn note_written(&self, py: Python<'_>, kind: *mut ffi::PyTypeObject) {
        if kind == &raw mut ffi::PyMemoryView_Type {
            self.rules.views.store(true, Ordering::Relaxed);
        } else if NumPy::known(py).is_some_and(|numpy| numpy.is_array(kind)) {
            self.rules.arrays.store(true, Ordering::Relaxed);
        }
    }

    /// Asks `is_plain` for the kind of a type, and caches the answer.
    fn classify(&self, py: Python<'_>, kind: *mut ffi::PyTypeObject) -> PyResult<()> {
        // SAFETY: the type of a living object lives; this takes a reference of its own.
        let kind = unsafe { Bound::from_borrowed_ptr(py, kind.cast()) }.cast_into::<PyType>()?;
        // Relaxed, here and in `forget`: the lock orders them.
        let before = self.changes.load(Ordering::Relaxed);
        let found = kind_of(&self.is_plain.bind(py).call1((&kind,))?)?;
        let mut types = self.types();
        if self.changes.load(Ordering::Relaxed) != before {
            return Ok(()); // The type may have been registered meanwhile, and is classified again.
        }
        if matches!(found, Kind::Native) {
            self.note_written(py, kind.as_type_ptr());
        }
        let mut dropped = HashMap::new();
        if types.len() >= MAX_TYPES {
            std::mem::swap(&mut *types, &mut dropped);
        }
        types.insert(kind.as_ptr().addr(), (kind.unbind(), found));
        drop(types);
        drop(dropped); // After the lock, because a destructor may run any code.
        Ok(())
    }
}

/// Returns true for a time that the codec carries as it is in a field: the codec would convert one of another zone to
/// UTC.
fn is_plain_time(value: &Bound<'_, PyAny>) -> bool {
    let py = value.py();
    let (zone, fold) = if let Ok(time) = value.cast_exact::<PyDateTime>() {
        (time.get_tzinfo(), time.get_fold())
    } else if let Ok(time) = value.cast_exact::<PyTime>() {
        (time.get_tzinfo(), time.get_fold())
    } else {
        return false;
    };
    !fold && zone.is_none_or(|zone| PyTzInfo::utc(py).is_ok_and(|utc| zone.is(&*utc)))
}

/// Converts an answer of `is_plain`.
fn kind_of(answer: &Bound<'_, PyAny>) -> PyResult<Kind> {
    if answer.is_none() {
        return Ok(Kind::Native);
    }
    if let Ok((own, open)) =
        answer.extract::<(Vec<Bound<'_, PyString>>, Vec<Bound<'_, PyString>>)>()
    {
        let (own, open) = (FieldNames::new(&own)?, FieldNames::new(&open)?);
        return Ok(Kind::Fields(Arc::new(Fields { own, open })));
    }
    Ok(if answer.is_truthy()? {
        Kind::Plain
    } else {
        Kind::NotPlain
    })
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
        Encoder {
            encode_plain,
            encode_value,
            encode_values,
            is_plain,
            rules: Rules {
                large,
                large_array,
                arrays: AtomicBool::new(false),
                views: AtomicBool::new(false),
                keeps_identity: whole,
            },
            reference,
            types: Mutex::new(HashMap::new()),
            changes: AtomicU64::new(0),
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
        let plain = self.all_plain(py, |types, pending| {
            self.check(types, value.as_ptr(), 0, pending)
        })?;
        self.encode_by(value, plain, &self.encode_value)
    }

    /// Returns the body of an array of values: bytes, or a parcel. Raises TypeError if `values` is no tuple or list.
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
            self.all_plain(py, |types, pending| {
                let mut values = values.as_slice().iter();
                values.try_for_each(|item| self.check(types, item.as_ptr(), 0, pending))
            })?
        } else if values.is_exact_instance_of::<PyList>() {
            self.all_plain(py, |types, pending| {
                self.check(types, values.as_ptr(), 0, pending)
            })?
        } else {
            return Err(PyTypeError::new_err("expected a tuple or a list of values"));
        };
        self.encode_by(values, plain, &self.encode_values)
    }

    /// Clears the cache of types, because a program has registered a type.
    fn forget(&self) {
        let mut types = self.types();
        self.changes.fetch_add(1, Ordering::Relaxed);
        self.rules.arrays.store(false, Ordering::Relaxed);
        self.rules.views.store(false, Ordering::Relaxed);
        let forgotten = std::mem::take(&mut *types);
        drop(types);
        drop(forgotten); // After the lock, because a destructor may run any code.
    }
}
