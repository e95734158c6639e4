//! The client's side of a channel: requests, and their replies.

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
    /// The time, in nanoseconds, at which the current yield budget of the event loop began.
    budget_start: AtomicU64,
    /// The pipelined calls of an event loop.
    pub(crate) pipelined: PipelinedCalls,
}

impl Requests {
    /// Returns the state of a channel without calls. With `SleepMode::Loop`, this thread is the thread of the loop.
    pub(crate) fn new(sleep: SleepMode, reply_opcode: u32) -> Self {
        Requests {
            sleep,
            reply_opcode,
            budget_start: AtomicU64::new(clock::now()),
            pipelined: PipelinedCalls::new(),
        }
    }

    /// Returns true if the yield budget of the event loop is spent, and then begins the next budget. Always false for
    /// the channel of threads.
    #[inline]
    fn must_yield(&self, now: u64) -> bool {
        // Relaxed: only the loop's own thread uses it.
        let is_over = now.saturating_sub(self.budget_start.load(Ordering::Relaxed)) > SLICE;
        if is_over && self.sleep == SleepMode::Loop {
            self.budget_start.store(now, Ordering::Relaxed);
            return true;
        }
        false
    }

    /// Sends a request, and spins for the reply for as long as that is worthwhile.
    ///
    /// Returns any frame but a plain reply as (opcode, id, payload); also a plain reply if the task must yield to the
    /// event loop before it gets the reply. With `pipelines`, returns `Pipelined` where the task itself should yield,
    /// so that the replies of several tasks are received together.
    ///
    /// In another thread than the loop's this receives no frame: the caller may notice the wrong thread and raise, and
    /// the loop would miss the frame. Raises what `Exchange::exchange` raises: then the call is not pipelined.
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
        match self.receive_for(py, channel, id, body, true)? {
            Some(frame) if frame.id() == id && self.must_yield(now) => {
                if pipelines {
                    self.pipelined.add(id, EarlyReply::new(frame, body));
                    return Ok(Reply::Pipelined);
                }
                other_reply(py, channel, frame, body)
            }
            frame => self.reply(py, channel, id, frame, body),
        }
    }

    /// Returns the reply of a pipelined call, and forgets the call. Spins for a reply only if the caller has not spun
    /// before. `channel` is None once the channel is closed: then only a reply that has arrived is returned. Raises
    /// ChannelError if the peer broke the rules.
    #[inline]
    pub(crate) fn pipelined_reply<'py>(
        &self,
        py: Python<'py>,
        channel: Option<&channel::Channel>,
        id: u64,
        body: &mut Vec<u8>,
    ) -> PyResult<Reply<'py>> {
        let early = self.pipelined.remove(id);
        // Closing has notified all waiters of the reason.
        let Some(channel) = channel else {
            let frame = early.and_then(|early| early.into_frame(py, id));
            let frame = frame.map(|frame| frame.into_tuple(py, usize::MAX));
            return Ok(Reply::Other(frame.transpose()?.map(Bound::into_any)));
        };
        let spins = matches!(early, Some(EarlyReply::Sent));
        let frame = match early.and_then(|early| early.into_received(id, body)) {
            None => self.receive_for(py, channel, id, body, spins)?,
            frame => frame,
        };
        self.reply(py, channel, id, frame, body)
    }

    /// Forgets a pipelined call whose task no longer waits. Returns true if the reply had arrived.
    pub(crate) fn forget(&self, id: u64) -> bool {
        self.pipelined
            .remove(id)
            .is_some_and(|early| early.has_arrived())
    }

    /// Receives frames up to a frame of the call `id` or of a call that is not pipelined, and returns it, with the
    /// payload of a short frame in `body`. Returns None if there is none. With `spins`, spins for the frame for as long
    /// as that is worthwhile. Keeps frames of other pipelined calls for these. Raises ChannelError if the peer broke
    /// the rules.
    #[inline]
    fn receive_for(
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

    /// Converts a frame, also of another call, or none, to the reply of the call `id`.
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

/// Returns the reply that holds a frame as (opcode, id, payload).
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
