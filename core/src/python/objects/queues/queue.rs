//! `Queue`: a queue of values.

use crate::objects::queue::QueueMembership;
use crate::objects::queue::{DONE, ITEMS, ROOM};
use crate::python::codec::encoder::Encoder;
use crate::python::codec::items::EncodedItems;
use crate::python::codec::values::Values;
use crate::python::objects::error::object_error;
use crate::python::objects::queues::claim::Claim;
use crate::python::objects::queues::claimed_item::ClaimedItem;
use crate::python::objects::queues::inbox::Inbox;
use crate::python::objects::queues::pending_items::{PendingItems, put_items};
use crate::python::objects::queues::reservation::{Reservation, ReservationRequest};
use crate::python::objects::queues::waiting::{
    OWNER_LOCK_TIMEOUT, attempt, attempt_to_end, failed_wait_object, shut_down_error, wait_for,
};
use crate::python::objects::shared_object::SharedObject;
use crate::python::support::yield_budget::YieldBudget;
use crate::queue::{ClaimOutcome, Source};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyTuple};
use std::sync::Arc;

/// A queue that this process has open.
///
/// `encoder` writes plain values, and `encode` returns the body of any other value. `decode` returns the value of a
/// body, and `decode_own` a value with arrays that can be written. Where these raise an exception, `unencodable` and
/// `undecodable` return the exception to raise. They take the first exception, and the index of the value among those
/// that are put together, or the number of the item; None if that is not known.
///
/// Methods raise LocalProtocolError if the queue is closed, QueueShutDown if it is shut down, QueueBusy if another
/// member holds the owner lock for too long, and ValueError for a value that can never fit.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Queue {
    object: Py<SharedObject>,
    membership: Arc<QueueMembership>,
    values: Arc<Values>,
    inbox: Inbox,
    /// The yield budget of the event loop that uses this queue.
    #[pyo3(get)]
    yield_budget: Py<YieldBudget>,
}

impl Queue {
    /// Raises LocalProtocolError if the queue is closed.
    fn check_open(&self, py: Python<'_>) -> PyResult<()> {
        self.object.get().open(py).map(drop)
    }

    /// Encodes a value, and appends it to the items. Raises what `Values::write` raises. `index` is its position among
    /// the items; None if it is the only one.
    fn encode_into(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        items: &mut EncodedItems,
        index: Option<u64>,
    ) -> PyResult<()> {
        items.count += 1;
        if let Some(large) = self.values.write(py, value, &mut items.small, index)? {
            items.add_large(large);
        }
        Ok(())
    }

    /// Puts the items. Returns the items if they have to wait for room, and None otherwise. Raises what `put_items`
    /// raises, and ValueError for more items than the queue may ever hold.
    fn put_or_pend(
        &self,
        py: Python<'_>,
        mut items: EncodedItems,
    ) -> PyResult<Option<PendingItems>> {
        if !items.pieces.is_empty() {
            items.end_small();
        }
        let limit = self.membership.shape().limits().items;
        if limit != 0 && items.count > limit {
            let text = format!(
                "queue '{}': {} items together are more than it may ever hold: its maxsize is {limit}",
                self.membership.name(),
                items.count
            );
            return Err(PyValueError::new_err(text));
        }
        if items.count == 0 || put_items(py, &self.membership, &items)? {
            return Ok(None);
        }
        let (queue, membership) = (self.object.clone_ref(py), self.membership.clone());
        Ok(Some(PendingItems::new(queue, membership, items)))
    }

    /// Returns the program's handle of a claimed item.
    fn claim(&self, py: Python<'_>, item: ClaimedItem) -> Claim {
        Claim::new(self.object.clone_ref(py), self.values.clone(), item)
    }

    /// Returns the shared object, and the membership in the queue.
    fn queue(&self) -> (&SharedObject, &QueueMembership) {
        (self.object.get(), &self.membership)
    }
}

/// Returns the dead letters or the queue itself as the source.
fn source(is_dead: bool) -> Source {
    match is_dead {
        true => Source::DeadLetters,
        false => Source::Queue,
    }
}

/// Converts seconds to nanoseconds: a negative number or NaN to 0, too many to the greatest number.
fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64 // The cast saturates.
}

#[pymethods]
impl Queue {
    #[allow(clippy::too_many_arguments)] // In one place.
    #[new]
    fn new(
        py: Python<'_>,
        object: Py<SharedObject>,
        encoder: Py<Encoder>,
        encode: Py<PyAny>,
        decode: Py<PyAny>,
        decode_own: Py<PyAny>,
        unencodable: Py<PyAny>,
        undecodable: Py<PyAny>,
    ) -> PyResult<Self> {
        let membership = object.get().open_as::<QueueMembership>(py)?;
        let raw = membership.shape().is_raw();
        let values = Arc::new(Values {
            encoder,
            encode,
            decode,
            decode_own: Some(decode_own),
            unencodable,
            undecodable,
            raw,
        });
        Ok(Queue {
            object,
            inbox: Inbox::new(membership.clone(), values.clone()),
            membership,
            values,
            yield_budget: Py::new(py, YieldBudget::default())?,
        })
    }

    /// Puts a value. Returns the encoded value if it has to wait for room, and None otherwise.
    fn put_now(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Option<PendingItems>> {
        self.check_open(py)?;
        let mut items = EncodedItems::new();
        self.encode_into(py, value, &mut items, None)?;
        self.put_or_pend(py, items)
    }

    /// Does what `put_now` does, in an event loop. Returns False, and puts nothing, if the task must yield first.
    fn put_next<'py>(
        &self,
        py: Python<'py>,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        if self.yield_budget.get().is_spent_sampled() {
            return Ok(Some(PyBool::new(py, false).to_owned().into_any()));
        }
        let pending = self.put_now(py, value)?;
        let pending = pending.map(|pending| Bound::new(py, pending).map(Bound::into_any));
        pending.transpose()
    }

    /// Puts values together: all, or none of them. Returns the encoded values if they have to wait for room, and None
    /// otherwise.
    fn put_many_now(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
    ) -> PyResult<Option<PendingItems>> {
        self.check_open(py)?;
        let mut items = EncodedItems::new();
        let mut add = |value: &Bound<'_, PyAny>| {
            let index = Some(items.count);
            self.encode_into(py, value, &mut items, index)
        };
        match values.cast_exact::<PyList>() {
            Ok(values) => values.iter().try_for_each(|value| add(&value)),
            Err(_) => values.try_iter()?.try_for_each(|value| add(&value?)),
        }?;
        self.put_or_pend(py, items)
    }

    /// Returns the next value, or `default` if there is none.
    fn get_now<'py>(
        &self,
        py: Python<'py>,
        default: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.check_open(py)?;
        let values = self.inbox.get_some(py, Source::Queue, 1)?;
        let value = values.into_iter().next();
        Ok(value.unwrap_or_else(|| default.clone()))
    }

    /// Does what `get_now` does, in an event loop. Returns `default` also if the task must yield first.
    fn get_next<'py>(
        &self,
        py: Python<'py>,
        default: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self.yield_budget.get().is_spent_sampled() {
            true => Ok(default.clone()),
            false => self.get_now(py, default),
        }
    }

    /// Returns up to `max_items` values of the queue, or with `dead` of its dead letters, without a wait.
    fn get_many_now<'py>(
        &self,
        py: Python<'py>,
        max_items: usize,
        dead: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        self.check_open(py)?;
        PyList::new(py, self.inbox.get_some(py, source(dead), max_items)?)
    }

    /// Appends up to `max_items` values to `got`, without a wait. Returns True if there were any. So the caller has the
    /// values, and can return them by `put_back`, even if a signal handler raises as soon as this call returns.
    fn take_into(&self, got: &Bound<'_, PyList>, max_items: usize) -> PyResult<bool> {
        self.check_open(got.py())?;
        let values = self.inbox.get_some(got.py(), Source::Queue, max_items)?;
        values.iter().try_for_each(|value| got.append(value))?;
        Ok(!values.is_empty())
    }

    /// Does what `take_into` does, and waits in a thread for a value. Returns True, also if other receivers were
    /// faster; False after the timeout, None if waits were stopped.
    fn wait_into(
        &self,
        got: &Bound<'_, PyList>,
        max_items: usize,
        timeout: Option<f64>,
    ) -> PyResult<Option<bool>> {
        let py = got.py();
        self.check_open(py)?;
        match self
            .inbox
            .wait_some(py, self.object.get(), max_items, timeout)?
        {
            Ok(values) => {
                values.iter().try_for_each(|value| got.append(value))?;
                Ok(Some(true))
            }
            Err(reason) => Ok(reason),
        }
    }

    /// Puts back values that were taken and reached no caller, and wakes all waiters. This process returns them first.
    fn put_back(&self, values: Vec<Bound<'_, PyAny>>) {
        self.inbox.put_back(values);
    }

    /// Returns the next items, which stay in the queue: at most `max_items`, and fewer if they have many bytes. An item
    /// is a tuple of its number, the number of its deliveries, its size in bytes, a tuple of its value, and None. The
    /// tuple of the value is empty for a large item, and for an item that cannot be read, which has its DecodeError
    /// instead of None.
    fn peek<'py>(&self, py: Python<'py>, max_items: usize) -> PyResult<Bound<'py, PyList>> {
        self.check_open(py)?;
        let membership = &self.membership;
        let found = attempt(py, membership, |timeout| {
            membership.peek(max_items, timeout)
        })?;
        let seen = PyList::empty(py);
        let unreadable = py.import("shmrpc.errors")?.getattr("DecodeError")?;
        for item in found {
            let (mut value, mut wrong) = (PyTuple::empty(py), None);
            if !item.copy.is_empty() {
                match self
                    .inbox
                    .read_first(py, &item.copy, &mut 0, Some(item.number))
                {
                    Ok(read) => value = PyTuple::new(py, [read])?,
                    Err(error) if error.is_instance(py, &unreadable) => {
                        wrong = Some(error.into_value(py));
                    }
                    Err(error) => return Err(error),
                }
            }
            seen.append((item.number, item.deliveries, item.len, value, wrong))?;
        }
        Ok(seen)
    }

    /// Claims the next item of the queue, or with `dead` of its dead letters, with a lease of `limit` seconds unless
    /// that is 0. Returns None if there is no item. Runs signal handlers: if one raises, the item returns to the queue.
    fn claim_now(&self, py: Python<'_>, limit: f64, dead: bool) -> PyResult<Option<Claim>> {
        self.check_open(py)?;
        let item = self.inbox.claim_now(py, source(dead), nanoseconds(limit))?;
        py.check_signals()?; // A handler may raise: the item returns to the queue then.
        Ok(item.map(|item| self.claim(py, item)))
    }

    /// Waits in a thread for an item, and returns its claim, with a lease of `limit` seconds unless that is 0. Returns
    /// False after the timeout, None if waits were stopped.
    fn wait_claim<'py>(
        &self,
        py: Python<'py>,
        limit: f64,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let membership = &self.membership;
        let waited = wait_for(py, self.queue(), ITEMS, timeout, || {
            if !membership.may_pop() {
                return Ok(None);
            }
            let outcome =
                membership.claim(Source::Queue, nanoseconds(limit), OWNER_LOCK_TIMEOUT)?;
            Ok(Some(outcome).filter(|&outcome| outcome != ClaimOutcome::Empty))
        })?;
        let item = match waited {
            Ok(outcome) => self.inbox.claimed_item(py, outcome)?,
            Err(reason) => return Ok(failed_wait_object(py, reason)),
        };
        py.check_signals()?; // A handler may raise: the item returns to the queue then.
        let claim = item.map(|item| Bound::new(py, self.claim(py, item)));
        Ok(claim.transpose()?.map(Bound::into_any))
    }

    /// Reserves memory of the queue for an item that the program fills in place: raw bytes, or with `body` the only
    /// buffer of the value with this body. Returns None if there is no room now. Raises QueueShutDown.
    #[pyo3(signature = (len, body = None))]
    fn reserve_now(
        &self,
        py: Python<'_>,
        len: u64,
        body: Option<&[u8]>,
    ) -> PyResult<Option<Reservation>> {
        self.check_may_put(py)?;
        let request = ReservationRequest::new(len, body)?;
        let membership = &self.membership;
        let chunk = attempt(py, membership, |timeout| {
            request.reserve(membership, timeout)
        })?;
        let queue = (&self.object, membership);
        chunk
            .map(|chunk| request.write_to(py, queue, chunk))
            .transpose()
    }

    /// Does what `reserve_now` does, and waits in a thread for room, until the queue is shut down. Returns False after
    /// the timeout, None if waits were stopped.
    #[pyo3(signature = (len, body, timeout))]
    fn wait_reserve<'py>(
        &self,
        py: Python<'py>,
        len: u64,
        body: Option<&[u8]>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let request = ReservationRequest::new(len, body)?;
        let membership = &self.membership;
        // `Some(None)`, which ends the wait, once the queue is shut down.
        let reserve = || match membership.is_shut_down()? {
            true => Ok(Some(None)),
            false => Ok(request.reserve(membership, OWNER_LOCK_TIMEOUT)?.map(Some)),
        };
        match wait_for(py, self.queue(), ROOM, timeout, reserve)? {
            Ok(None) => Err(shut_down_error(py, membership)),
            Ok(Some(chunk)) => {
                let reservation = request.write_to(py, (&self.object, membership), chunk)?;
                py.check_signals()?; // A handler may raise: the memory is freed then.
                Ok(Some(Bound::new(py, reservation)?.into_any()))
            }
            Err(reason) => Ok(failed_wait_object(py, reason)),
        }
    }

    /// Marks `count` items that this process has received as done. Returns False if this process has fewer unfinished
    /// items.
    fn task_done(&self, py: Python<'_>, count: u64) -> PyResult<bool> {
        self.check_open(py)?;
        let membership = &self.membership;
        attempt_to_end(py, membership, |timeout| {
            membership.task_done(count, timeout)
        })
    }

    /// Returns True if all items that were put are done.
    fn is_done(&self, py: Python<'_>) -> PyResult<bool> {
        self.check_open(py)?;
        let membership = &self.membership;
        attempt(py, membership, |timeout| membership.is_done(timeout))
    }

    /// Waits in a thread until all items are done. Returns True; False after the timeout, None if waits were stopped.
    fn wait_done(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<bool>> {
        let membership = &self.membership;
        let done = || membership.is_done(OWNER_LOCK_TIMEOUT);
        self.object.get().wait_in(py, DONE, timeout, |_| done())
    }

    /// Shuts the queue down, which then refuses further items. With `immediate`, discards waiting items.
    fn shut_down(&self, py: Python<'_>, immediate: bool) -> PyResult<()> {
        self.check_open(py)?;
        let membership = &self.membership;
        attempt(py, membership, |timeout| {
            membership.shut_down(immediate, timeout)
        })
    }

    /// Returns the number of waiting items, including those that this process has taken and no caller has received.
    fn qsize(&self, py: Python<'_>) -> PyResult<u64> {
        self.check_open(py)?;
        let len = self.membership.count_items();
        let len = len.map_err(|error| object_error(py, &self.membership, error))?;
        Ok(len + self.inbox.len(Source::Queue))
    }

    /// Returns True if there may be room: a hint.
    fn may_put(&self) -> bool {
        self.membership.may_put(0)
    }

    /// Returns True if there may be an item, or if the queue was shut down: a hint.
    fn may_take(&self) -> bool {
        self.inbox.has_any() || self.membership.may_pop()
    }

    /// Spins for a moment before an event loop sleeps. Returns True if there may be an item.
    fn glance(&self, py: Python<'_>) -> PyResult<bool> {
        let membership = &self.membership;
        self.object.get().glance(py, || membership.may_pop())
    }

    /// Returns the time in seconds until the next lease expires; None if no claim has a lease.
    fn next_expiry(&self) -> Option<f64> {
        let left = self.membership.next_expiry();
        left.map(|left| left.as_secs_f64())
    }

    /// Wakes the next member that waits, for room if `for_room` is true, and otherwise for an item.
    fn wake(&self, py: Python<'_>, for_room: bool) -> PyResult<()> {
        self.check_open(py)?;
        self.membership
            .wake_next(if for_room { ROOM } else { ITEMS });
        Ok(())
    }

    /// Returns the number of items that were lost when all members were killed; 0 from the second call on.
    fn take_lost(&self) -> u64 {
        self.membership.take_lost_items()
    }

    /// Returns True if the queue is shut down.
    fn is_shut(&self, py: Python<'_>) -> PyResult<bool> {
        self.check_open(py)?;
        let shut = self.membership.is_shut_down();
        shut.map_err(|error| object_error(py, &self.membership, error))
    }

    /// Raises the exception of a put that can never succeed: QueueShutDown, or LocalProtocolError if the queue is
    /// closed.
    fn check_may_put(&self, py: Python<'_>) -> PyResult<()> {
        self.check_open(py)?;
        let shut = self.membership.is_shut_down();
        match shut.map_err(|error| object_error(py, &self.membership, error))? {
            true => Err(shut_down_error(py, &self.membership)),
            false => Ok(()),
        }
    }

    /// Returns the statistics of the queue as a dictionary: counts and bytes, the claims as (pid, age in seconds,
    /// deliveries), and the numbers of waiters.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.check_open(py)?;
        let membership = &self.membership;
        let stats = attempt(py, membership, |timeout| membership.stats(timeout))?;
        let found = PyDict::new(py);
        found.set_item("depth", stats.depth)?;
        found.set_item("put", stats.put)?;
        found.set_item("unfinished", stats.unfinished)?;
        found.set_item("dead", stats.dead + self.inbox.len(Source::DeadLetters))?;
        found.set_item("is_shut_down", stats.shut)?;
        found.set_item("used", stats.used)?;
        found.set_item("memory", stats.memory)?;
        found.set_item("viewed", stats.viewed)?;
        let held = PyList::empty(py);
        for holding in stats.held {
            let pid = membership.process_of(holding.member);
            held.append((pid, holding.age.as_secs_f64(), holding.deliveries))?;
        }
        found.set_item("held", held)?;
        found.set_item("waiters", membership.count_waiters())?;
        Ok(found)
    }
}
