//! `StreamSender`: the sending end of a stream.

use crate::clock;
use crate::connection::channel;
use crate::connection::channel::{Role, SLICE};
use crate::python::codec::encoder::Encoder;
use crate::python::codec::msgpack::writer::Written;
use crate::python::rpc::channel::Channel;
use crate::python::rpc::payload::Payload;
use crate::python::support::delegate::{self, Course, HandingOn, Next};
use crate::python::support::errors::unsent;
use crate::python::support::step::{self, Awaited, Thrown};
use pyo3::exceptions::{PyException, PyStopAsyncIteration};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyIterator, PyNone};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The sending end of a stream: its frames, its credit, and its slice of the loop's time.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct StreamSender {
    channel: Arc<channel::Channel>,
    opcode: u32,
    id: u64,
    /// Bytes that may still be sent.
    credit: AtomicI64,
    /// What an item costs besides its bytes.
    overhead: i64,
    /// When the loop last had its turn, in nanoseconds.
    slice: AtomicU64,
    /// Items sent since.
    sent: AtomicU32,
}

/// Items between two looks at the clock.
const ITEMS_PER_LOOK: u32 = 16;

impl StreamSender {
    /// Sends an item. False if there has to be a pause before the next one.
    ///
    /// The GIL is kept for a small one: a sender waits for no answer.
    #[inline]
    fn send_payload(&self, py: Python<'_>, mut payload: Payload<'_>) -> PyResult<bool> {
        let weight = payload.weight();
        let is_large = payload.is_large();
        let mut send = || payload.send_or_keep(&self.channel, self.opcode, self.id, Role::Item);
        let sent = if is_large { py.detach(send) } else { send() };
        sent.map_err(unsent)?;
        let size = weight as i64 + self.overhead;
        // Relaxed, here and below: the GIL orders them; they are atomic to be shared at all.
        let left = self.credit.fetch_sub(size, Ordering::Relaxed) - size;
        let looks = self.sent.fetch_add(1, Ordering::Relaxed) % ITEMS_PER_LOOK == 0;
        let over = looks && clock::now() - self.slice.load(Ordering::Relaxed) > SLICE;
        if left <= 0 {
            self.channel.nudge(); // More credit comes when it reads.
        }
        Ok(left > 0 && !over)
    }

    /// Encodes an item and sends it: the short way, if there is one.
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
            let mut written = Written::new();
            if encoder.write(item, &mut written).is_ok() {
                return self.send_payload(py, Payload::of_written(&mut written));
            }
        }
        let body = match encoder {
            Some(encoder) => encoder.encode(py, item),
            None => encode.call1((item,)),
        };
        let body = match body {
            Err(error) if error.is_instance_of::<PyException>(py) => {
                let told = explain.call1((item, error.into_value(py)))?;
                return Err(PyErr::from_value(told));
            }
            body => body?,
        };
        self.send_payload(py, Payload::new(&body)?)
    }
}

#[pymethods]
impl StreamSender {
    #[new]
    fn new(channel: &Channel, opcode: u32, id: u64, credit: i64, overhead: i64) -> PyResult<Self> {
        Ok(StreamSender {
            channel: channel.open()?,
            opcode,
            id,
            credit: AtomicI64::new(credit),
            overhead,
            slice: AtomicU64::new(clock::now()),
            sent: AtomicU32::new(0),
        })
    }

    /// Sends an item. False if the sender has to pause before the next one: for credit, or for the loop.
    fn send(&self, py: Python<'_>, item: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.send_payload(py, Payload::new(item)?)
    }

    /// Sends what an iterator yields. True if there has to be a pause before the next item, for credit or for the loop;
    /// False at its end.
    ///
    /// `encode`: an Encoder, or a function from a value to a body. What it raises for an item is raised as what
    /// `explain` makes of the item and the exception.
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

    /// The same for what an asynchronous iterator yields, to be awaited.
    fn send_each(
        slf: Py<Self>,
        items: Py<PyAny>,
        encode: Py<PyAny>,
        explain: Py<PyAny>,
    ) -> Sending {
        Sending {
            sender: slf,
            items,
            encode,
            explain,
            course: Mutex::new(Course::New),
        }
    }

    /// Adds credit: the receiver has consumed `size` bytes.
    fn grant(&self, size: i64) {
        self.credit.fetch_add(size, Ordering::Relaxed);
    }

    /// Whether there is credit. The loop has just had its turn.
    fn resume(&self) -> bool {
        self.slice.store(clock::now(), Ordering::Relaxed);
        self.credit.load(Ordering::Relaxed) > 0
    }
}

/// Sends what an asynchronous iterator yields: see [`StreamSender::send_each`].
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Sending {
    sender: Py<StreamSender>,
    items: Py<PyAny>,
    encode: Py<PyAny>,
    explain: Py<PyAny>,
    course: Mutex<Course>,
}

impl HandingOn for Sending {
    const OVER: Course = Course::Ended;

    #[inline]
    fn course(&self) -> &Mutex<Course> {
        &self.course
    }

    #[inline]
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Next<'py>> {
        delegate::anext(self.items.bind(py)).map(Next::Await)
    }

    #[inline]
    fn take<'py>(
        &self,
        py: Python<'py>,
        came: PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let over = |is_paused| Ok(Some(PyBool::new(py, is_paused).to_owned().into_any()));
        let item = match came {
            Err(error) if error.is_instance_of::<PyStopAsyncIteration>(py) => return over(false),
            item => item?,
        };
        let encode = self.encode.bind(py);
        let encoder = encode.cast::<Encoder>().ok();
        let encoder = encoder.map(|encoder| encoder.get());
        let sender = self.sender.get();
        match sender.encode_and_send(&item, encode, encoder, self.explain.bind(py))? {
            true => Ok(None),
            false => over(true),
        }
    }
}

delegate::methods!(Sending, sender, items, encode, explain);

/// Lets the interpreter run steps of what sends.
pub(crate) fn prepare(py: Python<'_>) {
    step::prepare::<Sending>(py);
}
