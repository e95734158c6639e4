//! `Transaction`: many operations of a store that are one.

use super::hold::{current_owner, this_thread};
use super::name::Name;
use super::store::{Carrier, Inner};
use crate::equals::stores::LEASE;
use pyo3::intern;
use pyo3::prelude::*;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// A transaction of a store: `with` begins and ends it in a thread. Where that has to wait, it calls `_enter_slowly`.
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

    #[getter]
    fn _joins(&self) -> bool {
        self.joins
    }

    fn __enter__(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        match slf.get()._start(py)? {
            true => Ok(()),
            false => slf.call_method0(intern!(py, "_enter_slowly")).map(drop),
        }
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

    /// Begins it for the task or thread that runs here, if nobody else is within one.
    fn _start(&self, py: Python<'_>) -> PyResult<bool> {
        self.owner.store(current_owner(py)?, Relaxed);
        self.begin(py)
    }

    /// The same, for whoever has started it: another task of its loop may do so.
    fn _begin(&self, py: Python<'_>) -> PyResult<bool> {
        self.begin(py)
    }

    /// The same, and waits in this thread: False if the timeout is over, None if waits were stopped.
    fn _wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<bool>> {
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

    /// Ends it, if it was begun.
    fn _end(&self, py: Python<'_>, is_kept: bool) -> PyResult<()> {
        self.end(py, is_kept)
    }
}
