//! Steps of what is awaited, ours and Python's: how one is made, and what it has led to.

use pyo3::PyClass;
use pyo3::exceptions::PyStopIteration;
use pyo3::ffi;
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::types::PyType;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a step has led to.
pub(crate) enum Step<'py> {
    Yielded(Bound<'py, PyAny>),
    Returned(Bound<'py, PyAny>),
}

/// What is awaited, step by step.
pub(crate) trait Awaited: PyClass {
    /// Runs the next step with what `send` brings.
    fn step<'py>(slf: &Bound<'py, Self>, sent: &Bound<'py, PyAny>) -> PyResult<Step<'py>>;
}

/// Lets the interpreter run a step of `T` without an exception for the result, and without a call of PyO3's: that has no
/// word for it.
pub(crate) fn prepare<T: Awaited>(py: Python<'_>) {
    let class = py.get_type::<T>();
    // SAFETY: it is a type on the heap, whose slots for `await` lie in itself, and nobody uses it yet. The GIL is ours.
    unsafe {
        if let Some(slots) = (*class.as_type_ptr()).tp_as_async.as_mut() {
            slots.am_await = Some(am_await);
            slots.am_send = Some(am_send::<T>);
        }
    }
}

/// Itself.
unsafe extern "C" fn am_await(awaited: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the interpreter calls this with the GIL, and with an object.
    unsafe { ffi::Py_NewRef(awaited) }
}

/// As `PyIter_Send` says it.
unsafe extern "C" fn am_send<T: Awaited>(
    awaited: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
    result: *mut *mut ffi::PyObject,
) -> ffi::PySendResult {
    // SAFETY: the interpreter calls this with the GIL, and with an instance of ours.
    let py = unsafe { Python::assume_attached() };
    // SAFETY: both live for the time of the call; `None` may be said as null.
    let (awaited, value) = unsafe {
        let awaited = Bound::from_borrowed_ptr(py, awaited).cast_into_unchecked::<T>();
        let value = Bound::from_borrowed_ptr_or_opt(py, value);
        (awaited, value.unwrap_or_else(|| py.None().into_bound(py)))
    };
    // A panic must not leave Rust by way of C.
    let step = AssertUnwindSafe(|| T::step(&awaited, &value));
    let step = catch_unwind(step).unwrap_or_else(|_| {
        let text = "a panic in the step of a call: see what was printed";
        Err(PanicException::new_err(text))
    });
    let (led, value) = match step {
        Ok(Step::Yielded(value)) => (ffi::PySendResult::PYGEN_NEXT, value.into_ptr()),
        Ok(Step::Returned(value)) => (ffi::PySendResult::PYGEN_RETURN, value.into_ptr()),
        Err(error) => {
            error.restore(py);
            (ffi::PySendResult::PYGEN_ERROR, std::ptr::null_mut())
        }
    };
    // SAFETY: the interpreter's own place for the result, which becomes its reference.
    unsafe { *result = value };
    led
}

/// Sends a value to what is awaited, of Python's.
#[inline]
pub(crate) fn send<'py>(
    further: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
) -> PyResult<Step<'py>> {
    let mut result = std::ptr::null_mut();
    // SAFETY: both objects live, and the GIL is ours. `result` gets a new reference, or null with an exception.
    unsafe {
        let led = ffi::PyIter_Send(further.as_ptr(), value.as_ptr(), &mut result);
        let result = Bound::from_owned_ptr_or_err(further.py(), result)?;
        Ok(match led {
            ffi::PySendResult::PYGEN_NEXT => Step::Yielded(result),
            _ => Step::Returned(result),
        })
    }
}

/// Raises an exception where it waits.
pub(crate) fn throw<'py>(further: &Bound<'py, PyAny>, thrown: Thrown<'py>) -> PyResult<Step<'py>> {
    let Some(throw) = further.getattr_opt("throw")? else {
        return Err(thrown.error()?); // As `await` does it.
    };
    let done = match thrown {
        Thrown(kind, None, None) => throw.call1((kind,)),
        Thrown(kind, value, traceback) => throw.call1((kind, value, traceback)),
    };
    match done {
        Ok(value) => Ok(Step::Yielded(value)),
        Err(error) if error.is_instance_of::<PyStopIteration>(further.py()) => {
            let value = error.value(further.py()).getattr("value")?;
            Ok(Step::Returned(value))
        }
        Err(error) => Err(error),
    }
}

/// Ends it where it waits, if it can be.
pub(crate) fn close(further: &Bound<'_, PyAny>) -> PyResult<()> {
    let close = further.getattr_opt("close")?;
    close.map_or(Ok(()), |close| close.call0().map(drop))
}

/// A step as Python code is told it: what was yielded, or StopIteration.
pub(crate) fn told(step: Step<'_>) -> PyResult<Bound<'_, PyAny>> {
    match step {
        Step::Yielded(value) => Ok(value),
        // In a tuple, or a result that is one would be taken for the arguments of the exception.
        Step::Returned(value) => Err(PyStopIteration::new_err((value.unbind(),))),
    }
}

/// What `throw` is given: an exception, or a class, maybe with an instance and a traceback.
pub(crate) struct Thrown<'py>(
    pub(crate) Bound<'py, PyAny>,
    pub(crate) Option<Bound<'py, PyAny>>,
    pub(crate) Option<Bound<'py, PyAny>>,
);

impl Thrown<'_> {
    /// The exception.
    pub(crate) fn error(self) -> PyResult<PyErr> {
        let Thrown(kind, value, traceback) = self;
        let Ok(class) = kind.cast::<PyType>() else {
            return Ok(PyErr::from_value(kind));
        };
        let error = match value {
            None => class.call0()?,
            Some(value) if value.is_instance(class)? => value,
            Some(value) => class.call1((value,))?,
        };
        if let Some(traceback) = traceback.filter(|traceback| !traceback.is_none()) {
            error.setattr("__traceback__", traceback)?;
        }
        Ok(PyErr::from_value(error))
    }
}
