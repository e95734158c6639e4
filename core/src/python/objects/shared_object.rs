//! `SharedObject`: a handle of a shared object.

use crate::memory::region::Kind;
use crate::objects::error::ObjectError;
use crate::objects::event::{EventMembership, WAITERS};
use crate::objects::kinds;
use crate::objects::lifecycle;
use crate::objects::membership::Membership;
use crate::objects::memory::ObjectAddress;
use crate::objects::memory::shape::{SINGLE_WRITER, Shape};
use crate::objects::object::{Object, downcast, downcast_ref};
use crate::objects::queue::take_dropped;
use crate::objects::registry::Handle;
use crate::objects::semaphore::SemaphoreMembership;
use crate::objects::waiting::{self, WaitError, WaitOutcome};
use crate::python::objects::error::{named_error, object_error};
use crate::python::objects::loop_waiter::LoopWaiter;
use crate::python::objects::report::report_dict;
use crate::python::support::errors::preserving_exception;
use crate::python::support::mapped_bytes::MappedBytes;
use crate::python::support::owner::{current_owner, this_thread};
use crate::python::support::timeout::{deadline, sleep_until};
use crate::queue::Limits;
use crate::sync::lock;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A handle of a shared object. It is closed by `close`, or when it is dropped.
///
/// All methods raise exceptions of `shmrpc.errors`: LocalProtocolError if the handle is closed, or was opened by the
/// process from which this one was forked; RemoteProtocolError if the object's memory holds an impossible value.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct SharedObject {
    object: Arc<dyn Object>,
    handle: Mutex<Option<Arc<Handle>>>,
    closed: AtomicBool,
    /// True if the waits of this handle must end, because they were stopped or the handle is closed.
    stopped: AtomicBool,
    /// Permits acquired by this handle, less those released.
    acquired: AtomicI64,
    /// The number of the thread that has acquired the last permit.
    acquired_in: AtomicU64,
}

impl SharedObject {
    /// Returns the first handle of a membership.
    fn new(handle: Handle) -> Self {
        SharedObject::sharing(Arc::new(handle))
    }

    /// Returns a further handle of the same membership.
    fn sharing(handle: Arc<Handle>) -> Self {
        SharedObject {
            object: handle.object().clone(),
            handle: Mutex::new(Some(handle)),
            closed: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            acquired: AtomicI64::new(0),
            acquired_in: AtomicU64::new(0),
        }
    }

    /// Returns the reference that keeps this process a member; None once this handle is closed.
    pub(crate) fn handle(&self) -> Option<Arc<Handle>> {
        lock(&self.handle).clone()
    }

    /// Returns the kind and the name of the object, with which errors begin.
    pub(crate) fn describe(&self) -> String {
        format!("{} '{}'", self.kind(), self.name())
    }

    /// Adds to the number of acquired permits, and notes this thread as the last to acquire one; a negative `change`
    /// counts released ones.
    #[inline]
    pub(crate) fn count_acquired(&self, change: i64) {
        // Relaxed, both: under the GIL.
        self.acquired.fetch_add(change, Ordering::Relaxed);
        if change > 0 {
            self.acquired_in.store(this_thread(), Ordering::Relaxed);
        }
    }

    /// Returns true if this handle has acquired more permits than it has released.
    pub(crate) fn has_acquired(&self) -> bool {
        self.acquired.load(Ordering::Relaxed) > 0 // Relaxed: under the GIL.
    }

    /// Returns the membership. Raises LocalProtocolError if this handle is closed.
    pub(crate) fn membership(&self, py: Python<'_>) -> PyResult<&Membership> {
        Ok(self.open(py)?.membership())
    }

    /// Returns the object as one of kind `O`. Raises LocalProtocolError if it is of another kind or this handle is
    /// closed.
    pub(crate) fn open_as<O: Object>(&self, py: Python<'_>) -> PyResult<Arc<O>> {
        let object = downcast(self.open(py)?);
        object.ok_or_else(|| self.error(py, OTHER_KIND))
    }

    /// Borrows the object as one of kind `O`. Raises LocalProtocolError if it is of another kind or this handle is
    /// closed.
    #[inline]
    fn borrow_as<O: Object>(&self, py: Python<'_>) -> PyResult<&O> {
        let object = downcast_ref(&**self.open(py)?);
        object.ok_or_else(|| self.error(py, OTHER_KIND))
    }

    /// Returns the kind of the object.
    pub(crate) fn shape_kind(&self) -> Kind {
        self.object.membership().shape().kind
    }

    /// Returns the object. Raises LocalProtocolError if this handle is closed.
    #[inline]
    pub(crate) fn open(&self, py: Python<'_>) -> PyResult<&Arc<dyn Object>> {
        // Relaxed: under the GIL.
        if self.closed.load(Ordering::Relaxed) {
            return Err(self.error(py, ObjectError::Left));
        }
        Ok(&self.object)
    }

    /// Returns the exception for an error of this object.
    fn error(&self, py: Python<'_>, error: ObjectError) -> PyErr {
        object_error(py, self.object.membership(), error)
    }

    /// Returns a result of this object, or raises the exception for its error.
    #[inline]
    pub(crate) fn map_error<T>(
        &self,
        py: Python<'_>,
        result: Result<T, ObjectError>,
    ) -> PyResult<T> {
        result.map_err(|error| self.error(py, error))
    }

    /// Waits in this thread and the wait set `set` until `take` returns true; its argument is true if the wait has been
    /// long. Returns true; false after the timeout, None if waits were stopped. Raises what signal handlers raise, and
    /// an error of `take`, unless the thread is about to sleep on: it counts as false then. After an error, the thread
    /// sleeps until the deadline if another thread is exiting the process.
    pub(crate) fn wait_in(
        &self,
        py: Python<'_>,
        set: usize,
        timeout: Option<f64>,
        take: impl FnMut(bool) -> Result<bool, ObjectError> + Send,
    ) -> PyResult<Option<bool>> {
        let object = self.open(py)?;
        let deadline = deadline(timeout);
        let interrupted = || {
            Python::attach(|py| {
                py.check_signals()?;
                // Relaxed: the thread that closes it wakes the waiters afterwards.
                match self.closed.load(Ordering::Relaxed) {
                    true => Err(self.error(py, ObjectError::Left)),
                    false => Ok(()),
                }
            })
        };
        let waited = py.detach(|| {
            let waited = waiting::wait(&**object, set, deadline, &self.stopped, take, interrupted);
            match waited {
                Err(_) if self.sleeps_on() => {
                    sleep_until(deadline);
                    Ok(WaitOutcome::TimedOut)
                }
                waited => waited,
            }
        });
        match waited {
            Ok(WaitOutcome::Succeeded) => Ok(Some(true)),
            Ok(WaitOutcome::TimedOut) => Ok(Some(false)),
            Ok(WaitOutcome::Stopped) if self.closed.load(Ordering::Relaxed) => {
                Err(self.error(py, ObjectError::Left))
            }
            Ok(WaitOutcome::Stopped) => Ok(None),
            Err(WaitError::Object(error)) => Err(self.error(py, error)),
            Err(WaitError::Caller(error)) => Err(error),
        }
    }

    /// Spins for a moment, without the GIL, before an event loop sleeps. Returns true if `is_ready` has returned true.
    pub(crate) fn glance(
        &self,
        py: Python<'_>,
        is_ready: impl Fn() -> bool + Send,
    ) -> PyResult<bool> {
        let object = self.open(py)?;
        let looked =
            py.detach(|| waiting::spin_before_loop_sleep(&**object, &self.stopped, is_ready));
        looked.map_err(|error| self.error(py, error))
    }
}

/// Error raised by an operation of another kind of object.
const OTHER_KIND: ObjectError = ObjectError::NotHeld("the operation is for another kind of object");

/// Returns the shape of an object; None for sizes that the kind cannot have.
fn shape_of(kind: &str, amount: u64, [items, deliveries]: [u64; 2], raw: bool) -> Option<Shape> {
    if kind == Kind::Queue.word() {
        let limits = Limits {
            items,
            memory: amount,
            deliveries,
        };
        return Shape::of_queue(limits, raw);
    }
    if kind == Kind::Topic.word() {
        return Some(Shape::of_topic(raw));
    }
    if kind == Kind::Store.word() {
        return Shape::of_store(amount, items == SINGLE_WRITER);
    }
    let kind = Kind::SHARED_OBJECTS
        .into_iter()
        .find(|each| each.word() == kind)?;
    Shape::new(kind, amount)
}

#[pymethods]
impl SharedObject {
    /// Opens an object, and creates it if it has no members. `lock_file` is the path of the lock file, which ends with
    /// ".lock". `bounds` are for a queue the maximum numbers of items and of deliveries of an item; for a store (1, 0)
    /// if it has a single writer. With `raw`, the values are bytes. Raises ValueError for sizes that the kind cannot
    /// have.
    #[new]
    #[pyo3(signature = (name, lock_file, kind, amount, bounds = [0; 2], raw = false))]
    fn make(
        py: Python<'_>,
        name: String,
        lock_file: PathBuf,
        kind: &str,
        amount: u64,
        bounds: [u64; 2],
        raw: bool,
    ) -> PyResult<Self> {
        let Some(shape) = shape_of(kind, amount, bounds, raw) else {
            return Err(PyValueError::new_err(format!(
                "a {kind} cannot have {amount}"
            )));
        };
        let address = ObjectAddress { name, lock_file };
        let opened = py.detach(|| kinds::open(&address, Some(shape)));
        match opened {
            Ok(Some(handle)) => Ok(SharedObject::new(handle)),
            Ok(None) => Err(PyValueError::new_err(
                "the object was created, and is missing",
            )),
            Err(error) => Err(named_error(py, kind, &address.name, error)),
        }
    }

    /// Opens an object that has members, and makes this process a member. Returns None if it has none.
    #[staticmethod]
    fn attach(py: Python<'_>, name: String, lock_file: PathBuf) -> PyResult<Option<Self>> {
        let address = ObjectAddress { name, lock_file };
        let opened = py.detach(|| kinds::open(&address, None));
        let opened = opened.map_err(|error| named_error(py, "name", &address.name, error))?;
        Ok(opened.map(SharedObject::new))
    }

    /// Returns the report on an object, as `report` does, without opening it; None if it has no members.
    #[staticmethod]
    fn inspect<'py>(
        py: Python<'py>,
        name: String,
        lock_file: PathBuf,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let address = ObjectAddress { name, lock_file };
        let found = py.detach(|| kinds::inspect(&address));
        let found = found.map_err(|error| named_error(py, "name", &address.name, error))?;
        found.map(|report| report_dict(py, report)).transpose()
    }

    /// Leaves all objects that this process has open.
    #[staticmethod]
    fn leave_all(py: Python<'_>) {
        py.detach(kinds::leave_all);
    }

    /// Returns the queues that were lost with items in them since the last call, because this process was their last
    /// member: their names, and the numbers of items.
    #[staticmethod]
    fn take_dropped() -> Vec<(String, u64)> {
        take_dropped()
    }

    /// Closes this handle. With its last handle this process leaves the object, and releases all that it holds.
    /// Idempotent.
    fn close(&self, py: Python<'_>) {
        // Relaxed, both: a waiter reads `stopped` after it was woken, and once more before it sleeps.
        self.closed.store(true, Ordering::Relaxed);
        self.stopped.store(true, Ordering::Relaxed);
        let handle = lock(&self.handle).take();
        if let Some(handle) = &handle {
            handle.close();
        }
        py.detach(|| {
            drop(handle);
            if self.object.membership().is_here() {
                self.object.membership().wake_all_sets(); // The waits of this handle end.
            }
        });
    }

    /// Returns a further handle of the same object, which is closed separately.
    fn duplicate(&self, py: Python<'_>) -> PyResult<Self> {
        match self.handle() {
            Some(handle) => Ok(SharedObject::sharing(handle)),
            None => Err(self.error(py, ObjectError::Left)),
        }
    }

    /// Returns True if both are handles of the same membership of this process.
    fn has_same_membership(&self, other: &Bound<'_, SharedObject>) -> bool {
        Arc::ptr_eq(&self.object, &other.get().object)
    }

    /// True if this handle is closed, or this process has left the object.
    #[getter]
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) || self.object.membership().has_left()
    }

    /// The kind: "memory", "semaphore", "lock", "event", "signal", "queue", "topic" or "store".
    #[getter]
    fn kind(&self) -> &'static str {
        self.object.membership().shape().kind.word()
    }

    /// The name of the object.
    #[getter]
    pub(crate) fn name(&self) -> &str {
        self.object.membership().name()
    }

    /// Permits of a semaphore, bytes of a memory or for the items of a queue.
    #[getter]
    fn amount(&self) -> u64 {
        self.object.membership().shape().amount
    }

    /// The maximum numbers of waiting items, and of deliveries of an item, of a queue.
    #[getter]
    fn bounds(&self) -> [u64; 2] {
        let limits = self.object.membership().shape().limits();
        [limits.items, limits.deliveries]
    }

    /// True if the items of a queue, or the records of a topic, are bytes.
    #[getter]
    fn is_raw(&self) -> bool {
        self.object.membership().shape().is_raw()
    }

    /// Returns a dictionary with the object's kind and sizes, its members and what each holds, and the number of
    /// waiters.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let object = self.open(py)?;
        let report = py.detach(|| kinds::report(&**object));
        report_dict(py, self.map_error(py, report)?)
    }

    /// Returns the word of the event, which is odd while the event is set.
    fn event(&self, py: Python<'_>) -> PyResult<u64> {
        let word = self.borrow_as::<EventMembership>(py)?.word();
        self.map_error(py, word)
    }

    /// Returns True if the event is set, or was set since its word was `since`.
    fn has_passed(&self, py: Python<'_>, since: u64) -> PyResult<bool> {
        let passed = self.borrow_as::<EventMembership>(py)?.was_set_since(since);
        self.map_error(py, passed)
    }

    /// Waits in a thread until the event is set. Returns True; False after the timeout, None if waits were stopped.
    fn wait_event(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<bool>> {
        let since = self.event(py)?;
        if since & 1 == 1 {
            return Ok(Some(true));
        }
        let event = self.borrow_as::<EventMembership>(py)?;
        self.wait_in(py, WAITERS, timeout, |_| event.was_set_since(since))
    }

    /// Sets the event.
    fn set(&self, py: Python<'_>) -> PyResult<()> {
        let set = self.borrow_as::<EventMembership>(py)?.set();
        self.map_error(py, set)
    }

    /// Clears the event.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        let cleared = self.borrow_as::<EventMembership>(py)?.clear();
        self.map_error(py, cleared)
    }

    /// Ends the waits of this handle, and all later waits until a call with False.
    fn stop(&self, py: Python<'_>, stopped: bool) -> PyResult<()> {
        let membership = self.membership(py)?;
        // Relaxed: a waiter reads it after it was woken.
        self.stopped.store(stopped, Ordering::Relaxed);
        if stopped && membership.is_here() {
            membership.wake_all_sets();
        }
        Ok(())
    }

    /// Returns True if a wait of this thread must sleep on, as a lock of `threading` does, because another thread is
    /// exiting the process and has left the object.
    fn sleeps_on(&self) -> bool {
        self.object.membership().has_left() && kinds::is_exiting_elsewhere()
    }

    /// True if the waits of this handle are stopped.
    #[getter]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) && !self.closed.load(Ordering::Relaxed)
    }

    /// Returns the time in seconds for which permits are still reserved for tasks that have waited for long; 0 if they
    /// are not.
    fn kept_for(&self, py: Python<'_>) -> PyResult<f64> {
        let semaphore = downcast_ref::<SemaphoreMembership>(&**self.open(py)?);
        let left = semaphore.and_then(SemaphoreMembership::reserved_for);
        Ok(left.map_or(0.0, |left| left.as_secs_f64()))
    }

    /// Prepares a sleep: watches the other members, recovers dead ones, and checks the memory for corruption, which
    /// poisons the object.
    fn prepare(&self, py: Python<'_>) -> PyResult<()> {
        let object = self.open(py)?;
        let prepared = py.detach(|| lifecycle::prepare_to_sleep(&**object));
        self.map_error(py, prepared)
    }

    /// Returns the slot of an event loop in a wait set of the object: 0 for a permit, the event, a signal or an item, 1
    /// for room, 2 for the end of all items.
    fn sleeper(slf: &Bound<'_, Self>, set: usize) -> PyResult<LoopWaiter> {
        let this = slf.get();
        let sleeper = this.membership(slf.py())?.loop_slot(set);
        Ok(LoopWaiter::new(
            this.map_error(slf.py(), sleeper)?,
            set,
            this.object.clone(),
        ))
    }

    /// Returns the bytes of a memory, by the buffer protocol.
    fn bytes(&self, py: Python<'_>) -> PyResult<MappedBytes> {
        let (view, address, len) = self.map_error(py, self.membership(py)?.data())?;
        Ok(MappedBytes::new(view, (address.addr(), len), true))
    }
}

impl Drop for SharedObject {
    fn drop(&mut self) {
        if self.object.membership().is_here() {
            // A task or thread that still holds a permit does not refer to the handle that has acquired it.
            if *self.acquired.get_mut() > 0 && lock(&self.handle).is_some() {
                // The garbage collector may drop it in another thread, to which the permit does not belong.
                let owner = match *self.acquired_in.get_mut() == this_thread() {
                    true => Python::attach(|py| preserving_exception(py, || current_owner(py))),
                    false => Ok(0),
                };
                if let Some(semaphore) = downcast_ref::<SemaphoreMembership>(&*self.object) {
                    semaphore.abandon_permit(owner.unwrap_or_default());
                }
            }
            return;
        }
        // A forked child has copies of its parent's slots and doorbells, and must close none of them.
        std::mem::forget(self.object.clone());
    }
}
