//! `Queue`: what Python does with a queue that members of a name share.

use crate::memory::bytes;
pub(crate) use crate::objects::deadline::OWNER_LOCK_TIMEOUT as PATIENCE;
use crate::objects::error::ObjectError;
use crate::objects::queue::{DONE, ITEMS, QueueMembership, ROOM};
use crate::python::codec::encoder::Encoder;
use crate::python::codec::items::Encoded;
use crate::python::codec::values::{Values, is_from_signal_handler, item_at};
use crate::python::objects::queues::claim::{Claim, Held};
use crate::python::objects::queues::reservation::{Plan, Reservation};
use crate::python::objects::shared_object::{SharedObject, failed};
use crate::python::support::buffer::bytes_of;
use crate::python::support::scratch::Scratch;
use crate::python::support::yield_budget::YieldBudget;
use crate::queue::{ClaimEnd, ClaimOutcome, PopOutcome, PutOutcome, Source};
use crate::shared_heap::{Corruption, Field};
use crate::sync::lock;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyList, PyTuple};
use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

/// How long a lease is waited for, in nanoseconds, by what ends something: a claim, a task.
const PATIENCE_TO_END: u64 = 1_000_000_000;

/// A queue of a name: values in and out, or bytes.
///
/// `encoder` writes plain values, `encode` makes the body of any other, `decode` the value of a body, `decode_own` one whose
/// arrays can be written. What these raise is raised as what `unencodable` makes of it, with the item's index among those that are put together, and `undecodable`,
/// with the item's number; None for what is not known. QueueShutDown is raised by what finds the queue shut down,
/// WaitTimeout if a member keeps the queue from being changed, ValueError for what can never be in it.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Queue {
    name: Py<SharedObject>,
    membership: Arc<QueueMembership>,
    values: Values,
    /// Items that this process has taken, and not read so far.
    left: Mutex<Vec<u8>>,
    /// Values that were taken before those, and did not reach their thread: see `put_back`.
    returned: Mutex<VecDeque<Py<PyAny>>>,
    has_returned: AtomicBool,
    /// Of the loop that uses this.
    #[pyo3(get)]
    yield_budget: Py<YieldBudget>,
}

/// Does it at once, or, where a lease is held by others, without the GIL.
pub(crate) fn attempt<T: Send>(
    py: Python<'_>,
    membership: &QueueMembership,
    act: impl Fn(u64) -> Result<T, ObjectError> + Sync,
) -> PyResult<T> {
    attempt_for(py, membership, &act, |act| {
        membership.with_lock_timeout(act)
    })
}

/// The same for what ends something.
pub(crate) fn attempt_to_end<T: Send>(
    py: Python<'_>,
    membership: &QueueMembership,
    act: impl Fn(u64) -> Result<T, ObjectError> + Sync,
) -> PyResult<T> {
    attempt_for(py, membership, &act, |act| act(PATIENCE_TO_END))
}

fn attempt_for<T: Send, A: Fn(u64) -> Result<T, ObjectError> + Sync>(
    py: Python<'_>,
    membership: &QueueMembership,
    act: &A,
    again: impl FnOnce(&A) -> Result<T, ObjectError> + Send,
) -> PyResult<T> {
    let done = match act(0) {
        Err(ObjectError::Changing { .. }) => py.detach(|| again(act)),
        done => done,
    };
    done.map_err(|error| failed(py, membership, error))
}

/// Nothing more is put into it.
#[cold]
pub(crate) fn shut_down(py: Python<'_>, membership: &QueueMembership) -> PyErr {
    let text = format!("queue '{}' is shut down", membership.name());
    let raised = || {
        let class = py.import("shmrpc.errors")?.getattr("QueueShutDown")?;
        class.call1((text,))
    };
    raised().map_or_else(|error| error, PyErr::from_value)
}

/// Whether items were put; false if there is no room.
pub(crate) fn told(
    py: Python<'_>,
    membership: &QueueMembership,
    put: PutOutcome,
) -> PyResult<bool> {
    match put {
        PutOutcome::Stored => Ok(true),
        PutOutcome::Full => Ok(false),
        PutOutcome::ShutDown => Err(shut_down(py, membership)),
    }
}

/// Waits in a thread until `act` has found something, and what that is; if it has not, False if the timeout is over, None
/// if waits were stopped.
fn wait_for<T: Send>(
    py: Python<'_>,
    (name, membership): (&SharedObject, &QueueMembership),
    set: usize,
    timeout: Option<f64>,
    mut act: impl FnMut() -> Result<Option<T>, ObjectError> + Send,
) -> PyResult<Result<T, Option<bool>>> {
    let mut found = None;
    let waited = name.wait_in(py, set, timeout, |_| {
        found = match act() {
            Err(ObjectError::Left) => return Err(ObjectError::Left),
            acted => acted.transpose(),
        };
        Ok(found.is_some())
    })?;
    if set == ROOM && waited == Some(true) {
        // We may have been woken alone for room that others need, too.
        membership.wake_next(ROOM);
    }
    match found {
        Some(found) if waited == Some(true) => {
            let found = found.map_err(|error| failed(py, membership, error));
            found.map(Ok)
        }
        _ => Ok(Err(waited)),
    }
}

/// Waits in a thread until `put` has put this many items, as [`wait_for`] does.
pub(crate) fn wait_to_put(
    py: Python<'_>,
    us: (&SharedObject, &QueueMembership),
    count: u64,
    timeout: Option<f64>,
    mut put: impl FnMut() -> Result<PutOutcome, ObjectError> + Send,
) -> PyResult<Option<bool>> {
    let membership = us.1;
    let waited = wait_for(py, us, ROOM, timeout, || {
        if !membership.may_put(count) {
            return Ok(None);
        }
        Ok(Some(put()?).filter(|&put| put != PutOutcome::Full))
    })?;
    match waited {
        Ok(put) => {
            told(py, membership, put)?;
            Ok(Some(true))
        }
        Err(in_vain) => Ok(in_vain),
    }
}

/// What a wait in vain is for Python.
fn in_vain<'py>(py: Python<'py>, waited: Option<bool>) -> Option<Bound<'py, PyAny>> {
    waited.map(|waited| PyBool::new(py, waited).to_owned().into_any())
}

/// Values that are encoded, and wait for room in the queue.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct PendingItems {
    queue: Py<Queue>,
    encoded: Encoded,
}

impl Queue {
    pub(crate) fn values(&self) -> &Values {
        &self.values
    }

    pub(crate) fn membership(&self) -> &Arc<QueueMembership> {
        &self.membership
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.name.get().open(py).map(drop)
    }

    /// Writes one item behind the others; `index`: its place among them, if it is not alone.
    fn encode_into(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        encoded: &mut Encoded,
        index: Option<u64>,
    ) -> PyResult<()> {
        encoded.count += 1;
        if let Some(large) = self.values.write(py, value, &mut encoded.small, index)? {
            encoded.add_large(large);
        }
        Ok(())
    }

    /// Puts what is encoded; false if there is no room.
    fn put(&self, py: Python<'_>, encoded: &Encoded) -> PyResult<bool> {
        let membership = &self.membership;
        let put = |patience| encoded.put(membership, patience);
        let put = if encoded.is_long() {
            let put = py.detach(|| match put(0) {
                Err(ObjectError::Changing { .. }) => membership.with_lock_timeout(put),
                put => put,
            });
            put.map_err(|error| failed(py, membership, error))?
        } else {
            attempt(py, membership, put)?
        };
        told(py, membership, put)
    }

    fn or_wait(slf: &Bound<'_, Self>, mut encoded: Encoded) -> PyResult<Option<PendingItems>> {
        let us = slf.get();
        if !encoded.pieces.is_empty() {
            encoded.end_small();
        }
        let limit = us.membership.shape().limits().items;
        if limit != 0 && encoded.count > limit {
            let text = format!(
                "queue '{}': {} items together are more than it may ever hold: its maxsize is {limit}",
                us.membership.name(),
                encoded.count
            );
            return Err(PyValueError::new_err(text));
        }
        if encoded.count == 0 || us.put(slf.py(), &encoded)? {
            return Ok(None);
        }
        Ok(Some(PendingItems {
            queue: slf.clone().unbind(),
            encoded,
        }))
    }

    /// Takes up to `most` items, as they lie in the queue; how many. None taken: whether that was because the first one is
    /// large.
    fn take(
        &self,
        py: Python<'_>,
        source: Source,
        most: usize,
        items: &mut Vec<u8>,
    ) -> PyResult<PopOutcome> {
        let membership = &self.membership;
        let mut taken = membership.pop(source, most, items, 0);
        if let Err(ObjectError::Changing { .. }) = taken {
            taken = py.detach(|| {
                membership
                    .with_lock_timeout(|patience| membership.pop(source, most, items, patience))
            });
        }
        taken.map_err(|error| failed(py, membership, error))
    }

    /// Reads the first item, and removes it; its `number`, if that is known.
    fn read_first<'py>(
        &self,
        py: Python<'py>,
        items: &[u8],
        at: &mut usize,
        number: Option<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some((head, payload)) = item_at(items, *at) else {
            let found = first_word(items.get(*at..).unwrap_or_default());
            *at = items.len();
            return Err(self.unreadable(py, Field::Copied, 0, found));
        };
        *at = (*at + 8 + payload.len()).next_multiple_of(8);
        let value = self.values.read_copied(py, head.form(), payload, number)?;
        value.ok_or_else(|| {
            let found = head.form().map_or(head.0, |_| first_word(payload));
            self.unreadable(py, Field::Copied, 0, found)
        })
    }

    /// An item cannot be what is found `at` a byte.
    #[cold]
    pub(crate) fn unreadable(&self, py: Python<'_>, field: Field, at: u64, found: u64) -> PyErr {
        let corruption = Corruption { field, at, found };
        failed(py, &self.membership, self.membership.poison(corruption))
    }

    /// Takes up to `most` values: those that were taken before, else what is there.
    fn get_some<'py>(
        &self,
        py: Python<'py>,
        source: Source,
        most: usize,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.check(py)?;
        // Relaxed: the thread that sets the flag wakes the sleepers afterwards.
        if source == Source::Queue && self.has_returned.load(Relaxed) {
            let returned = self.take_returned(py, most);
            if !returned.is_empty() {
                return Ok(returned);
            }
        }
        let mut items = Scratch::new();
        if source == Source::Queue {
            std::mem::swap(&mut *lock(&self.left), &mut *items);
        }
        if items.is_empty() {
            match self.take(py, source, most, &mut items)? {
                PopOutcome::Items(_) => {}
                PopOutcome::Large => {
                    let large = self.take_large(py, source)?;
                    return Ok(large.into_iter().collect());
                }
                PopOutcome::Empty => return Ok(Vec::new()),
                PopOutcome::Finished => return Err(shut_down(py, &self.membership)),
            }
        }
        self.read_all(py, &items, most)
    }

    #[cold]
    fn take_returned<'py>(&self, py: Python<'py>, most: usize) -> Vec<Bound<'py, PyAny>> {
        let mut returned = lock(&self.returned);
        let count = most.min(returned.len());
        let taken = returned.drain(..count);
        let taken = taken.map(|value| value.into_bound(py)).collect();
        self.has_returned.store(!returned.is_empty(), Relaxed);
        taken
    }

    /// Waits for values, in a thread: up to `most`. None of them if others were quicker. Or what a wait in vain is:
    /// false if the timeout is over, none if waits were stopped.
    fn wait_some<'py>(
        &self,
        py: Python<'py>,
        most: usize,
        timeout: Option<f64>,
    ) -> PyResult<Result<Vec<Bound<'py, PyAny>>, Option<bool>>> {
        let got = self.get_some(py, Source::Queue, most)?;
        if !got.is_empty() {
            return Ok(Ok(got));
        }
        let mut items = Scratch::new();
        let membership = &self.membership;
        let us = (self.name.get(), &**membership);
        let waited = wait_for(py, us, ITEMS, timeout, || {
            // Relaxed: as above.
            if self.has_returned.load(Relaxed) {
                return Ok(Some(PopOutcome::Empty));
            }
            if !membership.may_pop() {
                return Ok(None);
            }
            let taken = membership.pop(Source::Queue, most, &mut items, PATIENCE)?;
            Ok(Some(taken).filter(|&taken| taken != PopOutcome::Empty))
        })?;
        match waited {
            Err(waited) => Ok(Err(waited)),
            Ok(PopOutcome::Items(_)) => self.read_all(py, &items, most).map(Ok),
            Ok(PopOutcome::Finished) => Err(shut_down(py, membership)),
            // What has come back to this process.
            Ok(PopOutcome::Empty) => Ok(Ok(self.take_returned(py, most))),
            // A large one: it is taken without waiting.
            Ok(PopOutcome::Large) => {
                let large = self.take_large(py, Source::Queue)?;
                Ok(Ok(large.into_iter().collect()))
            }
        }
    }

    /// Reads up to `most` items. Those that are not read, since there are more, or one before cannot be, are kept.
    fn read_all<'py>(
        &self,
        py: Python<'py>,
        items: &[u8],
        most: usize,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (mut at, mut values) = (0, Vec::new());
        let mut failed = None;
        while at < items.len() && values.len() < most {
            let before = at;
            match self.read_first(py, items, &mut at, None) {
                Ok(value) => values.push(value),
                // What a signal handler raises meanwhile, as KeyboardInterrupt, says nothing of the item: all of them stay.
                Err(error) if is_from_signal_handler(py, &error).unwrap_or(true) => {
                    (at, failed) = (0, Some(error));
                    break;
                }
                Err(_) if !values.is_empty() => {
                    at = before; // The error is for whoever gets it.
                    break;
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        if at < items.len() {
            lock(&self.left).splice(0..0, items[at..].iter().copied());
        }
        failed.map_or(Ok(values), Err)
    }

    /// Takes the first item, which is large. None if somebody else has taken it meanwhile.
    fn take_large<'py>(
        &self,
        py: Python<'py>,
        source: Source,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(held) = self.hold_now(py, source, 0)? else {
            return Ok(None);
        };
        let held = Arc::new(held);
        let value = held.copy_own(py, self, None);
        if let Err(error) = &value
            && is_from_signal_handler(py, error).unwrap_or(true)
        {
            return value.map(Some); // As in `read_all`: the item comes back.
        }
        held.acknowledge(py, ClaimEnd::HandedOver, false)?;
        value.map(Some)
    }

    fn hold_now(&self, py: Python<'_>, source: Source, limit: u64) -> PyResult<Option<Held>> {
        self.check(py)?;
        let membership = &self.membership;
        let claim = |patience| membership.claim(source, limit, patience);
        self.held(py, attempt(py, membership, claim)?)
    }

    /// What was claimed; None if there was nothing.
    fn held(&self, py: Python<'_>, claimed: ClaimOutcome) -> PyResult<Option<Held>> {
        let membership = &self.membership;
        match claimed {
            ClaimOutcome::Item(claim) => Ok(Some(Held::new(membership.clone(), claim))),
            ClaimOutcome::Empty => Ok(None),
            ClaimOutcome::Finished => Err(shut_down(py, membership)),
            ClaimOutcome::TableFull => Err(failed(py, membership, membership.too_many_claims())),
        }
    }
}

/// The word that these bytes begin with; what is not there of it is 0.
pub(crate) fn first_word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let len = bytes.len().min(word.len());
    word[..len].copy_from_slice(&bytes[..len]);
    u64::from_ne_bytes(word)
}

fn source(is_dead: bool) -> Source {
    match is_dead {
        true => Source::DeadLetters,
        false => Source::Queue,
    }
}

#[pymethods]
impl Queue {
    #[allow(clippy::too_many_arguments)] // In one place.
    #[new]
    fn new(
        py: Python<'_>,
        name: Py<SharedObject>,
        encoder: Py<Encoder>,
        encode: Py<PyAny>,
        decode: Py<PyAny>,
        decode_own: Py<PyAny>,
        unencodable: Py<PyAny>,
        undecodable: Py<PyAny>,
    ) -> PyResult<Self> {
        let membership = name.get().open_as::<QueueMembership>(py)?;
        let raw = membership.shape().is_raw();
        Ok(Queue {
            name,
            membership,
            values: Values {
                encoder,
                encode,
                decode,
                decode_own: Some(decode_own),
                unencodable,
                undecodable,
                raw,
            },
            left: Mutex::default(),
            returned: Mutex::default(),
            has_returned: AtomicBool::new(false),
            yield_budget: Py::new(py, YieldBudget::default())?,
        })
    }

    /// Puts a value; what waits for room if there is none.
    fn put_now(slf: &Bound<'_, Self>, value: &Bound<'_, PyAny>) -> PyResult<Option<PendingItems>> {
        let (us, py) = (slf.get(), slf.py());
        us.check(py)?;
        let mut encoded = Encoded::new();
        us.encode_into(py, value, &mut encoded, None)?;
        Queue::or_wait(slf, encoded)
    }

    /// The same in a loop: False, and nothing is put, if that is to turn before.
    fn put_next<'py>(
        slf: &Bound<'py, Self>,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = slf.py();
        if slf.get().yield_budget.get().is_spent_sampled() {
            return Ok(Some(PyBool::new(py, false).to_owned().into_any()));
        }
        let waiting = Queue::put_now(slf, value)?;
        let waiting = waiting.map(|waiting| Bound::new(py, waiting).map(Bound::into_any));
        waiting.transpose()
    }

    /// Puts values together, all or none; what waits for room if there is none.
    fn put_many_now(
        slf: &Bound<'_, Self>,
        values: &Bound<'_, PyAny>,
    ) -> PyResult<Option<PendingItems>> {
        let (us, py) = (slf.get(), slf.py());
        us.check(py)?;
        let mut encoded = Encoded::new();
        let mut add = |value: &Bound<'_, PyAny>| {
            let index = Some(encoded.count);
            us.encode_into(py, value, &mut encoded, index)
        };
        match values.cast_exact::<PyList>() {
            Ok(values) => values.iter().try_for_each(|value| add(&value)),
            Err(_) => values.try_iter()?.try_for_each(|value| add(&value?)),
        }?;
        Queue::or_wait(slf, encoded)
    }

    /// The next value; `default` if there is none.
    fn get_now<'py>(
        &self,
        py: Python<'py>,
        default: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let got = self.get_some(py, Source::Queue, 1)?;
        Ok(got.into_iter().next().unwrap_or_else(|| default.clone()))
    }

    /// The same in a loop: `default` also if that is to turn before.
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

    /// Up to `most` values that are there; those of dead letters if it is said so.
    fn get_many_now<'py>(
        &self,
        py: Python<'py>,
        most: usize,
        dead: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.get_some(py, source(dead), most)?)
    }

    /// Appends up to `most` values that are there to `got`; whether there were any. Where a signal handler raises as soon as
    /// this is back in Python, the caller has them, and says so by `put_back`.
    fn take_into(&self, got: &Bound<'_, PyList>, most: usize) -> PyResult<bool> {
        let values = self.get_some(got.py(), Source::Queue, most)?;
        values.iter().try_for_each(|value| got.append(value))?;
        Ok(!values.is_empty())
    }

    /// The same, and waits in a thread, for at least one unless others were quicker. False if the timeout is over, None if
    /// waits were stopped.
    fn wait_into(
        &self,
        got: &Bound<'_, PyList>,
        most: usize,
        timeout: Option<f64>,
    ) -> PyResult<Option<bool>> {
        match self.wait_some(got.py(), most, timeout)? {
            Ok(values) => {
                values.iter().try_for_each(|value| got.append(value))?;
                Ok(Some(true))
            }
            Err(in_vain) => Ok(in_vain),
        }
    }

    /// Puts back values that were taken and reached no caller: they are the next ones that this process gets.
    fn put_back(&self, values: Vec<Bound<'_, PyAny>>) {
        {
            let mut returned = lock(&self.returned);
            for value in values.into_iter().rev() {
                returned.push_front(value.unbind());
            }
            self.has_returned.store(!returned.is_empty(), Relaxed);
        }
        if self.membership.is_here() {
            self.membership.wake_all_sets(); // Other threads of this process among them.
        }
    }

    /// The next up to `most` items, which stay: the number of each, how often it was delivered, its bytes, a tuple of its
    /// value, empty if it is large or cannot be read, and the DecodeError if it cannot. Fewer if they are many bytes.
    fn peek<'py>(&self, py: Python<'py>, most: usize) -> PyResult<Bound<'py, PyList>> {
        self.check(py)?;
        let membership = &self.membership;
        let found = attempt(py, membership, |patience| membership.peek(most, patience))?;
        let seen = PyList::empty(py);
        let unreadable = py.import("shmrpc.errors")?.getattr("DecodeError")?;
        for item in found {
            let (mut value, mut wrong) = (PyTuple::empty(py), None);
            if !item.copy.is_empty() {
                match self.read_first(py, &item.copy, &mut 0, Some(item.number)) {
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

    /// Claims the next item, for `limit` seconds if that is not 0; None if there is none.
    fn claim_now(slf: &Bound<'_, Self>, limit: f64, dead: bool) -> PyResult<Option<Claim>> {
        let us = slf.get();
        let held = us.hold_now(slf.py(), source(dead), nanoseconds(limit))?;
        slf.py().check_signals()?; // A handler may raise: the item comes back.
        Ok(held.map(|held| Claim::new(slf.clone().unbind(), held)))
    }

    /// Waits for an item to claim, in a thread. False if the timeout is over, None if waits were stopped.
    fn wait_claim<'py>(
        slf: &Bound<'py, Self>,
        limit: f64,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (queue, py) = (slf.get(), slf.py());
        let membership = &queue.membership;
        let us = (queue.name.get(), &**membership);
        let waited = wait_for(py, us, ITEMS, timeout, || {
            if !membership.may_pop() {
                return Ok(None);
            }
            let claimed = membership.claim(Source::Queue, nanoseconds(limit), PATIENCE)?;
            Ok(Some(claimed).filter(|&claimed| claimed != ClaimOutcome::Empty))
        })?;
        let claimed = match waited {
            Ok(claimed) => queue.held(py, claimed)?,
            Err(waited) => return Ok(in_vain(py, waited)),
        };
        py.check_signals()?; // A handler may raise: the item comes back.
        let claim = claimed.map(|held| Bound::new(py, Claim::new(slf.clone().unbind(), held)));
        Ok(claim.transpose()?.map(Bound::into_any))
    }

    /// Memory of the queue for an item, to be filled: `body`, if there is one, is that of a value with one buffer of `len`
    /// bytes. None if there is no room now.
    #[pyo3(signature = (len, body = None))]
    fn reserve_now(
        &self,
        py: Python<'_>,
        len: u64,
        body: Option<&[u8]>,
    ) -> PyResult<Option<Reservation>> {
        self.check(py)?;
        let plan = Plan::new(len, body)?;
        let membership = &self.membership;
        let chunk = attempt(py, membership, |patience| {
            plan.reserve(membership, patience)
        })?;
        let us = (&self.name, membership);
        chunk.map(|chunk| plan.begin(py, us, chunk)).transpose()
    }

    /// Waits for such memory, in a thread. False if the timeout is over, None if waits were stopped.
    #[pyo3(signature = (len, body, timeout))]
    fn wait_reserve<'py>(
        &self,
        py: Python<'py>,
        len: u64,
        body: Option<&[u8]>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let plan = Plan::new(len, body)?;
        let membership = &self.membership;
        let reserve = || plan.reserve(membership, PATIENCE);
        let us = (self.name.get(), &**membership);
        match wait_for(py, us, ROOM, timeout, reserve)? {
            Ok(chunk) => {
                let reservation = plan.begin(py, (&self.name, membership), chunk)?;
                py.check_signals()?; // A handler may raise: the memory is given up.
                Ok(Some(Bound::new(py, reservation)?.into_any()))
            }
            Err(waited) => Ok(in_vain(py, waited)),
        }
    }

    /// Says that this process has dealt with this many items that it got; False if it has not got that many.
    fn task_done(&self, py: Python<'_>, count: u64) -> PyResult<bool> {
        self.check(py)?;
        let membership = &self.membership;
        attempt_to_end(py, membership, |patience| {
            membership.task_done(count, patience)
        })
    }

    /// Whether all items that were put are dealt with.
    fn is_done(&self, py: Python<'_>) -> PyResult<bool> {
        self.check(py)?;
        let membership = &self.membership;
        attempt(py, membership, |patience| membership.is_done(patience))
    }

    /// Waits until all is dealt with, in a thread. False if the timeout is over, None if waits were stopped.
    fn wait_done(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<bool>> {
        let membership = &self.membership;
        let done = || membership.is_done(PATIENCE);
        self.name.get().wait_in(py, DONE, timeout, |_| done())
    }

    /// Lets nothing more be put; with `immediate` what waits is dropped.
    fn shut_down(&self, py: Python<'_>, immediate: bool) -> PyResult<()> {
        self.check(py)?;
        let membership = &self.membership;
        attempt(py, membership, |patience| {
            membership.shut_down(immediate, patience)
        })
    }

    /// How many items wait.
    fn qsize(&self, py: Python<'_>) -> PyResult<u64> {
        self.check(py)?;
        let here = {
            let (left, mut at, mut count) = (lock(&self.left), 0, 0);
            while let Some((_, payload)) = item_at(&left, at) {
                at = (at + 8 + payload.len()).next_multiple_of(8);
                count += 1;
            }
            count
        };
        let len = self.membership.count_items();
        let len = len.map_err(|error| failed(py, &self.membership, error))?;
        Ok(len + here + lock(&self.returned).len() as u64)
    }

    /// Whether there may be room: a hint.
    fn may_put(&self) -> bool {
        self.membership.may_put(0)
    }

    /// Whether there may be something to take, or to hear of: a hint.
    fn may_take(&self) -> bool {
        // Relaxed: a hint.
        self.has_returned.load(Relaxed) || !lock(&self.left).is_empty() || self.membership.may_pop()
    }

    /// Looks for a moment, before a loop sleeps, whether there may be something to take.
    fn glance(&self, py: Python<'_>) -> PyResult<bool> {
        let membership = &self.membership;
        self.name.get().glance(py, || membership.may_pop())
    }

    /// Seconds until a claim ends by itself, if one does.
    fn next_expiry(&self) -> Option<f64> {
        let left = self.membership.next_expiry();
        left.map(|left| left.as_secs_f64())
    }

    /// Wakes the next one that waits: for an item, or for room.
    fn wake(&self, py: Python<'_>, for_room: bool) -> PyResult<()> {
        self.check(py)?;
        self.membership
            .wake_next(if for_room { ROOM } else { ITEMS });
        Ok(())
    }

    /// Items that were lost when all members were killed: said once in a process.
    fn take_lost(&self) -> u64 {
        self.membership.take_lost_items()
    }

    /// Returns true if the queue is shut down: nothing more is put.
    fn is_shut(&self, py: Python<'_>) -> PyResult<bool> {
        self.check(py)?;
        let shut = self.membership.is_shut_down();
        shut.map_err(|error| failed(py, &self.membership, error))
    }

    /// Raises what a put would raise that can put nothing any more: QueueShutDown, or that it is closed.
    fn check_may_put(&self, py: Python<'_>) -> PyResult<()> {
        self.check(py)?;
        let shut = self.membership.is_shut_down();
        match shut.map_err(|error| failed(py, &self.membership, error))? {
            true => Err(shut_down(py, &self.membership)),
            false => Ok(()),
        }
    }

    /// What can be seen of it.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.check(py)?;
        let membership = &self.membership;
        let stats = attempt(py, membership, |patience| membership.stats(patience))?;
        let found = PyDict::new(py);
        found.set_item("depth", stats.depth)?;
        found.set_item("put", stats.put)?;
        found.set_item("unfinished", stats.unfinished)?;
        found.set_item("dead", stats.dead)?;
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

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64 // A cast of what is too large is the largest.
}

#[pymethods]
impl PendingItems {
    /// Puts them; False if there is no room.
    fn put_now(&self, py: Python<'_>) -> PyResult<bool> {
        let queue = self.queue.get();
        queue.check(py)?;
        queue.put(py, &self.encoded)
    }

    /// Whether there may be room for them: a hint.
    fn may_put(&self) -> bool {
        self.queue.get().membership.may_put(self.encoded.count)
    }

    /// Waits until they are put, in a thread. False if the timeout is over, None if waits were stopped.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<bool>> {
        let queue = self.queue.get();
        let (membership, encoded) = (&*queue.membership, &self.encoded);
        let us = (queue.name.get(), membership);
        wait_to_put(py, us, encoded.count, timeout, || {
            encoded.put(membership, PATIENCE)
        })
    }

    #[getter]
    fn count(&self) -> u64 {
        self.encoded.count
    }
}

/// Copies out of the queue into a new bytes object.
pub(crate) fn copied<'py>(
    py: Python<'py>,
    membership: &QueueMembership,
    at: u64,
    len: u64,
) -> PyResult<Bound<'py, PyBytes>> {
    let from = membership.address_of(at, len);
    let from = from.map_err(|error| failed(py, membership, error))?.addr();
    bytes_of(py, len as usize, move |to| {
        // SAFETY: mapped for as long as the membership, which the caller holds; `to` is as long.
        unsafe { bytes::copy(to, from as *const u8, len as usize) }
    })
}
