//! Owners: numbers of tasks and threads, by which a lock or a transaction identifies its holder. No number is used
//! twice.
//!
//! The address of a task, or the ident of a thread, may belong to another one once the first has ended.

use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns a number that no task or thread of this process has had.
fn new_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Relaxed: each caller gets a different number.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the number of this thread.
pub(crate) fn this_thread() -> u64 {
    thread_local!(static NUMBER: Cell<u64> = const { Cell::new(0) });
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(new_number());
        }
        number.get()
    })
}

/// Functions of asyncio that find the running task.
struct Asyncio {
    running_loop: Py<PyAny>,
    /// A function; before CPython 3.12, where the function is slow, the dictionary that it reads.
    current_task: Result<Py<PyAny>, Py<PyDict>>,
}

/// Returns the functions, which are looked up once.
fn asyncio(py: Python<'_>) -> PyResult<&'static Asyncio> {
    static ASYNCIO: PyOnceLock<Asyncio> = PyOnceLock::new();
    ASYNCIO.get_or_try_init(py, || {
        let asyncio = py.import("asyncio")?;
        let current_task = if py.version_info() < (3, 12) {
            let tasks = asyncio.getattr("tasks")?.getattr("_current_tasks")?;
            Err(tasks.cast_into::<PyDict>()?.unbind())
        } else {
            Ok(asyncio.getattr("current_task")?.unbind())
        };
        Ok(Asyncio {
            running_loop: asyncio.getattr("_get_running_loop")?.unbind(),
            current_task,
        })
    })
}

/// Returns the event loop that runs in this thread; None if there is none.
fn running_loop(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    let running = asyncio(py)?.running_loop.bind(py).call0()?;
    Ok(Some(running).filter(|running| !running.is_none()))
}

/// Returns true if an event loop runs in this thread.
pub(crate) fn is_in_loop(py: Python<'_>) -> PyResult<bool> {
    Ok(running_loop(py)?.is_some())
}

/// Returns the number of the task that runs in this thread, or of the thread if no task does. Raises what asyncio's
/// functions raise.
#[inline]
pub(crate) fn current_owner(py: Python<'_>) -> PyResult<u64> {
    if let Some(running) = running_loop(py)? {
        let task = match &asyncio(py)?.current_task {
            Ok(function) => Some(function.bind(py).call1((running,))?),
            Err(tasks) => tasks.bind(py).get_item(running)?,
        };
        if let Some(task) = task.filter(|task| !task.is_none()) {
            return number_of(&task);
        }
    }
    Ok(this_thread())
}

/// Returns the number of a task, an attribute that is set when it is first needed.
#[inline]
fn number_of(task: &Bound<'_, PyAny>) -> PyResult<u64> {
    let attribute = intern!(task.py(), "_shmrpc_owner");
    match task.getattr_opt(attribute)? {
        Some(number) => number.extract(),
        None => give_number(task),
    }
}

/// Gives a task a new number, and returns the number. A task that accepts no attribute gets an entry in [`numbers`].
#[cold]
fn give_number(task: &Bound<'_, PyAny>) -> PyResult<u64> {
    let py = task.py();
    let number = new_number();
    match task.setattr(intern!(py, "_shmrpc_owner"), number) {
        Ok(()) => Ok(number),
        // A task of another library, which accepts no attribute.
        Err(error)
            if error.is_instance_of::<PyAttributeError>(py)
                || error.is_instance_of::<PyTypeError>(py) =>
        {
            let kept = numbers(py)?.call_method1("setdefault", (task, number))?;
            kept.extract()
        }
        Err(error) => Err(error),
    }
}

/// Returns the numbers of tasks that accept no attribute: a `WeakKeyDictionary`.
fn numbers(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static NUMBERS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let numbers = NUMBERS.get_or_try_init(py, || {
        let made = py
            .import("weakref")?
            .getattr("WeakKeyDictionary")?
            .call0()?;
        PyResult::Ok(made.unbind())
    })?;
    Ok(numbers.bind(py))
}
