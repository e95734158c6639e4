//! `PlainChecker`: the check that the codec carries a value as it is.

use crate::python::codec::fields::FieldNames;
use crate::python::codec::msgpack::writer::Rules;
use crate::python::codec::numpy::NumPy;
use crate::sync::lock;
use pyo3::exceptions::PyRecursionError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDateTime, PyString, PyTime, PyTimeAccess, PyType, PyTzInfo, PyTzInfoAccess};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Kinds of types, by the addresses of the types, which are kept alive.
pub(super) type Types = HashMap<usize, (Py<PyType>, Kind)>;

/// The check that decides if an instance of a type is plain.
pub(super) enum Kind {
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
pub(super) struct Fields {
    /// Fields that the instance itself must have, because the codec does not ask the class.
    own: FieldNames,
    /// Fields whose values must be plain.
    open: FieldNames,
}

/// An instance whose fields are still to be checked, which may run Python code.
pub(super) struct PendingInstance {
    instance: Py<PyAny>,
    fields: Arc<Fields>,
    depth: u32,
}

/// The maximum nesting of arrays and maps on the wire, for which a reader has enough stack.
const MAX_DEPTH: u32 = 500;
/// The maximum number of cached types: more than a program has, unless it makes types at run time.
const MAX_TYPES: usize = 4096;

/// The reason for which a check does not find a value plain.
pub(super) enum Obstacle {
    /// The value is nested deeper than the check goes.
    TooDeep,
    /// An object needs more than the codec.
    NotPlain,
    /// A type is not classified.
    Unknown(*mut ffi::PyTypeObject),
}

/// The result of a check.
pub(super) type Check = Result<(), Obstacle>;

/// Checker of values, which caches the kinds of types.
pub(super) struct PlainChecker {
    /// Returns the kind of a type: see [`Encoder`](crate::python::codec::encoder::Encoder).
    is_plain: Py<PyAny>,
    pub(super) rules: Rules,
    types: Mutex<Types>,
    /// The number of times that the cache was cleared.
    changes: AtomicU64,
}

impl PlainChecker {
    pub(super) fn new(is_plain: Py<PyAny>, rules: Rules) -> Self {
        PlainChecker {
            is_plain,
            rules,
            types: Mutex::new(HashMap::new()),
            changes: AtomicU64::new(0),
        }
    }

    /// Locks the cache of types.
    fn types(&self) -> MutexGuard<'_, Types> {
        lock(&self.types)
    }

    /// Checks that `value` is plain, provided that all instances which this adds to `pending` are. Fails with the first
    /// obstacle. Runs no Python code, so that nothing changes meanwhile; the caller keeps `value` alive.
    #[inline]
    pub(super) fn check(
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

    /// Checks that `value` is plain, for all but the most common types.
    ///
    /// # Safety
    /// `value` is alive, `kind` is its type, and the GIL is held.
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
    /// instances in `pending` alone. Raises RecursionError for a value that is nested too deep; returns true for such a
    /// value if values keep their identity. Raises what `is_plain` raises.
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

    /// Returns true if `check`, which may run several times, finds only plain values. Runs Python code for instances
    /// and unknown types, and raises what it raises. Raises RecursionError for a value that is nested too deep, unless
    /// values keep their identity.
    pub(super) fn all_plain(
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

    /// Returns true if these instances are plain, with all instances in them. Raises what `all_plain` raises.
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

    /// Makes the writer write arrays, or memoryviews, from now on if `kind` is that type.
    fn note_written(&self, py: Python<'_>, kind: *mut ffi::PyTypeObject) {
        if kind == &raw mut ffi::PyMemoryView_Type {
            self.rules.views.store(true, Ordering::Relaxed);
        } else if NumPy::known(py).is_some_and(|numpy| numpy.is_array(kind)) {
            self.rules.arrays.store(true, Ordering::Relaxed);
        }
    }

    /// Asks `is_plain` for the kind of a type, and caches the answer, unless the cache was cleared meanwhile. Drops all
    /// other kinds if the cache is full. Raises what `is_plain` raises.
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

    /// Clears the cache of types. The writer writes no arrays and memoryviews until their types are classified again.
    pub(super) fn forget(&self) {
        let mut types = self.types();
        self.changes.fetch_add(1, Ordering::Relaxed);
        self.rules.arrays.store(false, Ordering::Relaxed);
        self.rules.views.store(false, Ordering::Relaxed);
        let forgotten = std::mem::take(&mut *types);
        drop(types);
        drop(forgotten); // After the lock, because a destructor may run any code.
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

/// Converts an answer of `is_plain`: None to `Native`, two tuples of names to `Fields`, and any other by its truth.
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
