//! `Transaction`: many operations of a store that are one.

use crate::objects::deadline::OWNER_LOCK_TIMEOUT;
use crate::objects::store::{BeginOutcome, OPERATION_TIMEOUT, TRANSACTIONS};
use crate::python::objects::shared_object::SharedObject;
use crate::python::objects::stores::store::{Inner, StoreRef};
use crate::python::support::errors::preserving_exception;
use crate::python::support::owner::{current_owner, is_in_loop, this_thread};
use pyo3::intern;
use pyo3::prelude::*;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

/// For how long, in nanoseconds, a loop that tries again looks whether a single operation has ended.
const AGAIN: u64 = 200_000;

/// A transaction of a store: `with` begins and ends it in a thread, each in one native step: where a frame of Python lay
/// between, a signal handler that raises there would leave it open. Where `with` would block a loop, it calls
/// `_refuse_to_block`, and where the wait for `_timeout` seconds was in vain, `_raise_wait_failed`. One that goes while it is open
/// comes to nothing.
///
/// `name`: the use of the name whose it is. `joins`: within a transaction of this task or thread it is a part of that, which
/// is undone alone if its block raises.
#[pyclass(frozen, subclass, module = "shmrpc._core")]
pub struct Transaction {
    inner: Arc<Inner>,
    name: Py<SharedObject>,
    joins: bool,
    /// The task or thread that begins it.
    owner: AtomicU64,
    is_open: AtomicBool,
    /// A block has it, or waits for it: the owner is that of the block.
    is_used: AtomicBool,
    /// A single operation that does not end was in the way when it was last tried.
    is_late: AtomicBool,
    /// The number of the part that it is of another transaction, while its block runs; 0 if it is none.
    part: AtomicU64,
}

// Relaxed, all: what Python calls is under the GIL.
impl Transaction {
    fn begin(&self, py: Python<'_>) -> PyResult<bool> {
        self.name.get().open(py)?;
        let (owner, members) = (self.owner.load(Relaxed), &self.inner.membership);
        if self.joins
            && let Some(part) = members.begin_savepoint(owner)
        {
            self.part.store(part, Relaxed);
            return Ok(true);
        }
        // The first time it waits for a moment; a loop that tries again has others to serve.
        let patience = match self.is_late.load(Relaxed) {
            true => AGAIN,
            false => OPERATION_TIMEOUT,
        };
        let begun = members.begin_transaction(owner, owner != this_thread(), patience);
        let begun = begun.map_err(|error| self.inner.refused(py, error))?;
        self.is_late
            .store(begun == BeginOutcome::MustRetry, Relaxed);
        self.is_open.store(begun == BeginOutcome::Begun, Relaxed);
        Ok(begun == BeginOutcome::Begun)
    }

    /// Begins it for its owner, and waits in this thread: False if the timeout is over, None if waits were stopped.
    /// `only_late`: for a single operation that does not end, and for no other transaction; `is_late` says which was in the way.
    fn wait(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        only_late: bool,
    ) -> PyResult<Option<bool>> {
        let (us, owner) = (&*self.inner, self.owner.load(Relaxed));
        let is_task = owner != this_thread();
        let may_block = us.membership.check_may_block(owner);
        may_block.map_err(|error| us.refused(py, error))?;
        let end = timeout.and_then(|timeout| {
            Instant::now().checked_add(Duration::try_from_secs_f64(timeout).ok()?)
        });
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let patience = left.map_or(OWNER_LOCK_TIMEOUT, |left| {
                let left = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
                left.min(OWNER_LOCK_TIMEOUT)
            });
            let mut tried = BeginOutcome::MustWait;
            let left = left.map(|left| left.as_secs_f64());
            let waited = us.wait_in(py, self.name.get(), TRANSACTIONS, left, || {
                tried = us.membership.begin_transaction(owner, is_task, patience)?;
                Ok(tried != BeginOutcome::MustWait || only_late)
            });
            self.is_late
                .store(tried == BeginOutcome::MustRetry, Relaxed);
            self.is_open.store(tried == BeginOutcome::Begun, Relaxed);
            let waited = match waited {
                Ok(waited) => waited,
                Err(error) => {
                    self.end(py, false)?;
                    return Err(error);
                }
            };
            if waited != Some(true) || tried != BeginOutcome::MustRetry {
                return Ok(waited.map(|_| tried == BeginOutcome::Begun));
            }
            // The end of a single operation wakes no waiter: try again, until the time is over.
            py.check_signals()?;
            if self.name.get().is_stopped() {
                return Ok(None);
            }
            if left == Some(0.0) {
                return Ok(Some(false));
            }
        }
    }

    /// Begins it, and waits in this thread if that has to be.
    fn enter(&self, slf: &Bound<'_, Self>) -> PyResult<()> {
        let (us, py) = (self, slf.py());
        if us.begin(py)? {
            return Ok(());
        }
        let mut timeout: Option<f64> = slf.getattr(intern!(py, "_timeout"))?.extract()?;
        // In a loop it waits as a single operation does, for a single operation of another process alone.
        let in_loop = !us.joins && is_in_loop(py)?;
        if in_loop {
            let patience = us.inner.patience() as f64 / 1e9;
            timeout = Some(timeout.map_or(patience, |timeout| timeout.min(patience)));
        }
        let is_late = || us.is_late.load(Relaxed);
        let waited = match in_loop && !is_late() {
            true => Some(false),
            false => us.wait(py, timeout, in_loop)?,
        };
        if waited == Some(true) {
            return Ok(());
        }
        if in_loop && waited.is_some() && !is_late() {
            slf.call_method0(intern!(py, "_refuse_to_block"))?;
        }
        let is_single = us.joins || in_loop;
        slf.call_method1(
            intern!(py, "_raise_wait_failed"),
            (waited, timeout, is_single),
        )
        .map(drop)
    }

    fn end(&self, py: Python<'_>, is_kept: bool) -> PyResult<()> {
        let (owner, part) = (self.owner.load(Relaxed), self.part.swap(0, Relaxed));
        let is_open = self.is_open.swap(false, Relaxed);
        self.is_used.store(false, Relaxed);
        if !is_open && part == 0 {
            return Ok(());
        }
        let mut forgotten = Ok(());
        if !is_kept {
            let opened = self.inner.opened(py);
            let forget = || opened.call_method0(intern!(py, "forget_classes")).map(drop);
            forgotten = forget();
            if forgotten.is_err() {
                // The handler of a signal has raised before anything was forgotten. The transaction ends all the same.
                let _ = forget();
            }
        }
        if !is_open {
            self.inner.membership.end_savepoint(owner, part, is_kept);
            return forgotten;
        }
        let ended = self.inner.membership.end_transaction(owner, is_kept);
        ended.map_err(|error| self.inner.refused(py, error))?;
        forgotten
    }
}

#[pymethods]
impl Transaction {
    #[new]
    fn new(store_ref: &Bound<'_, StoreRef>, name: Py<SharedObject>, joins: bool) -> PyResult<Self> {
        Ok(Transaction {
            inner: store_ref.get().inner()?,
            name,
            joins,
            owner: AtomicU64::new(0),
            is_open: AtomicBool::new(false),
            is_used: AtomicBool::new(false),
            is_late: AtomicBool::new(false),
            part: AtomicU64::new(0),
        })
    }

    fn __enter__(slf: &Bound<'_, Self>) -> PyResult<()> {
        let us = slf.get();
        us._own(slf.py())?;
        let entered = us.enter(slf);
        if entered.is_err() {
            us.is_used.store(false, Relaxed);
        }
        entered
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
        let owner = current_owner(py)?;
        if self.is_used.swap(true, Relaxed) {
            return Err(self.inner.error(
                py,
                "LocalProtocolError",
                "has this transaction in use: call transaction() for each block, in each task and thread"
                    .to_owned(),
            ));
        }
        self.owner.store(owner, Relaxed);
        Ok(())
    }

    /// Begins the transaction for its owner, unless another one is within a transaction.
    fn _begin(&self, py: Python<'_>) -> PyResult<bool> {
        self.begin(py)
    }

    /// True if a single operation of another process has kept the transaction from beginning: its end wakes no waiter.
    #[getter]
    fn _is_late(&self) -> bool {
        self.is_late.load(Relaxed)
    }

    #[getter]
    fn _has_begun(&self) -> bool {
        self.is_open.load(Relaxed)
    }

    /// Ends it, if it was begun.
    fn _end(&self, py: Python<'_>, is_kept: bool) -> PyResult<()> {
        self.end(py, is_kept)
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        // Relaxed: under the GIL.
        if self.is_open.load(Relaxed) || self.part.load(Relaxed) != 0 {
            let _ = Python::attach(|py| preserving_exception(py, || self.end(py, false)));
        }
    }
}
