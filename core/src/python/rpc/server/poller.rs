//! `Poller`: receiver of the frames of many channels.

use crate::connection::channel::{self, FrameRole, SendError, SendOutcome};
use crate::connection::poller::{self, Expected, PollResult};
use crate::python::codec::msgpack::outgoing_body::OutgoingBody;
use crate::python::rpc::body::Body;
use crate::python::rpc::channel::Channel;
use crate::python::rpc::incoming::ReceivedFrame;
use crate::python::rpc::payload::Payload;
use crate::python::rpc::server::client_requests::{ClientRequests, RequestOutcome};
use crate::python::support::errors::{ChannelError, send_error};
use crate::python::support::scratch::Scratch;
use crate::sync::lock;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyTuple};
use std::sync::{Arc, Mutex, MutexGuard};

/// Receiver of a server: returns the next frame of any of its channels.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Poller {
    inner: Mutex<poller::Poller<Client>>,
    /// The number that replaces the opcode if a peer broke the rules.
    fault: u64,
    /// Opcode of a plain reply.
    reply_opcode: u32,
}

/// The client of a channel.
struct Client {
    /// The object that identifies the client: it is returned with each of its frames.
    key: Py<PyAny>,
    /// The requests of the client that the core may run.
    requests: Option<Py<ClientRequests>>,
}

/// A frame as a tuple: (key, opcode, id, payload).
type FrameTuple<'py> = Bound<'py, PyTuple>;

/// The outcome of a poll of the channels.
enum PollOutcome<'py> {
    /// A frame that Python has to handle.
    Frame(FrameTuple<'py>),
    /// There is no frame, and it is time to rest.
    Nothing,
    /// The core has run a request, and its reply is written.
    Reply(PendingReply<'py>),
    /// The core has run a request, and nothing is left to do.
    Finished,
}

/// Destination of a reply.
struct PendingReply<'py> {
    channel: Arc<channel::Channel>,
    key: Py<PyAny>,
    requests: Py<ClientRequests>,
    id: u64,
    /// A result that is freed once the reply is sent, because that takes long.
    result: Option<Bound<'py, PyAny>>,
}

impl PendingReply<'_> {
    /// Sends an error as the reply if the reply itself is too large to be sent, or too many bytes wait. Ignores any
    /// other error: the next poll reports a violation. Raises what the function `fail` raises.
    fn check_sent(&self, py: Python<'_>, sent: Result<SendOutcome, SendError>) -> PyResult<()> {
        match sent {
            Err(error @ (SendError::Oversize { .. } | SendError::Backlog { .. })) => self
                .requests
                .get()
                .fail(py, &self.key, self.id, send_error(error)),
            // The channel remembers a violation, which the next poll finds.
            _ => Ok(()),
        }
    }
}

impl Poller {
    /// Locks the channels. The caller must not wait for the GIL, or run Python code, while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, poller::Poller<Client>> {
        lock(&self.inner)
    }

    /// Receives frames from the found one on, and runs the requests that the core may run. Returns the first frame that
    /// Python has to handle; None when it is time to rest. Raises what Python's functions for a reply raise.
    #[inline]
    fn receive<'py>(
        &self,
        py: Python<'py>,
        mut found: PollResult,
    ) -> PyResult<Option<FrameTuple<'py>>> {
        let (mut body, mut reply_body) = (Scratch::new(), OutgoingBody::new());
        loop {
            let reply = match self.run(py, found, &mut body, &mut reply_body)? {
                PollOutcome::Frame(frame) => return Ok(Some(frame)),
                PollOutcome::Nothing => return Ok(None),
                PollOutcome::Finished => {
                    found = py.detach(|| self.lock().poll());
                    continue;
                }
                PollOutcome::Reply(reply) => reply,
            };
            let (channel, id) = (&reply.channel, reply.id);
            if reply.result.is_none() {
                let sent;
                (sent, found) = py.detach(|| {
                    let mut payload = Payload::copied(&reply_body.bytes);
                    let sent = payload.send(channel, self.reply_opcode, id, FrameRole::Other);
                    (sent, self.poll_after(&sent))
                });
                reply.check_sent(py, sent)?;
            } else {
                let mut payload = Payload::from_outgoing(&mut reply_body);
                let sent =
                    py.detach(|| payload.send(channel, self.reply_opcode, id, FrameRole::Other));
                reply.check_sent(py, sent)?;
                drop((payload, reply));
                found = py.detach(|| self.poll_after(&sent));
            }
        }
    }

    /// Polls for the next frame, after a reply was sent: notes first that the peer was woken. Needs no GIL.
    #[inline]
    fn poll_after(&self, sent: &Result<SendOutcome, SendError>) -> PollResult {
        let mut inner = self.lock();
        if let Ok(SendOutcome::PeerWoken) = sent {
            inner.record_peer_woken();
        }
        inner.poll()
    }

    /// Receives the found frame, and runs its request if the core may. Raises what `receive` raises.
    #[inline]
    fn run<'py>(
        &self,
        py: Python<'py>,
        found: PollResult,
        body: &mut Vec<u8>,
        reply_body: &mut OutgoingBody,
    ) -> PyResult<PollOutcome<'py>> {
        let inner = self.lock();
        let (index, violation) = match found {
            PollResult::Nothing => return Ok(PollOutcome::Nothing),
            PollResult::Frame(index) => (index, None),
            PollResult::Broken(index, violation) => (index, Some(violation)),
        };
        let (Some(client), Some(channel)) = (inner.key(index), inner.channel(index)) else {
            return Ok(PollOutcome::Nothing);
        };
        let key = client.key.clone_ref(py);
        let requests = client.requests.as_ref();
        let requests = requests.map(|requests| requests.clone_ref(py));
        let channel = Arc::clone(channel);
        drop(inner);
        let mut receiver = channel.receiver();
        let header = match violation.map_or_else(|| receiver.peek(), Err) {
            Ok(Some(header)) => header,
            Ok(None) => return Ok(PollOutcome::Nothing),
            Err(violation) => {
                let error = ChannelError::new_err(violation.to_string());
                return self.report_fault(key.into_bound(py), error);
            }
        };
        let frame = ReceivedFrame::receive(py, &channel, &mut receiver, header, body);
        drop(receiver);
        let (opcode, id, mut payload) = match frame {
            Ok(ReceivedFrame::Short { opcode, id }) => (opcode, id, None),
            Ok(ReceivedFrame::Whole(frame)) => {
                let (opcode, id) = (frame.opcode, frame.id);
                match frame.open(py, channel.max_frame()) {
                    Ok(payload) => (opcode, id, Some(payload)),
                    Err(error) => return self.receive_failed(key.into_bound(py), error),
                }
            }
            Err(error) => return self.receive_failed(key.into_bound(py), error),
        };
        let Some(requests) = requests else {
            return to_frame_tuple(py, key, opcode, id, payload, body);
        };
        let outcome = requests
            .get()
            .run(py, &key, opcode, id, body, &mut payload, reply_body)?;
        let (result, encoded) = match outcome {
            RequestOutcome::Unsupported => {
                return to_frame_tuple(py, key, opcode, id, payload, body);
            }
            RequestOutcome::Finished => return Ok(PollOutcome::Finished),
            RequestOutcome::Written(result) => (result, None),
            RequestOutcome::Encoded(body) => (None, Some(body)),
        };
        let reply = PendingReply {
            channel,
            key,
            requests,
            id,
            result,
        };
        let Some(body) = encoded else {
            return Ok(PollOutcome::Reply(reply));
        };
        let mut payload = Payload::new(&body)?;
        let sent =
            py.detach(|| payload.send(&reply.channel, self.reply_opcode, id, FrameRole::Other));
        if let Ok(SendOutcome::PeerWoken) = sent {
            self.lock().record_peer_woken();
        }
        reply.check_sent(py, sent)?;
        Ok(PollOutcome::Finished)
    }

    /// Returns the outcome for a frame that could not be received. Raises an error that is not the fault of the peer.
    #[cold]
    fn receive_failed<'py>(
        &self,
        key: Bound<'py, PyAny>,
        error: PyErr,
    ) -> PyResult<PollOutcome<'py>> {
        if error.is_instance_of::<ChannelError>(key.py()) {
            return self.report_fault(key, error);
        }
        Err(error)
    }

    /// Returns the frame (key, fault, 0, error) for a channel whose peer broke the rules.
    fn report_fault<'py>(
        &self,
        key: Bound<'py, PyAny>,
        error: PyErr,
    ) -> PyResult<PollOutcome<'py>> {
        let py = key.py();
        let report = (key, self.fault, 0u64, error.into_value(py));
        Ok(PollOutcome::Frame(report.into_pyobject(py)?))
    }
}

/// Returns a frame as (key, opcode, id, payload). The payload is in `body` if there is no object for it.
#[inline]
fn to_frame_tuple<'py>(
    py: Python<'py>,
    key: Py<PyAny>,
    opcode: u32,
    id: u64,
    payload: Option<Body<'py>>,
    body: &[u8],
) -> PyResult<PollOutcome<'py>> {
    let payload = match payload {
        None => PyBytes::new(py, body).into_any(),
        Some(payload) => payload.into_object(py)?,
    };
    let frame = (key, opcode, id, payload).into_pyobject(py)?;
    Ok(PollOutcome::Frame(frame))
}

#[pymethods]
impl Poller {
    #[new]
    #[pyo3(signature = (*, spin, fault, reply_opcode))]
    fn new(spin: f64, fault: u64, reply_opcode: u32) -> Self {
        Poller {
            fault,
            reply_opcode,
            inner: Mutex::new(poller::Poller::new((spin * 1e3) as u64)),
        }
    }

    /// Visits the keys for the garbage collector: a key may lead back to the poller's owner, as at a server that was
    /// never closed.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // If the lock is held, a user of the poller holds it, and nothing here is garbage.
        let Ok(inner) = self.inner.try_lock() else {
            return Ok(());
        };
        inner.keys().try_for_each(|client| {
            visit.call(&client.key)?;
            let requests = client.requests.as_ref();
            requests.map_or(Ok(()), |requests| visit.call(requests))
        })
    }

    /// Breaks reference cycles for the garbage collector.
    fn __clear__(&self) {
        let fresh = poller::Poller::new(0);
        let before = std::mem::replace(&mut *self.lock(), fresh);
        drop(before); // After the lock, because the destructor of a key may use this poller.
    }

    /// Adds a channel, and returns its number. `key` is returned with each of its frames, except requests that the core
    /// runs. Raises ChannelError if the channel is closed.
    fn add(
        &self,
        channel: &Channel,
        key: Py<PyAny>,
        requests: Option<Py<ClientRequests>>,
    ) -> PyResult<usize> {
        let channel = channel.open()?;
        Ok(self.lock().add(channel, Client { key, requests }))
    }

    /// Removes the channel of this number, and does not close it.
    fn remove(&self, index: usize) {
        let key = self.lock().remove(index);
        drop(key);
    }

    /// Handles a ring of the doorbell of the channel of this number. Returns False if the doorbell will never ring
    /// again, because the peer has closed it.
    fn wake(&self, index: usize) -> bool {
        self.lock().wake(index)
    }

    /// Announces that a frame is about to arrive, or a packet from `socket`. The next poll spins for it for as long as
    /// a sleep would cost.
    #[pyo3(signature = (socket=None, /))]
    fn expect(&self, socket: Option<i32>) {
        let expected = socket.map_or(Expected::Frame, Expected::Packet);
        self.lock().expect(expected);
    }

    /// Sets whether the poller spins when no frame is there.
    fn set_spinning(&self, spinning: bool) {
        self.lock().spinning = spinning;
    }

    /// Returns the next frame as (key, opcode, id, payload); None when it is time to rest. Meanwhile the core runs the
    /// requests that it may run, and sends their replies.
    ///
    /// Returns (key, fault, 0, ChannelError) for a channel whose peer broke the rules.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let found = py.detach(|| self.lock().poll());
        self.receive(py, found)
    }

    /// Sends a frame on `channel`, unless it is closed, then does what `next` does. Returns True at once after a large
    /// frame: the caller may have something to do while the peer reads the frame, and then calls `next`. Raises
    /// Oversize or Backlog if the frame cannot be sent.
    fn send_next<'py>(
        &self,
        py: Python<'py>,
        channel: &Channel,
        opcode: u32,
        id: u64,
        payload: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        // A channel is closed if its client has just left; there are others.
        let Ok(channel) = channel.open() else {
            return Ok(self.next(py)?.map(Bound::into_any));
        };
        let mut payload = Payload::new(payload)?;
        let is_large = payload.is_large();
        let found = py.detach(
            || match payload.send(&channel, opcode, id, FrameRole::Other) {
                Err(error @ (SendError::Oversize { .. } | SendError::Backlog { .. })) => Err(error),
                sent => {
                    // The channel remembers a violation, which the next poll finds.
                    Ok((!is_large).then(|| self.poll_after(&sent)))
                }
            },
        );
        match found.map_err(send_error)? {
            Some(found) => Ok(self.receive(py, found)?.map(Bound::into_any)),
            None => Ok(Some(PyBool::new(py, true).to_owned().into_any())),
        }
    }

    /// Prepares the channels for a pause of polling. Returns True if a doorbell will ring for the next frame, False if
    /// the event loop must call again in its next iteration.
    fn rest(&self) -> bool {
        self.lock().park_all()
    }
}
