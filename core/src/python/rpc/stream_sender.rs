//! `StreamSender`: the sending end of a stream.

use crate::clock;
use crate::connection::channel;
use crate::connection::channel::{FrameRole, SLICE};
use crate::python::codec::encoder::Encoder;
use crate::python::codec::msgpack::outgoing_body::OutgoingBody;
use crate::python::rpc::channel::Channel;
use crate::python::rpc::payload::Payload;
use crate::python::support::coroutine_slots;
use crate::python::support::errors::send_error;
use crate::python::support::native_coroutine::{self, NativeCoroutine, Next, State};
use crate::python::support::step::{ThrowArguments, anext};
use pyo3::exceptions::{PyException, PyStopAsyncIteration};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyIterator};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The sending end of a stream, with its credit and its yield budget.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct StreamSender {
    channel: Arc<channel::Channel>,
    opcode: u32,
    id: u64,
    /// Bytes that may still be sent.
    credit: AtomicI64,
    /// The number of bytes for which an item counts besides its own.
    overhead: i64,
    /// The time, in nanoseconds, at which the current yield budget began.
    budget_start: AtomicU64,
    /// Number of items sent, modulo 2^32.
    sent: AtomicU32,
}

/// The number of items between two reads of the clock.
const ITEMS_PER_CHECK: u32 = 16;

impl StreamSender {
    /// Sends an encoded item, even without credit, which the item then overdraws. Returns false if the sender has to
    /// pause before the next item. Raises the error of an item that was not sent.
    ///
    /// The thread keeps the GIL for a small item, because a sender waits for no reply.
    #[inline]
    fn send_payload(&self, py: Python<'_>, mut payload: Payload<'_>) -> PyResult<bool> {
        let weight = payload.weight();
        let is_large = payload.is_large();
        let mut send =
            || payload.send_or_keep(&self.channel, self.opcode, self.id, FrameRole::StreamItem);
        let sent = if is_large { py.detach(send) } else { send() };
        sent.map_err(send_error)?;
        let size = weight as i64 + self.overhead;
        // Relaxed, here and below: the GIL orders these accesses; the fields are atomic only to be shared.
        let credit = self.credit.fetch_sub(size, Ordering::Relaxed) - size;
        let checks = self.sent.fetch_add(1, Ordering::Relaxed) % ITEMS_PER_CHECK == 0;
        let must_yield = checks && clock::now() - self.budget_start.load(Ordering::Relaxed) > SLICE;
        if credit <= 0 {
            self.channel.nudge(); // The receiver grants more credit when it reads.
        }
        Ok(credit > 0 && !must_yield)
    }

    /// Encodes an item, on the native path if there is an encoder, and sends it. Returns false if the sender has to
    /// pause before the next item. Raises what `explain` returns for the item and an exception of the encoder, and the
    /// error of an item that was not sent.
    #[inline]
    fn encode_and_send(
        &self,
        item: &Bound<'_, PyAny>,
        encode: &Bound<'_, PyAny>,
        encoder: Option<&Encoder>,
        explain: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let py = item.py();
        if let Some(encoder) = encoder {
            let mut body = OutgoingBody::new();
            if encoder.write(item, &mut body).is_ok() {
                return self.send_payload(py, Payload::from_outgoing(&mut body));
            }
        }
        let body = match encoder {
            Some(encoder) => encoder.encode(py, item),
            None => encode.call1((item,)),
        };
        let body = match body {
            Err(error) if error.is_instance_of::<PyException>(py) => {
                let error = explain.call1((item, error.into_value(py)))?;
                return Err(PyErr::from_value(error));
            }
            body => body?,
        };
        self.send_payload(py, Payload::new(&body)?)
    }
}

#[pymethods]
impl StreamSender {
    /// Makes a sender with this credit in bytes, of which each item takes `overhead` besides its own. Raises
    /// ChannelError if the channel is closed.
    #[new]
    fn new(channel: &Channel, opcode: u32, id: u64, credit: i64, overhead: i64) -> PyResult<Self> {
        Ok(StreamSender {
            channel: channel.open()?,
            opcode,
            id,
            credit: AtomicI64::new(credit),
            overhead,
            budget_start: AtomicU64::new(clock::now()),
            sent: AtomicU32::new(0),
        })
    }

    /// Sends an encoded item. Returns False if the sender has to pause before the next item, for credit or for the
    /// event loop.
    fn send(&self, py: Python<'_>, item: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.send_payload(py, Payload::new(item)?)
    }

    /// Sends the items of an iterator. Returns True if the sender has to pause before the next item, for credit or for
    /// the event loop; False at the end of the iterator.
    ///
    /// `encode` is an Encoder, or a function from a value to a body. Where it raises an exception, this raises what
    /// `explain` returns for the item and the exception.
    fn send_all(
        &self,
        items: &Bound<'_, PyIterator>,
        encode: &Bound<'_, PyAny>,
        explain: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let encoder = encode.cast::<Encoder>().ok();
        let encoder = encoder.map(|encoder| encoder.get());
        for item in items {
            if !self.encode_and_send(&item?, encode, encoder, explain)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns an awaitable that does for an asynchronous iterator what `send_all` does.
    fn send_each(
        slf: Py<Self>,
        items: Py<PyAny>,
        encode: Py<PyAny>,
        explain: Py<PyAny>,
    ) -> StreamSend {
        StreamSend {
            sender: slf,
            items,
            encode,
            explain,
            state: Mutex::new(State::New(())),
        }
    }

    /// Adds credit: the receiver has consumed `size` bytes. The caller resumes a paused sender.
    fn grant(&self, size: i64) {
        self.credit.fetch_add(size, Ordering::Relaxed);
    }

    /// Begins a new yield budget, because the task has yielded. Returns True if there is credit.
    fn resume(&self) -> bool {
        self.budget_start.store(clock::now(), Ordering::Relaxed);
        self.credit.load(Ordering::Relaxed) > 0
    }
}

/// An awaitable that sends the items of an asynchronous iterator: see [`StreamSender::send_each`].
#[pyclass(frozen, module = "shmrpc._core")]
pub struct StreamSend {
    sender: Py<StreamSender>,
    items: Py<PyAny>,
    encode: Py<PyAny>,
    explain: Py<PyAny>,
    state: Mutex<State<StreamSend>>,
}

impl NativeCoroutine for StreamSend {
    type Start = ();
    type Suspended = ();

    const FINAL: State<Self> = State::Ended;

    #[inline]
    fn state(&self) -> &Mutex<State<Self>> {
        &self.state
    }

    fn start<'py>(&self, py: Python<'py>, (): ()) -> PyResult<Next<'py, ()>> {
        self.next(py)
    }

    fn resume<'py>(&self, py: Python<'py>, (): ()) -> PyResult<Next<'py, ()>> {
        self.next(py)
    }

    #[inline]
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Next<'py, ()>> {
        anext(self.items.bind(py)).map(Next::Await)
    }

    #[inline]
    fn receive<'py>(
        &self,
        py: Python<'py>,
        result: PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let end = |is_paused| Ok(Some(PyBool::new(py, is_paused).to_owned().into_any()));
        let item = match result {
            Err(error) if error.is_instance_of::<PyStopAsyncIteration>(py) => return end(false),
            item => item?,
        };
        let encode = self.encode.bind(py);
        let encoder = encode.cast::<Encoder>().ok();
        let encoder = encoder.map(|encoder| encoder.get());
        let sender = self.sender.get();
        match sender.encode_and_send(&item, encode, encoder, self.explain.bind(py))? {
            true => Ok(None),
            false => end(true),
        }
    }
}

native_coroutine::methods!(StreamSend, [sender, items, encode, explain]);

/// Sets the slots by which the interpreter runs the steps of the awaitable directly.
pub(crate) fn register(py: Python<'_>) {
    coroutine_slots::install::<StreamSend>(py);
}
