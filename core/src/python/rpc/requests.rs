//! The client's side of a channel: requests, and the search for their replies.

use crate::clock;
use crate::connection::channel::{self, FrameRole, SLICE, SendOutcome, SleepMode};
use crate::python::rpc::incoming::ReceivedFrame;
use crate::python::rpc::payload::Payload;
use crate::python::rpc::pipelining::{EarlyReply, PipelinedCalls};
use crate::python::rpc::reply::Reply;
use crate::python::support::errors::{send_error, violation_error};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// State of a channel that its requests need.
pub(crate) struct Requests {
    sleep: SleepMode,
    /// Opcode of the frames whose payload alone is the reply.
    pub(crate) reply_opcode: u32,
    /// The instant at which the event loop last turned, or at which this was made, in nanoseconds.
    last_turn: AtomicU64,
    /// The calls of an event loop whose tasks let the loop turn.
    pub(crate) pipelined: PipelinedCalls,
}

impl Requests {
    pub(crate) fn new(sleep: SleepMode, reply_opcode: u32) -> Self {
        Requests {
            sleep,
            reply_opcode,
            last_turn: AtomicU64::new(clock::now()),
            pipelined: PipelinedCalls::new(),
        }
    }

    /// Returns true if the event loop has not turned for too long. The next slice of time begins then.
    #[inline]
    fn must_turn(&self, now: u64) -> bool {
        // Relaxed: only the loop's own thread uses it.
        let is_over = now.saturating_sub(self.last_turn.load(Ordering::Relaxed)) > SLICE;
        if is_over && self.sleep == SleepMode::Loop {
            self.last_turn.store(now, Ordering::Relaxed);
            return true;
        }
        false
    }

    /// Sends a request, and looks for its reply for as long as that pays.
    ///
    /// Anything but a plain reply is returned as a frame, (opcode, id, payload); so is a plain reply if the loop has to
    /// turn before the caller gets it. With `pipelines`, the task itself lets the loop turn, and calls of other tasks
    /// in flight are looked for together.
    ///
    /// A task in another thread than the loop's takes no frame: the caller may find that it is in the wrong place and
    /// raise, and a call that the loop is about to wait for would miss the frame.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)] // In two places.
    pub(crate) fn exchange<'py>(
        &self,
        py: Python<'py>,
        channel: &channel::Channel,
        opcode: u32,
        id: u64,
        mut payload: Payload<'_>,
        body: &mut Vec<u8>,
        pipelines: bool,
    ) -> PyResult<Reply<'py>> {
        if self.sleep == SleepMode::Loop && !self.pipelined.is_home() {
            let sent = py.detach(|| payload.send_or_keep(channel, opcode, id, FrameRole::Begin));
            return sent.map(|_| Reply::Other(None)).map_err(send_error);
        }
        if pipelines && !self.pipelined.is_empty() && channel.is_on_our_cpu() && !payload.is_large()
        {
            self.pipelined.add(id, EarlyReply::Sent);
            let sent = py.detach(|| payload.send_or_keep(channel, opcode, id, FrameRole::Begin));
            if let Err(error) = sent {
                self.forget(id);
                return Err(send_error(error));
            }
            return Ok(Reply::Pipelined);
        }
        let arrival = py.detach(|| payload.exchange(channel, opcode, id));
        let (has_arrived, now) = arrival.map_err(send_error)?;
        if !has_arrived {
            if pipelines && channel.is_on_our_cpu() {
                self.pipelined.add(id, EarlyReply::Polled);
                return Ok(Reply::Pipelined);
            }
            return Ok(Reply::Other(None));
        }
        match self.seek(py, channel, id, body, true)? {
            Some(frame) if frame.id() == id && self.must_turn(now) => {
                if pipelines {
                    self.pipelined.add(id, EarlyReply::new(frame, body));
                    return Ok(Reply::Pipelined);
                }
                other_reply(py, channel, frame, body)
            }
            frame => self.reply(py, channel, id, frame, body),
        }
    }

    /// Returns the reply of a call whose task has let the loop turn. `channel` is None once it is closed.
    #[inline]
    pub(crate) fn pipelined_reply<'py>(
        &self,
        py: Python<'py>,
        channel: Option<&channel::Channel>,
        id: u64,
        body: &mut Vec<u8>,
    ) -> PyResult<Reply<'py>> {
        let early = self.pipelined.remove(id);
        // Closing has told the reason to all that wait.
        let Some(channel) = channel else {
            let frame = early.and_then(|early| early.into_frame(py, id));
            let frame = frame.map(|frame| frame.into_tuple(py, usize::MAX));
            return Ok(Reply::Other(frame.transpose()?.map(Bound::into_any)));
        };
        let spins = matches!(early, Some(EarlyReply::Sent));
        let frame = match early.and_then(|early| early.into_received(id, body)) {
            None => self.seek(py, channel, id, body, spins)?,
            frame => frame,
        };
        self.reply(py, channel, id, frame, body)
    }

    /// Forgets a pipelined call whose task waits no longer. Returns true if its reply had come.
    pub(crate) fn forget(&self, id: u64) -> bool {
        self.pipelined
            .remove(id)
            .is_some_and(|early| early.has_come())
    }

    /// Receives frames up to one for the call `id`, or for one that is not pipelined; if it `spins`, for as long as it
    /// pays to look. The payload of a short frame is in `body` then.
    #[inline]
    fn seek(
        &self,
        py: Python<'_>,
        channel: &channel::Channel,
        id: u64,
        body: &mut Vec<u8>,
        spins: bool,
    ) -> PyResult<Option<ReceivedFrame>> {
        loop {
            let Some(frame) = ReceivedFrame::next(py, channel, body)? else {
                if !spins {
                    return Ok(None);
                }
                let found = py.detach(|| channel.spin(SendOutcome::PeerAwake, clock::now()));
                if !found.map_err(violation_error)?.0 {
                    return Ok(None);
                }
                continue;
            };
            if frame.id() == id {
                return Ok(Some(frame));
            }
            if let Some(frame) = self.pipelined.keep(frame, body) {
                return Ok(Some(frame));
            }
        }
    }

    /// Returns what a frame means to the call `id`.
    #[inline]
    fn reply<'py>(
        &self,
        py: Python<'py>,
        channel: &channel::Channel,
        id: u64,
        frame: Option<ReceivedFrame>,
        body: &[u8],
    ) -> PyResult<Reply<'py>> {
        match frame {
            Some(frame) if frame.id() == id && frame.opcode() == self.reply_opcode => match frame {
                ReceivedFrame::Short { .. } => Ok(Reply::Short),
                ReceivedFrame::Whole(frame) => {
                    frame.open(py, channel.max_frame()).map(Reply::Plain)
                }
            },
            Some(frame) => other_reply(py, channel, frame, body),
            None => Ok(Reply::Other(None)),
        }
    }
}

/// Returns a frame in Python's form.
#[cold]
fn other_reply<'py>(
    py: Python<'py>,
    channel: &channel::Channel,
    frame: ReceivedFrame,
    body: &[u8],
) -> PyResult<Reply<'py>> {
    let frame = frame.into_frame(py, body);
    let frame = frame.into_tuple(py, channel.max_frame())?;
    Ok(Reply::Other(Some(frame.into_any())))
}
