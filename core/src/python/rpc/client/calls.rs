//! `Calls`: what the threads that share a channel have under way on it.
//!
//! Of the threads that wait, one receives for all: it has the lead. It has it within one call of this module and never
//! while Python code runs: what runs there, a signal's handler or a `__del__`, may raise, or call on the same channel.
//! So no exception can leave the lead taken, and no thread ever waits for itself. A frame is taken out of the ring and
//! put where its call finds it in the same call, so none is lost or comes twice. A call that nobody waits for any more
//! is cancelled when its [`Pending`] goes, also if an exception kept anybody from saying so.
//!
//! All that runs Python code, such as an allocation that the garbage collector sees, is done without the lead and
//! without the lock. The lock is taken with the GIL alone, so a child is never forked while another thread holds it.

use crate::clock;
use crate::connection::channel::{self, Role};
use crate::python::rpc::channel::Channel;
use crate::python::rpc::client::short_call::{Answer, Exchange};
use crate::python::rpc::incoming::{Arrival, Frame};
use crate::python::rpc::payload::Payload;
use crate::python::support::errors::{ChannelError, broken, unsent};
use crate::python::support::scratch::Scratch;
use crate::sync::lock;
use crate::wait::parker::Parker;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// For how long a thread leads although frames of others come, in nanoseconds: then signal handlers have their turn.
const TURN: u64 = 5_000_000;
/// How long a thread that does not lead sleeps at a time, should a signal come just before it falls asleep.
const NAP: Duration = Duration::from_millis(100);

/// A call that is under way.
struct Entry {
    frames: VecDeque<Frame>,
    /// Bytes of credit that the items take which wait.
    held: usize,
    /// Whether its answer has come, so that there is nothing to cancel.
    answered: bool,
    /// Interruptions that its thread knows of.
    interruptions: u64,
    parker: Arc<Parker>,
}

#[derive(Default)]
struct State {
    pending: HashMap<u64, Entry>,
    /// The calls whose threads sleep until they are woken, in the order in which they went to sleep.
    parked: VecDeque<u64>,
    interruptions: u64,
}

/// What the protocol above says of frames.
struct Rules {
    answers: Vec<u32>,
    /// The low eight bits of other opcodes that a server sends.
    others: Vec<u8>,
    item: u32,
    requests: Vec<u8>,
    cancel: u32,
    nothing: Vec<u8>,
    window: usize,
    overhead: usize,
    look: Duration,
}

struct Shared {
    channel: Py<Channel>,
    max_frame: usize,
    rules: Rules,
    /// Whether a thread has the lead.
    lead: AtomicBool,
    /// How many are parked. Read without the lock by whoever gives up the lead.
    parked: AtomicUsize,
    state: Mutex<State>,
}

/// The lead, for as long as this lives.
struct Lead<'a>(&'a Shared);

impl Lead<'_> {
    /// Gives it up and wakes no other thread: this one looks whether the server lives, and comes back. Should it not,
    /// the others notice after a nap. Were one of them woken, it would have the lead at the very moment in which the
    /// end of the connection is found, and what has come until then is to be received.
    fn set_aside(self) {
        self.0.lead.store(false, Ordering::SeqCst);
        std::mem::forget(self);
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        // Sequentially consistent, as the accesses in `wake_next` and `park`: a thread that parks says so and then
        // looks at the lead, one that gives it up says so and then looks for the parked. One of the two sees the other.
        self.0.lead.store(false, Ordering::SeqCst);
        self.0.wake_next();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn open(&self) -> PyResult<Arc<channel::Channel>> {
        self.channel.get().open()
    }

    #[inline]
    fn take_lead(&self) -> Option<Lead<'_>> {
        // Acquire: what the last leader did is done. Relaxed: then nothing is received.
        self.lead
            .compare_exchange(false, true, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
            .then(|| Lead(self))
    }

    /// Wakes a thread that may lead, if none does.
    #[inline]
    fn wake_next(&self) {
        if self.parked.load(Ordering::SeqCst) != 0 && !self.lead.load(Ordering::SeqCst) {
            let state = self.lock();
            if let Some(entry) = state.parked.front().and_then(|id| state.pending.get(id)) {
                entry.parker.wake();
            }
        }
    }

    fn register(&self, id: u64) {
        let mut state = self.lock();
        let interruptions = state.interruptions;
        let entry = Entry {
            frames: VecDeque::new(),
            held: 0,
            answered: false,
            interruptions,
            parker: Arc::default(),
        };
        state.pending.insert(id, entry);
    }

    /// The first frame that waits for a call. ChannelError if there is no such call.
    fn pop(&self, py: Python<'_>, id: u64) -> PyResult<Option<Frame>> {
        let mut state = self.lock();
        let entry = state.pending.get_mut(&id).ok_or_else(|| no_call(id))?;
        let frame = entry.frames.pop_front();
        if let Some(frame) = frame
            .as_ref()
            .filter(|frame| frame.opcode == self.rules.item)
        {
            entry.held -= frame.weight(py) + self.rules.overhead;
        }
        Ok(frame)
    }

    /// Whether a call was interrupted since it was asked last.
    fn is_interrupted(&self, id: u64) -> bool {
        let mut state = self.lock();
        let interruptions = state.interruptions;
        state.pending.get_mut(&id).is_some_and(|entry| {
            std::mem::replace(&mut entry.interruptions, interruptions) != interruptions
        })
    }

    /// Takes the next frame out of the ring, if one is there. Only with the lead.
    #[inline]
    fn take(
        &self,
        py: Python<'_>,
        channel: &channel::Channel,
        body: &mut Vec<u8>,
    ) -> PyResult<Option<Arrival>> {
        let Some(frame) = Arrival::next(py, channel, body)? else {
            return Ok(None);
        };
        let opcode = frame.opcode();
        let rules = &self.rules;
        if !rules.answers.contains(&opcode)
            && opcode != rules.item
            && !rules.others.contains(&(opcode as u8))
        {
            let text = format!("it sent opcode {opcode:#x}, which no server sends");
            return Err(ChannelError::new_err(text));
        }
        Ok(Some(frame))
    }

    /// Puts a frame where its call finds it. One that nobody waits for any more is dropped.
    fn deliver(&self, py: Python<'_>, frame: Frame) -> PyResult<()> {
        let mut state = self.lock();
        let Some(entry) = state.pending.get_mut(&frame.id) else {
            drop(state);
            return Ok(());
        };
        if frame.opcode == self.rules.item {
            if entry.held >= self.rules.window {
                let text = "it sent an item for which it had no credit";
                return Err(ChannelError::new_err(text));
            }
            entry.held += frame.weight(py) + self.rules.overhead;
        }
        entry.answered |= self.rules.answers.contains(&frame.opcode);
        entry.frames.push_back(frame);
        entry.parker.wake();
        Ok(())
    }

    /// Takes what is there up to a frame of the call `ours`, which comes back; what is for others is delivered. Only
    /// with the lead. A short frame is in `body` then.
    #[inline]
    fn receive(
        &self,
        py: Python<'_>,
        channel: &channel::Channel,
        ours: Option<u64>,
        body: &mut Vec<u8>,
    ) -> PyResult<Option<Arrival>> {
        while let Some(frame) = self.take(py, channel, body)? {
            if Some(frame.id()) == ours {
                if self.rules.answers.contains(&frame.opcode()) {
                    self.note_answer(frame.id());
                }
                return Ok(Some(frame));
            }
            self.deliver(py, frame.into_frame(py, body))?;
        }
        Ok(None)
    }

    fn note_answer(&self, id: u64) {
        if let Some(entry) = self.lock().pending.get_mut(&id) {
            entry.answered = true;
        }
    }

    /// The next frame of a call; waits for it up to `limit`. See [`Pending::next`].
    fn next(&self, py: Python<'_>, id: u64, limit: Duration) -> PyResult<Option<Frame>> {
        let begun = clock::now();
        let left = |now: u64| limit.saturating_sub(Duration::from_nanos(now - begun));
        let until_look = |now: u64| {
            self.rules
                .look
                .saturating_sub(Duration::from_nanos(now - begun))
        };
        let mut now = begun;
        let mut body = Scratch::new();
        loop {
            if let Some(frame) = self.pop(py, id)? {
                return Ok(Some(frame));
            }
            if self.is_interrupted(id) {
                return Ok(None);
            }
            let channel = self.open()?;
            if let Some(lead) = self.take_lead() {
                // Whoever led a moment ago may have had something for us.
                if let Some(frame) = self.pop(py, id)? {
                    return Ok(Some(frame));
                }
                let since = now;
                loop {
                    if let Some(frame) = self.receive(py, &channel, Some(id), &mut body)? {
                        return Ok(Some(frame.into_frame(py, &body)));
                    }
                    // Since we began, and not since we fell asleep: a peer may wake us without end.
                    let sleep = left(now).min(until_look(now));
                    if sleep.is_zero() {
                        if until_look(now).is_zero() {
                            lead.set_aside();
                        }
                        return Ok(None);
                    }
                    let arrived = py.detach(|| channel.sleep(sleep)).map_err(broken)?;
                    now = clock::now();
                    if until_look(now).is_zero() {
                        continue; // With what is there now.
                    }
                    if !arrived || now - since > TURN {
                        break;
                    }
                }
                drop(lead);
            } else {
                let sleep = left(now).min(NAP);
                if sleep.is_zero() {
                    self.wake_next(); // We may have been woken to lead.
                    return Ok(None);
                }
                self.park(py, id, sleep);
                now = clock::now();
            }
            py.check_signals()?;
        }
    }

    /// Sleeps until a frame of the call is there, no thread leads, or it is interrupted.
    fn park(&self, py: Python<'_>, id: u64, limit: Duration) {
        let mut state = self.lock();
        let state_now = &mut *state;
        let Some(entry) = state_now.pending.get(&id) else {
            return;
        };
        if !entry.frames.is_empty() || entry.interruptions != state_now.interruptions {
            return;
        }
        let parker = entry.parker.clone();
        state_now.parked.push_back(id);
        self.parked.store(state_now.parked.len(), Ordering::SeqCst);
        drop(state);
        if self.lead.load(Ordering::SeqCst) {
            py.detach(|| parker.sleep(limit));
        }
        self.unpark(id);
    }

    fn unpark(&self, id: u64) {
        let mut state = self.lock();
        state.parked.retain(|&each| each != id);
        self.parked.store(state.parked.len(), Ordering::SeqCst);
    }

    /// Receives for everybody what is there, and if nothing is, what comes within `limit`. False if another thread
    /// does.
    fn tend(&self, py: Python<'_>, limit: Duration) -> PyResult<bool> {
        let channel = self.open()?;
        {
            let Some(_lead) = self.take_lead() else {
                return Ok(false);
            };
            let mut body = Scratch::new();
            self.receive(py, &channel, None, &mut body)?;
            if !limit.is_zero() {
                let sleep = limit.min(self.rules.look);
                if py.detach(|| channel.sleep(sleep)).map_err(broken)? {
                    self.receive(py, &channel, None, &mut body)?;
                }
            }
        }
        py.check_signals()?;
        Ok(true)
    }

    /// Wakes all threads that wait here. Each returns with nothing.
    fn interrupt(&self) {
        let mut state = self.lock();
        state.interruptions += 1;
        for id in &state.parked {
            if let Some(entry) = state.pending.get(id) {
                entry.parker.wake();
            }
        }
        drop(state);
        if let Ok(channel) = self.open() {
            channel.interrupt();
        }
    }

    /// Ends a call that nobody waits for any more. The server is told, unless it has answered or the request has not
    /// gone.
    fn close(&self, id: u64) {
        let entry = self.lock().pending.remove(&id);
        let (Some(entry), Ok(channel)) = (entry, self.open()) else {
            return;
        };
        let is_request = |opcode: u32| self.rules.requests.contains(&(opcode as u8));
        if entry.answered || channel.take_back(id, is_request) {
            return;
        }
        let nothing = &self.rules.nothing;
        // A connection that is over needs no word.
        let sent = channel.send(self.rules.cancel, id, nothing, || Box::new(nothing.clone()));
        if sent == Ok(channel::Sent::Kept) {
            let _ = channel.await_room();
        }
    }
}

fn no_call(id: u64) -> PyErr {
    ChannelError::new_err(format!("call {id} is not under way"))
}

fn seconds(limit: f64) -> Duration {
    Duration::try_from_secs_f64(limit.max(0.0)).unwrap_or(Duration::MAX)
}

/// What the threads that share a channel have under way on it.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Calls(Arc<Shared>);

#[pymethods]
impl Calls {
    /// `answers`: opcodes with which a call ends; `others`: the low eight bits of what else a server sends, but for
    /// items. `requests`: those of what begins a call; `cancel` and `nothing`: the frame that ends one. `window`: bytes
    /// of items that may wait, each counting for `overhead` more. `look`: seconds after which a thread that sleeps
    /// comes back to look whether the server still lives.
    #[new]
    #[pyo3(signature = (channel, *, answers, others, item, requests, cancel, nothing, window, overhead, look))]
    #[allow(clippy::too_many_arguments)] // By keyword alone, in one place.
    fn new(
        channel: Py<Channel>,
        answers: Vec<u32>,
        others: Vec<u8>,
        item: u32,
        requests: Vec<u8>,
        cancel: u32,
        nothing: Vec<u8>,
        window: usize,
        overhead: usize,
        look: f64,
    ) -> PyResult<Self> {
        let max_frame = channel.get().open()?.max_frame();
        let rules = Rules {
            answers,
            others,
            item,
            requests,
            cancel,
            nothing,
            window,
            overhead,
            look: seconds(look),
        };
        Ok(Calls(Arc::new(Shared {
            channel,
            max_frame,
            rules,
            lead: AtomicBool::new(false),
            parked: AtomicUsize::new(0),
            state: Mutex::default(),
        })))
    }

    /// How many calls are under way, but for those that are looked for at this moment by `exchange`.
    fn __len__(&self) -> usize {
        self.0.lock().pending.len()
    }

    /// Sends a request and looks for its answer for as long as that pays. An answer with the channel's `answer` for its
    /// opcode comes back as its body alone; else the call is under way.
    fn exchange<'py>(
        &self,
        py: Python<'py>,
        opcode: u32,
        id: u64,
        payload: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut body = Scratch::new();
        let answer = self.look_for(py, opcode, id, Payload::new(payload)?, &mut body)?;
        answer.told(py, &body)
    }

    /// Sends a request; the call that is under way then.
    fn begin(
        &self,
        py: Python<'_>,
        opcode: u32,
        id: u64,
        payload: &Bound<'_, PyAny>,
    ) -> PyResult<Pending> {
        let channel = self.0.open()?;
        let payload = Payload::new(payload)?;
        self.send_registered(py, &channel, opcode, id, payload)
    }

    /// Ends a call that nobody waits for any more. The server is told, unless it has answered or the request has not
    /// gone.
    fn close(&self, id: u64) {
        self.0.close(id);
    }

    /// Receives for all threads what is there, and if nothing is, what comes within `limit` seconds. False if another
    /// thread does.
    fn tend(&self, py: Python<'_>, limit: f64) -> PyResult<bool> {
        self.0.tend(py, seconds(limit))
    }

    /// Wakes all threads that wait: each comes back with nothing.
    fn interrupt(&self) {
        self.0.interrupt();
    }
}

impl Exchange for Calls {
    /// Anything but its plain answer is a call that is under way.
    #[inline]
    fn look_for<'py>(
        &self,
        py: Python<'py>,
        opcode: u32,
        id: u64,
        mut payload: Payload<'_>,
        body: &mut Vec<u8>,
    ) -> PyResult<Answer<'py>> {
        let shared = &self.0;
        let channel = shared.open()?;
        let pending = if let Some(lead) = shared.take_lead() {
            let found = py.detach(|| payload.exchange(&channel, opcode, id));
            let (arrived, _) = found.map_err(unsent)?;
            let answer = if arrived {
                shared.receive(py, &channel, Some(id), body)?
            } else {
                None
            };
            let plain = shared.channel.get().answer;
            match answer {
                Some(Arrival::Short { opcode, .. }) if opcode == plain => return Ok(Answer::Short),
                Some(Arrival::Whole(frame)) if frame.opcode == plain => {
                    drop(lead);
                    return frame.open(py, shared.max_frame).map(Answer::Plain);
                }
                answer => {
                    // Before the lead goes: the next leader is to find it.
                    shared.register(id);
                    if let Some(frame) = answer {
                        shared.deliver(py, frame.into_frame(py, body))?;
                    }
                    drop(lead);
                    self.pending(id)
                }
            }
        } else {
            self.send_registered(py, &channel, opcode, id, payload)?
        };
        Ok(Answer::Further(Some(Bound::new(py, pending)?.into_any())))
    }
}

impl Calls {
    fn pending(&self, id: u64) -> Pending {
        Pending {
            shared: self.0.clone(),
            id,
        }
    }

    fn send_registered(
        &self,
        py: Python<'_>,
        channel: &channel::Channel,
        opcode: u32,
        id: u64,
        mut payload: Payload<'_>,
    ) -> PyResult<Pending> {
        // Before it is sent: whoever leads may have the answer at once.
        self.0.register(id);
        let sent = py.detach(|| payload.send_or_keep(channel, opcode, id, Role::Begins));
        if let Err(error) = sent {
            self.0.lock().pending.remove(&id);
            return Err(unsent(error));
        }
        Ok(self.pending(id))
    }
}

/// A call that is under way. Dropping it ends the call: see [`Calls::close`].
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Pending {
    shared: Arc<Shared>,
    /// The call's number on its connection.
    #[pyo3(get)]
    id: u64,
}

#[pymethods]
impl Pending {
    /// Its next frame, as (opcode, id, body), for which it waits up to `limit` seconds, receiving for all threads if no
    /// other one does. None if there is none in time, if it was interrupted, or if it is time to look whether the
    /// server lives. Raises what the handler of a signal raises; the frame comes the next time then.
    fn next<'py>(&self, py: Python<'py>, limit: f64) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let found = self.shared.next(py, self.id, seconds(limit));
        if !matches!(found, Ok(None)) {
            self.shared.wake_next(); // We may have been woken to lead, and not have done it.
        }
        found?
            .map(|frame| frame.into_tuple(py, self.shared.max_frame))
            .transpose()
    }

    /// Takes the request back if it has not gone: true, and the call is never made.
    fn take_back(&self) -> PyResult<bool> {
        let shared = &self.shared;
        let channel = shared.open()?;
        let taken = channel.take_back(self.id, |opcode| {
            shared.rules.requests.contains(&(opcode as u8))
        });
        if taken {
            shared.note_answer(self.id);
        }
        Ok(taken)
    }

    /// Ends it: see [`Calls::close`].
    fn close(&self) {
        self.shared.close(self.id);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.shared.close(self.id);
    }
}
