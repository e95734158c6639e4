//! `Permits`: acquire and release, for semaphores and locks.

use crate::memory::region::Kind;
use crate::objects::semaphore::{PERMITS, Reentry, SemaphoreMembership};
use crate::python::objects::shared_object::SharedObject;
use crate::python::support::owner::{current_owner, is_in_loop};
use crate::python::support::timeout::parse_timeout;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use std::sync::Arc;

/// Permits of a semaphore, or the single permit of a lock or of a memory's lock. `with` acquires and releases it in a
/// thread.
///
/// A lock belongs to a task or a thread: in an event loop, to the running task. `owner` is the number of this task or
/// thread, 0 for a semaphore. `with` acquires in one native step, because a signal handler that raises in a Python
/// frame in between would leave the permit acquired. Where `with` would block an event loop, it calls
/// `_refuse_to_block`.
#[pyclass(frozen, subclass, weakref, module = "shmrpc._core")]
pub struct Permits {
    object: Py<SharedObject>,
    semaphore: Arc<SemaphoreMembership>,
    has_owner: bool,
    reentrant: bool,
}

/// An awaitable that ends in its first step.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct ReadyAwaitable;

#[pymethods]
impl ReadyAwaitable {
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

/// Returns the awaitable that ends in its first step, which all callers share.
fn ready(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static DONE: PyOnceLock<Py<ReadyAwaitable>> = PyOnceLock::new();
    let done = DONE.get_or_try_init(py, || Py::new(py, ReadyAwaitable))?;
    Ok(done.bind(py).clone().into_any())
}

/// Waits in this thread for a permit, and acquires it. Calls `_raise_wait_failed` if the wait fails. The caller counts
/// the permit, and sets the owner of a lock.
fn wait(slf: &Bound<'_, Permits>, timeout: Option<f64>) -> PyResult<()> {
    let semaphore = &slf.get().semaphore;
    let acquire = |is_long| match is_long {
        true => semaphore.try_acquire_reserved(),
        false => semaphore.try_acquire(),
    };
    let object = slf.get().object.get();
    let waited = object.wait_in(slf.py(), PERMITS, timeout, acquire)?;
    if waited != Some(true) {
        let why = (waited, timeout, PERMITS);
        slf.call_method1(intern!(slf.py(), "_raise_wait_failed"), why)?;
    }
    Ok(())
}

/// Raises TypeError, with the text `remedy`, if there are arguments that a method does not take, such as the `blocking`
/// of threading's locks.
#[inline]
pub(super) fn check_no_further_arguments(
    object: &SharedObject,
    others: &Bound<'_, PyTuple>,
    options: Option<&Bound<'_, PyDict>>,
    remedy: &'static str,
) -> PyResult<()> {
    if others.is_empty() && options.is_none() {
        return Ok(());
    }
    Err(PyTypeError::new_err(format!(
        "{}: {remedy}",
        object.describe()
    )))
}

impl Permits {
    /// Acquires a permit for `_try` and `_insist`, with `is_long` also a reserved one, and counts it. Returns false if
    /// none is free. For a lock that the owner holds and that is not reentrant, raises LocalProtocolError, or returns
    /// false if `is_apart` is true.
    #[inline]
    fn acquire_now(
        &self,
        py: Python<'_>,
        owner: u64,
        is_apart: bool,
        is_long: bool,
    ) -> PyResult<bool> {
        let object = self.object.get();
        object.open(py)?;
        let semaphore = &self.semaphore;
        let again = match (self.reentrant, is_apart) {
            (true, _) => Reentry::Nest,
            (false, true) => Reentry::Wait,
            (false, false) => Reentry::Refuse,
        };
        let acquired = match (self.has_owner, is_long) {
            (true, _) => semaphore.try_lock(owner, again, is_long),
            (false, true) => semaphore.try_acquire_reserved(),
            (false, false) => semaphore.try_acquire(),
        };
        let acquired = object.map_error(py, acquired)?;
        object.count_acquired(i64::from(acquired));
        Ok(acquired)
    }
}

#[pymethods]
impl Permits {
    /// Makes the permits of this object. With `reentrant`, the owner of a lock may acquire it again.
    #[new]
    fn new(py: Python<'_>, object: Bound<'_, SharedObject>, reentrant: bool) -> PyResult<Self> {
        let semaphore = object.get().open_as::<SemaphoreMembership>(py)?;
        let has_owner = object.get().shape_kind() != Kind::Semaphore;
        Ok(Permits {
            object: object.unbind(),
            semaphore,
            has_owner,
            reentrant,
        })
    }

    /// Returns True if an acquire would wait now, because no permit is free.
    fn _locked(&self, py: Python<'_>) -> PyResult<bool> {
        let object = self.object.get();
        let free = {
            object.open(py)?;
            self.semaphore.free_permits()
        };
        Ok(object.map_error(py, free)? == 0)
    }

    /// Returns the number of the running task or thread; 0 for a semaphore.
    #[inline]
    fn _owner(&self, py: Python<'_>) -> PyResult<u64> {
        if self.has_owner {
            current_owner(py)
        } else {
            Ok(0)
        }
    }

    /// Acquires a permit. Returns False if none is free.
    ///
    /// Raises LocalProtocolError if this owner holds the lock and may not acquire it again. With `is_apart`, another
    /// task waits on behalf of the owner, which may release the lock meanwhile: returns False instead.
    #[inline]
    fn _try(&self, py: Python<'_>, owner: u64, is_apart: bool) -> PyResult<bool> {
        self.acquire_now(py, owner, is_apart, false)
    }

    /// Does what `_try` does, for a task that has waited for long: also acquires a reserved permit.
    fn _insist(&self, py: Python<'_>, owner: u64, is_apart: bool) -> PyResult<bool> {
        self.acquire_now(py, owner, is_apart, true)
    }

    /// Reclaims a permit that the running task or thread has abandoned with an earlier handle: otherwise the caller
    /// would wait for itself. Returns False if there is none, as for any lock.
    fn _regain(&self, py: Python<'_>) -> PyResult<bool> {
        let object = self.object.get();
        object.open(py)?;
        let semaphore = &self.semaphore;
        let reclaimed = !self.has_owner && semaphore.reclaim_permit(current_owner(py)?);
        object.count_acquired(i64::from(reclaimed));
        Ok(reclaimed)
    }

    /// Releases a permit that this owner has acquired. Raises LocalProtocolError if the owner has none.
    #[inline]
    fn _give_back(&self, py: Python<'_>, owner: u64) -> PyResult<()> {
        let object = self.object.get();
        object.open(py)?;
        let semaphore = &self.semaphore;
        if !self.has_owner && !object.has_acquired() && semaphore.has_abandoned_permits() {
            // Another handle, which may be closed, has acquired this permit.
            semaphore.forget_abandoned_permit(current_owner(py)?);
        }
        let released = if self.has_owner {
            semaphore.unlock(owner)
        } else {
            semaphore.release()
        };
        object.map_error(py, released)?;
        object.count_acquired(-1);
        Ok(())
    }

    /// Release a permit, and wake the waiter that has waited for the longest time.
    ///
    /// Raises LocalProtocolError if this process has no permit of the semaphore, or if this task or thread does not
    /// hold the lock.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self._give_back(py, self._owner(py)?)
    }

    /// Acquire a permit, and wait for at most ``timeout`` seconds until one is free. Return True.
    ///
    /// Raises WaitTimeout, which names holders, WaitStopped, SharedMemoryError if too many wait, or LocalProtocolError.
    #[pyo3(signature = (timeout=None, *others, **options), text_signature = "($self, timeout=None)")]
    fn _acquire(
        slf: &Bound<'_, Self>,
        timeout: Option<Bound<'_, PyAny>>,
        others: &Bound<'_, PyTuple>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<bool> {
        let (this, py) = (slf.get(), slf.py());
        let remedy = "acquire() takes a timeout in seconds alone; acquire(timeout=0) does not wait";
        check_no_further_arguments(this.object.get(), others, options, remedy)?;
        let timeout = timeout.as_ref().map(parse_timeout).transpose()?;
        let owner = this._owner(py)?;
        if this._try(py, owner, false)? || this._regain(py)? {
            return Ok(true);
        }
        wait(slf, timeout)?;
        let object = this.object.get();
        object.count_acquired(1);
        if this.has_owner {
            this.semaphore.set_lock_owner(owner);
        }
        Ok(true)
    }

    /// Implements the beginning of ``async with``. No code runs between this call and the first step of the awaitable.
    fn _aenter<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (this, py) = (slf.get(), slf.py());
        let owner = this._owner(py)?;
        if this._try(py, owner, false)? {
            return ready(py);
        }
        slf.call_method1(intern!(py, "_enter"), (owner,))
    }

    /// Implements the end of ``async with``.
    fn _aexit<'py>(
        &self,
        py: Python<'py>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.release(py)?;
        ready(py)
    }

    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let (this, py) = (slf.get(), slf.py());
        if !this._try(py, this._owner(py)?, false)? {
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
