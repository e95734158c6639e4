//! Coroutines that the core runs.
//!
//! Most coroutines end in their first step. Any other coroutine delegates to an awaitable of Python's, or to several,
//! one after the other. This module keeps the state of a coroutine and implements its methods.

use crate::python::support::step::{self, Step, ThrowArguments, send};
use crate::sync::lock;
use pyo3::PyClass;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyNone;
use std::sync::Mutex;

/// State of a native coroutine.
pub(crate) enum State<T: NativeCoroutine> {
    /// Not started.
    New(T::Start),
    /// A step is running.
    Running,
    /// Suspended at a `yield` of its own.
    Suspended(T::Suspended),
    /// Suspended in this awaitable.
    Delegated(Py<PyAny>),
    Ended,
}

/// Next action of a native coroutine.
pub(crate) enum Next<'py, S> {
    /// Return this value.
    Return(Bound<'py, PyAny>),
    /// Delegate to this iterator of an awaitable, as `__await__` returns it.
    Await(Bound<'py, PyAny>),
    /// Yield None, so that the event loop runs one iteration.
    Yield(S),
}

/// State that refers to Python objects.
pub(crate) trait Traverse {
    /// Visits the references for the garbage collector.
    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError>;
}

impl Traverse for () {
    fn traverse(&self, _visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        Ok(())
    }
}

/// A coroutine of the core.
pub(crate) trait NativeCoroutine:
    PyClass<Frozen = pyo3::pyclass::boolean_struct::True> + Sync
{
    /// State that its first step needs.
    type Start: Traverse;
    /// State that the step after a `yield` of its own needs.
    type Suspended: Traverse;

    /// State once it has ended: `New` for a coroutine that can be awaited again.
    const FINAL: State<Self>;
    /// True if a first step may find its result by [`poll_ready`](Self::poll_ready) alone.
    const POLLS_READY: bool = false;

    /// Returns the state, whose lock is never held while Python code runs.
    fn state(&self) -> &Mutex<State<Self>>;

    /// Returns the result of a first step, if the result is there already. The coroutine counts as not started then.
    fn poll_ready<'py>(&self, _py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(None)
    }

    /// Runs the first step up to the returned action. An exception goes to `receive`, also one of `resume` and `next`.
    fn start<'py>(
        &self,
        py: Python<'py>,
        start: Self::Start,
    ) -> PyResult<Next<'py, Self::Suspended>>;

    /// Continues after a `yield` of its own.
    fn resume<'py>(
        &self,
        py: Python<'py>,
        suspended: Self::Suspended,
    ) -> PyResult<Next<'py, Self::Suspended>>;

    /// Continues after a result for which [`receive`](Self::receive) has returned None.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Next<'py, Self::Suspended>>;

    /// Receives the result or the exception of an awaitable, or the exception that has kept the coroutine from getting
    /// an awaitable. Returns the coroutine's own result, or None if the coroutine continues.
    fn receive<'py>(
        &self,
        py: Python<'py>,
        result: PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>>;

    /// Returns the exception to raise for one that the first step of an awaitable has raised.
    #[cold]
    fn first_step_failed(&self, _py: Python<'_>, error: PyErr) -> PyErr {
        error
    }

    /// Cleans up at a `yield` of its own, because the coroutine is closed or was dropped.
    fn abandon(&self, _suspended: Self::Suspended) {}

    /// Cleans up at a `yield` of its own, because an exception was thrown there. An exception of this replaces it.
    fn cancel(&self, _py: Python<'_>, suspended: Self::Suspended) -> PyResult<()> {
        self.abandon(suspended);
        Ok(())
    }

    /// Returns the error for a step of a coroutine that has ended, or that is running.
    #[cold]
    fn misuse(has_ended: bool) -> PyErr {
        PyRuntimeError::new_err(match has_ended {
            true => "cannot reuse already awaited object",
            false => "object is already being awaited",
        })
    }

    /// Visits further references for the garbage collector.
    fn visit(&self, _visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        Ok(())
    }

    /// Drops the references that [`visit`](Self::visit) visits.
    fn forget(&self) {}
}

/// Replaces the state, and returns the one before. The caller drops the latter without the lock.
fn replace_state<T: NativeCoroutine>(this: &T, to: State<T>) -> State<T> {
    std::mem::replace(&mut *lock(this.state()), to)
}

/// Returns true if the coroutine has not started.
#[inline]
pub(crate) fn is_new<T: NativeCoroutine>(this: &T) -> bool {
    matches!(*lock(this.state()), State::New(_))
}

/// Runs the next step with the value that was sent. Raises TypeError for a value other than None before the first step,
/// and the error of `misuse`. A result of `poll_ready` does not change the state.
#[inline]
pub(crate) fn advance<'py, T: NativeCoroutine>(
    this: &T,
    sent: &Bound<'py, PyAny>,
) -> PyResult<Step<'py>> {
    let py = sent.py();
    if T::POLLS_READY
        && sent.is_none()
        && is_new(this)
        && let Some(value) = this.poll_ready(py)?
    {
        return Ok(Step::Returned(value));
    }
    match replace_state(this, State::Running) {
        State::New(start) if sent.is_none() => proceed(this, py, this.start(py, start)),
        State::New(start) => {
            replace_state(this, State::New(start));
            let text = "can't send non-None value to a just-started coroutine";
            Err(PyTypeError::new_err(text))
        }
        State::Suspended(suspended) => proceed(this, py, this.resume(py, suspended)),
        State::Delegated(awaitable) => {
            let awaitable = awaitable.into_bound(py);
            let step = send(&awaitable, sent);
            proceed_after(this, awaitable, step)
        }
        other => Err(refuse(this, other)),
    }
}

/// Continues with the outcome of a step of the awaitable.
#[inline]
fn proceed_after<'py, T: NativeCoroutine>(
    this: &T,
    awaitable: Bound<'py, PyAny>,
    step: PyResult<Step<'py>>,
) -> PyResult<Step<'py>> {
    let py = awaitable.py();
    let result = match step {
        Ok(Step::Yielded(value)) => {
            replace_state(this, State::Delegated(awaitable.unbind()));
            return Ok(Step::Yielded(value));
        }
        Ok(Step::Returned(value)) => Ok(value),
        Err(error) => Err(error),
    };
    match this.receive(py, result) {
        Ok(Some(value)) => end(this, Ok(value)),
        Ok(None) => proceed(this, py, this.next(py)),
        Err(error) => end(this, Err(error)),
    }
}

/// Continues until the coroutine is suspended or has ended.
#[inline]
fn proceed<'py, T: NativeCoroutine>(
    this: &T,
    py: Python<'py>,
    mut next: PyResult<Next<'py, T::Suspended>>,
) -> PyResult<Step<'py>> {
    loop {
        let result = match next {
            Ok(Next::Return(value)) => return end(this, Ok(value)),
            Ok(Next::Yield(suspended)) => {
                replace_state(this, State::Suspended(suspended));
                return Ok(Step::Yielded(PyNone::get(py).to_owned().into_any()));
            }
            Ok(Next::Await(awaitable)) => {
                match send(&awaitable, &PyNone::get(py).to_owned().into_any()) {
                    Ok(Step::Yielded(value)) => {
                        replace_state(this, State::Delegated(awaitable.unbind()));
                        return Ok(Step::Yielded(value));
                    }
                    Ok(Step::Returned(value)) => Ok(value),
                    Err(error) => Err(this.first_step_failed(py, error)),
                }
            }
            Err(error) => Err(error),
        };
        match this.receive(py, result) {
            Ok(Some(value)) => return end(this, Ok(value)),
            Ok(None) => next = this.next(py),
            Err(error) => return end(this, Err(error)),
        }
    }
}

/// Ends the coroutine: stores the state `FINAL`, and returns or raises the result.
#[inline]
fn end<'py, T: NativeCoroutine>(
    this: &T,
    result: PyResult<Bound<'py, PyAny>>,
) -> PyResult<Step<'py>> {
    replace_state(this, T::FINAL);
    result.map(Step::Returned)
}

/// Raises an exception in the coroutine, at the point where it is suspended. A coroutine that has not started, or that
/// is suspended at a `yield` of its own, ends with the exception. Any other returns what it yields next, and raises
/// StopIteration with its result. Raises the error of `misuse` if the coroutine has ended or a step runs.
pub(crate) fn throw<'py, T: NativeCoroutine>(
    this: &T,
    py: Python<'py>,
    exception: ThrowArguments<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    match replace_state(this, State::Running) {
        State::New(_) => {
            replace_state(this, T::FINAL);
            Err(exception.into_error()?)
        }
        State::Suspended(suspended) => {
            replace_state(this, T::FINAL);
            this.cancel(py, suspended)?;
            Err(exception.into_error()?)
        }
        State::Delegated(awaitable) => {
            let awaitable = awaitable.into_bound(py);
            let step = step::throw(&awaitable, exception);
            proceed_after(this, awaitable, step)?.into_iteration()
        }
        other => Err(refuse(this, other)),
    }
}

/// Ends the coroutine where it is suspended: its state is then `FINAL`. Idempotent. Raises the error of `misuse` while
/// a step runs, and what the awaitable raises.
pub(crate) fn close<T: NativeCoroutine>(this: &T, py: Python<'_>) -> PyResult<()> {
    match replace_state(this, State::Running) {
        State::Delegated(awaitable) => {
            let closed = step::close(awaitable.bind(py));
            replace_state(this, T::FINAL);
            closed
        }
        State::Running => Err(refuse(this, State::Running)),
        State::Suspended(suspended) => {
            replace_state(this, T::FINAL);
            this.abandon(suspended);
            Ok(())
        }
        State::New(_) | State::Ended => {
            replace_state(this, T::FINAL);
            Ok(())
        }
    }
}

/// Restores the state, and returns the error for a step that cannot run in it.
#[cold]
fn refuse<T: NativeCoroutine>(this: &T, state: State<T>) -> PyErr {
    let has_ended = matches!(state, State::Ended);
    replace_state(this, state);
    T::misuse(has_ended)
}

/// Implements the methods of a native coroutine. The fields are those that refer to Python objects; further methods
/// follow in braces.
macro_rules! methods {
    ($class:ident, [$($field:ident),+] $(, { $($further:tt)* })?) => {
        #[pymethods]
        impl $class {
            fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
                slf
            }

            fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                let none = pyo3::types::PyNone::get(py).to_owned().into_any();
                native_coroutine::advance(self, &none)?.into_iteration()
            }

            /// Runs the coroutine up to the point where it is suspended next.
            fn send<'py>(&self, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
                native_coroutine::advance(self, value)?.into_iteration()
            }

            /// Raises an exception at the point where the coroutine is suspended.
            #[pyo3(signature = (kind, value=None, traceback=None))]
            fn throw<'py>(
                &self,
                py: Python<'py>,
                kind: Bound<'py, PyAny>,
                value: Option<Bound<'py, PyAny>>,
                traceback: Option<Bound<'py, PyAny>>,
            ) -> PyResult<Bound<'py, PyAny>> {
                let exception = ThrowArguments(kind, value, traceback);
                native_coroutine::throw(self, py, exception)
            }

            /// Ends the coroutine at the point where it is suspended. Idempotent.
            fn close(&self, py: Python<'_>) -> PyResult<()> {
                native_coroutine::close(self, py)
            }

            fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
                $(visit.call(&self.$field)?;)+
                native_coroutine::traverse(self, &visit)
            }

            /// Drops the state and what `forget` drops; the fields stay.
            fn __clear__(&self) {
                native_coroutine::clear(self);
            }

            $($($further)*)?
        }
    };
}

pub(crate) use methods;

/// Visits the references of the coroutine for the garbage collector.
pub(crate) fn traverse<T: NativeCoroutine>(
    this: &T,
    visit: &PyVisit<'_>,
) -> Result<(), PyTraverseError> {
    // If the lock is held, a user of the coroutine holds it, and nothing here is garbage.
    if let Ok(state) = this.state().try_lock() {
        match &*state {
            State::New(start) => start.traverse(visit)?,
            State::Suspended(suspended) => suspended.traverse(visit)?,
            State::Delegated(awaitable) => visit.call(awaitable)?,
            State::Running | State::Ended => {}
        }
    }
    this.visit(visit)
}

/// Ends the coroutine for the garbage collector: abandons it at a `yield` of its own, and drops its references but the
/// fields of its class.
pub(crate) fn clear<T: NativeCoroutine>(this: &T) {
    if let State::Suspended(suspended) = replace_state(this, State::Ended) {
        this.abandon(suspended);
    }
    this.forget();
}
