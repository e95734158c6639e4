//! `Poller`: the frames of many channels, in turn.

use crate::connection::channel::{self, Role, SendError, Sent};
use crate::connection::poller::{self, Expected, Found};
use crate::python::codec::msgpack::writer::Written;
use crate::python::rpc::channel::Channel;
use crate::python::rpc::incoming::{Arrival, Body};
use crate::python::rpc::payload::Payload;
use crate::python::rpc::server::handler::{Ran, Serving};
use crate::python::support::errors::{ChannelError, unsent};
use crate::python::support::scratch::Scratch;
use crate::sync::lock;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyTuple};
use std::sync::{Arc, Mutex, MutexGuard};

/// The receiving side of a server: the next frame on any of its channels.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Poller {
    inner: Mutex<poller::Poller<Client>>,
    /// What stands in the place of the opcode if a peer broke the rules.
    fault: u64,
    /// The opcode of a plain answer.
    answer: u32,
}

/// A channel's client, as the server knows it.
struct Client {
    /// Comes back with each of its frames.
    key: Py<PyAny>,
    /// The calls of its that need nothing of Python but the function.
    serving: Option<Py<Serving>>,
}

/// A frame as Python is given it: (key, opcode, id, payload).
type Given<'py> = Bound<'py, PyTuple>;

/// What became of what was found.
enum Done<'py> {
    /// It is for Python.
    Given(Given<'py>),
    /// There was nothing: it is time to rest.
    Nothing,
    /// It was run here, and its answer is written.
    Answered(Answer<'py>),
    /// It was run here, and nothing is left to do.
    Ended,
}

/// Where an answer goes.
struct Answer<'py> {
    channel: Arc<channel::Channel>,
    key: Py<PyAny>,
    serving: Py<Serving>,
    id: u64,
    /// What is freed once the answer is sent, if that takes long.
    result: Option<Bound<'py, PyAny>>,
}

impl Answer<'_> {
    /// What is to be done if it could not be sent.
    fn sent(&self, py: Python<'_>, sent: Result<Sent, SendError>) -> PyResult<()> {
        match sent {
            Err(error @ (SendError::Oversize { .. } | SendError::Backlog { .. })) => self
                .serving
                .get()
                .fail(py, &self.key, self.id, unsent(error)),
            // A violation is remembered: the next look at the channel finds it.
            _ => Ok(()),
        }
    }
}

impl Poller {
    /// Never held while waiting for the GIL.
    fn lock(&self) -> MutexGuard<'_, poller::Poller<Client>> {
        lock(&self.inner)
    }

    /// Takes frames, and runs those that need nothing of Python but a function, until one needs more.
    #[inline]
    fn take<'py>(&self, py: Python<'py>, mut found: Found) -> PyResult<Option<Given<'py>>> {
        let (mut body, mut written) = (Scratch::new(), Written::new());
        loop {
            let answer = match self.run(py, found, &mut body, &mut written)? {
                Done::Given(frame) => return Ok(Some(frame)),
                Done::Nothing => return Ok(None),
                Done::Ended => {
                    found = py.detach(|| self.lock().find());
                    continue;
                }
                Done::Answered(answer) => answer,
            };
            let (channel, id) = (&answer.channel, answer.id);
            if answer.result.is_none() {
                let sent;
                (sent, found) = py.detach(|| {
                    let sent =
                        Payload::copied(&written.body).send(channel, self.answer, id, Role::Goes);
                    (sent, self.find_after(&sent))
                });
                answer.sent(py, sent)?;
            } else {
                let mut payload = Payload::of_written(&mut written);
                let sent = py.detach(|| payload.send(channel, self.answer, id, Role::Goes));
                answer.sent(py, sent)?;
                drop((payload, answer));
                found = py.detach(|| self.find_after(&sent));
            }
        }
    }

    /// Looks for the next frame, after an answer.
    #[inline]
    fn find_after(&self, sent: &Result<Sent, SendError>) -> Found {
        let mut inner = self.lock();
        if let Ok(Sent::Rang) = sent {
            inner.rang();
        }
        inner.find()
    }

    /// Takes the frame that was found, and runs it if it can be run here.
    #[inline]
    fn run<'py>(
        &self,
        py: Python<'py>,
        found: Found,
        body: &mut Vec<u8>,
        written: &mut Written,
    ) -> PyResult<Done<'py>> {
        let inner = self.lock();
        let (index, violation) = match found {
            Found::Nothing => return Ok(Done::Nothing),
            Found::Frame(index) => (index, None),
            Found::Broken(index, violation) => (index, Some(violation)),
        };
        let (Some(client), Some(channel)) = (inner.key(index), inner.channel(index)) else {
            return Ok(Done::Nothing);
        };
        let key = client.key.clone_ref(py);
        let serving = client.serving.as_ref().map(|serving| serving.clone_ref(py));
        let channel = Arc::clone(channel);
        drop(inner);
        let mut receiver = channel.receiver();
        let header = match violation.map_or_else(|| receiver.peek(), Err) {
            Ok(Some(header)) => header,
            Ok(None) => return Ok(Done::Nothing),
            Err(violation) => {
                let error = ChannelError::new_err(violation.to_string());
                return self.broken(key.into_bound(py), error);
            }
        };
        let arrival = Arrival::take(py, &channel, &mut receiver, header, body);
        drop(receiver);
        let (opcode, id, mut payload) = match arrival {
            Ok(Arrival::Short { opcode, id }) => (opcode, id, None),
            Ok(Arrival::Whole(frame)) => {
                let (opcode, id) = (frame.opcode, frame.id);
                match frame.open(py, channel.max_frame()) {
                    Ok(payload) => (opcode, id, Some(payload)),
                    Err(error) => return self.not_taken(key.into_bound(py), error),
                }
            }
            Err(error) => return self.not_taken(key.into_bound(py), error),
        };
        if let Some(serving) = serving {
            let calls = serving.get();
            let ran = calls.run(py, &key, opcode, id, body, &mut payload, written)?;
            let (result, encoded) = match ran {
                Ran::Foreign => return give(py, key, opcode, id, payload, body),
                Ran::Done => return Ok(Done::Ended),
                Ran::Written(result) => (result, None),
                Ran::Encoded(body) => (None, Some(body)),
            };
            let answer = Answer {
                channel,
                key,
                serving,
                id,
                result,
            };
            let Some(body) = encoded else {
                return Ok(Done::Answered(answer));
            };
            let mut payload = Payload::new(&body)?;
            let sent = py.detach(|| payload.send(&answer.channel, self.answer, id, Role::Goes));
            if let Ok(Sent::Rang) = sent {
                self.lock().rang();
            }
            answer.sent(py, sent)?;
            return Ok(Done::Ended);
        }
        give(py, key, opcode, id, payload, body)
    }

    /// What comes of a frame that could not be taken.
    #[cold]
    fn not_taken<'py>(&self, key: Bound<'py, PyAny>, error: PyErr) -> PyResult<Done<'py>> {
        if error.is_instance_of::<ChannelError>(key.py()) {
            return self.broken(key, error);
        }
        Err(error)
    }

    /// What comes in the place of a frame if a channel's peer broke the rules.
    fn broken<'py>(&self, key: Bound<'py, PyAny>, error: PyErr) -> PyResult<Done<'py>> {
        let py = key.py();
        let report = (key, self.fault, 0u64, error.into_value(py));
        Ok(Done::Given(report.into_pyobject(py)?))
    }
}

/// What Python is given of a frame: its payload, or that in `body` if there is no object for it yet.
#[inline]
fn give<'py>(
    py: Python<'py>,
    key: Py<PyAny>,
    opcode: u32,
    id: u64,
    payload: Option<Body<'py>>,
    body: &[u8],
) -> PyResult<Done<'py>> {
    let payload = match payload {
        None => PyBytes::new(py, body).into_any(),
        Some(payload) => payload.into_object(py)?,
    };
    Ok(Done::Given((key, opcode, id, payload).into_pyobject(py)?))
}

#[pymethods]
impl Poller {
    #[new]
    #[pyo3(signature = (*, spin, fault, answer))]
    fn new(spin: f64, fault: u64, answer: u32) -> Self {
        Poller {
            fault,
            answer,
            inner: Mutex::new(poller::Poller::new((spin * 1e3) as u64)),
        }
    }

    /// What the garbage collector asks: a key may lead back to our holder, as at a server that was never closed.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // A lock that is held now is held by a user of ours: nothing is garbage then.
        let Ok(inner) = self.inner.try_lock() else {
            return Ok(());
        };
        inner.keys().try_for_each(|client| {
            visit.call(&client.key)?;
            client
                .serving
                .as_ref()
                .map_or(Ok(()), |serving| visit.call(serving))
        })
    }

    /// The cycle is broken here.
    fn __clear__(&self) {
        let fresh = poller::Poller::new(0);
        let before = std::mem::replace(&mut *self.lock(), fresh);
        drop(before); // After the lock: a key that goes may come back to us.
    }

    /// Adds a channel; `key` comes back with each of its frames, but for those that `serving` runs. Returns its number.
    fn add(
        &self,
        channel: &Channel,
        key: Py<PyAny>,
        serving: Option<Py<Serving>>,
    ) -> PyResult<usize> {
        let channel = channel.open()?;
        Ok(self.lock().add(channel, Client { key, serving }))
    }

    /// Forgets the channel of this number.
    fn remove(&self, index: usize) {
        let key = self.lock().remove(index);
        drop(key);
    }

    /// The bell of this channel rang. False if it will never ring again: the peer has ended it.
    fn wake(&self, index: usize) -> bool {
        self.lock().wake(index)
    }

    /// A frame is about to come, or a packet out of `socket`: the next look waits for it as long as a sleep would cost.
    #[pyo3(signature = (socket=None, /))]
    fn expect(&self, socket: Option<i32>) {
        let expected = socket.map_or(Expected::Frame, Expected::Packet);
        self.lock().expect(expected);
    }

    /// Whether to look for more than what is there.
    fn set_spinning(&self, spinning: bool) {
        self.lock().spinning = spinning;
    }

    /// The next frame as (key, opcode, id, payload), or None when it is time to rest. Those that need nothing of Python but
    /// a function are run and answered on the way.
    ///
    /// A channel whose peer broke the rules comes as (key, fault, 0, ChannelError).
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let found = py.detach(|| self.lock().find());
        self.take(py, found)
    }

    /// Sends a frame on `channel`, then does as `next`. After a large frame it returns True at
    /// once: the caller may have something to do while the peer reads it, and calls `next` then.
    fn send_next<'py>(
        &self,
        py: Python<'py>,
        channel: &Channel,
        opcode: u32,
        id: u64,
        payload: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        // A closed channel is one whose client has just gone: there are others.
        let Ok(channel) = channel.open() else {
            return Ok(self.next(py)?.map(Bound::into_any));
        };
        let mut payload = Payload::new(payload)?;
        let large = payload.is_large();
        let found = py.detach(|| match payload.send(&channel, opcode, id, Role::Goes) {
            Err(error @ (SendError::Oversize { .. } | SendError::Backlog { .. })) => Err(error),
            sent => {
                // A violation is remembered: the next look at the channel finds it.
                Ok((!large).then(|| self.find_after(&sent)))
            }
        });
        match found.map_err(unsent)? {
            Some(found) => Ok(self.take(py, found)?.map(Bound::into_any)),
            None => Ok(Some(PyBool::new(py, true).to_owned().into_any())),
        }
    }

    /// Before the loop goes on: true if a bell will ring for the next frame, false if the
    /// loop is to call again on its next turn.
    fn rest(&self) -> bool {
        self.lock().rest()
    }
}
