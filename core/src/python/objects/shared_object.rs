//! `Name`: a semaphore, a lock, an event or a memory that this process has open.

use crate::memory::mapping::MappingView;
use crate::memory::region::Kind;
use crate::objects::discovery;
use crate::objects::error::ObjectError;
use crate::objects::event::{EventMembership, WAITERS};
use crate::objects::kinds::{self, Report};
use crate::objects::lifecycle;
use crate::objects::members::Holder;
use crate::objects::membership::Membership;
use crate::objects::memory::ObjectAddress;
use crate::objects::memory::shape::{OWNED, Shape};
use crate::objects::object::{Object, downcast, downcast_ref};
use crate::objects::queue::take_dropped;
use crate::objects::registry::Handle;
use crate::objects::semaphore::SemaphoreMembership;
use crate::objects::topic::Overview;
use crate::objects::waiting::{self, WaitError, WaitOutcome};
use crate::python::objects::loop_waiter::LoopWaiter;
use crate::python::objects::topics::publisher::seen_subscribers;
use crate::python::support::buffer::fill;
use crate::python::support::descriptor::Descriptor;
use crate::python::support::errors::{os_error, preserving_exception};
use crate::python::support::owner::{current_owner, this_thread};
use crate::queue::Limits;
use crate::sync::lock;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList};
use std::os::raw::c_int;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// A name that this process has open: a member's part of it. Closed when it goes, or by `close`.
///
/// All its methods raise the exceptions of `shmrpc.errors`: LocalProtocolError where it is closed, or was opened by the
/// process from which this one was forked; RemoteProtocolError where its memory holds what cannot be true.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct SharedObject {
    object: Arc<dyn Object>,
    handle: Mutex<Option<Arc<Handle>>>,
    closed: AtomicBool,
    /// Whether its waits are to end: they were stopped, or it is closed.
    stopped: AtomicBool,
    /// The permits acquired by this handle, less those released.
    acquired: AtomicI64,
    /// The number of the thread that has acquired the last one.
    acquired_in: AtomicU64,
}

impl SharedObject {
    fn new(handle: Handle) -> Self {
        SharedObject::sharing(Arc::new(handle))
    }

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

    /// What keeps this process a member though this is closed; None if it is.
    pub(crate) fn stay(&self) -> Option<Arc<Handle>> {
        lock(&self.handle).clone()
    }

    /// What it is, and its name, as errors begin with them.
    pub(crate) fn words(&self) -> String {
        format!("{} '{}'", self.kind(), self.name())
    }

    /// Permits were acquired by it, or, if it is less than 0, released.
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

    /// Returns the membership, or an error if the handle is closed.
    pub(crate) fn membership(&self, py: Python<'_>) -> PyResult<&Membership> {
        Ok(self.open(py)?.membership())
    }

    /// Returns the object as one of a certain kind, or an error if the handle is closed.
    pub(crate) fn open_as<O: Object>(&self, py: Python<'_>) -> PyResult<Arc<O>> {
        let object = downcast(self.open(py)?);
        object.ok_or_else(|| self.failed(py, OTHER_KIND))
    }

    /// Borrows the object as one of a certain kind, or returns an error if the handle is closed.
    #[inline]
    fn borrow_as<O: Object>(&self, py: Python<'_>) -> PyResult<&O> {
        let object = downcast_ref(&**self.open(py)?);
        object.ok_or_else(|| self.failed(py, OTHER_KIND))
    }

    pub(crate) fn shape_kind(&self) -> Kind {
        self.object.membership().shape().kind
    }

    /// What it is a handle of.
    #[inline]
    pub(crate) fn open(&self, py: Python<'_>) -> PyResult<&Arc<dyn Object>> {
        // Relaxed: under the GIL.
        if self.closed.load(Ordering::Relaxed) {
            return Err(self.failed(py, ObjectError::Left));
        }
        Ok(&self.object)
    }

    fn failed(&self, py: Python<'_>, error: ObjectError) -> PyErr {
        failed(py, self.object.membership(), error)
    }

    #[inline]
    pub(crate) fn told<T>(&self, py: Python<'_>, result: Result<T, ObjectError>) -> PyResult<T> {
        result.map_err(|error| self.failed(py, error))
    }

    /// Blocks this thread until `take` is true: True, False if the timeout is over, None if waits were stopped.
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
                // Relaxed: whoever closes it wakes the sleepers afterwards.
                match self.closed.load(Ordering::Relaxed) {
                    true => Err(self.failed(py, ObjectError::Left)),
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
                Err(self.failed(py, ObjectError::Left))
            }
            Ok(WaitOutcome::Stopped) => Ok(None),
            Err(WaitError::Object(error)) => Err(self.failed(py, error)),
            Err(WaitError::Caller(error)) => Err(error),
        }
    }

    /// Looks for a moment, before a loop sleeps, whether `is_there`: whether it was.
    pub(crate) fn glance(
        &self,
        py: Python<'_>,
        is_there: impl Fn() -> bool + Send,
    ) -> PyResult<bool> {
        let object = self.open(py)?;
        let looked =
            py.detach(|| waiting::spin_before_loop_sleep(&**object, &self.stopped, is_there));
        looked.map_err(|error| self.failed(py, error))
    }
}

/// Error raised by an operation of another kind of object.
const OTHER_KIND: ObjectError = ObjectError::NotHeld("the operation is for another kind of object");

/// Sleeps until then; None: for as long as the process lives.
fn sleep_until(deadline: Option<Instant>) {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match left {
            Some(Duration::ZERO) => return,
            Some(left) => thread::park_timeout(left),
            None => thread::park(),
        }
    }
}

/// The exception for what went wrong with a name that is open.
#[cold]
pub(crate) fn failed(py: Python<'_>, membership: &Membership, error: ObjectError) -> PyErr {
    raised(py, membership.shape().kind.word(), membership.name(), error)
}

/// When this many seconds from now are over; None: never.
fn deadline(timeout: Option<f64>) -> Option<Instant> {
    let limit = Duration::try_from_secs_f64(timeout?.max(0.0)).ok()?;
    Instant::now().checked_add(limit)
}

/// The seconds of a timeout that a user gave.
pub(crate) fn seconds(timeout: &Bound<'_, PyAny>) -> PyResult<f64> {
    let seconds = match timeout.is_instance_of::<PyBool>() {
        true => None,
        false => timeout.extract().ok(),
    };
    match seconds {
        Some(seconds) if f64::is_nan(seconds) || seconds < 0.0 => {
            let given = timeout.repr()?;
            let text =
                format!("timeout: expected seconds, 0 or more (None: no limit), got {given}");
            Err(PyValueError::new_err(text))
        }
        Some(seconds) => Ok(seconds),
        None => {
            let given = timeout.repr()?;
            let text =
                format!("timeout: expected a number of seconds (None: no limit), got {given}");
            Err(PyTypeError::new_err(text))
        }
    }
}

/// The name of a user, as the system has it.
fn name_of_user(py: Python<'_>, user: libc::uid_t) -> PyResult<String> {
    let entry = py.import("pwd")?.call_method1("getpwuid", (user,))?;
    entry.getattr("pw_name")?.extract()
}

/// The exception of `shmrpc.errors` for what went wrong with a name.
fn raised(py: Python<'_>, kind: &str, name: &str, error: ObjectError) -> PyErr {
    let class = match &error {
        ObjectError::Os { .. }
        | ObjectError::Full(_)
        | ObjectError::Crowded
        | ObjectError::Claimed { .. } => "SharedMemoryError",
        ObjectError::Mismatch { .. }
        | ObjectError::LeftOver { .. }
        | ObjectError::Limits { .. } => "NameInUse",
        ObjectError::Foreign(_) | ObjectError::Poisoned(_) => "RemoteProtocolError",
        ObjectError::Busy { .. } => "WaitTimeout",
        ObjectError::Restless { .. } => "StoreBusy",
        ObjectError::Changing { .. } if kind == Kind::Store.word() => "StoreBusy",
        ObjectError::Changing { .. } => "QueueBusy",
        ObjectError::TooLarge(_) => {
            return PyValueError::new_err(format!("{kind} '{name}': {error}"));
        }
        ObjectError::Fenced
        | ObjectError::OfUser(_)
        | ObjectError::Left
        | ObjectError::Forked
        | ObjectError::ReadOnly { .. }
        | ObjectError::NotHeld(_) => "LocalProtocolError",
    };
    let joint = if error.is_predicate() { " " } else { ": " };
    let mut text = format!("{kind} {name:?}{joint}{error}").replace('"', "'");
    if let ObjectError::OfUser(user) = error
        && let Ok(called) = name_of_user(py, user)
    {
        let number = format!("user {user};");
        text = text.replace(&number, &format!("user {user} ({called});"));
    }
    let made = || {
        let class = py.import("shmrpc.errors")?.getattr(class)?;
        match error {
            ObjectError::Os { error, .. } => {
                class.call1((error.raw_os_error().unwrap_or(libc::EIO), text))
            }
            ObjectError::Full(_) | ObjectError::Crowded | ObjectError::Claimed { .. } => {
                class.call1((libc::EUSERS, text))
            }
            _ => class.call1((text,)),
        }
    };
    made().map_or_else(|error| error, PyErr::from_value)
}

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
        return Shape::of_store(amount, items == OWNED);
    }
    let kind = Kind::SHARED_OBJECTS
        .into_iter()
        .find(|each| each.word() == kind)?;
    Shape::new(kind, amount)
}

#[pymethods]
impl SharedObject {
    /// Opens a name: makes it if it has no members. `lock_file`: its path, which ends with ".lock". `bounds`: of a queue the
    /// items that may wait, and how often one is delivered, of a store (1, 0) if one process alone changes it; `raw`: whether
    /// they are bytes.
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
            Ok(None) => Err(PyValueError::new_err("a name is made, and not there")),
            Err(error) => Err(raised(py, kind, &address.name, error)),
        }
    }

    /// Opens a name that has members; None if it has none.
    #[staticmethod]
    fn attach(py: Python<'_>, name: String, lock_file: PathBuf) -> PyResult<Option<Self>> {
        let address = ObjectAddress { name, lock_file };
        let opened = py.detach(|| kinds::open(&address, None));
        let opened = opened.map_err(|error| raised(py, "name", &address.name, error))?;
        Ok(opened.map(SharedObject::new))
    }

    /// What can be seen of a name without opening it, as `report` has it; None if it has no members.
    #[staticmethod]
    fn inspect<'py>(
        py: Python<'py>,
        name: String,
        lock_file: PathBuf,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let address = ObjectAddress { name, lock_file };
        let found = py.detach(|| kinds::inspect(&address));
        let found = found.map_err(|error| raised(py, "name", &address.name, error))?;
        found.map(|report| reported(py, report)).transpose()
    }

    /// Leaves all names of this process.
    #[staticmethod]
    fn leave_all(py: Python<'_>) {
        py.detach(kinds::leave_all);
    }

    /// The queues that went with items in them since the last call, when this process left as their last member: their names,
    /// and how many items.
    #[staticmethod]
    fn take_dropped() -> Vec<(String, u64)> {
        take_dropped()
    }

    /// Closes it. This process leaves the name with the last of its handles, and gives back all that it holds. Again:
    /// nothing.
    fn close(&self, py: Python<'_>) {
        // Relaxed, both: whoever sleeps looks at `stopped` after it was woken, and once more before it sleeps.
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

    /// Another use of the same name, to be closed by itself.
    fn duplicate(&self, py: Python<'_>) -> PyResult<Self> {
        match self.stay() {
            Some(handle) => Ok(SharedObject::sharing(handle)),
            None => Err(self.failed(py, ObjectError::Left)),
        }
    }

    /// Whether both are uses of the name by which this process has become a member once.
    fn has_same_membership(&self, other: &Bound<'_, SharedObject>) -> bool {
        Arc::ptr_eq(&self.object, &other.get().object)
    }

    #[getter]
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) || self.object.membership().has_left()
    }

    /// "memory", "semaphore", "lock", "event", "queue" or "topic".
    #[getter]
    fn kind(&self) -> &'static str {
        self.object.membership().shape().kind.word()
    }

    #[getter]
    fn name(&self) -> &str {
        self.object.membership().name()
    }

    /// Permits of a semaphore, bytes of a memory or for the items of a queue.
    #[getter]
    fn amount(&self) -> u64 {
        self.object.membership().shape().amount
    }

    /// Of a queue the items that may wait, and how often one is delivered.
    #[getter]
    fn bounds(&self) -> [u64; 2] {
        let limits = self.object.membership().shape().limits();
        [limits.items, limits.deliveries]
    }

    /// Whether the items of a queue, or the records of a topic, are bytes.
    #[getter]
    fn is_raw(&self) -> bool {
        self.object.membership().shape().is_raw()
    }

    /// What its members are, what each holds, and who waits.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let object = self.open(py)?;
        let report = py.detach(|| kinds::report(&**object));
        reported(py, self.told(py, report)?)
    }

    /// Adds signals.
    fn signal(&self, py: Python<'_>, count: u64) -> PyResult<()> {
        let signalled = self.borrow_as::<SemaphoreMembership>(py)?.signal(count);
        self.told(py, signalled)
    }

    /// Takes a signal; False if none is there.
    fn try_signal(&self, py: Python<'_>) -> PyResult<bool> {
        let taken = self.borrow_as::<SemaphoreMembership>(py)?.try_take_signal();
        self.told(py, taken)
    }

    /// Drops the signals that nobody has waited for; how many.
    fn drain(&self, py: Python<'_>) -> PyResult<u64> {
        let dropped = self.borrow_as::<SemaphoreMembership>(py)?.drain();
        self.told(py, dropped)
    }

    /// The word of the event: odd while it is set.
    fn event(&self, py: Python<'_>) -> PyResult<u64> {
        let word = self.borrow_as::<EventMembership>(py)?.word();
        self.told(py, word)
    }

    /// Whether the event is set, or was since its word was this.
    fn has_passed(&self, py: Python<'_>, since: u64) -> PyResult<bool> {
        let passed = self.borrow_as::<EventMembership>(py)?.was_set_since(since);
        self.told(py, passed)
    }

    /// Waits until the event is set: True, False if the timeout is over, None if waits were stopped.
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
        self.told(py, set)
    }

    /// Clears the event.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        let cleared = self.borrow_as::<EventMembership>(py)?.clear();
        self.told(py, cleared)
    }

    /// Ends the waits of this handle, and those that it begins, until it is called with False.
    fn stop(&self, py: Python<'_>, stopped: bool) -> PyResult<()> {
        let membership = self.membership(py)?;
        // Relaxed: whoever sleeps looks at it after it was woken.
        self.stopped.store(stopped, Ordering::Relaxed);
        if stopped && membership.is_here() {
            membership.wake_all_sets();
        }
        Ok(())
    }

    /// Whether a wait of this thread is to go on sleeping, as a lock of `threading` does: the process ends, and has left
    /// the name meanwhile.
    fn sleeps_on(&self) -> bool {
        self.object.membership().has_left() && kinds::is_exiting_elsewhere()
    }

    #[getter]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) && !self.closed.load(Ordering::Relaxed)
    }

    /// Seconds for which a permit is kept for those that have waited for long; 0: it is not.
    fn kept_for(&self, py: Python<'_>) -> PyResult<f64> {
        let semaphore = downcast_ref::<SemaphoreMembership>(&**self.open(py)?);
        let left = semaphore.and_then(SemaphoreMembership::reserved_for);
        Ok(left.map_or(0.0, |left| left.as_secs_f64()))
    }

    /// Gives back what dead members hold, and watches the living: what is done before a sleep.
    fn prepare(&self, py: Python<'_>) -> PyResult<()> {
        let object = self.open(py)?;
        let prepared = py.detach(|| lifecycle::prepare_to_sleep(&**object));
        self.told(py, prepared)
    }

    /// A address for an event loop among those that wait, in one of the name's wait sets: 0 for a permit, the event or an
    /// item, 1 for a signal or for room, 2 until all items are done.
    fn sleeper(slf: &Bound<'_, Self>, set: usize) -> PyResult<LoopWaiter> {
        let us = slf.get();
        let sleeper = us.membership(slf.py())?.loop_slot(set);
        Ok(LoopWaiter::new(
            us.told(slf.py(), sleeper)?,
            set,
            us.object.clone(),
        ))
    }

    /// The bytes of a memory, by the buffer protocol.
    fn bytes(&self, py: Python<'_>) -> PyResult<Bytes> {
        let (view, address, len) = self.told(py, self.membership(py)?.data())?;
        Ok(Bytes {
            _view: view,
            address: address.addr(),
            len,
        })
    }
}

impl Drop for SharedObject {
    fn drop(&mut self) {
        if self.object.membership().is_here() {
            // A task or thread that still holds a permit does not refer to the handle by which it has acquired that.
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
        // A forked child has copies of the parent's places and doorbells, and must take none of them down.
        std::mem::forget(self.object.clone());
    }
}

fn reported<'py>(py: Python<'py>, report: Report) -> PyResult<Bound<'py, PyDict>> {
    let members = PyList::empty(py);
    for (member, held) in report.members {
        let pid = match member.holder {
            Some(Holder::Process(pid)) => pid,
            _ => 0,
        };
        members.append((pid, member.since, held))?;
    }
    let found = PyDict::new(py);
    found.set_item("kind", report.shape.kind.word())?;
    found.set_item("amount", report.shape.amount)?;
    found.set_item("size", report.size)?;
    found.set_item("depth", report.depth)?;
    found.set_item("members", members)?;
    found.set_item("waiters", report.waiters)?;
    found.set_item("raw", report.shape.is_raw())?;
    let topic = report.topic.map(|topic| seen_topic(py, topic));
    found.set_item("topic", topic.transpose()?)?;
    Ok(found)
}

/// Those that publish, each with its process, its number, and how many messages and bytes that were; those that
/// subscribe.
fn seen_topic(py: Python<'_>, topic: Overview) -> PyResult<(Bound<'_, PyList>, Bound<'_, PyList>)> {
    let publishers = PyList::empty(py);
    for each in topic.publishers {
        publishers.append((each.pid, each.source.number(), each.published))?;
    }
    Ok((publishers, seen_subscribers(py, topic.subscribers)?))
}

/// Watches directories for names: what comes back is readable once one may have appeared. Then look, and watch anew. Raises
/// OSError if the system does not let it.
#[pyfunction]
pub fn watch_for_names(directories: Vec<PathBuf>) -> PyResult<Descriptor> {
    let watched = discovery::watch(&directories).map_err(|error| os_error(&error))?;
    Ok(Descriptor::new(watched))
}

/// The bytes that the members of a name share. They stay mapped as long as this, or a view of it, is there.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Bytes {
    _view: MappingView,
    address: usize,
    len: usize,
}

#[pymethods]
impl Bytes {
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let us = slf.get();
        // SAFETY: mapped and writable for as long as this object, which the view keeps alive.
        unsafe { fill(view, slf.as_any(), us.address, us.len, true, flags) }
    }
}
