//! `SharedChannel`: a channel that several threads use, and their calls in flight.
//!
//! Of the threads that wait, one receives for all: the leader. It leads within one call of this module and never while
//! Python code runs: such code, a signal's handler or a `__del__`, may raise, or make a call on the same channel. So no
//! exception can leave the channel with a leader, and no thread ever waits for itself. The same call receives a frame
//! from the ring and delivers it to its call, so no frame is lost or comes twice.
//!
//! All that runs Python code, such as an allocation that starts the garbage collector, is done by a thread that neither
//! leads nor holds the lock. The lock is taken with the GIL alone, so that a child is never forked while another thread
//! holds it.

use crate::clock;
use crate::connection::channel;
use crate::python::rpc::channel::Channel;
use crate::python::rpc::incoming::{Frame, ReceivedFrame};
use crate::python::support::errors::{ChannelError, violation_error};
use crate::python::support::scratch::Scratch;
use crate::sync::lock;
use crate::wait::parker::Parker;
use pyo3::prelude::*;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The longest time, in nanoseconds, for which a thread leads while frames of other calls arrive. Afterwards the thread
/// runs signal handlers.
const LEADER_SLICE: u64 = 5_000_000;
/// The longest sleep of a thread that does not lead: a signal may arrive just before the thread falls asleep.
const NAP: Duration = Duration::from_millis(100);

/// A call in flight.
struct CallEntry {
    frames: VecDeque<Frame>,
    /// Bytes of credit that its waiting items take.
    used_credit: usize,
    /// True if the reply has arrived, so that there is nothing to cancel.
    is_answered: bool,
    /// Number of interruptions that its thread knows of.
    interruptions: u64,
    parker: Arc<Parker>,
}

#[derive(Default)]
struct State {
    calls: HashMap<u64, CallEntry>,
    /// The calls whose threads sleep until they are woken, in the order in which they fell asleep.
    parked: VecDeque<u64>,
    interruptions: u64,
}

/// The frames of the protocol on top of the channel, and its limits.
pub(crate) struct FrameRules {
    /// Opcodes that end a call.
    pub(crate) replies: Vec<u32>,
    /// Low eight bits of the other opcodes that a server sends.
    pub(crate) others: Vec<u8>,
    pub(crate) item: u32,
    /// Low eight bits of the opcodes that begin a call.
    pub(crate) requests: Vec<u8>,
    pub(crate) cancel: u32,
    /// Body of the frame that cancels a call.
    pub(crate) cancel_body: Vec<u8>,
    /// Bytes of items that may wait for a call.
    pub(crate) window: usize,
    /// Bytes that each item counts for besides its own.
    pub(crate) overhead: usize,
    /// Time after which a sleeping thread returns, so that its caller can check that the server is alive.
    pub(crate) check_interval: Duration,
}

/// A channel that several threads use, and their calls in flight.
pub(crate) struct SharedChannel {
    channel: Py<Channel>,
    pub(crate) max_frame: usize,
    pub(crate) rules: FrameRules,
    /// True while a thread leads.
    has_leader: AtomicBool,
    /// Number of parked threads. The leader reads it without the lock as it steps down.
    parked: AtomicUsize,
    state: Mutex<State>,
}

/// The right to receive, for as long as this lives.
pub(crate) struct Leader<'a>(&'a SharedChannel);

impl Leader<'_> {
    /// Steps down without waking another thread, because this thread checks that the server is alive, and returns. If
    /// this thread does not return, the others notice after a nap.
    ///
    /// A woken thread would lead at the very moment at which this thread finds the connection closed, before this
    /// thread has received the last frames.
    fn step_down_quietly(self) {
        self.0.has_leader.store(false, Ordering::SeqCst);
        std::mem::forget(self);
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        // Sequentially consistent, as the accesses in `wake_next` and `park`: a thread that parks announces this and
        // then checks for a leader; a leader that steps down announces this and then checks for parked threads. One of
        // the two sees the other.
        self.0.has_leader.store(false, Ordering::SeqCst);
        self.0.wake_next();
    }
}

impl SharedChannel {
    /// Returns a shared channel without calls. Raises ChannelError if the channel is closed.
    pub(crate) fn new(channel: Py<Channel>, rules: FrameRules) -> PyResult<Self> {
        let max_frame = channel.get().open()?.max_frame();
        Ok(SharedChannel {
            channel,
            max_frame,
            rules,
            has_leader: AtomicBool::new(false),
            parked: AtomicUsize::new(0),
            state: Mutex::default(),
        })
    }

    /// Locks the calls.
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns the open channel. Raises ChannelError once it is closed.
    pub(crate) fn open(&self) -> PyResult<Arc<channel::Channel>> {
        self.channel.get().open()
    }

    /// Returns the opcode, set in the channel, of plain replies: the payload alone is the reply.
    pub(crate) fn reply_opcode(&self) -> u32 {
        self.channel.get().reply_opcode()
    }

    /// Returns the number of registered calls.
    pub(crate) fn len(&self) -> usize {
        self.lock().calls.len()
    }

    /// Makes this thread the leader. Returns None if another thread leads.
    #[inline]
    pub(crate) fn try_lead(&self) -> Option<Leader<'_>> {
        // Acquire: the last leader's work is visible. Relaxed on failure: this thread receives nothing then.
        self.has_leader
            .compare_exchange(false, true, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
            .then(|| Leader(self))
    }

    /// Wakes a parked thread, if there is no leader.
    #[inline]
    pub(crate) fn wake_next(&self) {
        if self.parked.load(Ordering::SeqCst) != 0 && !self.has_leader.load(Ordering::SeqCst) {
            let state = self.lock();
            if let Some(entry) = state.parked.front().and_then(|id| state.calls.get(id)) {
                entry.parker.wake();
            }
        }
    }

    /// Adds a call, whose frames this keeps from now on.
    pub(crate) fn register(&self, id: u64) {
        let mut state = self.lock();
        let interruptions = state.interruptions;
        let entry = CallEntry {
            frames: VecDeque::new(),
            used_credit: 0,
            is_answered: false,
            interruptions,
            parker: Arc::default(),
        };
        state.calls.insert(id, entry);
    }

    /// Removes a call that was never sent.
    pub(crate) fn unregister(&self, id: u64) {
        let entry = self.lock().calls.remove(&id);
        drop(entry);
    }

    /// Removes and returns the first kept frame of a call; None if there is none. An item no longer counts against the
    /// window of this side then; the caller grants the server new credit. Raises ChannelError if the call is not in
    /// flight.
    fn pop_frame(&self, py: Python<'_>, id: u64) -> PyResult<Option<Frame>> {
        let mut state = self.lock();
        let entry = state.calls.get_mut(&id).ok_or_else(|| no_call_error(id))?;
        let frame = entry.frames.pop_front();
        if let Some(frame) = frame
            .as_ref()
            .filter(|frame| frame.opcode == self.rules.item)
        {
            entry.used_credit -= frame.weight(py) + self.rules.overhead;
        }
        Ok(frame)
    }

    /// Returns true if a call was interrupted since the last check.
    fn take_interruption(&self, id: u64) -> bool {
        let mut state = self.lock();
        let interruptions = state.interruptions;
        state.calls.get_mut(&id).is_some_and(|entry| {
            std::mem::replace(&mut entry.interruptions, interruptions) != interruptions
        })
    }

    /// Receives the next frame of the ring; None if there is none. Only the leader does this. Raises ChannelError for a
    /// frame that no server sends.
    #[inline]
    fn receive_frame(
        &self,
        py: Python<'_>,
        channel: &channel::Channel,
        body: &mut Vec<u8>,
    ) -> PyResult<Option<ReceivedFrame>> {
        let Some(frame) = ReceivedFrame::next(py, channel, body)? else {
            return Ok(None);
        };
        let opcode = frame.opcode();
        let rules = &self.rules;
        if !rules.replies.contains(&opcode)
            && opcode != rules.item
            && !rules.others.contains(&(opcode as u8))
        {
            let text = format!("it sent opcode {opcode:#x}, which no server sends");
            return Err(ChannelError::new_err(text));
        }
        Ok(Some(frame))
    }

    /// Delivers a frame to its call, and wakes the thread of the call. Drops the frame if the call is not registered.
    /// Raises ChannelError for an item without credit.
    pub(crate) fn deliver(&self, py: Python<'_>, frame: Frame) -> PyResult<()> {
        let mut state = self.lock();
        let Some(entry) = state.calls.get_mut(&frame.id) else {
            drop(state);
            return Ok(());
        };
        if frame.opcode == self.rules.item {
            if entry.used_credit >= self.rules.window {
                let text = "it sent an item for which it had no credit";
                return Err(ChannelError::new_err(text));
            }
            entry.used_credit += frame.weight(py) + self.rules.overhead;
        }
        entry.is_answered |= self.rules.replies.contains(&frame.opcode);
        entry.frames.push_back(frame);
        entry.parker.wake();
        Ok(())
    }

    /// Receives the frames that are there, up to a frame of the call `own_id`, and delivers the frames of other calls.
    /// Returns the frame of `own_id`, whose payload is in `body` if it is short; None once the ring is empty. Marks the
    /// call `own_id` answered by its reply. Only the leader does this. Raises ChannelError for a frame that no server
    /// sends, and for an item without credit.
    #[inline]
    pub(crate) fn receive(
        &self,
        py: Python<'_>,
        channel: &channel::Channel,
        own_id: Option<u64>,
        body: &mut Vec<u8>,
    ) -> PyResult<Option<ReceivedFrame>> {
        while let Some(frame) = self.receive_frame(py, channel, body)? {
            if Some(frame.id()) == own_id {
                if self.rules.replies.contains(&frame.opcode()) {
                    self.mark_answered(frame.id());
                }
                return Ok(Some(frame));
            }
            self.deliver(py, frame.into_frame(py, body))?;
        }
        Ok(None)
    }

    /// Notes that the reply of a call has arrived.
    fn mark_answered(&self, id: u64) {
        if let Some(entry) = self.lock().calls.get_mut(&id) {
            entry.is_answered = true;
        }
    }

    /// Waits at most `limit` for the next frame of a call. Returns None without one, if the call was interrupted, or
    /// after `check_interval`; after any other result the caller calls `wake_next`. Raises what `drive` does.
    pub(crate) fn next_frame(
        &self,
        py: Python<'_>,
        id: u64,
        limit: Duration,
    ) -> PyResult<Option<Frame>> {
        let begin = clock::now();
        let left = |now: u64| limit.saturating_sub(Duration::from_nanos(now - begin));
        let until_check = |now: u64| {
            self.rules
                .check_interval
                .saturating_sub(Duration::from_nanos(now - begin))
        };
        let mut now = begin;
        let mut body = Scratch::new();
        loop {
            if let Some(frame) = self.pop_frame(py, id)? {
                return Ok(Some(frame));
            }
            if self.take_interruption(id) {
                return Ok(None);
            }
            let channel = self.open()?;
            if let Some(leader) = self.try_lead() {
                // The last leader may have delivered a frame of this call a moment ago.
                if let Some(frame) = self.pop_frame(py, id)? {
                    return Ok(Some(frame));
                }
                let since = now;
                loop {
                    if let Some(frame) = self.receive(py, &channel, Some(id), &mut body)? {
                        return Ok(Some(frame.into_frame(py, &body)));
                    }
                    // Counted from the begin and not from the last sleep, because a peer may wake this thread without
                    // end.
                    let sleep = left(now).min(until_check(now));
                    if sleep.is_zero() {
                        if until_check(now).is_zero() {
                            leader.step_down_quietly();
                        }
                        return Ok(None);
                    }
                    let arrived = py
                        .detach(|| channel.sleep(sleep))
                        .map_err(violation_error)?;
                    now = clock::now();
                    if until_check(now).is_zero() {
                        continue; // Receives what is there now.
                    }
                    if !arrived || now - since > LEADER_SLICE {
                        break;
                    }
                }
                drop(leader);
            } else {
                let sleep = left(now).min(NAP);
                if sleep.is_zero() {
                    self.wake_next(); // This thread may have been woken to lead.
                    return Ok(None);
                }
                self.park(py, id, sleep);
                now = clock::now();
            }
            py.check_signals()?;
        }
    }

    /// Sleeps for at most `limit`, until a frame of the call is there, no thread leads, or the call is interrupted.
    /// Returns at once for a call that is not in flight. May wake early: the caller checks again.
    fn park(&self, py: Python<'_>, id: u64, limit: Duration) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(entry) = state.calls.get(&id) else {
            return;
        };
        if !entry.frames.is_empty() || entry.interruptions != state.interruptions {
            return;
        }
        let parker = entry.parker.clone();
        state.parked.push_back(id);
        self.parked.store(state.parked.len(), Ordering::SeqCst);
        drop(guard);
        if self.has_leader.load(Ordering::SeqCst) {
            py.detach(|| parker.sleep(limit));
        }
        self.unpark(id);
    }

    /// Removes a call from the parked ones.
    fn unpark(&self, id: u64) {
        let mut state = self.lock();
        state.parked.retain(|&each| each != id);
        self.parked.store(state.parked.len(), Ordering::SeqCst);
    }

    /// Receives for all threads the frames that are there, then the frames that arrive first within `limit` and
    /// `check_interval`, and runs signal handlers. Returns false at once if another thread leads. Raises ChannelError,
    /// or what a signal handler raises.
    pub(crate) fn drive(&self, py: Python<'_>, limit: Duration) -> PyResult<bool> {
        let channel = self.open()?;
        {
            let Some(_leader) = self.try_lead() else {
                return Ok(false);
            };
            let mut body = Scratch::new();
            self.receive(py, &channel, None, &mut body)?;
            if !limit.is_zero() {
                let sleep = limit.min(self.rules.check_interval);
                if py
                    .detach(|| channel.sleep(sleep))
                    .map_err(violation_error)?
                {
                    self.receive(py, &channel, None, &mut body)?;
                }
            }
        }
        py.check_signals()?;
        Ok(true)
    }

    /// Interrupts each registered call once: its wait, or else its next one, returns None unless a frame has arrived.
    pub(crate) fn interrupt(&self) {
        let mut state = self.lock();
        state.interruptions += 1;
        for id in &state.parked {
            if let Some(entry) = state.calls.get(id) {
                entry.parker.wake();
            }
        }
        drop(state);
        if let Ok(channel) = self.open() {
            channel.interrupt();
        }
    }

    /// Takes back the request of a call. Returns true if no part of the request was sent, so that the server never runs
    /// the call, which counts as answered from then on: `close_call` sends no cancel. Raises ChannelError once the
    /// channel is closed.
    pub(crate) fn take_back(&self, id: u64) -> PyResult<bool> {
        let channel = self.open()?;
        let is_taken_back = channel.take_back(id, |opcode| self.is_request(opcode));
        if is_taken_back {
            self.mark_answered(id);
        }
        Ok(is_taken_back)
    }

    /// Returns true if this opcode begins a call.
    fn is_request(&self, opcode: u32) -> bool {
        self.rules.requests.contains(&(opcode as u8))
    }

    /// Ends a call for which no thread waits: drops its frames, and cancels the call unless the server has replied or
    /// the request was not sent. Errors are ignored.
    pub(crate) fn close_call(&self, id: u64) {
        let entry = self.lock().calls.remove(&id);
        let (Some(entry), Ok(channel)) = (entry, self.open()) else {
            return;
        };
        if entry.is_answered || channel.take_back(id, |opcode| self.is_request(opcode)) {
            return;
        }
        let body = &self.rules.cancel_body;
        // A closed connection needs no frame, so errors are ignored.
        let sent = channel.send(self.rules.cancel, id, body, || Box::new(body.clone()));
        if sent == Ok(channel::SendOutcome::Queued) {
            let _ = channel.await_room();
        }
    }
}

/// Returns the error for a call that is not in flight.
fn no_call_error(id: u64) -> PyErr {
    ChannelError::new_err(format!("call {id} is not in flight"))
}
