//! `Hold`: what semaphores and locks have in common, which is that they are acquired and released.

use super::name::{Name, seconds};
use crate::equals::membership::Want;
use crate::memory::region::Kind;
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use std::os::raw::c_ulong;

unsafe extern "C" {
    /// The number of this thread, as `threading.get_ident` has it. Part of the C API that PyO3 does not declare.
    safe fn PyThread_get_thread_ident() -> c_ulong;
}

/// Permits of a semaphore, the permit of a lock, or of a memory's lock: `with` acquires and releases it in a thread.
///
/// A lock is held by a task or a thread: with an event loop, by the task that runs in it. In the methods that take an
/// `owner`, that is its number; a semaphore has no owners. Where `with` has to wait, it calls `_enter_slowly`.
#[pyclass(frozen, subclass, weakref, module = "shmrpc._core")]
pub struct Hold {
    name: Py<Name>,
    is_owned: bool,
    reentrant: bool,
}

/// How the task that runs is found.
struct Asyncio {
    running_loop: Py<PyAny>,
    /// A function; before CPython 3.12, where it is slow, the dictionary that it looks into.
    current_task: Result<Py<PyAny>, Py<PyDict>>,
}

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

/// The number of this thread.
pub(super) fn this_thread() -> u64 {
    PyThread_get_thread_ident()
}

/// The number of the task that runs here, or of the thread.
#[inline]
pub(super) fn current_owner(py: Python<'_>) -> PyResult<u64> {
    let asyncio = asyncio(py)?;
    let running = asyncio.running_loop.bind(py).call0()?;
    if !running.is_none() {
        let task = match &asyncio.current_task {
            Ok(function) => Some(function.bind(py).call1((running,))?),
            Err(tasks) => tasks.bind(py).get_item(running)?,
        };
        if let Some(task) = task.filter(|task| !task.is_none()) {
            return Ok(task.as_ptr().addr() as u64);
        }
    }
    Ok(PyThread_get_thread_ident())
}

/// An awaitable that has nothing to wait for.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Done;

#[pymethods]
impl Done {
    fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self) -> Option<()> {
        None
    }
}

fn done(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static DONE: PyOnceLock<Py<Done>> = PyOnceLock::new();
    let done = DONE.get_or_try_init(py, || Py::new(py, Done))?;
    Ok(done.bind(py).clone().into_any())
}

/// Takes what was not there, however long that takes; `_gave_up` raises what is to be raised if it was not to be had.
fn wait(slf: &Bound<'_, Hold>, want: Want, timeout: Option<f64>) -> PyResult<()> {
    let waited = slf.get().name.get().wait(slf.py(), want, timeout)?;
    if waited != Some(true) {
        let why = (waited, timeout, want.set());
        slf.call_method1(intern!(slf.py(), "_gave_up"), why)?;
    }
    Ok(())
}

#[cold]
fn no_count(name: &Name, count: &Bound<'_, PyAny>) -> PyErr {
    let text = format!(
        "{}: expected a number of signals, got {count}",
        name.words()
    );
    PyValueError::new_err(text)
}

#[pymethods]
impl Hold {
    /// Holds of this name. `reentrant`: a lock may be acquired by its holder again.
    #[new]
    fn new(name: Bound<'_, Name>, reentrant: bool) -> Self {
        let is_owned = name.get().shape_kind() != Kind::Semaphore;
        Hold {
            name: name.unbind(),
            is_owned,
            reentrant,
        }
    }

    /// Who acquires or releases here and now.
    #[inline]
    fn _owner(&self, py: Python<'_>) -> PyResult<u64> {
        if self.is_owned {
            current_owner(py)
        } else {
            Ok(0)
        }
    }

    /// Acquires it; False if it is not free. LocalProtocolError if this owner has it already and may not have it twice.
    #[inline]
    fn _try(&self, py: Python<'_>, owner: u64) -> PyResult<bool> {
        let name = self.name.get();
        let membership = name.open(py)?;
        let taken = if self.is_owned {
            membership.try_lock(owner, self.reentrant)
        } else {
            membership.try_take(Want::Permit)
        };
        name.told(py, taken)
    }

    /// Acquires it for a task that has waited for long: False if it is not free. No lock that this owner may have already.
    fn _insist(&self, py: Python<'_>, owner: u64) -> PyResult<bool> {
        let name = self.name.get();
        let membership = name.open(py)?;
        let taken = name.told(py, membership.insist())?;
        if taken && self.is_owned {
            membership.own(owner);
        }
        Ok(taken)
    }

    /// Releases what this owner has acquired. LocalProtocolError if it has not.
    #[inline]
    fn _give_back(&self, py: Python<'_>, owner: u64) -> PyResult<()> {
        let name = self.name.get();
        let membership = name.open(py)?;
        let released = if self.is_owned {
            membership.unlock(owner)
        } else {
            membership.release()
        };
        name.told(py, released)
    }

    /// Releases it, to whoever has waited for it the longest.
    ///
    /// Raises LocalProtocolError if this process has no permit of the semaphore, or this task or thread does not hold the
    /// lock.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self._give_back(py, self._owner(py)?)
    }

    /// Waits until it is acquired, for ``timeout`` seconds at most.
    ///
    /// Raises WaitTimeout, which names who has it, and WaitStopped after ``stop()``.
    #[pyo3(signature = (timeout=None))]
    fn _acquire(slf: &Bound<'_, Self>, timeout: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        let (us, py) = (slf.get(), slf.py());
        let timeout = timeout.as_ref().map(seconds).transpose()?;
        let owner = us._owner(py)?;
        if us._try(py, owner)? {
            return Ok(());
        }
        wait(slf, Want::Permit, timeout)?;
        if us.is_owned {
            us.name.get().open(py)?.own(owner);
        }
        Ok(())
    }

    /// Adds signals, each of which ends one ``wait()``, here or in another process, now or later.
    ///
    /// Signals and permits have nothing to do with each other. Signals stay when their sender ends, as long as the name
    /// has members.
    #[pyo3(signature = (count=None))]
    fn _signal(&self, py: Python<'_>, count: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        let name = self.name.get();
        let count = match count {
            None => 1,
            Some(count) => count.extract().map_err(|_| no_count(name, &count))?,
        };
        let signalled = name.open(py)?.signal(count);
        name.told(py, signalled)
    }

    /// Waits for a signal, for ``timeout`` seconds at most, and takes it.
    ///
    /// Raises WaitTimeout, and WaitStopped after ``stop()``.
    #[pyo3(signature = (timeout=None))]
    fn _wait_signal(slf: &Bound<'_, Self>, timeout: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        let timeout = timeout.as_ref().map(seconds).transpose()?;
        let name = slf.get().name.get();
        let taken = name.open(slf.py())?.try_take(Want::Signal);
        match name.told(slf.py(), taken)? {
            true => Ok(()),
            false => wait(slf, Want::Signal, timeout),
        }
    }

    /// For ``async with``. Nothing comes between this and the first step of what it returns.
    fn _aenter<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (us, py) = (slf.get(), slf.py());
        if us._try(py, us._owner(py)?)? {
            return done(py);
        }
        slf.call_method0(intern!(py, "acquire"))
    }

    /// For ``async with``.
    fn _aexit<'py>(
        &self,
        py: Python<'py>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.release(py)?;
        done(py)
    }

    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let (us, py) = (slf.get(), slf.py());
        if !us._try(py, us._owner(py)?)? {
            slf.call_method0(intern!(py, "_enter_slowly"))?;
        }
        Ok(slf.clone())
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.release(py)
    }
}
