//! `Encoder`: values to bytes, the short way for what MessagePack carries as it is.

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

use crate::python::codec::fields::Names;
use crate::python::codec::msgpack::writer::{OutgoingBody, Rules, Unsupported, Writer};
use crate::python::codec::numpy::NumPy;
use crate::python::codec::parcel::{ByteView, Parcel};
use crate::python::support::buffer::copy_of;

/// By the address of a type, which is kept alive: what there is to look at in an instance.
type Types = HashMap<usize, (Py<PyType>, Kind)>;

/// What there is to look at in an instance of a type.
enum Kind {
    /// Nothing: it is plain.
    Plain,
    /// Nothing: it needs more than the codec.
    Other,
    /// Nothing: it needs more than the codec, and the core writes what is usual of it.
    Native,
    /// Its fields.
    Fields(Arc<Fields>),
}

/// When an instance of a class with fields is plain.
struct Fields {
    /// These it must have itself: the codec does not ask the class.
    own: Names,
    /// The values of these must be plain.
    open: Names,
}

/// An instance whose fields are to be looked at. That may run Python code.
struct Met {
    instance: Py<PyAny>,
    fields: Arc<Fields>,
    depth: u32,
}

/// The greatest nesting of arrays and maps on the wire: a reader has stack for that.
const MAX_DEPTH: u32 = 500;
/// Types that are remembered: more than a program has, unless it makes them as it runs.
const MAX_TYPES: usize = 4096;

/// Why a look at a value cannot say that it is plain.
enum Obstacle {
    /// It goes on below the depth to which a look goes.
    TooDeep,
    /// Something that needs more than the codec.
    Other,
    /// A type that was not classified yet.
    Unknown(*mut ffi::PyTypeObject),
}

type Look = Result<(), Obstacle>;

/// What was written, as Python has it: bytes, or a parcel.
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
            // One that the program does not release.
            Ok(_) => PyMemoryView::from(owner)?.into_any(),
            Err(_) => owner.clone(),
        });
    }
    let buffers = PyTuple::new(py, buffers)?;
    Ok(Bound::new(py, Parcel::from_parts(body, buffers, bytes))?.into_any())
}

/// Turns values into bytes. A value of nothing but MessagePack's own types is written here, unless `reference` is said;
/// one that the codec carries as it is goes to `encode_plain`, another one to `encode_value`, or `encode_values` for an
/// array of values.
///
/// `is_plain` is asked once for each further type whether `encode_plain` carries it as it is: yes, no, or if an
/// instance has the first of two tuples of fields itself, and the values of the second are plain; or None if
/// it does not, and what is usual of NumPy's arrays, or of memoryviews, is written here. Bytes from `large` on are
/// not plain; they, and arrays from `large_array` on, travel beside the body. `whole`: what is shared within a value is to
/// arrive shared; such values go to `encode_value` and `encode_values`, and to nothing else. An argument that is a tuple is
/// then an array whose items are one value, and one that is a list holds a value in each item.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Encoder {
    encode_plain: Py<PyAny>,
    encode_value: Py<PyAny>,
    encode_values: Py<PyAny>,
    is_plain: Py<PyAny>,
    rules: Rules,
    /// Whether all is written by the codec.
    reference: bool,
    types: Mutex<Types>,
    /// How often they were forgotten.
    changes: AtomicU64,
}

impl Encoder {
    /// What writes MessagePack's own types; none if the codec is to write them.
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

    /// Writes a value, if there is nothing foreign in it.
    #[inline]
    pub(crate) fn write(
        &self,
        value: &Bound<'_, PyAny>,
        to: &mut OutgoingBody,
    ) -> Result<(), Unsupported> {
        self.writer(to)?.value(value)
    }

    /// Writes an array of values.
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

    fn types(&self) -> MutexGuard<'_, Types> {
        lock(&self.types)
    }

    /// Whether `value` is plain if all instances that are `met` are. No Python code runs in here, so nothing changes
    /// meanwhile.
    #[inline]
    fn look(
        &self,
        types: &Types,
        value: *mut ffi::PyObject,
        depth: u32,
        met: &mut Vec<Met>,
    ) -> Look {
        // SAFETY: `value` is alive: the caller holds it, or what holds it, and the GIL is ours. The types are static,
        // and the macros are used on what is exactly of their type.
        unsafe {
            let kind = ffi::Py_TYPE(value);
            // An int may be too large: that is rare, and `encode_plain` says so.
            if kind == &raw mut ffi::PyUnicode_Type
                || kind == &raw mut ffi::PyLong_Type
                || kind == &raw mut ffi::PyFloat_Type
            {
                return Ok(());
            }
            self.look_further(types, kind, value, depth, met)
        }
    }

    /// Whether `value`, which is of this type, is plain: all but the commonest.
    ///
    /// # Safety
    /// As in `look`.
    unsafe fn look_further(
        &self,
        types: &Types,
        kind: *mut ffi::PyTypeObject,
        value: *mut ffi::PyObject,
        depth: u32,
        met: &mut Vec<Met>,
    ) -> Look {
        let is = |other: *mut ffi::PyTypeObject| kind == other;
        // SAFETY: as in `look`.
        unsafe {
            if is(&raw mut ffi::PyBool_Type) || value == ffi::Py_None() {
                return Ok(());
            }
            if is(&raw mut ffi::PyBytes_Type) {
                let small = (ffi::PyBytes_Size(value) as usize) < self.rules.large;
                return if small { Ok(()) } else { Err(Obstacle::Other) };
            }
            if depth == MAX_DEPTH {
                return Err(Obstacle::TooDeep);
            }
            if is(&raw mut ffi::PyList_Type) {
                for index in 0..ffi::PyList_GET_SIZE(value) {
                    self.look(types, ffi::PyList_GET_ITEM(value, index), depth + 1, met)?;
                }
                return Ok(());
            }
            if is(&raw mut ffi::PyDict_Type) {
                let mut place: ffi::Py_ssize_t = 0;
                let mut key = std::ptr::null_mut();
                let mut item = std::ptr::null_mut();
                while ffi::PyDict_Next(value, &mut place, &mut key, &mut item) != 0 {
                    self.look(types, key, depth + 1, met)?;
                    self.look(types, item, depth + 1, met)?;
                }
                return Ok(());
            }
        }
        match types.get(&kind.addr()) {
            Some((_, Kind::Plain)) => Ok(()),
            Some((_, Kind::Other | Kind::Native)) => Err(Obstacle::Other),
            Some((_, Kind::Fields(fields))) => {
                // SAFETY: as in `look`.
                let instance =
                    unsafe { Bound::from_borrowed_ptr(Python::assume_attached(), value) }.unbind();
                let fields = Arc::clone(fields);
                met.push(Met {
                    instance,
                    fields,
                    depth,
                });
                Ok(())
            }
            None => Err(Obstacle::Unknown(kind)),
        }
    }

    /// Looks again and again, until all types are classified. None if all is plain but for what is `met`; else the
    /// answer.
    fn look_known(
        &self,
        py: Python<'_>,
        met: &mut Vec<Met>,
        look: impl Fn(&Types, &mut Vec<Met>) -> Look,
    ) -> PyResult<Option<bool>> {
        let before = met.len();
        loop {
            let looked = look(&self.types(), met);
            match looked {
                Ok(()) => return Ok(None),
                // Else it is pickled, or what pickles says that it is too deep.
                Err(Obstacle::TooDeep) if self.rules.whole => return Ok(Some(true)),
                Err(Obstacle::TooDeep) => {
                    return Err(PyRecursionError::new_err(format!(
                        "it contains itself, or lists and dicts are nested more than {MAX_DEPTH} deep"
                    )));
                }
                Err(Obstacle::Other) => return Ok(Some(false)),
                Err(Obstacle::Unknown(kind)) => {
                    met.truncate(before);
                    self.classify(py, kind)?;
                }
            }
        }
    }

    /// Whether `look` finds nothing but plain values.
    fn all_plain(
        &self,
        py: Python<'_>,
        look: impl Fn(&Types, &mut Vec<Met>) -> Look,
    ) -> PyResult<bool> {
        let mut met = Vec::new();
        match self.look_known(py, &mut met, look)? {
            Some(answer) => Ok(answer),
            None if met.is_empty() => Ok(true),
            None => self.are_plain(py, met),
        }
    }

    /// Whether these instances are plain, and those that are met in them.
    #[cold]
    fn are_plain(&self, py: Python<'_>, mut met: Vec<Met>) -> PyResult<bool> {
        while let Some(Met {
            instance,
            fields,
            depth,
        }) = met.pop()
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
                let look = |types: &Types, met: &mut Vec<Met>| {
                    self.look(types, value.as_ptr(), depth + 1, met)
                };
                if let Some(answer) = self.look_known(py, &mut met, look)? {
                    return Ok(answer);
                }
            }
        }
        Ok(true)
    }

    /// The bytes of `value` by `encode_plain` if it is plain, else by `otherwise`.
    fn by<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        plain: bool,
        otherwise: &Py<PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = value.py();
        if plain && !self.rules.whole {
            match self.encode_plain.bind(py).call1((value,)) {
                Err(error) if error.is_instance_of::<PyOverflowError>(py) => {}
                done => return done,
            }
        }
        otherwise.bind(py).call1((value,))
    }

    /// Values of a type are written here from now on.
    fn note_written(&self, py: Python<'_>, kind: *mut ffi::PyTypeObject) {
        if kind == &raw mut ffi::PyMemoryView_Type {
            self.rules.views.store(true, Ordering::Relaxed);
        } else if NumPy::known(py).is_some_and(|numpy| numpy.is_array(kind)) {
            self.rules.arrays.store(true, Ordering::Relaxed);
        }
    }

    fn classify(&self, py: Python<'_>, kind: *mut ffi::PyTypeObject) -> PyResult<()> {
        // SAFETY: the type of a living object lives; this takes a reference of its own.
        let kind = unsafe { Bound::from_borrowed_ptr(py, kind.cast()) }.cast_into::<PyType>()?;
        // Relaxed, here and in `forget`: the lock orders them.
        let before = self.changes.load(Ordering::Relaxed);
        let found = kind_of(&self.is_plain.bind(py).call1((&kind,))?)?;
        let mut types = self.types();
        if self.changes.load(Ordering::Relaxed) != before {
            return Ok(()); // It may have been registered meanwhile: it is asked for again.
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
        drop(dropped); // After the lock: it may run code.
        Ok(())
    }
}

/// Returns true if the codec carries a time in a field as it is: it converts a time of another zone to UTC.
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

/// What `is_plain` says of a type.
fn kind_of(answer: &Bound<'_, PyAny>) -> PyResult<Kind> {
    if answer.is_none() {
        return Ok(Kind::Native);
    }
    if let Ok((own, open)) =
        answer.extract::<(Vec<Bound<'_, PyString>>, Vec<Bound<'_, PyString>>)>()
    {
        let (own, open) = (Names::new(&own)?, Names::new(&open)?);
        return Ok(Kind::Fields(Arc::new(Fields { own, open })));
    }
    Ok(if answer.is_truthy()? {
        Kind::Plain
    } else {
        Kind::Other
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
                whole,
            },
            reference,
            types: Mutex::new(HashMap::new()),
            changes: AtomicU64::new(0),
        }
    }

    /// The bytes of one value, or its parcel.
    pub(crate) fn encode<'py>(
        &self,
        py: Python<'py>,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut written = OutgoingBody::new();
        if self.write(value, &mut written).is_ok() {
            return body_of(py, written);
        }
        let plain = self.all_plain(py, |types, met| self.look(types, value.as_ptr(), 0, met))?;
        self.by(value, plain, &self.encode_value)
    }

    /// The bytes of an array of values, or its parcel. The array itself is no value.
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
            self.all_plain(py, |types, met| {
                let mut values = values.as_slice().iter();
                values.try_for_each(|item| self.look(types, item.as_ptr(), 0, met))
            })?
        } else if values.is_exact_instance_of::<PyList>() {
            self.all_plain(py, |types, met| self.look(types, values.as_ptr(), 0, met))?
        } else {
            return Err(PyTypeError::new_err("expected a tuple or a list of values"));
        };
        self.by(values, plain, &self.encode_values)
    }

    /// Forgets all types, so that they are asked for anew: something has been registered.
    fn forget(&self) {
        let mut types = self.types();
        self.changes.fetch_add(1, Ordering::Relaxed);
        self.rules.arrays.store(false, Ordering::Relaxed);
        self.rules.views.store(false, Ordering::Relaxed);
        let forgotten = std::mem::take(&mut *types);
        drop(types);
        drop(forgotten); // After the lock: it may run code.
    }
}
