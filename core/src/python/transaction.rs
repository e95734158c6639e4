//! `Transaction`: many operations of a store that are one.

use super::name::Name;
use super::owner::{current_owner, is_in_loop, this_thread};
use super::store::{Carrier, Inner};
use crate::equals::stores::LEASE;
use pyo3::intern;
use pyo3::prelude::*;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// A transaction of a store: `with` begins and ends it in a thread, each in one native step: where a frame of Python lay
/// between, a signal handler that raises there would leave it open. Where `with` would block a loop, it calls
/// `_refuse_to_block`, and where the wait for `_timeout` seconds was in vain, `_gave_up`. One that goes while it is open
/// comes to nothing.
///
/// `name`: the use of the name whose it is. `joins`: within a transaction of this task or thread it is a part of that.
#[pyclass(frozen, subclass, module = "shmrpc._core")]
pub struct Transaction {
    inner: Arc<Inner>,
    name: Py<Name>,
    joins: bool,
    /// The task or thread that begins it.
    owner: AtomicU64,
    is_open: AtomicBool,
}

// Relaxed, all: what Python calls is under the GIL.
impl Transaction {
    fn begin(&self, py: Python<'_>) -> PyResult<bool> {
        self.name.get().open(py)?;
        let (owner, members) = (self.owner.load(Relaxed), &self.inner.membership);
        if self.joins && members.has_begun(owner) {
            return Ok(true);
        }
        let begun = members.begin_transaction(owner, owner != this_thread());
        let begun = begun.map_err(|error| self.inner.refused(py, error))?;
        self.is_open.store(begun, Relaxed);
        Ok(begun)
    }

    /// Begins it for the task or thread that runs here, if nobody else is within one.
    fn start(&self, py: Python<'_>) -> PyResult<bool> {
        self._own(py)?;
        self.begin(py)
    }

    /// Begins it for its owner, and waits in this thread: False if the timeout is over, None if waits were stopped.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<bool>> {
        let (us, owner) = (&*self.inner, self.owner.load(Relaxed));
        let is_task = owner != this_thread();
        let may_block = us.membership.may_block(owner);
        may_block.map_err(|error| us.refused(py, error))?;
        let begun = us.wait_in(py, self.name.get(), LEASE, timeout, || {
            us.membership.begin_transaction(owner, is_task)
        })?;
        self.is_open.store(begun == Some(true), Relaxed);
        Ok(begun)
    }

    fn end(&self, py: Python<'_>, is_kept: bool) -> PyResult<()> {
        if !self.is_open.swap(false, Relaxed) {
            return Ok(());
        }
        if !is_kept {
            let opened = self.inner.opened(py);
            opened.call_method0(intern!(py, "forget"))?;
        }
        let owner = self.owner.load(Relaxed);
        let ended = self.inner.membership.end_transaction(owner, is_kept);
        ended.map_err(|error| self.inner.refused(py, error))
    }
}

#[pymethods]
impl Transaction {
    #[new]
    fn new(carrier: &Bound<'_, Carrier>, name: Py<Name>, joins: bool) -> PyResult<Self> {
        Ok(Transaction {
            inner: carrier.get().inner()?,
            name,
            joins,
            owner: AtomicU64::new(0),
            is_open: AtomicBool::new(false),
        })
    }

    fn __enter__(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let us = slf.get();
        if us.start(py)? {
            return Ok(());
        }
        if !us.joins && is_in_loop(py)? {
            slf.call_method0(intern!(py, "_refuse_to_block"))?;
        }
        let timeout = slf.getattr(intern!(py, "_timeout"))?.extract()?;
        let waited = us.wait(py, timeout)?;
        if waited != Some(true) {
            slf.call_method1(intern!(py, "_gave_up"), (waited,))?;
        }
        Ok(())
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.end(py, error.is_none())
    }

    /// It is to be that of the task or thread that runs here, whichever task begins it.
    fn _own(&self, py: Python<'_>) -> PyResult<()> {
        self.owner.store(current_owner(py)?, Relaxed);
        Ok(())
    }

    /// Begins it for its owner, if nobody else is within one.
    fn _begin(&self, py: Python<'_>) -> PyResult<bool> {
        self.begin(py)
    }

    /// Ends it, if it was begun.
    fn _end(&self, py: Python<'_>, is_kept: bool) -> PyResult<()> {
        self.end(py, is_kept)
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        // Relaxed: under the GIL.
        if self.is_open.load(Relaxed) {
            let _ = Python::attach(|py| self.end(py, false));
        }
    }
}
