//! `Transaction`: several operations on a store that take effect together.

use crate::objects::deadline::OWNER_LOCK_TIMEOUT;
use crate::objects::store::{BeginOutcome, OPERATION_TIMEOUT, TRANSACTIONS};
use crate::python::objects::shared_object::SharedObject;
use crate::python::objects::stores::open_store::{OpenStore, StoreRef};
use crate::python::support::errors::preserving_exception;
use crate::python::support::owner::{current_owner, is_in_loop, this_thread};
use pyo3::intern;
use pyo3::prelude::*;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

/// The time, in nanoseconds, for which a further attempt of an event loop waits for the end of a single operation.
const RETRY_TIMEOUT: u64 = 200_000;

/// A transaction of a store. `with` begins and ends the transaction in a thread, each in one native step, because a
/// signal handler that raises in a Python frame in between would leave the transaction open. Where `with` would block
/// an event loop, it calls `_refuse_to_block`; after a failed wait of `_timeout` seconds it calls `_raise_wait_failed`.
/// A transaction that is dropped while it is open is rolled back.
///
/// `name` is the handle of the shared object. With `joins`, within a transaction of the same task or thread, this
/// transaction becomes a savepoint, which is rolled back alone if its block raises.
#[pyclass(frozen, subclass, module = "shmrpc._core")]
pub struct Transaction {
    inner: Arc<OpenStore>,
    object: Py<SharedObject>,
    joins: bool,
    /// The number of the task or thread that begins the transaction.
    owner: AtomicU64,
    is_open: AtomicBool,
    /// True while a block uses the transaction, or waits for it. The owner is the task or thread of the block.
    is_used: AtomicBool,
    /// True if a single operation that did not end has prevented the last attempt.
    is_late: AtomicBool,
    /// The number of the savepoint in the outer transaction, while the block runs; 0 if there is none.
    savepoint: AtomicU64,
}

// Relaxed, all: Python calls these methods under the GIL.
impl Transaction {
    /// Makes one attempt to begin the transaction or savepoint, and waits, with the GIL, for single operations of other
    /// processes for a moment. Returns true if it has begun. Sets `is_late` if such an operation has prevented the
    /// attempt. Raises LocalProtocolError if the owner is within a transaction and `joins` is false.
    fn begin(&self, py: Python<'_>) -> PyResult<bool> {
        self.object.get().open(py)?;
        let (owner, members) = (self.owner.load(Relaxed), &self.inner.membership);
        if self.joins
            && let Some(savepoint) = members.begin_savepoint(owner)
        {
            self.savepoint.store(savepoint, Relaxed);
            return Ok(true);
        }
        // The first try waits for a moment; an event loop that tries again has other tasks to run.
        let busy_timeout = match self.is_late.load(Relaxed) {
            true => RETRY_TIMEOUT,
            false => OPERATION_TIMEOUT,
        };
        let begun = members.begin_transaction(owner, owner != this_thread(), busy_timeout);
        let begun = begun.map_err(|error| self.inner.refusal_error(py, error))?;
        self.is_late
            .store(begun == BeginOutcome::MustRetry, Relaxed);
        self.is_open.store(begun == BeginOutcome::Begun, Relaxed);
        Ok(begun == BeginOutcome::Begun)
    }

    /// Begins the transaction for its owner, and waits in this thread. Returns true; false after the timeout, None if
    /// waits were stopped. With `only_late`, waits only for a single operation that does not end, and not for another
    /// transaction. Sets `is_late` if such an operation has prevented the last attempt. Raises LocalProtocolError if
    /// another task of this thread is within a transaction. Undoes a begun transaction if the wait raises an error.
    fn wait(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        only_late: bool,
    ) -> PyResult<Option<bool>> {
        let (this, owner) = (&*self.inner, self.owner.load(Relaxed));
        let is_task = owner != this_thread();
        let may_block = this.membership.check_may_block(owner);
        may_block.map_err(|error| this.refusal_error(py, error))?;
        let end = timeout.and_then(|timeout| {
            Instant::now().checked_add(Duration::try_from_secs_f64(timeout).ok()?)
        });
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let busy_timeout = left.map_or(OWNER_LOCK_TIMEOUT, |left| {
                let left = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
                left.min(OWNER_LOCK_TIMEOUT)
            });
            let mut tried = BeginOutcome::MustWait;
            let left = left.map(|left| left.as_secs_f64());
            let waited = this.wait_in(py, self.object.get(), TRANSACTIONS, left, || {
                tried = this
                    .membership
                    .begin_transaction(owner, is_task, busy_timeout)?;
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
            // The end of a single operation wakes no waiter, so this tries again until the timeout.
            py.check_signals()?;
            if self.object.get().is_stopped() {
                return Ok(None);
            }
            if left == Some(0.0) {
                return Ok(Some(false));
            }
        }
    }

    /// Begins the transaction, and waits in this thread if necessary. Calls `_refuse_to_block` or `_raise_wait_failed`
    /// otherwise.
    fn enter(&self, slf: &Bound<'_, Self>) -> PyResult<()> {
        let (this, py) = (self, slf.py());
        if this.begin(py)? {
            return Ok(());
        }
        let mut timeout: Option<f64> = slf.getattr(intern!(py, "_timeout"))?.extract()?;
        // In an event loop it waits as a single operation does, and only for a single operation of another process.
        let in_loop = !this.joins && is_in_loop(py)?;
        if in_loop {
            let busy_timeout = this.inner.busy_timeout() as f64 / 1e9;
            timeout = Some(timeout.map_or(busy_timeout, |timeout| timeout.min(busy_timeout)));
        }
        let is_late = || this.is_late.load(Relaxed);
        let waited = match in_loop && !is_late() {
            true => Some(false),
            false => this.wait(py, timeout, in_loop)?,
        };
        if waited == Some(true) {
            return Ok(());
        }
        if in_loop && waited.is_some() && !is_late() {
            slf.call_method0(intern!(py, "_refuse_to_block"))?;
        }
        let is_single = this.joins || in_loop;
        slf.call_method1(
            intern!(py, "_raise_wait_failed"),
            (waited, timeout, is_single),
        )
        .map(drop)
    }

    /// Ends the transaction or savepoint, if it has begun, and releases this for another block. Commits or keeps the
    /// changes if `is_kept` is true; undoes them otherwise, and lets Python forget the classes that were added. Raises
    /// the exception of a commit that has failed: the transaction has ended all the same.
    fn end(&self, py: Python<'_>, is_kept: bool) -> PyResult<()> {
        let (owner, savepoint) = (self.owner.load(Relaxed), self.savepoint.swap(0, Relaxed));
        let is_open = self.is_open.swap(false, Relaxed);
        self.is_used.store(false, Relaxed);
        if !is_open && savepoint == 0 {
            return Ok(());
        }
        let mut forgotten = Ok(());
        if !is_kept {
            let opened = self.inner.opened(py);
            let forget = || opened.call_method0(intern!(py, "forget_classes")).map(drop);
            forgotten = forget();
            if forgotten.is_err() {
                // A signal handler has raised before anything was forgotten. The transaction ends all the same.
                let _ = forget();
            }
        }
        if !is_open {
            self.inner
                .membership
                .end_savepoint(owner, savepoint, is_kept);
            return forgotten;
        }
        let ended = self.inner.membership.end_transaction(owner, is_kept);
        ended.map_err(|error| self.inner.refusal_error(py, error))?;
        forgotten
    }
}

#[pymethods]
impl Transaction {
    #[new]
    fn new(
        store_ref: &Bound<'_, StoreRef>,
        object: Py<SharedObject>,
        joins: bool,
    ) -> PyResult<Self> {
        Ok(Transaction {
            inner: store_ref.get().inner()?,
            object,
            joins,
            owner: AtomicU64::new(0),
            is_open: AtomicBool::new(false),
            is_used: AtomicBool::new(false),
            is_late: AtomicBool::new(false),
            savepoint: AtomicU64::new(0),
        })
    }

    fn __enter__(slf: &Bound<'_, Self>) -> PyResult<()> {
        let this = slf.get();
        this._own(slf.py())?;
        let entered = this.enter(slf);
        if entered.is_err() {
            this.is_used.store(false, Relaxed);
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

    /// Makes the running task or thread the owner, until `_end`. Raises LocalProtocolError if another block uses the
    /// transaction.
    fn _own(&self, py: Python<'_>) -> PyResult<()> {
        let owner = current_owner(py)?;
        if self.is_used.swap(true, Relaxed) {
            return Err(self.inner.named_error(
                py,
                "LocalProtocolError",
                "has this transaction in use: call transaction() for each block, in each task and thread"
                    .to_owned(),
            ));
        }
        self.owner.store(owner, Relaxed);
        Ok(())
    }

    /// Makes one attempt to begin the transaction for its owner, which `_own` has set. Returns True if it has begun.
    fn _begin(&self, py: Python<'_>) -> PyResult<bool> {
        self.begin(py)
    }

    /// True if a single operation of another process, whose end wakes no waiter, has prevented the last attempt.
    #[getter]
    fn _is_late(&self) -> bool {
        self.is_late.load(Relaxed)
    }

    /// True while the transaction is open.
    #[getter]
    fn _has_begun(&self) -> bool {
        self.is_open.load(Relaxed)
    }

    /// Ends the transaction, if it has begun. Commits the changes if `is_kept` is true, and undoes them otherwise.
    fn _end(&self, py: Python<'_>, is_kept: bool) -> PyResult<()> {
        self.end(py, is_kept)
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        // Relaxed: under the GIL.
        if self.is_open.load(Relaxed) || self.savepoint.load(Relaxed) != 0 {
            let _ = Python::attach(|py| preserving_exception(py, || self.end(py, false)));
        }
    }
}
