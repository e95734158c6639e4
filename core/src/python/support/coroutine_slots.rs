//! Slots by which the interpreter runs the steps of a native coroutine directly.

use crate::python::support::native_coroutine::{NativeCoroutine, advance};
use crate::python::support::step::Step;
use pyo3::ffi;
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Sets the slots by which the interpreter runs a step of `T` without StopIteration for its result. PyO3 does not
/// support `am_send`. The caller makes no instance before.
pub(crate) fn install<T: NativeCoroutine>(py: Python<'_>) {
    let class = py.get_type::<T>();
    // SAFETY: it is a heap type, which contains its slots for `await`, and no code uses it yet. The GIL is held.
    unsafe {
        if let Some(slots) = (*class.as_type_ptr()).tp_as_async.as_mut() {
            slots.am_await = Some(am_await);
            slots.am_send = Some(am_send::<T>);
        }
    }
}

/// Returns the object itself.
unsafe extern "C" fn am_await(coroutine: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the interpreter calls this with the GIL, and with an object.
    unsafe { ffi::Py_NewRef(coroutine) }
}

/// Runs a step, as `PyIter_Send` documents it. A panic becomes PanicException.
unsafe extern "C" fn am_send<T: NativeCoroutine>(
    coroutine: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
    result: *mut *mut ffi::PyObject,
) -> ffi::PySendResult {
    // SAFETY: the interpreter calls this with the GIL, and with an instance of `T`.
    let py = unsafe { Python::assume_attached() };
    // SAFETY: both live for the time of the call; null stands for None.
    let (coroutine, value) = unsafe {
        let coroutine = Bound::from_borrowed_ptr(py, coroutine).cast_into_unchecked::<T>();
        let value = Bound::from_borrowed_ptr_or_opt(py, value);
        (coroutine, value.unwrap_or_else(|| py.None().into_bound(py)))
    };
    // A panic must not leave Rust through C.
    let step = AssertUnwindSafe(|| advance(coroutine.get(), &value));
    let step = catch_unwind(step).unwrap_or_else(|_| {
        let text = "a panic in the step of a coroutine: see what was printed";
        Err(PanicException::new_err(text))
    });
    let (outcome, value) = match step {
        Ok(Step::Yielded(value)) => (ffi::PySendResult::PYGEN_NEXT, value.into_ptr()),
        Ok(Step::Returned(value)) => (ffi::PySendResult::PYGEN_RETURN, value.into_ptr()),
        Err(error) => {
            error.restore(py);
            (ffi::PySendResult::PYGEN_ERROR, std::ptr::null_mut())
        }
    };
    // SAFETY: the interpreter's own place for the result, which takes over the reference.
    unsafe { *result = value };
    outcome
}
