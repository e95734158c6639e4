//! Steps of awaitables: sending a value, throwing an exception, closing, and the outcome of each.

use pyo3::exceptions::{PyStopIteration, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// Outcome of a step that has raised no exception.
pub(crate) enum Step<'py> {
    Yielded(Bound<'py, PyAny>),
    Returned(Bound<'py, PyAny>),
}

impl<'py> Step<'py> {
    /// Returns the yielded value, or raises StopIteration with the returned value.
    pub(crate) fn into_iteration(self) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Step::Yielded(value) => Ok(value),
            // In a tuple, because the exception would take a result that is a tuple for its own arguments.
            Step::Returned(value) => Err(PyStopIteration::new_err((value.unbind(),))),
        }
    }
}

/// Sends a value to an iterator of an awaitable, as `__await__` returns it. Returns the outcome of the step, or raises
/// its exception.
#[inline]
pub(crate) fn send<'py>(
    awaitable: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
) -> PyResult<Step<'py>> {
    let mut result = std::ptr::null_mut();
    // SAFETY: both objects live, and the GIL is held. `result` gets a new reference, or null with an exception.
    unsafe {
        let outcome = ffi::PyIter_Send(awaitable.as_ptr(), value.as_ptr(), &mut result);
        let result = Bound::from_owned_ptr_or_err(awaitable.py(), result)?;
        Ok(match outcome {
            ffi::PySendResult::PYGEN_NEXT => Step::Yielded(result),
            _ => Step::Returned(result),
        })
    }
}

/// Raises an exception in an awaitable, at the point where it is suspended, and returns the outcome of the step. Raises
/// the exception itself if the awaitable has no method `throw`, and otherwise what the step raises.
pub(crate) fn throw<'py>(
    awaitable: &Bound<'py, PyAny>,
    exception: ThrowArguments<'py>,
) -> PyResult<Step<'py>> {
    let Some(throw) = awaitable.getattr_opt("throw")? else {
        return Err(exception.into_error()?); // `await` does the same.
    };
    let thrown = match exception {
        ThrowArguments(kind, None, None) => throw.call1((kind,)),
        ThrowArguments(kind, value, traceback) => throw.call1((kind, value, traceback)),
    };
    match thrown {
        Ok(value) => Ok(Step::Yielded(value)),
        Err(error) if error.is_instance_of::<PyStopIteration>(awaitable.py()) => {
            let value = error.value(awaitable.py()).getattr("value")?;
            Ok(Step::Returned(value))
        }
        Err(error) => Err(error),
    }
}

/// Closes an awaitable, if it has a method `close`. Raises what the method raises.
pub(crate) fn close(awaitable: &Bound<'_, PyAny>) -> PyResult<()> {
    let close = awaitable.getattr_opt("close")?;
    close.map_or(Ok(()), |close| close.call0().map(drop))
}

/// Arguments of `throw`: an exception, or a class with an optional instance and an optional traceback.
pub(crate) struct ThrowArguments<'py>(
    pub(crate) Bound<'py, PyAny>,
    pub(crate) Option<Bound<'py, PyAny>>,
    pub(crate) Option<Bound<'py, PyAny>>,
);

impl ThrowArguments<'_> {
    /// Returns the exception that these arguments describe, or raises what making the exception raises. A value that is
    /// no instance of the class becomes the argument of its constructor. Value and traceback are ignored if the first
    /// argument is an instance.
    pub(crate) fn into_error(self) -> PyResult<PyErr> {
        let ThrowArguments(kind, value, traceback) = self;
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

/// Calls `__anext__` of an asynchronous iterator, and returns an iterator of the steps of the awaitable. Raises what
/// `__anext__` raises, and TypeError if its result cannot be awaited.
#[inline]
pub(crate) fn anext<'py>(items: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the slots of a type live as long as the type, which lives as long as the object; each is called with an
    // object of that type, and gives a new reference, or null with an exception. The GIL is held.
    unsafe {
        let slots = (*ffi::Py_TYPE(items.as_ptr())).tp_as_async;
        let next = match slots.as_ref().and_then(|slots| slots.am_anext) {
            Some(am_anext) => Bound::from_owned_ptr_or_err(items.py(), am_anext(items.as_ptr()))?,
            None => items.call_method0("__anext__")?,
        };
        let slots = (*ffi::Py_TYPE(next.as_ptr())).tp_as_async;
        match slots.as_ref().and_then(|slots| slots.am_await) {
            Some(am_await) => Bound::from_owned_ptr_or_err(next.py(), am_await(next.as_ptr())),
            None => check_is_coroutine(next),
        }
    }
}

/// Returns the object if it is a generator marked as a coroutine, whose steps run without `__await__`. Raises TypeError
/// for any other object.
#[cold]
fn check_is_coroutine(next: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
    let flags = || {
        let code = next.getattr("gi_code")?;
        code.getattr("co_flags")?.extract::<u32>()
    };
    if flags().is_ok_and(|flags| flags & ffi::CO_ITERABLE_COROUTINE as u32 != 0) {
        return Ok(next);
    }
    let kind = next.get_type();
    let name = kind.name()?;
    Err(PyTypeError::new_err(format!(
        "'async for' received an object from __anext__ that does not implement __await__: {name}"
    )))
}
