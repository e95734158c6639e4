//! Pipelined calls: calls of an event loop in flight, whose tasks have yielded to the loop.
//!
//! Where both sides share one CPU, spinning for the reply of one call costs two context switches. So while other calls
//! are in flight, a task sends its request and yields to the event loop for one iteration. Meanwhile the peer works on
//! all calls. The task then finds its reply in the ring, or here, where another task has kept the frame. The call needs
//! no future and no wake-up of the loop.

use crate::python::rpc::incoming::{Frame, ReceivedFrame};
use crate::sync::{lock, this_thread};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The state of a pipelined call.
pub(crate) enum EarlyReply {
    /// The request was sent.
    Sent,
    /// The request was sent, and the caller has spun for the reply without success.
    Polled,
    /// The opcode and the payload of a short frame that has arrived.
    Short(u32, Vec<u8>),
    /// A frame that has arrived.
    Whole(Frame),
}

/// The pipelined calls of a channel, by their ids.
pub(crate) struct PipelinedCalls {
    calls: Mutex<BTreeMap<u64, EarlyReply>>,
    /// Number of these calls, for a check without the lock in each call.
    count: AtomicUsize,
    /// The thread of the loop.
    home: usize,
}

impl PipelinedCalls {
    /// Returns an empty set for an event loop in this thread.
    pub(crate) fn new() -> Self {
        PipelinedCalls {
            calls: Mutex::default(),
            count: AtomicUsize::new(0),
            home: this_thread(),
        }
    }

    /// Returns true in the thread of the loop.
    #[inline]
    pub(crate) fn is_home(&self) -> bool {
        self.home == this_thread()
    }

    /// Returns true if no call is pipelined; only a hint in any thread but the loop's.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: the loop's thread has added the calls, and to all other threads it is a hint.
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Returns true if this call is pipelined.
    #[inline]
    pub(crate) fn contains(&self, id: u64) -> bool {
        !self.is_empty() && lock(&self.calls).contains_key(&id)
    }

    /// Adds a call in this state, or replaces its state.
    #[inline]
    pub(crate) fn add(&self, id: u64, reply: EarlyReply) {
        let mut calls = lock(&self.calls);
        calls.insert(id, reply);
        self.count.store(calls.len(), Ordering::Relaxed);
    }

    /// Removes a call, and returns its state; None if the call is not pipelined.
    #[inline]
    pub(crate) fn remove(&self, id: u64) -> Option<EarlyReply> {
        let mut calls = lock(&self.calls);
        let reply = calls.remove(&id);
        self.count.store(calls.len(), Ordering::Relaxed);
        reply
    }

    /// Keeps a frame for its pipelined call, or drops the frame if the call has one, and returns None. Returns the
    /// frame if its call is not pipelined. `body` has the payload of a short frame.
    #[inline]
    pub(crate) fn keep(&self, frame: ReceivedFrame, body: &[u8]) -> Option<ReceivedFrame> {
        if self.is_empty() {
            return Some(frame);
        }
        let mut calls = lock(&self.calls);
        let Some(reply) = calls.get_mut(&frame.id()) else {
            return Some(frame);
        };
        if !reply.has_arrived() {
            *reply = EarlyReply::new(frame, body);
        }
        None // If a peer replies twice, the first reply counts.
    }
}

impl EarlyReply {
    /// Returns the state of a call for which this frame has arrived.
    #[inline]
    pub(crate) fn new(frame: ReceivedFrame, body: &[u8]) -> Self {
        match frame {
            ReceivedFrame::Short { opcode, .. } => EarlyReply::Short(opcode, body.to_vec()),
            ReceivedFrame::Whole(frame) => EarlyReply::Whole(frame),
        }
    }

    /// Returns true if a frame has arrived.
    pub(crate) fn has_arrived(&self) -> bool {
        matches!(self, EarlyReply::Short(..) | EarlyReply::Whole(_))
    }

    /// Returns the frame that has arrived for the call `id`, if any. The payload of a short frame replaces `body`.
    #[inline]
    pub(crate) fn into_received(self, id: u64, body: &mut Vec<u8>) -> Option<ReceivedFrame> {
        match self {
            EarlyReply::Short(opcode, payload) => {
                *body = payload;
                Some(ReceivedFrame::Short { opcode, id })
            }
            EarlyReply::Whole(frame) => Some(ReceivedFrame::Whole(frame)),
            EarlyReply::Sent | EarlyReply::Polled => None,
        }
    }

    /// Returns the frame that has arrived for the call `id`, if any, with an object for its payload.
    pub(crate) fn into_frame(self, py: Python<'_>, id: u64) -> Option<Frame> {
        let mut body = Vec::new();
        let frame = self.into_received(id, &mut body)?;
        Some(frame.into_frame(py, &body))
    }
}
