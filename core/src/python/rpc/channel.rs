//! `Channel`: one side of a connection.

use crate::clock;
use crate::connection::channel::{self, Role, SLICE, SendError, Sent, Sleep};
use crate::connection::peer_extents::Carrier;
use crate::connection::segment::{Direction, Segment, SegmentError};
use crate::memory::region::RegionError;
use crate::packet;
use crate::python::rpc::client::pipelining::{Early, Overlap};
use crate::python::rpc::client::short_call::{Answer, Exchange};
use crate::python::rpc::incoming::{Arrival, Frame};
use crate::python::rpc::payload::Payload;
use crate::python::support::buffer::{Buffer, copy_of};
use crate::python::support::descriptor::Descriptor;
use crate::python::support::errors::{ChannelError, broken, no_memory, os_error, unsent};
use crate::python::support::scratch::Scratch;
use crate::sync::lock;
use crate::wait::waker::{Bell, Bells, Semaphore, SemaphoreError, Semaphores};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::ffi::CString;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Payloads from here on are no items of a run: joining them would copy them twice more.
const SMALL_ITEM: usize = 2 << 10;

fn open_semaphore(name: &str, owner: u32) -> PyResult<Semaphore> {
    Semaphore::open(&CString::new(format!("/{name}"))?, owner).map_err(|error| match error {
        SemaphoreError::Os(error) => {
            PyOSError::new_err((error.raw_os_error(), error.to_string(), name.to_owned()))
        }
        unfit => ChannelError::new_err(format!("it has a semaphore '{name}' that {unfit}")),
    })
}

/// One side of a connection: frames to the peer and from it.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Channel {
    /// None once it is closed: what it holds goes with the last call under way.
    inner: Mutex<Option<Arc<channel::Channel>>>,
    sleep: Sleep,
    /// Opcode of the frames whose payload [`Channel::exchange`] returns alone.
    pub(crate) answer: u32,
    /// When the loop last had its turn, or this was made, in nanoseconds.
    slice: AtomicU64,
    /// The calls of a loop that are asked for in turn.
    overlap: Overlap,
}

impl Channel {
    /// Whether the loop has waited for its turn too long. Then a new slice begins.
    #[inline]
    fn slice_is_over(&self, now: u64) -> bool {
        // Relaxed: only the loop's own thread uses it.
        let over = now.saturating_sub(self.slice.load(Ordering::Relaxed)) > SLICE;
        if over && self.sleep == Sleep::Loop {
            self.slice.store(now, Ordering::Relaxed);
            return true;
        }
        false
    }

    /// The channel, for one call. Held under the lock for no longer than a copy of the pointer.
    #[inline]
    pub(crate) fn open(&self) -> PyResult<Arc<channel::Channel>> {
        let inner = lock(&self.inner);
        inner.clone().ok_or_else(|| unsent(SendError::Closed))
    }
}

impl Exchange for Channel {
    #[inline]
    fn look_for<'py>(
        &self,
        py: Python<'py>,
        opcode: u32,
        id: u64,
        payload: Payload<'_>,
        body: &mut Vec<u8>,
    ) -> PyResult<Answer<'py>> {
        self.ask(py, opcode, id, payload, body, false)
    }
}

/// The way of calls whose tasks let the loop turn.
pub(crate) struct InTurn<'a>(pub(crate) &'a Channel);

impl Exchange for InTurn<'_> {
    #[inline]
    fn look_for<'py>(
        &self,
        py: Python<'py>,
        opcode: u32,
        id: u64,
        payload: Payload<'_>,
        body: &mut Vec<u8>,
    ) -> PyResult<Answer<'py>> {
        self.0.ask(py, opcode, id, payload, body, true)
    }
}

impl Channel {
    /// Sends a request, and looks for its answer for as long as it pays.
    ///
    /// Anything but its plain answer is a frame, as (opcode, id, payload); so is that one if the loop is to turn before
    /// it is given. If it `turns`, the task lets the loop turn itself, and what others have under way is asked for in
    /// turn. A task in another thread than the loop's takes no frames: it may be told that it is in the wrong place,
    /// and what it had in its hands would miss a call that the loop is about to wait for.
    #[inline(always)]
    fn ask<'py>(
        &self,
        py: Python<'py>,
        opcode: u32,
        id: u64,
        mut payload: Payload<'_>,
        body: &mut Vec<u8>,
        turns: bool,
    ) -> PyResult<Answer<'py>> {
        let channel = self.open()?;
        if self.sleep == Sleep::Loop && !self.overlap.is_home() {
            let sent = py.detach(|| payload.send_or_keep(&channel, opcode, id, Role::Begins));
            return sent.map(|_| Answer::Further(None)).map_err(unsent);
        }
        if turns && !self.overlap.is_empty() && channel.is_on_our_cpu() && !payload.is_large() {
            self.overlap.add(id, Early::Sent);
            let sent = py.detach(|| payload.send_or_keep(&channel, opcode, id, Role::Begins));
            if let Err(error) = sent {
                self.forget(id);
                return Err(unsent(error));
            }
            return Ok(Answer::InTurn);
        }
        let found = py.detach(|| payload.exchange(&channel, opcode, id));
        let (arrived, now) = found.map_err(unsent)?;
        if !arrived {
            if turns && channel.is_on_our_cpu() {
                self.overlap.add(id, Early::Looked);
                return Ok(Answer::InTurn);
            }
            return Ok(Answer::Further(None));
        }
        match self.seek(py, &channel, id, body, true)? {
            Some(arrival) if arrival.id() == id && self.slice_is_over(now) => {
                if turns {
                    self.overlap.add(id, Early::of(arrival, body));
                    return Ok(Answer::InTurn);
                }
                self.further(py, &channel, arrival, body)
            }
            arrival => self.answer(py, &channel, id, arrival, body),
        }
    }

    /// What has come for a call whose task has its turn.
    #[inline]
    pub(crate) fn answer_in_turn<'py>(
        &self,
        py: Python<'py>,
        id: u64,
        body: &mut Vec<u8>,
    ) -> PyResult<Answer<'py>> {
        let early = self.overlap.remove(id);
        // A closed one has told all that wait why.
        let Ok(channel) = self.open() else {
            let frame = early.and_then(|early| early.into_frame(py, id));
            let told = frame.map(|frame| frame.into_tuple(py, usize::MAX));
            return Ok(Answer::Further(told.transpose()?.map(Bound::into_any)));
        };
        let looks_on = matches!(early, Some(Early::Sent));
        let arrival = match early.and_then(|early| early.into_arrival(id, body)) {
            None => self.seek(py, &channel, id, body, looks_on)?,
            arrival => arrival,
        };
        self.answer(py, &channel, id, arrival, body)
    }

    /// Nobody asks any more for a call that was asked for in turn. Whether its answer had come.
    pub(crate) fn forget(&self, id: u64) -> bool {
        self.overlap
            .remove(id)
            .is_some_and(|early| early.has_come())
    }

    /// Takes what is there up to a frame for the call `id`, or for one that is not asked for in turn; if it `looks_on`, for
    /// as long as it pays to look. A short frame is in `body` then.
    #[inline]
    fn seek(
        &self,
        py: Python<'_>,
        channel: &channel::Channel,
        id: u64,
        body: &mut Vec<u8>,
        looks_on: bool,
    ) -> PyResult<Option<Arrival>> {
        loop {
            let Some(arrival) = Arrival::next(py, channel, body)? else {
                if !looks_on {
                    return Ok(None);
                }
                let found = py.detach(|| channel.spin(Sent::Hot, clock::now()));
                if !found.map_err(broken)?.0 {
                    return Ok(None);
                }
                continue;
            };
            if arrival.id() == id {
                return Ok(Some(arrival));
            }
            if let Some(arrival) = self.overlap.keep(arrival, body) {
                return Ok(Some(arrival));
            }
        }
    }

    /// What a frame is for the call `id`.
    #[inline]
    fn answer<'py>(
        &self,
        py: Python<'py>,
        channel: &channel::Channel,
        id: u64,
        arrival: Option<Arrival>,
        body: &[u8],
    ) -> PyResult<Answer<'py>> {
        match arrival {
            Some(arrival) if arrival.id() == id && arrival.opcode() == self.answer => match arrival
            {
                Arrival::Short { .. } => Ok(Answer::Short),
                Arrival::Whole(frame) => frame.open(py, channel.max_frame()).map(Answer::Plain),
            },
            Some(arrival) => self.further(py, channel, arrival, body),
            None => Ok(Answer::Further(None)),
        }
    }

    /// A frame as Python is told it.
    #[cold]
    fn further<'py>(
        &self,
        py: Python<'py>,
        channel: &channel::Channel,
        arrival: Arrival,
        body: &[u8],
    ) -> PyResult<Answer<'py>> {
        let frame = arrival.into_frame(py, body);
        let told = frame.into_tuple(py, channel.max_frame())?;
        Ok(Answer::Further(Some(told.into_any())))
    }
}

impl Channel {
    fn send_one(
        &self,
        py: Python<'_>,
        opcode: u32,
        id: u64,
        payload: &Bound<'_, PyAny>,
        role: Role,
    ) -> PyResult<bool> {
        let channel = self.open()?;
        let mut payload = Payload::new(payload)?;
        py.detach(|| payload.send_or_keep(&channel, opcode, id, role))
            .map_err(unsent)
    }
}

#[pymethods]
impl Channel {
    /// A side of a segment that has its file, unless it is the server's: that is laid out. ``bell`` stays the caller's,
    /// to wait for it in a loop; ``lending`` does not.
    #[new]
    #[pyo3(signature = (*, segment, capacity, server, bell, semaphores, owner, lending, blocking, max_frame, max_memory, spin, answer))]
    #[allow(clippy::too_many_arguments)] // By keyword alone, in one place.
    fn new(
        segment: &Descriptor,
        capacity: usize,
        server: bool,
        bell: &Descriptor,
        semaphores: Option<(String, String)>,
        owner: u32,
        lending: &Descriptor,
        blocking: bool,
        max_frame: usize,
        max_memory: u64,
        spin: f64,
        answer: u32,
    ) -> PyResult<Self> {
        if blocking && semaphores.is_none() {
            let unfit = "a side that blocks has semaphores";
            return Err(PyValueError::new_err(unfit));
        }
        // Before anything is looked at that a file of somebody else's may have in it.
        let semaphores = semaphores.map(|(own, peer)| {
            let (ours, theirs) = (open_semaphore(&own, owner)?, open_semaphore(&peer, owner)?);
            PyResult::Ok(Semaphores { ours, theirs })
        });
        // What a client gets may be anything. Only such a socket can be rung, and waited for in a loop.
        if !server && !bell.with(|file| Ok(packet::is_local_packets(file)))? {
            return Err(ChannelError::new_err(
                "its bell is no local socket of packets",
            ));
        }
        let bells = Bells {
            bell: Bell::new(bell.with(|file| file.try_clone_to_owned())?),
            semaphores: semaphores.transpose()?,
        };
        let direction = match server {
            true => Direction::ServerToClient,
            false => Direction::ClientToServer,
        };
        let segment = segment.with(|file| match server {
            true => Ok(Segment::create(file, capacity)),
            false => Ok(Segment::open(file, capacity)),
        });
        let segment = segment?.map_err(|error| match error {
            SegmentError::Region(RegionError::Os(error)) => os_error(&error),
            unfit => ChannelError::new_err(unfit.to_string()),
        })?;
        let sleep = if blocking { Sleep::Thread } else { Sleep::Loop };
        let inner = channel::Channel::new(
            segment,
            direction,
            bells,
            sleep,
            max_frame,
            (spin * 1e3) as u64,
            lending.take()?,
            max_memory,
        );
        Ok(Channel {
            inner: Mutex::new(Some(inner)),
            sleep,
            answer,
            slice: AtomicU64::new(clock::now()),
            overlap: Overlap::new(),
        })
    }

    /// Sends a frame. False if there is no room: then it is kept, and goes out as the peer reads.
    fn send(
        &self,
        py: Python<'_>,
        opcode: u32,
        id: u64,
        payload: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        self.send_one(py, opcode, id, payload, Role::Goes)
    }

    /// Sends a request whose answer is not looked for at once. False if there is no room: then it is kept.
    ///
    /// PeerLeft if the peer was quiet for a while, and has left; Overtaken if a call with a higher id was begun before.
    fn begin(
        &self,
        py: Python<'_>,
        opcode: u32,
        id: u64,
        payload: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        self.send_one(py, opcode, id, payload, Role::Begins)
    }

    /// Sends a frame and looks for its answer for as long as that pays.
    ///
    /// One with the opcode `answer` comes back as its body alone. Any other frame, and also the answer once the loop
    /// has waited for its turn too long, comes as (opcode, id, payload). None if nothing came in time.
    fn exchange<'py>(
        &self,
        py: Python<'py>,
        opcode: u32,
        id: u64,
        payload: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut body = Scratch::new();
        let answer = self.look_for(py, opcode, id, Payload::new(payload)?, &mut body)?;
        answer.told(py, &body)
    }

    /// The next frame that is there, as (opcode, id, payload), or None.
    fn receive<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let channel = self.open()?;
        let max_frame = channel.max_frame();
        loop {
            let Some(frame) = Frame::next(py, &channel)? else {
                return Ok(None);
            };
            if !self.overlap.expects(frame.id) {
                return frame.into_tuple(py, max_frame).map(Some);
            }
            self.overlap.keep(Arrival::Whole(frame), &[]);
        }
    }

    /// Whether calls are under way that are asked for in turn.
    fn is_overlapped(&self) -> bool {
        !self.overlap.is_empty()
    }

    /// Takes the small frames that are there with this opcode and id, one after the other, up to `most` of them and
    /// until a different one is next. Returns how many, and the payloads joined behind `head` and their number, four
    /// bytes with the highest first; None if there is none.
    fn receive_run<'py>(
        &self,
        py: Python<'py>,
        opcode: u32,
        id: u64,
        most: usize,
        head: &[u8],
    ) -> PyResult<Option<(usize, Bound<'py, PyBytes>)>> {
        let channel = self.open()?;
        let mut receiver = channel.receiver();
        let mut joined = Vec::new();
        let mut taken = 0u32;
        while (taken as usize) < most {
            match receiver.peek().map_err(broken)? {
                Some(header)
                    if header.opcode == opcode
                        && header.id == id
                        && header.len < SMALL_ITEM
                        && !receiver.is_lost() =>
                {
                    if taken == 0 {
                        joined.reserve(most * (header.len + 8));
                        joined.extend_from_slice(head);
                        joined.extend_from_slice(&[0; 4]);
                    }
                    let from = joined.len();
                    joined.resize(from + header.len, 0);
                    receiver.take(&mut joined[from..]).map_err(broken)?;
                    taken += 1;
                }
                _ => break,
            }
        }
        channel.release(&receiver);
        if taken == 0 {
            return Ok(None);
        }
        joined[head.len()..head.len() + 4].copy_from_slice(&taken.to_be_bytes());
        Ok(Some((taken as usize, copy_of(py, &joined)?)))
    }

    /// Silences our bell, which rang, and sends what was kept as far as there is room now. False if it will never ring
    /// again: the peer has ended it.
    fn wake(&self) -> PyResult<bool> {
        let channel = self.open()?;
        let rings = channel.silence();
        let mut receiver = channel.receiver();
        if receiver.peek().map_err(broken)?.is_some() {
            channel.woke(&mut receiver);
        }
        drop(receiver);
        channel.await_room().map_err(broken)?;
        Ok(rings)
    }

    /// Whether all was received that was there when we last looked.
    fn is_at_end(&self) -> PyResult<bool> {
        Ok(self.open()?.receiver().is_at_end())
    }

    /// The same, and wakes a peer that waits for room.
    fn settle(&self) -> PyResult<bool> {
        Ok(self.open()?.settle())
    }

    /// Announces that we sleep: the peer will ring; `patient`: not for an item of a stream. False if there is something
    /// to do first.
    #[pyo3(signature = (patient=false))]
    fn park(&self, patient: bool) -> PyResult<bool> {
        self.open()?.park(true, patient).map_err(broken)
    }

    /// Withdraws the announcement: we look for ourselves, and the peer need not ring.
    fn unpark(&self) {
        if let Ok(channel) = self.open() {
            channel.unpark();
        }
    }

    /// Whether frames are kept because there is no room.
    fn is_stalled(&self) -> bool {
        self.open().is_ok_and(|channel| channel.is_stalled())
    }

    /// Whether a frame is kept that somebody waits for.
    fn is_awaited(&self) -> bool {
        self.open().is_ok_and(|channel| channel.is_awaited())
    }

    /// Whether so much waits for the peer to read that it is asked for nothing more until it does.
    fn is_behind(&self) -> bool {
        self.open().is_ok_and(|channel| channel.is_behind())
    }

    /// What the peer has not taken yet: bytes that it has read so far, bytes that are in the ring, and how many frames,
    /// of how many bytes, wait for room.
    fn untaken(&self) -> PyResult<(u64, usize, usize, usize)> {
        let untaken = self.open()?.untaken().map_err(broken)?;
        Ok((untaken.read, untaken.in_ring, untaken.frames, untaken.bytes))
    }

    /// Takes back the frame that began `id` with one of these kinds, the low eight bits of opcodes; False if any of it
    /// went.
    fn take_back(&self, id: u64, kinds: &[u8]) -> PyResult<bool> {
        Ok(self
            .open()?
            .take_back(id, |opcode| kinds.contains(&(opcode as u8))))
    }

    /// Takes back all that is kept of the call `id`, which nobody waits for any more, but for a frame of which
    /// something went.
    fn take_back_all(&self, id: u64) {
        if let Ok(channel) = self.open() {
            channel.take_back_all(id);
        }
    }

    /// Whether a frame is there.
    fn has_frame(&self) -> PyResult<bool> {
        Ok(self.open()?.receiver().peek().map_err(broken)?.is_some())
    }

    /// The highest id of a frame that was taken from this channel; 0 before the first, and once it is closed.
    fn reached(&self) -> u64 {
        self.open()
            .map_or(0, |channel| channel.receiver().reached())
    }

    /// A block of shared memory, to be written and then sent.
    ///
    /// NoMemory if there is none: the text says what was asked for, and what there is. Unheard if it could not be told.
    fn allocate<'py>(&self, py: Python<'py>, len: u64) -> PyResult<Bound<'py, Buffer>> {
        let channel = self.open()?;
        // What the peer has given back since.
        channel.collect().map_err(broken)?;
        let block = py.detach(|| channel.lending().allocate(len));
        let block = block.map_err(|why| no_memory(py, why))?;
        Bound::new(py, Buffer::new(block, true))
    }

    /// Bytes of shared memory that we have set aside on this channel, and of those in use.
    fn memory(&self) -> (u64, u64) {
        self.open()
            .map_or((0, 0), |channel| channel.lending().store().usage())
    }

    /// Ends the sending, and wakes a thread that waits here.
    fn close(&self) {
        let inner = lock(&self.inner).take();
        if let Some(channel) = inner {
            channel.close();
        }
    }
}
