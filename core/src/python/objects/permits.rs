//! `Permits`: what semaphores and locks have in common, which is that they are acquired and released.

use crate::memory::region::Kind;
use crate::objects::semaphore::{PERMITS, Reentry, SIGNALS, SemaphoreMembership};
use crate::python::objects::shared_object::{SharedObject, seconds};
use crate::python::support::owner::{current_owner, is_in_loop};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use std::sync::Arc;

/// Permits of a semaphore, the permit of a lock, or of a memory's lock: `with` acquires and releases it in a thread.
///
/// A lock is held by a task or a thread: with an event loop, by the task that runs in it. In the methods that take an
/// `owner`, that is its number; a semaphore has no owners. `with` takes it in one native step: where a frame of Python lay
/// between, a signal handler that raises there would leave it taken. Where `with` would block a loop, it calls
/// `_refuse_to_block`.
#[pyclass(frozen, subclass, weakref, module = "shmrpc._core")]
pub struct Permits {
    name: Py<SharedObject>,
    semaphore: Arc<SemaphoreMembership>,
    is_owned: bool,
    reentrant: bool,
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

/// Takes what was not there, however long that takes; `_raise_wait_failed` raises what is to be raised if it was not to be had.
fn wait(slf: &Bound<'_, Permits>, set: usize, timeout: Option<f64>) -> PyResult<()> {
    let semaphore = &slf.get().semaphore;
    let take = |is_long| match set {
        SIGNALS => semaphore.try_take_signal(),
        _ if is_long => semaphore.try_acquire_reserved(),
        _ => semaphore.try_acquire(),
    };
    let waited = slf.get().name.get().wait_in(slf.py(), set, timeout, take)?;
    if waited != Some(true) {
        let why = (waited, timeout, set);
        slf.call_method1(intern!(slf.py(), "_raise_wait_failed"), why)?;
    }
    Ok(())
}

#[cold]
fn no_count(name: &SharedObject, count: &Bound<'_, PyAny>) -> PyErr {
    let text = format!(
        "{}: expected a number of signals, got {count}",
        name.words()
    );
    PyValueError::new_err(text)
}

/// Refuse what a method does not take, such as the `blocking` of threading's locks, in the words of its caller.
#[inline]
fn refuse(
    name: &SharedObject,
    others: &Bound<'_, PyTuple>,
    options: Option<&Bound<'_, PyDict>>,
    remedy: &'static str,
) -> PyResult<()> {
    if others.is_empty() && options.is_none() {
        return Ok(());
    }
    Err(PyTypeError::new_err(format!("{}: {remedy}", name.words())))
}

impl Permits {
    #[inline]
    fn take(&self, py: Python<'_>, owner: u64, is_apart: bool, is_long: bool) -> PyResult<bool> {
        let name = self.name.get();
        name.open(py)?;
        let semaphore = &self.semaphore;
        let again = match (self.reentrant, is_apart) {
            (true, _) => Reentry::Nest,
            (false, true) => Reentry::Wait,
            (false, false) => Reentry::Refuse,
        };
        let taken = match (self.is_owned, is_long) {
            (true, _) => semaphore.try_lock(owner, again, is_long),
            (false, true) => semaphore.try_acquire_reserved(),
            (false, false) => semaphore.try_acquire(),
        };
        let taken = name.told(py, taken)?;
        name.count_acquired(i64::from(taken));
        Ok(taken)
    }
}

#[pymethods]
impl Permits {
    /// Holds of this name. `reentrant`: a lock may be acquired by its holder again.
    #[new]
    fn new(py: Python<'_>, name: Bound<'_, SharedObject>, reentrant: bool) -> PyResult<Self> {
        let semaphore = name.get().open_as::<SemaphoreMembership>(py)?;
        let is_owned = name.get().shape_kind() != Kind::Semaphore;
        Ok(Permits {
            name: name.unbind(),
            semaphore,
            is_owned,
            reentrant,
        })
    }

    /// Returns true if an acquire would wait now, because no permit is free.
    fn _locked(&self, py: Python<'_>) -> PyResult<bool> {
        let name = self.name.get();
        let free = {
            name.open(py)?;
            self.semaphore.free_permits()
        };
        Ok(name.told(py, free)? == 0)
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
    /// `is_apart`: another task waits for its owner, which may release it meanwhile.
    #[inline]
    fn _try(&self, py: Python<'_>, owner: u64, is_apart: bool) -> PyResult<bool> {
        self.take(py, owner, is_apart, false)
    }

    /// The same for a task that has waited for long.
    fn _insist(&self, py: Python<'_>, owner: u64, is_apart: bool) -> PyResult<bool> {
        self.take(py, owner, is_apart, true)
    }

    /// Takes up again a permit that the running task or thread has left behind with an earlier handle, and returns true if
    /// there was one. Else the caller would wait for itself.
    fn _regain(&self, py: Python<'_>) -> PyResult<bool> {
        let name = self.name.get();
        name.open(py)?;
        let semaphore = &self.semaphore;
        let regained = !self.is_owned && semaphore.reclaim_permit(current_owner(py)?);
        name.count_acquired(i64::from(regained));
        Ok(regained)
    }

    /// Releases what this owner has acquired. LocalProtocolError if it has not.
    #[inline]
    fn _give_back(&self, py: Python<'_>, owner: u64) -> PyResult<()> {
        let name = self.name.get();
        name.open(py)?;
        let semaphore = &self.semaphore;
        if !self.is_owned && !name.has_acquired() && semaphore.has_abandoned_permits() {
            // It is one that was acquired by another handle, which may be gone.
            semaphore.forget_abandoned_permit(current_owner(py)?);
        }
        let released = if self.is_owned {
            semaphore.unlock(owner)
        } else {
            semaphore.release()
        };
        name.told(py, released)?;
        name.count_acquired(-1);
        Ok(())
    }

    /// Releases it, to whoever has waited for it the longest.
    ///
    /// Raises LocalProtocolError if this process has no permit of the semaphore, or this task or thread does not hold the
    /// lock.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self._give_back(py, self._owner(py)?)
    }

    /// Waits until it is acquired, for ``timeout`` seconds at most. Returns True.
    ///
    /// Raises WaitTimeout, which names who has it, and WaitStopped after ``stop()``.
    #[pyo3(signature = (timeout=None, *others, **options), text_signature = "($self, timeout=None)")]
    fn _acquire(
        slf: &Bound<'_, Self>,
        timeout: Option<Bound<'_, PyAny>>,
        others: &Bound<'_, PyTuple>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<bool> {
        let (us, py) = (slf.get(), slf.py());
        let remedy = "acquire() takes a timeout in seconds alone; acquire(timeout=0) does not wait";
        refuse(us.name.get(), others, options, remedy)?;
        let timeout = timeout.as_ref().map(seconds).transpose()?;
        let owner = us._owner(py)?;
        if us._try(py, owner, false)? || us._regain(py)? {
            return Ok(true);
        }
        wait(slf, PERMITS, timeout)?;
        let name = us.name.get();
        name.count_acquired(1);
        if us.is_owned {
            us.semaphore.set_lock_owner(owner);
        }
        Ok(true)
    }

    /// Adds signals, each of which ends one ``wait()``, here or in another process, now or later.
    ///
    /// Signals and permits have nothing to do with each other. Signals stay when their sender ends, as long as the name
    /// has members.
    #[pyo3(signature = (count=None, *others, **options), text_signature = "($self, count=None)")]
    fn _signal(
        &self,
        py: Python<'_>,
        count: Option<Bound<'_, PyAny>>,
        others: &Bound<'_, PyTuple>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let name = self.name.get();
        refuse(
            name,
            others,
            options,
            "signal() takes a number of signals alone",
        )?;
        let count = match count {
            None => 1,
            Some(count) => count.extract().map_err(|_| no_count(name, &count))?,
        };
        name.open(py)?;
        let signalled = self.semaphore.signal(count);
        name.told(py, signalled)
    }

    /// Waits for a signal, for ``timeout`` seconds at most, and takes it. Returns True.
    ///
    /// Raises WaitTimeout, and WaitStopped after ``stop()``.
    #[pyo3(signature = (timeout=None, *others, **options), text_signature = "($self, timeout=None)")]
    fn _wait_signal(
        slf: &Bound<'_, Self>,
        timeout: Option<Bound<'_, PyAny>>,
        others: &Bound<'_, PyTuple>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<bool> {
        let name = slf.get().name.get();
        let remedy = "wait() takes a timeout in seconds alone; wait(timeout=0) does not wait";
        refuse(name, others, options, remedy)?;
        let timeout = timeout.as_ref().map(seconds).transpose()?;
        name.open(slf.py())?;
        let taken = slf.get().semaphore.try_take_signal();
        if !name.told(slf.py(), taken)? {
            wait(slf, SIGNALS, timeout)?;
        }
        Ok(true)
    }

    /// For ``async with``. Nothing comes between this and the first step of what it returns.
    fn _aenter<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (us, py) = (slf.get(), slf.py());
        let owner = us._owner(py)?;
        if us._try(py, owner, false)? {
            return done(py);
        }
        slf.call_method1(intern!(py, "_enter"), (owner,))
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
        if !us._try(py, us._owner(py)?, false)? {
            if is_in_loop(py)? {
                slf.call_method0(intern!(py, "_refuse_to_block"))?;
            }
            Permits::_acquire(slf, None, &PyTuple::empty(py), None)?;
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
