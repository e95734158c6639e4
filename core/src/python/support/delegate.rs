//! What is awaited and hands its steps on: to one awaitable of Python's after the other, most of which end at once.

use crate::python::support::step::{self, Awaited, Step, Thrown, send};
use crate::sync::lock;
use pyo3::PyClass;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyNone;
use std::sync::Mutex;

/// How far it has come.
pub(crate) enum Course {
    /// Nothing of it has run.
    New,
    /// A step of it is running.
    Running,
    /// It waits for this.
    Further(Py<PyAny>),
    Ended,
}

/// What comes next.
pub(crate) enum Next<'py> {
    Over(Bound<'py, PyAny>),
    /// The steps of this, as its `__await__` gives it.
    Await(Bound<'py, PyAny>),
}

/// What hands its steps on.
pub(crate) trait HandingOn:
    PyClass<Frozen = pyo3::pyclass::boolean_struct::True> + Sync
{
    /// How it begins again, once it is over; or that it does not.
    const OVER: Course;

    /// How far it has come. Never held while Python code runs.
    fn course(&self) -> &Mutex<Course>;

    /// What it is over with before it has begun, if that is there: for one that begins again.
    fn at_once<'py>(&self, _py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(None)
    }

    /// What comes next, when nothing is waited for.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Next<'py>>;

    /// Takes what an awaitable has come to, or why there is none: what it is over with, or None if it goes on.
    fn take<'py>(
        &self,
        py: Python<'py>,
        came: PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>>;

    /// Has the garbage collector visit what it has besides.
    fn visit(&self, _visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        Ok(())
    }

    /// Lets go of that.
    fn forget(&self) {}
}

fn change<T: HandingOn>(it: &T, to: Course) -> Course {
    std::mem::replace(&mut *lock(it.course()), to)
}

/// Whether nothing of it has run.
#[inline]
pub(crate) fn is_new<T: HandingOn>(it: &T) -> bool {
    matches!(*lock(it.course()), Course::New)
}

impl<T: HandingOn> Awaited for T {
    #[inline]
    fn step<'py>(slf: &Bound<'py, Self>, sent: &Bound<'py, PyAny>) -> PyResult<Step<'py>> {
        let it = slf.get();
        if sent.is_none()
            && is_new(it)
            && let Some(value) = it.at_once(slf.py())?
        {
            return Ok(Step::Returned(value));
        }
        step(it, sent)
    }
}

#[inline]
fn step<'py, T: HandingOn>(it: &T, sent: &Bound<'py, PyAny>) -> PyResult<Step<'py>> {
    match change(it, Course::Running) {
        Course::New if sent.is_none() => run(it, sent.py(), None),
        Course::New => {
            change(it, Course::New);
            let text = "can't send non-None value to what has just been started";
            Err(PyTypeError::new_err(text))
        }
        Course::Further(further) => {
            let further = further.into_bound(sent.py());
            let led = send(&further, sent);
            run(it, sent.py(), Some((further, led)))
        }
        other => Err(refuse(it, other)),
    }
}

/// Goes on until it has to wait. `led`: what a step of what it waited for has led to.
#[inline]
fn run<'py, T: HandingOn>(
    it: &T,
    py: Python<'py>,
    led: Option<(Bound<'py, PyAny>, PyResult<Step<'py>>)>,
) -> PyResult<Step<'py>> {
    let led = go(it, py, led);
    match led {
        Ok(Led::Waits(further, yielded)) => {
            change(it, Course::Further(further.unbind()));
            Ok(Step::Yielded(yielded))
        }
        Ok(Led::Over(value)) => {
            change(it, T::OVER);
            Ok(Step::Returned(value))
        }
        Err(error) => {
            change(it, T::OVER);
            Err(error)
        }
    }
}

enum Led<'py> {
    Waits(Bound<'py, PyAny>, Bound<'py, PyAny>),
    Over(Bound<'py, PyAny>),
}

#[inline]
fn go<'py, T: HandingOn>(
    it: &T,
    py: Python<'py>,
    mut led: Option<(Bound<'py, PyAny>, PyResult<Step<'py>>)>,
) -> PyResult<Led<'py>> {
    loop {
        let (further, step) = match led.take() {
            Some(led) => led,
            None => match it.next(py) {
                Ok(Next::Over(value)) => return Ok(Led::Over(value)),
                Ok(Next::Await(further)) => {
                    let step = send(&further, &PyNone::get(py).to_owned().into_any());
                    (further, step)
                }
                Err(error) => match it.take(py, Err(error))? {
                    Some(value) => return Ok(Led::Over(value)),
                    None => continue,
                },
            },
        };
        let came = match step {
            Ok(Step::Yielded(value)) => return Ok(Led::Waits(further, value)),
            Ok(Step::Returned(value)) => Ok(value),
            Err(error) => Err(error),
        };
        if let Some(value) = it.take(py, came)? {
            return Ok(Led::Over(value));
        }
    }
}

/// Raises an exception where it waits.
pub(crate) fn throw<'py, T: HandingOn>(
    it: &T,
    py: Python<'py>,
    thrown: Thrown<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    match change(it, Course::Running) {
        Course::New => {
            change(it, T::OVER);
            Err(thrown.error()?)
        }
        Course::Further(further) => {
            let further = further.into_bound(py);
            let led = step::throw(&further, thrown);
            step::told(run(it, py, Some((further, led)))?)
        }
        other => Err(refuse(it, other)),
    }
}

/// Ends it where it waits. Again: nothing.
pub(crate) fn close<T: HandingOn>(it: &T, py: Python<'_>) -> PyResult<()> {
    match change(it, Course::Running) {
        Course::Further(further) => {
            let closed = step::close(further.bind(py));
            change(it, T::OVER);
            closed
        }
        Course::Running => Err(refuse(it, Course::Running)),
        Course::New | Course::Ended => {
            change(it, T::OVER);
            Ok(())
        }
    }
}

/// The error for a step that cannot be made.
#[cold]
fn refuse<T: HandingOn>(it: &T, course: Course) -> PyErr {
    let ended = matches!(course, Course::Ended);
    change(it, course);
    PyRuntimeError::new_err(match ended {
        true => "cannot reuse what was awaited already",
        false => "it is awaited already",
    })
}

/// The methods of what hands its steps on, whose fields of Python's these are.
macro_rules! methods {
    ($class:ident, $($field:ident),+) => {
        #[pymethods]
        impl $class {
            fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
                slf
            }

            fn __next__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
                step::told(Self::step(slf, &PyNone::get(slf.py()).to_owned().into_any())?)
            }

            /// Runs on to the next point where it waits.
            fn send<'py>(
                slf: &Bound<'py, Self>,
                value: &Bound<'py, PyAny>,
            ) -> PyResult<Bound<'py, PyAny>> {
                step::told(Self::step(slf, value)?)
            }

            /// Raises an exception where it waits.
            #[pyo3(signature = (kind, value=None, traceback=None))]
            fn throw<'py>(
                &self,
                py: Python<'py>,
                kind: Bound<'py, PyAny>,
                value: Option<Bound<'py, PyAny>>,
                traceback: Option<Bound<'py, PyAny>>,
            ) -> PyResult<Bound<'py, PyAny>> {
                delegate::throw(self, py, Thrown(kind, value, traceback))
            }

            /// Ends it where it waits. Again: nothing.
            fn close(&self, py: Python<'_>) -> PyResult<()> {
                delegate::close(self, py)
            }

            fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
                $(visit.call(&self.$field)?;)+
                delegate::traverse(self, &visit)
            }

            fn __clear__(&self) {
                delegate::clear(self);
            }
        }
    };
}

pub(crate) use methods;

/// For the garbage collector.
pub(crate) fn traverse<T: HandingOn>(it: &T, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
    // A lock that is held now is held by a user of ours: nothing is garbage then.
    if let Ok(Course::Further(further)) = it.course().try_lock().as_deref() {
        visit.call(further)?;
    }
    it.visit(visit)
}

/// For the garbage collector, too.
pub(crate) fn clear<T: HandingOn>(it: &T) {
    let course = change(it, Course::Ended);
    drop(course);
    it.forget();
}

/// The next item of an asynchronous iterator, as what can be stepped.
#[inline]
pub(crate) fn anext<'py>(items: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the slots of a type live as long as the type, which lives as long as the object; each is called with an
    // object of that type, and gives a new reference, or null with an exception. The GIL is ours.
    unsafe {
        let slots = (*ffi::Py_TYPE(items.as_ptr())).tp_as_async;
        let next = match slots.as_ref().and_then(|slots| slots.am_anext) {
            Some(am_anext) => Bound::from_owned_ptr_or_err(items.py(), am_anext(items.as_ptr()))?,
            None => items.call_method0("__anext__")?,
        };
        let slots = (*ffi::Py_TYPE(next.as_ptr())).tp_as_async;
        match slots.as_ref().and_then(|slots| slots.am_await) {
            Some(am_await) => Bound::from_owned_ptr_or_err(next.py(), am_await(next.as_ptr())),
            None => of_generator(next),
        }
    }
}

/// A generator that is marked as a coroutine has steps without a method for that.
#[cold]
fn of_generator(next: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
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
