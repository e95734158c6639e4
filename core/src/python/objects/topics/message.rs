//! `Message`: a message of a topic.
//!
//! This module makes the class by the C interface. The garbage collector tracks instances of every class of PyO3, and
//! would run after each 700 messages. An instance of such a class also takes twice as long to make as everything else
//! for a small message.

use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use std::ffi::CStr;
use std::mem::offset_of;
use std::os::raw::{c_int, c_void};
use std::ptr::{null, null_mut};

/// The fields of an instance.
#[repr(C)]
struct Fields {
    base: ffi::PyObject,
    /// The value.
    value: *mut ffi::PyObject,
    /// The publisher: its `pid`, and a `number` that no other publisher of the topic has.
    publisher: *mut ffi::PyObject,
    /// The position among the messages of the publisher, from 0 on.
    seq: u64,
}

static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// Returns the class `Message`, which the first call makes.
pub(crate) fn class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    let class = CLASS.get_or_try_init(py, || make_class(py))?;
    Ok(class.bind(py))
}

/// Makes an instance. `class` is the result of [`class`]. Raises MemoryError.
#[inline]
pub(crate) fn make<'py>(
    class: &Bound<'py, PyType>,
    value: Bound<'py, PyAny>,
    publisher: Py<PyAny>,
    seq: u64,
) -> PyResult<Bound<'py, PyAny>> {
    let py = class.py();
    // SAFETY: the memory is new, and as large as `Fields`, all of which are set before other code sees the object; the
    // class is that of such objects.
    unsafe {
        let memory = ffi::PyObject_Malloc(size_of::<Fields>()).cast::<Fields>();
        if memory.is_null() {
            return Err(PyMemoryError::new_err(()));
        }
        ffi::PyObject_Init(memory.cast(), class.as_type_ptr());
        (&raw mut (*memory).value).write(value.into_ptr());
        (&raw mut (*memory).publisher).write(publisher.into_ptr());
        (&raw mut (*memory).seq).write(seq);
        Ok(Bound::from_owned_ptr(py, memory.cast()))
    }
}

/// Frees an instance. Python calls this when the last reference is dropped.
unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    let fields = object.cast::<Fields>();
    // SAFETY: it is an instance, whose references, memory and reference to its class are released here.
    unsafe {
        let class = ffi::Py_TYPE(object);
        ffi::Py_DECREF((*fields).value);
        ffi::Py_DECREF((*fields).publisher);
        ffi::PyObject_Free(object.cast());
        ffi::Py_DECREF(class.cast());
    }
}

/// Returns the representation of an instance.
unsafe extern "C" fn repr(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    let fields = object.cast::<Fields>();
    let format = c"Message(value=%R, seq=%llu, publisher=%R)";
    // SAFETY: it is an instance, and the format asks for an object, a u64, and an object.
    unsafe {
        let (value, publisher) = ((*fields).value, (*fields).publisher);
        ffi::PyUnicode_FromFormat(format.as_ptr(), value, (*fields).seq, publisher)
    }
}

/// Raises TypeError for `copy` and `pickle`, because a message belongs to this process and may refer to shared memory.
unsafe extern "C" fn reduce(
    object: *mut ffi::PyObject,
    _none: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    let text =
        c"message %llu of a topic cannot be copied or pickled: pass its contents on instead, such as m.value";
    // SAFETY: it is an instance, and the format asks for a u64.
    unsafe {
        let seq = (*object.cast::<Fields>()).seq;
        ffi::PyErr_Format(ffi::PyExc_TypeError, text.as_ptr(), seq)
    }
}

/// Makes the class.
fn make_class(py: Python<'_>) -> PyResult<Py<PyType>> {
    let member = |name: &'static CStr, doc: &'static CStr, type_code: c_int, offset: usize| {
        ffi::PyMemberDef {
            name: name.as_ptr(),
            type_code,
            offset: offset as ffi::Py_ssize_t,
            flags: ffi::Py_READONLY,
            doc: doc.as_ptr(),
        }
    };
    let object = ffi::Py_T_OBJECT_EX;
    let members = [
        member(
            c"value",
            c"The value that was published.",
            object,
            offset_of!(Fields, value),
        ),
        member(
            c"publisher",
            c"The publisher: its `pid`, and a `number` that no other publisher of the topic has.",
            object,
            offset_of!(Fields, publisher),
        ),
        member(
            c"seq",
            c"The position among the messages of its publisher, from 0 on.",
            ffi::Py_T_ULONGLONG,
            offset_of!(Fields, seq),
        ),
        ffi::PyMemberDef::default(),
    ];
    let methods = [
        ffi::PyMethodDef {
            ml_name: c"__reduce__".as_ptr(),
            ml_meth: ffi::PyMethodDefPointer {
                PyCFunction: reduce,
            },
            ml_flags: ffi::METH_NOARGS,
            ml_doc: null(),
        },
        ffi::PyMethodDef::zeroed(),
    ];
    let slot = |slot: c_int, pfunc: *mut c_void| ffi::PyType_Slot { slot, pfunc };
    // Python refers to both while the class lives, which is for ever.
    let members = Box::leak(Box::new(members)).as_mut_ptr();
    let methods = Box::leak(Box::new(methods)).as_mut_ptr();
    let doc = c"A message of a topic.";
    let mut slots = [
        slot(ffi::Py_tp_dealloc, dealloc as *mut c_void),
        slot(ffi::Py_tp_repr, repr as *mut c_void),
        slot(ffi::Py_tp_members, members.cast()),
        slot(ffi::Py_tp_methods, methods.cast()),
        slot(ffi::Py_tp_doc, doc.as_ptr() as *mut c_void),
        slot(0, null_mut()),
    ];
    let flags = ffi::Py_TPFLAGS_DEFAULT
        | ffi::Py_TPFLAGS_IMMUTABLETYPE
        | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION;
    let mut spec = ffi::PyType_Spec {
        name: c"shmrpc._core.Message".as_ptr(),
        basicsize: size_of::<Fields>() as c_int,
        itemsize: 0,
        flags: flags as u32,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: the specification is complete, and what it refers to lives for as long as it is needed. The result is a
    // new class, or null with an exception.
    unsafe {
        let made = ffi::PyType_FromSpec(&mut spec);
        let made = Bound::from_owned_ptr_or_err(py, made)?;
        Ok(made.cast_into_unchecked::<PyType>().unbind())
    }
}
