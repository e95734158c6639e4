//! `Subscription`: what Python reads of a topic.

use crate::memory::bytes;
use crate::objects::error::ObjectError;
use crate::objects::lifecycle::prepare_to_sleep;
use crate::objects::registry::Handle;
use crate::objects::topic::{self, ITEMS, Payload, Pin, ReceiveOutcome, TopicMembership};
use crate::python::codec::encoder::Encoder;
use crate::python::codec::values::{Values, is_from_signal_handler};
use crate::python::objects::loop_waiter::LoopWaiter;
use crate::python::objects::shared_object::{SharedObject, failed};
use crate::python::objects::topics::message;
use crate::python::objects::topics::publisher::form_of;
use crate::python::support::block::Block;
use crate::python::support::buffer::bytes_of;
use crate::queue::Form;
use crate::queue::parcel::Parts;
use crate::sync::lock;
use crate::topic::Policy;
use crate::topic::log::CutReason;
use crate::topic::subscriber::{History, PublisherId, Received};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple, PyType};
use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock};

/// What a handle reads: values, or bytes. The functions are those of [`Values`]; `publisher` makes of a process and a
/// number what a message says of its publisher.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Subscription {
    name: Py<SharedObject>,
    membership: Arc<TopicMembership>,
    /// None once it is closed.
    subscription: Mutex<Option<Arc<topic::Subscription>>>,
    values: Values,
    publisher: Py<PyAny>,
    /// Those that messages have named.
    publishers: Mutex<Vec<(PublisherId, Py<PyAny>)>>,
    /// What was taken, and not read so far, in the order in which it is read. The last one may be empty: memory for the next.
    left: Mutex<VecDeque<Batch>>,
    /// Messages that were read before those, and reached no caller: see `put_back`.
    returned: Mutex<VecDeque<Py<PyAny>>>,
    has_returned: AtomicBool,
    /// Whether it is said that a publisher has ended.
    hears_of_ends: bool,
    /// The publishers that have cut this off, and why.
    cut_off: Mutex<Vec<(Ended, CutReason)>>,
    /// For a loop of its user, if there is one.
    bell: OnceLock<LoopWaiter>,
}

/// Messages that were taken.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    messages: Vec<topic::Message>,
    /// The block of the first message, if that was read in place and a signal handler interrupted it.
    interrupted: Option<Arc<Held>>,
    /// Why the message before them could not be read, if nobody was told.
    failed: Option<Box<PyErr>>,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.failed.is_none()
    }
}

/// The most messages for which room is made before any is read.
const USUAL: usize = 256;
/// More bytes are not kept for the next time.
const KEPT: usize = 256 << 10;

/// What there is instead of messages.
enum Found {
    Messages,
    /// None is there.
    Nothing,
    /// A publisher is not read any more: the class of the exception, and why.
    Ended(&'static str, Ended, String),
}

/// A publisher that is not read any more, and its process.
#[derive(Clone, Copy)]
struct Ended {
    source: PublisherId,
    pid: libc::pid_t,
}

/// A block that is looked at until nobody refers to it.
struct Held {
    subscription: Arc<topic::Subscription>,
    pin: Mutex<Box<Pin>>,
    /// The pin is a member's: this process leaves the name when nothing is looked at any more.
    _name: Option<Arc<Handle>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.subscription.unpin(&mut lock(&self.pin));
    }
}

impl Subscription {
    fn subscription(&self, py: Python<'_>) -> PyResult<Arc<topic::Subscription>> {
        self.name.get().open(py)?;
        let subscription = lock(&self.subscription).clone();
        subscription.ok_or_else(|| failed(py, &self.membership, ObjectError::Left))
    }

    fn take(
        &self,
        subscription: &topic::Subscription,
        most: usize,
        batch: &mut Batch,
    ) -> Result<Found, ObjectError> {
        let ended = |source| Ended {
            source,
            pid: subscription.process_of(source),
        };
        let taken = loop {
            match subscription.receive(most, &mut batch.bytes, &mut batch.messages)? {
                ReceiveOutcome::Received(Received::PublisherGone(_)) if !self.hears_of_ends => {}
                ReceiveOutcome::Received(taken) => break taken,
                ReceiveOutcome::Unreachable(source, why) => {
                    let why = format!("cannot be read: {why}");
                    return Ok(Found::Ended("SharedMemoryError", ended(source), why));
                }
            }
        };
        Ok(match taken {
            Received::Messages(_) => Found::Messages,
            Received::Empty => Found::Nothing,
            Received::PublisherGone(source) => {
                let why = "has ended, and all of its messages are read".to_owned();
                Found::Ended("PublisherGone", ended(source), why)
            }
            Received::CutOff(source, why) => {
                let ended = ended(source);
                lock(&self.cut_off).push((ended, why));
                cut_off(ended, why)
            }
            Received::Corrupt(source, corruption) => {
                let why = format!("has published what cannot be true: {corruption:?}");
                Found::Ended("RemoteProtocolError", ended(source), why)
            }
        })
    }

    /// What there is instead of a wait: a publisher that has cut this off is the only one that there is, and is not heard of
    /// any more.
    fn in_vain(&self, subscription: &topic::Subscription) -> Result<Option<Found>, ObjectError> {
        for &(ended, why) in &*lock(&self.cut_off) {
            if subscription.is_last_source(ended.source)? {
                return Ok(Some(cut_off(ended, why)));
            }
        }
        Ok(None)
    }

    #[cold]
    fn ended(
        &self,
        py: Python<'_>,
        (class, Ended { source, pid }, why): (&str, Ended, String),
    ) -> PyErr {
        let topic = self.membership.name();
        let number = source.number();
        let text = format!("topic '{topic}': publisher {number} of process {pid} {why}");
        let raised = || {
            let made = py.import("shmrpc.errors")?.getattr(class)?;
            match class {
                "SharedMemoryError" => made.call1((libc::EACCES, text)),
                "PublisherGone" | "CutOff" => made.call1((text, pid, number)),
                _ => made.call1((text,)),
            }
        };
        raised().map_or_else(|error| error, PyErr::from_value)
    }

    /// Hands up to `most` messages that are there to `hand_on`; how many. Raises once what there is to be told instead.
    fn get_some<'py>(
        &self,
        py: Python<'py>,
        most: usize,
        mut hand_on: impl FnMut(Bound<'py, PyAny>),
    ) -> PyResult<usize> {
        let subscription = self.subscription(py)?;
        // Relaxed, here and below: the thread that sets the flag wakes the sleepers afterwards.
        if self.has_returned.load(Relaxed) {
            let returned = self.take_returned(most);
            let count = returned.len();
            returned
                .into_iter()
                .for_each(|message| hand_on(message.into_bound(py)));
            if count > 0 {
                return Ok(count);
            }
        }
        // Another thread may take, and leave, what comes next while Python code reads a value of this.
        let mut batch = lock(&self.left).pop_front().unwrap_or_default();
        if let Some(error) = batch.failed.take() {
            self.keep(batch);
            return Err(*error);
        }
        if batch.messages.is_empty() {
            let found = self.take(&subscription, most, &mut batch);
            match found.map_err(|error| failed(py, &self.membership, error))? {
                Found::Messages => {}
                Found::Nothing => {
                    self.keep(batch);
                    if let Some(bell) = self.bell.get() {
                        bell.arm(py, || subscription.may_receive())?;
                    }
                    return Ok(0);
                }
                Found::Ended(class, who, why) => {
                    return Err(self.ended(py, (class, who, why)));
                }
            }
        }
        self.read_all(py, &subscription, batch, most, hand_on)
    }

    #[cold]
    fn take_returned(&self, most: usize) -> Vec<Py<PyAny>> {
        let mut returned = lock(&self.returned);
        let count = most.min(returned.len());
        let taken = returned.drain(..count).collect();
        self.has_returned.store(!returned.is_empty(), Relaxed);
        taken
    }

    /// Keeps what is not read so far before all that is left, and else its memory for the next time.
    fn keep(&self, mut batch: Batch) {
        let mut left = lock(&self.left);
        if !batch.is_empty() {
            left.push_front(batch);
        } else if left.is_empty() {
            if batch.bytes.capacity() > KEPT {
                batch.bytes = Vec::new();
            }
            batch.bytes.clear();
            left.push_back(batch);
        }
    }

    /// Reads up to `most` messages. Those that are not read, since there are more, or one before cannot be, are kept.
    fn read_all<'py>(
        &self,
        py: Python<'py>,
        subscription: &Arc<topic::Subscription>,
        mut batch: Batch,
        most: usize,
        mut hand_on: impl FnMut(Bound<'py, PyAny>),
    ) -> PyResult<usize> {
        let count = batch.messages.len().min(most);
        let (mut read, mut failed) = (0, None);
        let class = match message::class(py) {
            Ok(class) => class,
            Err(error) => {
                self.keep(batch);
                return Err(error);
            }
        };
        let (mut last, mut held) = (None, batch.interrupted.take());
        for message in &mut batch.messages[..count] {
            match self.read(
                class,
                subscription,
                &batch.bytes,
                message,
                &mut last,
                &mut held,
            ) {
                Ok(message) => {
                    held = None;
                    hand_on(message);
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
            read += 1;
        }
        // What a signal handler raises meanwhile, as KeyboardInterrupt, says nothing of the message: that stays the next one.
        let is_gone = |error: &PyErr| !is_from_signal_handler(py, error).unwrap_or(true);
        let is_gone = failed.as_ref().is_some_and(is_gone);
        batch.messages.drain(..read + usize::from(is_gone));
        batch.interrupted = held.filter(|_| !is_gone);
        // Those before it are not lost for it: the next one is told.
        if read > 0 {
            batch.failed = failed.take().map(Box::new);
        }
        self.keep(batch);
        failed.map_or(Ok(read), Err)
    }

    #[inline]
    fn read<'py>(
        &self,
        class: &Bound<'py, PyType>,
        subscription: &Arc<topic::Subscription>,
        bytes: &[u8],
        message: &mut topic::Message,
        last: &mut Option<(PublisherId, Py<PyAny>)>,
        held: &mut Option<Arc<Held>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = class.py();
        let (source, seq, form) = (message.source, message.seq, form_of(message.form));
        let publisher = match last {
            Some((known, publisher)) if *known == source => publisher.clone_ref(py),
            _ => {
                let publisher = self.publisher_of(py, subscription, source)?;
                *last = Some((source, publisher.clone_ref(py)));
                publisher
            }
        };
        if let Payload::Pinned(_) = message.payload
            && let Payload::Pinned(pin) =
                std::mem::replace(&mut message.payload, Payload::Copied(0, 0))
        {
            *held = Some(Arc::new(Held {
                subscription: subscription.clone(),
                pin: Mutex::new(pin),
                _name: self.name.get().stay(),
            }));
        }
        // Either may be read again: the bytes stay where they are, and the block is the caller's.
        let value = match (&*held, &message.payload) {
            (Some(held), _) => self.looked_at(py, form, held, seq)?,
            (None, &Payload::Copied(at, len)) => {
                self.copied(py, form, &bytes[at..at + len], seq)?
            }
            (None, Payload::Pinned(_)) => return Err(self.unreadable(py, seq)),
        };
        message::make(class, value, publisher, seq)
    }

    #[inline]
    fn copied<'py>(
        &self,
        py: Python<'py>,
        form: Option<Form>,
        payload: &[u8],
        seq: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let value = self.values.read_copied(py, form, payload, Some(seq))?;
        value.ok_or_else(|| self.unreadable(py, seq))
    }

    fn looked_at<'py>(
        &self,
        py: Python<'py>,
        form: Option<Form>,
        held: &Arc<Held>,
        seq: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (from, len) = held.bytes();
        let copy = |at: u64, len: u64| {
            bytes_of(py, len as usize, |to| {
                // SAFETY: within the payload, which is mapped as long as it is held; `to` is as long.
                unsafe {
                    let from = (from as *const u8).wrapping_add(at as usize);
                    bytes::copy(to, from, len as usize);
                }
            })
        };
        match form {
            Some(Form::Value) => self
                .values
                .read(py, copy(0, len)?.as_bytes(), Some(seq), false),
            Some(Form::Raw) => Ok(copy(0, len)?.into_any()),
            Some(Form::Parcel) => {
                let parts = Parts::read(len, |at, to| {
                    // SAFETY: `read` asks for bytes within the payload alone.
                    unsafe {
                        let from = (from as *const u8).wrapping_add(at as usize);
                        bytes::copy(to.as_mut_ptr(), from, to.len());
                    }
                });
                let parts = parts.ok_or_else(|| self.unreadable(py, seq))?;
                let views = parts.buffers.iter().map(|&(at, len)| {
                    let bytes = (from + at as usize, len as usize);
                    Bound::new(py, Block::new(held.clone(), bytes, "a message of a topic"))
                });
                let views = views.collect::<PyResult<Vec<_>>>()?;
                let body = copy(parts.body.0, parts.body.1)?;
                let views = PyTuple::new(py, views)?;
                self.values.read_parcel(py, body, views, Some(seq), false)
            }
            None => Err(self.unreadable(py, seq)),
        }
    }

    #[cold]
    fn unreadable(&self, py: Python<'_>, seq: u64) -> PyErr {
        let text = format!(
            "topic '{}': message {seq} cannot be read: its publisher has written what it must not",
            self.membership.name()
        );
        let raised = || {
            let class = py.import("shmrpc.errors")?.getattr("DecodeError")?;
            class.call1((text,))
        };
        raised().map_or_else(|error| error, PyErr::from_value)
    }

    fn publisher_of(
        &self,
        py: Python<'_>,
        subscription: &topic::Subscription,
        source: PublisherId,
    ) -> PyResult<Py<PyAny>> {
        let mut known = lock(&self.publishers);
        if let Some(place) = known.iter().position(|each| each.0 == source) {
            known.swap(0, place); // Mostly it is the next one's, too.
            return Ok(known[0].1.clone_ref(py));
        }
        drop(known);
        let pid = subscription.process_of(source);
        let made = self.publisher.bind(py).call1((pid, source.number()))?;
        let made = made.unbind();
        let mut known = lock(&self.publishers);
        known.truncate(crate::topic::directory::LISTINGS);
        known.insert(0, (source, made.clone_ref(py)));
        Ok(made)
    }
}

/// What a publisher that has cut a subscriber off means to that.
fn cut_off(ended: Ended, why: CutReason) -> Found {
    let why = match why {
        CutReason::Lag => {
            "has cut this subscriber off, which was too slow, and is not heard of any more: subscribe again, and read \
             faster, or with a larger disconnect(n), up to the publisher's high, or with keep_last(n), which skips \
             messages instead"
        }
        CutReason::Corruption => {
            "has cut this subscriber off: a member has written where it must not"
        }
    };
    Found::Ended("CutOff", ended, why.to_owned())
}

impl Held {
    /// Where the bytes of the block begin, and how many they are. They are mapped as long as this is there.
    fn bytes(&self) -> (usize, u64) {
        let pin = lock(&self.pin);
        let from = pin.log().space().address(pin.at, pin.len);
        (from.addr(), pin.len)
    }
}

#[pymethods]
impl Subscription {
    /// `how`: the policy, 1 block, 2 keep_last, 3 disconnect, and its number; then the history, the last ones, or None:
    /// the oldest that is there; and whether PublisherGone is raised.
    #[new]
    fn new(
        py: Python<'_>,
        name: Py<SharedObject>,
        encoder: Py<Encoder>,
        decode: Py<PyAny>,
        undecodable: Py<PyAny>,
        publisher: Py<PyAny>,
        how: (u8, u64, Option<u64>, bool),
    ) -> PyResult<Self> {
        let (which, number, history, hears_of_ends) = how;
        let membership = name.get().open_as::<TopicMembership>(py)?;
        let which = Policy::of(which);
        let which = which.ok_or_else(|| PyValueError::new_err("no such policy"))?;
        let history = history.map_or(History::Oldest, History::Last);
        let subscription = py.detach(|| membership.subscribe((which, number), history));
        let subscription = subscription.map_err(|error| failed(py, &membership, error))?;
        Ok(Subscription {
            name,
            values: Values {
                encoder,
                encode: py.None(),
                decode,
                unencodable: py.None(),
                undecodable,
                raw: membership.shape().is_raw(),
                decode_own: None,
            },
            membership,
            subscription: Mutex::new(Some(subscription)),
            publisher,
            publishers: Mutex::default(),
            left: Mutex::default(),
            returned: Mutex::default(),
            has_returned: AtomicBool::new(false),
            hears_of_ends,
            cut_off: Mutex::default(),
            bell: OnceLock::new(),
        })
    }

    /// The next message; None if there is none.
    fn get_now<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut found = None;
        self.get_some(py, 1, |message| found = Some(message))?;
        Ok(found)
    }

    /// Appends up to `most` messages that are there to `got`, and returns true if there were any. Where a signal handler raises
    /// as soon as this call is back in Python, the caller has the messages, and returns them by `put_back`.
    fn take_into(&self, got: &Bound<'_, PyList>, most: usize) -> PyResult<bool> {
        let mut found = Vec::with_capacity(most.min(USUAL));
        let taken = self.get_some(got.py(), most, |message| found.push(message))?;
        found.iter().try_for_each(|message| got.append(message))?;
        Ok(taken > 0)
    }

    /// The same, and waits in a thread, for at least one unless others were quicker. False if the timeout is over, None if
    /// waits were stopped.
    fn wait_into(
        &self,
        got: &Bound<'_, PyList>,
        most: usize,
        timeout: Option<f64>,
    ) -> PyResult<Option<bool>> {
        let py = got.py();
        if self.take_into(got, most)? {
            return Ok(Some(true));
        }
        self.may_wait(py)?;
        let subscription = self.subscription(py)?;
        let (mut batch, mut found) = (Batch::default(), Found::Nothing);
        let waited = self.name.get().wait_in(py, ITEMS, timeout, |_| {
            if self.has_returned.load(Relaxed) {
                return Ok(true);
            }
            if !subscription.may_receive() {
                return Ok(false);
            }
            found = self.take(&subscription, most, &mut batch)?;
            if matches!(found, Found::Nothing)
                && let Some(vain) = self.in_vain(&subscription)?
            {
                found = vain;
            }
            Ok(!matches!(found, Found::Nothing))
        })?;
        match found {
            Found::Nothing if waited == Some(true) => self.take_into(got, most).map(Some),
            Found::Nothing => Ok(waited),
            Found::Messages => {
                let mut read = Vec::new();
                self.read_all(py, &subscription, batch, most, |message| read.push(message))?;
                read.iter().try_for_each(|message| got.append(message))?;
                Ok(Some(true))
            }
            Found::Ended(class, who, why) => Err(self.ended(py, (class, who, why))),
        }
    }

    /// Puts back messages that were taken and reached no caller: they are the next ones that are got.
    fn put_back(&self, messages: Vec<Bound<'_, PyAny>>) {
        {
            let mut returned = lock(&self.returned);
            for message in messages.into_iter().rev() {
                returned.push_front(message.unbind());
            }
            self.has_returned.store(!returned.is_empty(), Relaxed);
        }
        if self.membership.is_here() {
            self.membership.wake_all_sets(); // Other threads of this process among them.
        }
    }

    /// Raises CutOff again if the only publisher that there is has cut this off: a wait would be in vain.
    fn may_wait(&self, py: Python<'_>) -> PyResult<()> {
        let vain = self.in_vain(&*self.subscription(py)?);
        match vain.map_err(|error| failed(py, &self.membership, error))? {
            Some(Found::Ended(class, who, why)) => Err(self.ended(py, (class, who, why))),
            _ => Ok(()),
        }
    }

    /// Whether there may be something to get, or to hear of: a hint that is right once it was announced that somebody
    /// sleeps.
    fn may_receive(&self, py: Python<'_>) -> PyResult<bool> {
        let is_left = lock(&self.left)
            .front()
            .is_some_and(|batch| !batch.is_empty());
        let is_left = is_left || self.has_returned.load(Relaxed);
        Ok(is_left || self.subscription(py)?.may_receive())
    }

    /// Looks for a moment, before a loop sleeps, whether there may be something to take.
    fn glance(&self, py: Python<'_>) -> PyResult<bool> {
        let subscription = self.subscription(py)?;
        self.name.get().glance(py, || subscription.may_receive())
    }

    /// A descriptor that is readable when there may be something to get, until nothing was found. `is_left`: whether there
    /// is something anyhow.
    fn fileno(&self, py: Python<'_>, is_left: bool) -> PyResult<i32> {
        let subscription = self.subscription(py)?;
        if let Some(bell) = self.bell.get() {
            return Ok(bell.fileno());
        }
        let (membership, set) = (&self.membership, ITEMS);
        let sleeper = py.detach(|| {
            prepare_to_sleep(&**membership)?;
            membership.loop_slot(set)
        });
        let sleeper = sleeper.map_err(|error| failed(py, membership, error))?;
        let sleeper = LoopWaiter::new(sleeper, set, membership.clone());
        sleeper.draw_ticket(py)?;
        // Another thread may have been quicker.
        let bell = self.bell.get_or_init(|| sleeper);
        let is_there = is_left || self.may_receive(py)?;
        bell.arm(py, || is_there || subscription.may_receive())?;
        Ok(bell.fileno())
    }

    /// Messages that were missed.
    #[getter]
    fn lost(&self, py: Python<'_>) -> PyResult<u64> {
        let lost = self.subscription(py)?.lost();
        lost.map_err(|error| failed(py, &self.membership, error))
    }

    /// The processes of the publishers that are read.
    fn publishers(&self, py: Python<'_>) -> PyResult<Vec<i32>> {
        let subscription = self.subscription(py)?;
        let sources = subscription.sources();
        let sources = sources.map_err(|error| failed(py, &self.membership, error))?;
        let pids = sources
            .into_iter()
            .map(|source| subscription.process_of(source));
        Ok(pids.collect())
    }

    /// Reads nothing more. What looks at messages in place may go on to do so. Again: nothing.
    fn close(&self, py: Python<'_>) {
        let subscription = lock(&self.subscription).take();
        let left = std::mem::take(&mut *lock(&self.left));
        if let Some(bell) = self.bell.get() {
            bell.close();
        }
        py.detach(|| {
            drop(left);
            if let Some(subscription) = subscription {
                subscription.leave();
            }
        });
    }
}
