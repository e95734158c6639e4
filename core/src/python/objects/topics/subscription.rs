//! `Subscription`: the receiving end of a topic.

use crate::objects::error::ObjectError;
use crate::objects::lifecycle::prepare_to_sleep;
use crate::objects::topic::{self, ITEMS, ReceiveOutcome, TopicMembership};
use crate::python::codec::encoder::Encoder;
use crate::python::codec::values::{Values, is_from_signal_handler};
use crate::python::objects::error::object_error;
use crate::python::objects::loop_waiter::LoopWaiter;
use crate::python::objects::returned_objects::ReturnedObjects;
use crate::python::objects::shared_object::SharedObject;
use crate::python::objects::topics::batch::{Batch, UnreadBatches};
use crate::python::objects::topics::message;
use crate::python::objects::topics::message_reader::MessageReader;
use crate::python::objects::topics::publisher_end_error::{EndedPublisher, PublisherEndError};
use crate::sync::lock;
use crate::topic::Policy;
use crate::topic::log::CutReason;
use crate::topic::subscriber::{History, Received};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::{Arc, Mutex, OnceLock};

/// A subscription to values, or to bytes. For the functions see [`Values`]; `publisher` takes a process id and a
/// number, and returns the publisher of a message.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Subscription {
    object: Py<SharedObject>,
    membership: Arc<TopicMembership>,
    /// None once the subscription is closed.
    subscription: Mutex<Option<Arc<topic::Subscription>>>,
    reader: MessageReader,
    unread: UnreadBatches,
    /// Messages that were read before these batches, and reached no caller: see `put_back`.
    returned: ReturnedObjects,
    /// True if the end of a publisher raises PublisherGone.
    raises_ends: bool,
    /// Publishers that have cut off this subscriber, and their reasons.
    cut_off: Mutex<Vec<(EndedPublisher, CutReason)>>,
    /// The slot of an event loop that uses this subscription, once it has one.
    waiter: OnceLock<LoopWaiter>,
}

/// The maximum number of messages for which memory is allocated before any is read.
const MAX_RESERVED: usize = 256;
/// The outcome of receiving messages.
enum TakeOutcome {
    /// Messages are in the batch.
    Messages,
    /// There is no message.
    Nothing,
    /// A publisher is no longer read.
    Ended(PublisherEndError),
}

impl Subscription {
    /// Returns the subscription. Raises LocalProtocolError if it is closed.
    fn subscription(&self, py: Python<'_>) -> PyResult<Arc<topic::Subscription>> {
        self.object.get().open(py)?;
        let subscription = lock(&self.subscription).clone();
        subscription.ok_or_else(|| object_error(py, &self.membership, ObjectError::Left))
    }

    /// Receives up to `max_messages` messages into a batch. Skips the end of a publisher unless `raises_ends`, and
    /// notes a publisher that has cut off this subscriber.
    fn take(
        &self,
        subscription: &topic::Subscription,
        max_messages: usize,
        batch: &mut Batch,
    ) -> Result<TakeOutcome, ObjectError> {
        let ended = |source| EndedPublisher {
            source,
            pid: subscription.process_of(source),
        };
        let taken = loop {
            match subscription.receive(max_messages, &mut batch.bytes, &mut batch.messages)? {
                ReceiveOutcome::Received(Received::PublisherGone(_)) if !self.raises_ends => {}
                ReceiveOutcome::Received(taken) => break taken,
                ReceiveOutcome::Unreachable(source, why) => {
                    let why = format!("cannot be read: {why}");
                    return Ok(TakeOutcome::Ended(PublisherEndError::new(
                        "SharedMemoryError",
                        ended(source),
                        why,
                    )));
                }
            }
        };
        Ok(match taken {
            Received::Messages(_) => TakeOutcome::Messages,
            Received::Empty => TakeOutcome::Nothing,
            Received::PublisherGone(source) => {
                let why = "has ended, and all of its messages are read";
                TakeOutcome::Ended(PublisherEndError::new("PublisherGone", ended(source), why))
            }
            Received::CutOff(source, why) => {
                let ended = ended(source);
                lock(&self.cut_off).push((ended, why));
                TakeOutcome::Ended(PublisherEndError::cut_off(ended, why))
            }
            Received::Corrupt(source, corruption) => {
                let why = format!("has published what cannot be true: {corruption:?}");
                TakeOutcome::Ended(PublisherEndError::new(
                    "RemoteProtocolError",
                    ended(source),
                    why,
                ))
            }
        })
    }

    /// Returns the end of the last publisher that is left, if it has cut off this subscriber, so that a wait would
    /// never end.
    fn cut_off_by_all(
        &self,
        subscription: &topic::Subscription,
    ) -> Result<Option<PublisherEndError>, ObjectError> {
        for &(ended, why) in &*lock(&self.cut_off) {
            if subscription.is_last_source(ended.source)? {
                return Ok(Some(PublisherEndError::cut_off(ended, why)));
            }
        }
        Ok(None)
    }

    /// Passes up to `max_messages` messages to `accept`, without a wait, and returns their number. Without a message,
    /// arms the slot of the event loop, if it has one. Raises the end of a publisher once, and the error of a message
    /// that cannot be read, which is then lost; a message at which a signal handler raises stays.
    fn get_some<'py>(
        &self,
        py: Python<'py>,
        max_messages: usize,
        mut accept: impl FnMut(Bound<'py, PyAny>),
    ) -> PyResult<usize> {
        let subscription = self.subscription(py)?;
        if self.returned.exist() {
            let returned = self.returned.take(py, max_messages);
            let count = returned.len();
            returned.into_iter().for_each(&mut accept);
            if count > 0 {
                return Ok(count);
            }
        }
        // Another thread may take, and leave, the next messages while Python code reads a value of this batch.
        let mut batch = self.unread.take_first();
        if let Some(error) = batch.failed.take() {
            self.unread.keep(batch);
            return Err(*error);
        }
        if batch.messages.is_empty() {
            let found = self.take(&subscription, max_messages, &mut batch);
            match found.map_err(|error| object_error(py, &self.membership, error))? {
                TakeOutcome::Messages => {}
                TakeOutcome::Nothing => {
                    self.unread.keep(batch);
                    if let Some(waiter) = self.waiter.get() {
                        waiter.arm(py, || subscription.may_receive())?;
                    }
                    return Ok(0);
                }
                TakeOutcome::Ended(end) => return Err(end.into_error(py, self.membership.name())),
            }
        }
        self.read_all(py, &subscription, batch, max_messages, accept)
    }

    /// Passes up to `max_messages` messages of a batch to `accept`, and keeps the rest, also behind a message that
    /// cannot be read. Returns the number of messages. Raises the error of the first message; the next call raises the
    /// error of any other.
    fn read_all<'py>(
        &self,
        py: Python<'py>,
        subscription: &Arc<topic::Subscription>,
        mut batch: Batch,
        max_messages: usize,
        mut accept: impl FnMut(Bound<'py, PyAny>),
    ) -> PyResult<usize> {
        let count = batch.messages.len().min(max_messages);
        let (mut read, mut failed) = (0, None);
        let class = match message::class(py) {
            Ok(class) => class,
            Err(error) => {
                self.unread.keep(batch);
                return Err(error);
            }
        };
        let (mut last, mut held) = (None, batch.interrupted.take());
        for message in &mut batch.messages[..count] {
            match self.reader.read(
                class,
                subscription,
                &batch.bytes,
                message,
                &mut last,
                &mut held,
            ) {
                Ok(message) => {
                    held = None;
                    accept(message);
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
            read += 1;
        }
        // An exception of a signal handler, such as KeyboardInterrupt, says nothing of the message, which stays the
        // next one.
        let is_gone = |error: &PyErr| !is_from_signal_handler(py, error).unwrap_or(true);
        let is_gone = failed.as_ref().is_some_and(is_gone);
        batch.messages.drain(..read + usize::from(is_gone));
        batch.interrupted = held.filter(|_| !is_gone);
        // The messages before it are not lost: the next call raises the error.
        if read > 0 {
            batch.failed = failed.take().map(Box::new);
        }
        self.unread.keep(batch);
        failed.map_or(Ok(read), Err)
    }
}

#[pymethods]
impl Subscription {
    /// Subscribes. The elements of `how`:
    ///
    /// * the policy: 1 for block, 2 for keep_last, 3 for disconnect
    /// * the argument of the policy: the n of keep_last and disconnect
    /// * the number of last messages to begin with; None for all that are kept
    /// * True if the end of a publisher raises PublisherGone
    #[new]
    fn new(
        py: Python<'_>,
        object: Py<SharedObject>,
        encoder: Py<Encoder>,
        decode: Py<PyAny>,
        undecodable: Py<PyAny>,
        publisher: Py<PyAny>,
        how: (u8, u64, Option<u64>, bool),
    ) -> PyResult<Self> {
        let (which, number, history, raises_ends) = how;
        let membership = object.get().open_as::<TopicMembership>(py)?;
        let which = Policy::of(which);
        let which = which.ok_or_else(|| PyValueError::new_err("no such policy"))?;
        let history = history.map_or(History::Oldest, History::Last);
        let subscription = py.detach(|| membership.subscribe((which, number), history));
        let subscription = subscription.map_err(|error| object_error(py, &membership, error))?;
        let values = Values {
            encoder,
            encode: py.None(),
            decode,
            unencodable: py.None(),
            undecodable,
            raw: membership.shape().is_raw(),
            decode_own: None,
        };
        Ok(Subscription {
            reader: MessageReader::new(object.clone_ref(py), values, publisher),
            object,
            membership,
            subscription: Mutex::new(Some(subscription)),
            unread: UnreadBatches::default(),
            returned: ReturnedObjects::default(),
            raises_ends,
            cut_off: Mutex::default(),
            waiter: OnceLock::new(),
        })
    }

    /// Returns the next message, without a wait; None if there is none. Raises the end of a publisher once.
    fn get_now<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut found = None;
        self.get_some(py, 1, |message| found = Some(message))?;
        Ok(found)
    }

    /// Appends up to `max_messages` messages to `got`, without a wait. Returns True if there were any. So the caller
    /// has the messages, and can return them by `put_back`, even if a signal handler raises as soon as this call
    /// returns.
    fn take_into(&self, got: &Bound<'_, PyList>, max_messages: usize) -> PyResult<bool> {
        let mut found = Vec::with_capacity(max_messages.min(MAX_RESERVED));
        let taken = self.get_some(got.py(), max_messages, |message| found.push(message))?;
        found.iter().try_for_each(|message| got.append(message))?;
        Ok(taken > 0)
    }

    /// Does what `take_into` does, and waits in a thread for a message. Returns True; False if other receivers were
    /// faster or after the timeout, None if waits were stopped.
    fn wait_into(
        &self,
        got: &Bound<'_, PyList>,
        max_messages: usize,
        timeout: Option<f64>,
    ) -> PyResult<Option<bool>> {
        let py = got.py();
        if self.take_into(got, max_messages)? {
            return Ok(Some(true));
        }
        self.may_wait(py)?;
        let subscription = self.subscription(py)?;
        let (mut batch, mut found) = (Batch::default(), TakeOutcome::Nothing);
        let waited = self.object.get().wait_in(py, ITEMS, timeout, |_| {
            if self.returned.exist() {
                return Ok(true);
            }
            if !subscription.may_receive() {
                return Ok(false);
            }
            found = self.take(&subscription, max_messages, &mut batch)?;
            if matches!(found, TakeOutcome::Nothing)
                && let Some(ended) = self.cut_off_by_all(&subscription)?
            {
                found = TakeOutcome::Ended(ended);
            }
            Ok(!matches!(found, TakeOutcome::Nothing))
        })?;
        match found {
            TakeOutcome::Nothing if waited == Some(true) => {
                self.take_into(got, max_messages).map(Some)
            }
            TakeOutcome::Nothing => Ok(waited),
            TakeOutcome::Messages => {
                let mut read = Vec::new();
                self.read_all(py, &subscription, batch, max_messages, |message| {
                    read.push(message)
                })?;
                read.iter().try_for_each(|message| got.append(message))?;
                Ok(Some(true))
            }
            TakeOutcome::Ended(end) => Err(end.into_error(py, self.membership.name())),
        }
    }

    /// Puts back messages that were taken and reached no caller, and wakes all waiters. These messages are returned
    /// first.
    fn put_back(&self, messages: Vec<Bound<'_, PyAny>>) {
        self.returned.put_back(messages);
        if self.membership.is_here() {
            self.membership.wake_all_sets(); // Other threads of this process among them.
        }
    }

    /// Raises SlowConsumer again if the last publisher that is left has cut off this subscriber: a wait would never
    /// end.
    fn may_wait(&self, py: Python<'_>) -> PyResult<()> {
        let ended = self.cut_off_by_all(&*self.subscription(py)?);
        match ended.map_err(|error| object_error(py, &self.membership, error))? {
            Some(end) => Err(end.into_error(py, self.membership.name())),
            _ => Ok(()),
        }
    }

    /// Returns True if there may be a message, or an end to raise: a hint that is right after the announcement of a
    /// sleep.
    fn may_receive(&self, py: Python<'_>) -> PyResult<bool> {
        let is_left = self.unread.exist() || self.returned.exist();
        Ok(is_left || self.subscription(py)?.may_receive())
    }

    /// Spins for a moment before an event loop sleeps. Returns True if there may be a message. Looks only for messages
    /// that have not been read from the topic; does not see unread batches and messages put back, which the caller
    /// takes first.
    fn glance(&self, py: Python<'_>) -> PyResult<bool> {
        let subscription = self.subscription(py)?;
        self.object.get().glance(py, || subscription.may_receive())
    }

    /// Returns a descriptor that is readable from the time when there may be a message until a call finds none. With
    /// `is_left`, the first call makes the descriptor readable at once. The descriptor belongs to the subscription.
    fn fileno(&self, py: Python<'_>, is_left: bool) -> PyResult<i32> {
        let subscription = self.subscription(py)?;
        if let Some(waiter) = self.waiter.get() {
            return Ok(waiter.fileno());
        }
        let (membership, set) = (&self.membership, ITEMS);
        let sleeper = py.detach(|| {
            prepare_to_sleep(&**membership)?;
            membership.loop_slot(set)
        });
        let sleeper = sleeper.map_err(|error| object_error(py, membership, error))?;
        let sleeper = LoopWaiter::new(sleeper, set, membership.clone());
        sleeper.draw_ticket(py)?;
        // Another thread may have been quicker.
        let waiter = self.waiter.get_or_init(|| sleeper);
        let is_ready = is_left || self.may_receive(py)?;
        waiter.arm(py, || is_ready || subscription.may_receive())?;
        Ok(waiter.fileno())
    }

    /// The number of missed messages.
    #[getter]
    fn lost(&self, py: Python<'_>) -> PyResult<u64> {
        let lost = self.subscription(py)?.lost();
        lost.map_err(|error| object_error(py, &self.membership, error))
    }

    /// Returns the process ids of the publishers that are read.
    fn publishers(&self, py: Python<'_>) -> PyResult<Vec<i32>> {
        let subscription = self.subscription(py)?;
        let sources = subscription.sources();
        let sources = sources.map_err(|error| object_error(py, &self.membership, error))?;
        let pids = sources
            .into_iter()
            .map(|source| subscription.process_of(source));
        Ok(pids.collect())
    }

    /// Closes the subscription, and drops unread messages. Messages in place stay readable. Idempotent.
    fn close(&self, py: Python<'_>) {
        let subscription = lock(&self.subscription).take();
        let unread = self.unread.take_all();
        if let Some(waiter) = self.waiter.get() {
            waiter.close();
        }
        py.detach(|| {
            drop(unread);
            if let Some(subscription) = subscription {
                subscription.leave();
            }
        });
    }
}
