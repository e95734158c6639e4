//! `ThreadCalls`: the calls in flight of threads that share a channel, and `PendingCall`: one of them.
//!
//! Dropping a [`PendingCall`] cancels the call, for example if an exception has kept the thread from closing it.

use crate::connection::channel::{self, FrameRole};
use crate::python::rpc::channel::Channel;
use crate::python::rpc::client::shared_channel::{FrameRules, SharedChannel};
use crate::python::rpc::incoming::ReceivedFrame;
use crate::python::rpc::payload::Payload;
use crate::python::rpc::reply::{Exchange, Reply};
use crate::python::support::errors::send_error;
use crate::python::support::scratch::Scratch;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::Arc;
use std::time::Duration;

/// Converts seconds to a duration: a negative number or NaN to zero, and too many to the longest duration.
fn seconds(limit: f64) -> Duration {
    Duration::try_from_secs_f64(limit.max(0.0)).unwrap_or(Duration::MAX)
}

/// Calls in flight of the threads that share a channel.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct ThreadCalls(Arc<SharedChannel>);

#[pymethods]
impl ThreadCalls {
    /// Makes the calls of a channel. `replies` are the opcodes that end a call. `others` are the low eight bits of the
    /// other opcodes that a server sends, except items; `requests` those of the opcodes that begin a call. `cancel` and
    /// `cancel_body` are the frame that cancels a call. `window` is the number of bytes of items that may wait, each of
    /// which counts for `overhead` more bytes. `check_interval` is the time in seconds after which a sleeping thread
    /// returns, so that its caller can check that the server is alive.
    #[new]
    #[pyo3(signature = (channel, *, replies, others, item, requests, cancel, cancel_body, window, overhead, check_interval))]
    #[allow(clippy::too_many_arguments)] // By keyword alone, in one place.
    fn new(
        channel: Py<Channel>,
        replies: Vec<u32>,
        others: Vec<u8>,
        item: u32,
        requests: Vec<u8>,
        cancel: u32,
        cancel_body: Vec<u8>,
        window: usize,
        overhead: usize,
        check_interval: f64,
    ) -> PyResult<Self> {
        let rules = FrameRules {
            replies,
            others,
            item,
            requests,
            cancel,
            cancel_body,
            window,
            overhead,
            check_interval: seconds(check_interval),
        };
        Ok(ThreadCalls(Arc::new(SharedChannel::new(channel, rules)?)))
    }

    /// Returns the number of calls in flight, except a call for whose reply `exchange` is spinning.
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Sends a request, and spins for the reply for as long as that is worthwhile. Returns only the body of a reply
    /// with the channel's `reply_opcode`, and otherwise the call in flight.
    fn exchange<'py>(
        &self,
        py: Python<'py>,
        opcode: u32,
        id: u64,
        payload: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut body = Scratch::new();
        let payload = Payload::new(payload)?;
        let reply = Exchange::exchange(self, py, opcode, id, payload, &mut body)?;
        reply.into_object(py, &body)
    }

    /// Sends a request, and returns the call in flight. Raises the error of a request that was not sent.
    fn begin(
        &self,
        py: Python<'_>,
        opcode: u32,
        id: u64,
        payload: &Bound<'_, PyAny>,
    ) -> PyResult<PendingCall> {
        let channel = self.0.open()?;
        let payload = Payload::new(payload)?;
        self.send_registered(py, &channel, opcode, id, payload)
    }

    /// Ends a call for which no thread waits, and cancels the call unless the server has replied or the request was not
    /// sent.
    fn close(&self, id: u64) {
        self.0.close_call(id);
    }

    /// Receives for all threads the frames that are there, then the frames that arrive first within `limit` seconds and
    /// `check_interval`, and runs signal handlers. Returns False at once if another thread leads.
    fn drive(&self, py: Python<'_>, limit: f64) -> PyResult<bool> {
        self.0.drive(py, seconds(limit))
    }

    /// Wakes all waiting threads, each of which returns without a frame.
    fn interrupt(&self) {
        self.0.interrupt();
    }
}

impl Exchange for ThreadCalls {
    /// Returns the call in flight, a [`PendingCall`], for anything but a plain reply.
    #[inline]
    fn exchange<'py>(
        &self,
        py: Python<'py>,
        opcode: u32,
        id: u64,
        mut payload: Payload<'_>,
        body: &mut Vec<u8>,
    ) -> PyResult<Reply<'py>> {
        let shared = &self.0;
        let channel = shared.open()?;
        let pending = if let Some(leader) = shared.try_lead() {
            let arrival = py.detach(|| payload.exchange(&channel, opcode, id));
            let (has_arrived, _) = arrival.map_err(send_error)?;
            let frame = if has_arrived {
                shared.receive(py, &channel, Some(id), body)?
            } else {
                None
            };
            let plain = shared.reply_opcode();
            match frame {
                Some(ReceivedFrame::Short { opcode, .. }) if opcode == plain => {
                    return Ok(Reply::Short);
                }
                Some(ReceivedFrame::Whole(frame)) if frame.opcode == plain => {
                    drop(leader);
                    return frame.open(py, shared.max_frame).map(Reply::Plain);
                }
                frame => {
                    // Before this thread steps down, so that the next leader finds the call.
                    shared.register(id);
                    if let Some(frame) = frame {
                        shared.deliver(py, frame.into_frame(py, body))?;
                    }
                    drop(leader);
                    self.pending(id)
                }
            }
        } else {
            self.send_registered(py, &channel, opcode, id, payload)?
        };
        Ok(Reply::Other(Some(Bound::new(py, pending)?.into_any())))
    }
}

impl ThreadCalls {
    /// Returns the handle of a registered call, whose drop ends the call.
    fn pending(&self, id: u64) -> PendingCall {
        PendingCall {
            shared: self.0.clone(),
            id,
        }
    }

    /// Registers a call, sends its request, and returns its handle. Raises the error of a request that was not sent,
    /// and then leaves no call registered.
    fn send_registered(
        &self,
        py: Python<'_>,
        channel: &channel::Channel,
        opcode: u32,
        id: u64,
        mut payload: Payload<'_>,
    ) -> PyResult<PendingCall> {
        // Before it is sent, because the leader may receive the reply at once.
        self.0.register(id);
        let sent = py.detach(|| payload.send_or_keep(channel, opcode, id, FrameRole::Begin));
        if let Err(error) = sent {
            self.0.unregister(id);
            return Err(send_error(error));
        }
        Ok(self.pending(id))
    }
}

/// A call in flight. Dropping it closes it.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct PendingCall {
    shared: Arc<SharedChannel>,
    /// The call's number on its connection.
    #[pyo3(get)]
    id: u64,
}

#[pymethods]
impl PendingCall {
    /// Waits for the next frame of the call for at most `limit` seconds, and returns it as (opcode, id, body). This
    /// thread receives for all threads if no other one does.
    ///
    /// Returns None if no frame came, if the call was interrupted, or if it is time to check that the server is alive.
    /// Raises what a signal's handler raises; the next call returns the frame then. Raises ChannelError once the
    /// channel or the call is closed.
    fn next<'py>(&self, py: Python<'py>, limit: f64) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let frame = self.shared.next_frame(py, self.id, seconds(limit));
        if !matches!(frame, Ok(None)) {
            self.shared.wake_next(); // This thread may have been woken to lead without having led.
        }
        frame?
            .map(|frame| frame.into_tuple(py, self.shared.max_frame))
            .transpose()
    }

    /// Takes the request back. Returns True if no part of the request was sent, so that the server never runs the call,
    /// and `close` sends no cancel. Raises ChannelError once the channel is closed.
    fn take_back(&self) -> PyResult<bool> {
        self.shared.take_back(self.id)
    }

    /// Ends the call, and cancels it unless the server has replied or the request was not sent. Idempotent.
    fn close(&self) {
        self.shared.close_call(self.id);
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        self.shared.close_call(self.id);
    }
}
