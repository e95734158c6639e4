//! `Channel`: one side of a connection.

use super::block::{Block, copy_out};
use super::parcel::{Flat, Parcel};
use crate::clock;
use crate::connection::channel::{self, Receiver, SendError, Sent, Sleep};
use crate::connection::lending::{self, Memory};
use crate::connection::parcel::{self, Lies, PARCEL};
use crate::connection::poller::SLICE;
use crate::memory::region::{Direction, Region, RegionError};
use crate::ring::Violation;
use crate::ring::frame::{Header, Kept};
use crate::wait::bell::{Bell, Bells, Semaphore, SemaphoreError};
use pyo3::exceptions::PyOSError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyTuple};
use std::ffi::CString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pyo3::create_exception!(
    _core,
    ChannelError,
    pyo3::exceptions::PyException,
    "The peer or the segment broke the rules; the channel must not be used any more."
);

pyo3::create_exception!(
    _core,
    PeerLeft,
    ChannelError,
    "The peer has left: its end of the bell is closed. Nothing was sent."
);

pyo3::create_exception!(
    _core,
    Overtaken,
    pyo3::exceptions::PyException,
    "Another thread has begun a call with a higher id. Nothing was sent: it may go with a new id."
);

pyo3::create_exception!(
    _core,
    Oversize,
    pyo3::exceptions::PyException,
    "The payload is over the channel's limit. Nothing was sent."
);

pyo3::create_exception!(
    _core,
    Backlog,
    pyo3::exceptions::PyException,
    "Too much waits already for the peer to read. Nothing was sent."
);

pyo3::create_exception!(
    _core,
    NoMemory,
    pyo3::exceptions::PyException,
    "There is no shared memory for this. `errno`: the system's reason, None if it is not the system's."
);

pyo3::create_exception!(
    _core,
    Unheard,
    NoMemory,
    "The peer cannot be told of new shared memory: it has closed its end, or is gone."
);

pyo3::create_exception!(
    _core,
    Unmapped,
    pyo3::exceptions::PyException,
    "This process has no room to map the memory that a frame's body or buffers lie in. `errno` says of what."
);

pub(super) fn unmapped(py: Python<'_>, errno: i32, why: &str) -> PyErr {
    with_errno(py, Unmapped::new_err(why.to_owned()), Some(errno))
}

/// The exception, with the `errno` in its attribute.
fn with_errno(py: Python<'_>, error: PyErr, errno: Option<i32>) -> PyErr {
    match error.value(py).setattr(intern!(py, "errno"), errno) {
        Ok(()) => error,
        Err(other) => other,
    }
}

fn no_memory(py: Python<'_>, why: lending::NoMemory) -> PyErr {
    let text = why.to_string();
    match why {
        lending::NoMemory::Unheard { .. } => with_errno(py, Unheard::new_err(text), None),
        lending::NoMemory::Limit { .. } => with_errno(py, NoMemory::new_err(text), None),
        lending::NoMemory::System { error, .. } => {
            with_errno(py, NoMemory::new_err(text), error.raw_os_error())
        }
    }
}

pub(super) fn unsent(error: SendError) -> PyErr {
    match error {
        SendError::Closed => ChannelError::new_err("the channel is closed"),
        SendError::PeerLeft => PeerLeft::new_err("the peer has left"),
        SendError::Overtaken => Overtaken::new_err("a call with a higher id was begun before"),
        SendError::Oversize { len, max } => {
            Oversize::new_err(format!("{len} bytes, the limit is {max}"))
        }
        SendError::Backlog { kept, len, max } => Backlog::new_err(format!(
            "{kept} bytes wait for the peer to read them; with {len} more they are over the limit of {max}"
        )),
        SendError::Violation(violation) => broken(violation),
    }
}

pub(super) fn broken(violation: Violation) -> PyErr {
    ChannelError::new_err(violation.to_string())
}

/// What a parcel's payload says, and the memory that each buffer lies in; None for those in the payload.
pub(super) type Opened = (parcel::Parsed, Vec<Option<Memory>>);

/// A frame that was taken out of the ring.
pub(super) enum Taken<'py> {
    /// Its payload is its body.
    Plain(Bound<'py, PyBytes>),
    /// Its payload is a parcel's.
    Parcel(Vec<u8>, Result<Opened, Violation>),
}

/// Takes the frame that was found.
#[inline]
pub(super) fn take<'py>(
    py: Python<'py>,
    channel: &channel::Channel,
    receiver: &mut Receiver,
    header: Header,
) -> PyResult<Taken<'py>> {
    if receiver.is_lost() {
        return Ok(lose(channel, receiver, header));
    }
    if header.opcode & PARCEL != 0 {
        let mut payload = Vec::new();
        if payload.try_reserve_exact(header.len).is_err() {
            return Ok(lose(channel, receiver, header));
        }
        payload.resize(header.len, 0);
        receiver.take(&mut payload).map_err(broken)?;
        // Before anybody takes the next frame: that may be the end of the lease by which a buffer
        // of ours comes back.
        let opened = open_all(channel, &payload);
        channel.release(receiver);
        return Ok(Taken::Parcel(payload, opened));
    }
    let mut has_room = false;
    let payload = PyBytes::new_with(py, header.len, |bytes| {
        has_room = true;
        receiver.take(bytes).map_err(broken)
    });
    if payload.is_err() && !has_room {
        return Ok(lose(channel, receiver, header));
    }
    let payload = payload?;
    channel.release(receiver);
    Ok(Taken::Plain(payload))
}

/// A frame for which there is no memory: it is dropped, and whoever waits for it is told so.
#[cold]
fn lose<'py>(channel: &channel::Channel, receiver: &mut Receiver, header: Header) -> Taken<'py> {
    receiver.discard();
    channel.release(receiver);
    Taken::Parcel(Vec::new(), Err(Violation::NoMemory { len: header.len }))
}

impl<'py> Taken<'py> {
    /// The opcode and the body, or the parcel; of a body, up to `max_frame` bytes. The receiver must not be locked: a copy may let the GIL go.
    #[inline]
    pub(super) fn open(
        self,
        py: Python<'py>,
        max_frame: usize,
        opcode: u32,
    ) -> PyResult<(u32, Bound<'py, PyAny>)> {
        match self {
            Taken::Plain(payload) => Ok((opcode, payload.into_any())),
            Taken::Parcel(payload, opened) => {
                let parcel = match opened {
                    Ok(opened) => parcel_of(py, max_frame, &payload, opened)?,
                    Err(lost) => match lost.own_limit() {
                        Some(error) => {
                            let why = (error, lost.to_string());
                            Bound::new(py, Parcel::lost(py, why))?.into_any()
                        }
                        None => return Err(broken(lost)),
                    },
                };
                Ok((opcode & !PARCEL, parcel))
            }
        }
    }
}

fn open_all(channel: &channel::Channel, payload: &[u8]) -> Result<Opened, Violation> {
    let parsed = parcel::parse(payload)?;
    let mut memories = Vec::with_capacity(parsed.entries.len());
    for (place, entry) in parsed.entries.iter().enumerate() {
        let opened = channel.lending().open(entry).inspect_err(|violation| {
            if violation.own_limit().is_some() {
                // The peer has lent them all the same: the leases of those before it end as they are dropped.
                for lent in &parsed.entries[place..] {
                    if let Lies::AtSender(place) = lent.lies {
                        channel.send_release(&parcel::release(place));
                    }
                }
            }
        });
        memories.push(opened?);
    }
    Ok((parsed, memories))
}

fn parcel_of<'py>(
    py: Python<'py>,
    max_frame: usize,
    payload: &[u8],
    (parsed, memories): Opened,
) -> PyResult<Bound<'py, PyAny>> {
    let mut here = &payload[parsed.here..];
    let mut bytes = 0;
    let mut body = parsed.body.map(|body| PyBytes::new(py, &payload[body]));
    let mut buffers = Vec::with_capacity(memories.len());
    for (entry, memory) in parsed.entries.iter().zip(memories) {
        if body.is_none() {
            if entry.len > max_frame as u64 {
                let (len, max) = (entry.len, max_frame as u64);
                return Err(broken(Violation::Oversize { len, max }));
            }
            body = Some(match &memory {
                Some(memory) => copy_out(py, memory)?,
                None => PyBytes::new(py, split_off(&mut here, entry.len as usize)),
            });
            continue;
        }
        bytes = entry.len.saturating_add(bytes as u64) as usize;
        buffers.push(match memory {
            Some(memory) => Bound::new(py, Block::new(memory, false))?.into_any(),
            None => PyBytes::new(py, split_off(&mut here, entry.len as usize)).into_any(),
        });
    }
    let body = body.ok_or_else(|| broken(Violation::Table))?;
    if buffers.is_empty() {
        return Ok(body.into_any());
    }
    let buffers = PyTuple::new(py, buffers)?;
    Ok(Bound::new(py, Parcel::make(body, buffers, bytes))?.into_any())
}

/// What an opened parcel will count for in a stream's credit: see [`Parcel`].
pub(super) fn weight((parsed, _): &Opened) -> usize {
    let mut lens = parsed.entries.iter().map(|entry| entry.len as usize);
    let body = match &parsed.body {
        Some(body) => body.len(),
        None => lens.next().unwrap_or(0),
    };
    super::parcel::weight(body, lens.fold(0, usize::saturating_add))
}

fn split_off<'a>(bytes: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (first, rest) = bytes.split_at(len);
    *bytes = rest;
    first
}

/// Payloads from here on are no items of a run: joining them would copy them twice more.
const SMALL_ITEM: usize = 2 << 10;

/// A frame's body on its way out, with what keeps it alive should there be no room for it now.
pub(super) struct Outgoing<'a> {
    body: &'a [u8],
    /// Only of a large one: a small one is cheaper copied than kept.
    owner: Option<PyBackedBytes>,
    /// What travels beside it.
    buffers: Vec<Flat>,
}

impl<'a> Outgoing<'a> {
    /// Bytes from here on are kept rather than copied.
    const LARGE: usize = 16 << 10;

    #[inline]
    pub(super) fn new(payload: &'a Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(body) = payload.cast::<PyBytes>() {
            return Ok(Outgoing::of(body, Vec::new()));
        }
        let parcel = payload.cast::<Parcel>()?;
        let py = payload.py();
        let buffers = parcel.get().buffers(py)?;
        let buffers = buffers
            .iter()
            .map(|buffer| Flat::new(&buffer))
            .collect::<PyResult<_>>()?;
        Ok(Outgoing::of(parcel.get().body(py), buffers))
    }

    fn of(body: &'a Bound<'_, PyBytes>, buffers: Vec<Flat>) -> Self {
        let bytes = body.as_bytes();
        let owner = (bytes.len() >= Self::LARGE).then(|| PyBackedBytes::from(body.clone()));
        Outgoing {
            body: bytes,
            owner,
            buffers,
        }
    }

    /// Whether sending it takes long enough for others to work meanwhile.
    pub(super) fn is_large(&self) -> bool {
        self.owner.is_some() || !self.buffers.is_empty()
    }

    /// Sends a request, unless the peer has left, and looks for its answer: see [`channel::Channel::spin`].
    #[inline]
    pub(super) fn exchange(
        &mut self,
        channel: &channel::Channel,
        opcode: u32,
        id: u64,
    ) -> Result<(bool, u64), SendError> {
        let is_large = self.is_large();
        let (sent, mut start) = self.begin(channel, opcode, id)?;
        if is_large {
            start = clock::now(); // The time that it took is no wait.
        }
        Ok(channel.spin(sent, start)?)
    }

    /// Sends a request, unless the peer has left: what became of it, and when it was looked whether the peer is there.
    /// Whatever begins a call is sent here.
    #[inline]
    pub(super) fn begin(
        &mut self,
        channel: &channel::Channel,
        opcode: u32,
        id: u64,
    ) -> Result<(Sent, u64), SendError> {
        let now = channel.look()?;
        Ok((self.publish(channel, opcode, id, true)?, now))
    }

    /// Sends what belongs to a call that was begun. What is left of it is to be dropped with the GIL.
    #[inline]
    pub(super) fn send(
        &mut self,
        channel: &channel::Channel,
        opcode: u32,
        id: u64,
    ) -> Result<Sent, SendError> {
        self.publish(channel, opcode, id, false)
    }

    #[inline]
    fn publish(
        &mut self,
        channel: &channel::Channel,
        opcode: u32,
        id: u64,
        begins: bool,
    ) -> Result<Sent, SendError> {
        let (body, owner) = (self.body, self.owner.take());
        let keep = || match owner {
            Some(owner) => Box::new(owner) as Kept,
            None => Box::new(body.to_vec()),
        };
        if body.len() <= channel::LARGE_BODY && self.buffers.is_empty() {
            return channel.publish(opcode, id, body, keep, begins);
        }
        let buffers: Vec<_> = self.buffers.iter().map(|b| (b.as_ptr(), b.len())).collect();
        // SAFETY: each is readable for as long as its `Flat` lives.
        unsafe { channel.send_parcel(opcode, id, body, &buffers, keep, begins) }
    }
}

/// A duplicate of `fd` that is ours.
fn duplicate(fd: i32) -> PyResult<OwnedFd> {
    // SAFETY: the caller keeps `fd` open during the call; a closed one is an error from dup.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fd.try_clone_to_owned().map_err(|error| os_error(&error))
}

fn os_error(error: &io::Error) -> PyErr {
    PyOSError::new_err((error.raw_os_error(), error.to_string()))
}

fn open_semaphore(name: &str, owner: u32) -> PyResult<Semaphore> {
    Semaphore::open(&CString::new(name)?, owner).map_err(|error| match error {
        SemaphoreError::Os(error) => {
            PyOSError::new_err((error.raw_os_error(), error.to_string(), name.to_owned()))
        }
        unfit => {
            let name = name.trim_start_matches('/');
            ChannelError::new_err(format!("it has a semaphore '{name}' that {unfit}"))
        }
    })
}

/// One side of a connection: frames to the peer and from it.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Channel {
    /// None once it is closed: what it holds goes with the last call under way.
    inner: Mutex<Option<Arc<channel::Channel>>>,
    sleep: Sleep,
    /// When the loop last had its turn, in nanoseconds.
    slice: AtomicU64,
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
    pub(super) fn open(&self) -> PyResult<Arc<channel::Channel>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner
            .clone()
            .ok_or_else(|| ChannelError::new_err("the channel is closed"))
    }
}

fn receive_one<'py>(
    py: Python<'py>,
    channel: &Arc<channel::Channel>,
) -> PyResult<Option<(Header, Bound<'py, PyAny>)>> {
    let mut receiver = channel.receiver();
    let Some(mut header) = receiver.peek().map_err(broken)? else {
        channel.release(&receiver);
        return Ok(None);
    };
    let taken = take(py, channel, &mut receiver, header)?;
    drop(receiver);
    let (opcode, payload) = taken.open(py, channel.max_frame(), header.opcode)?;
    header.opcode = opcode;
    Ok(Some((header, payload)))
}

#[pymethods]
impl Channel {
    #[new]
    #[pyo3(signature = (*, segment, capacity, server, bell, own_semaphore, peer_semaphore, owner, lending, blocking, max_frame, max_memory, spin))]
    #[allow(clippy::too_many_arguments)] // By keyword alone, in one place.
    fn new(
        segment: i32,
        capacity: usize,
        server: bool,
        bell: i32,
        own_semaphore: &str,
        peer_semaphore: &str,
        owner: u32,
        lending: i32,
        blocking: bool,
        max_frame: usize,
        max_memory: u64,
        spin: f64,
    ) -> PyResult<Self> {
        // Before anything is looked at that a file of somebody else's may have in it.
        let bells = Bells {
            bell: Bell::new(duplicate(bell)?),
            ours: open_semaphore(own_semaphore, owner)?,
            theirs: open_semaphore(peer_semaphore, owner)?,
        };
        // SAFETY: the caller keeps `segment` open during the call.
        let file = unsafe { BorrowedFd::borrow_raw(segment) };
        let (region, direction) = if server {
            (Region::create(file, capacity), Direction::ServerToClient)
        } else {
            (Region::open(file, capacity), Direction::ClientToServer)
        };
        let region = region.map_err(|error| match error {
            RegionError::Os(error) => os_error(&error),
            unfit => ChannelError::new_err(unfit.to_string()),
        })?;
        let sleep = if blocking { Sleep::Thread } else { Sleep::Loop };
        let inner = channel::Channel::new(
            region,
            direction,
            bells,
            sleep,
            max_frame,
            (spin * 1e3) as u64,
            duplicate(lending)?,
            max_memory,
        );
        Ok(Channel {
            inner: Mutex::new(Some(inner)),
            sleep,
            slice: AtomicU64::new(0),
        })
    }

    /// Sends a frame. False if it is kept for want of room; it goes out as the peer reads.
    fn send(
        &self,
        py: Python<'_>,
        opcode: u32,
        id: u64,
        payload: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let channel = self.open()?;
        let mut payload = Outgoing::new(payload)?;
        let sent = py.detach(|| {
            let sent = payload.send(&channel, opcode, id)?;
            if sent == Sent::Kept {
                channel.await_room()?;
            }
            Ok(sent)
        });
        Ok(sent.map_err(unsent)? != Sent::Kept)
    }

    /// Sends a request that is not looked for at once. False if it is kept for want of room.
    ///
    /// PeerLeft if the peer was quiet for a while, and has left; Overtaken if a call with a higher id was begun before.
    fn begin(
        &self,
        py: Python<'_>,
        opcode: u32,
        id: u64,
        payload: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let channel = self.open()?;
        let mut payload = Outgoing::new(payload)?;
        let sent = py.detach(|| {
            let (sent, _) = payload.begin(&channel, opcode, id)?;
            if sent == Sent::Kept {
                channel.await_room()?;
            }
            Ok(sent)
        });
        Ok(sent.map_err(unsent)? != Sent::Kept)
    }

    /// Sends a frame and looks for its answer for as long as that pays.
    ///
    /// The answer with opcode 0 comes back as its payload alone. Any other frame, and also the
    /// answer once the loop has waited for its turn too long, comes as (opcode, id, payload).
    /// None if nothing came in time.
    fn exchange<'py>(
        &self,
        py: Python<'py>,
        opcode: u32,
        id: u64,
        payload: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let channel = self.open()?;
        let mut payload = Outgoing::new(payload)?;
        let found = py.detach(|| payload.exchange(&channel, opcode, id));
        let (arrived, now) = found.map_err(unsent)?;
        if !arrived {
            return Ok(None);
        }
        let Some((header, answer)) = receive_one(py, &channel)? else {
            return Ok(None);
        };
        let plain =
            header.opcode == 0 && header.id == id && answer.is_exact_instance_of::<PyBytes>();
        if plain && !self.slice_is_over(now) {
            return Ok(Some(answer));
        }
        let frame = (header.opcode, header.id, answer).into_pyobject(py)?;
        Ok(Some(frame.into_any()))
    }

    /// The next frame that is there, as (opcode, id, payload), or None.
    fn receive<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let channel = self.open()?;
        match receive_one(py, &channel)? {
            Some((header, payload)) => {
                Ok(Some((header.opcode, header.id, payload).into_pyobject(py)?))
            }
            None => Ok(None),
        }
    }

    /// Takes the small frames that are there with this opcode and id, one after the other, up to `most` of
    /// them and until a different one is next. Returns how many, and the payloads joined to a MessagePack
    /// array; None if there is none.
    fn receive_run<'py>(
        &self,
        py: Python<'py>,
        opcode: u32,
        id: u64,
        most: usize,
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
                        joined.extend_from_slice(&[0xdd, 0, 0, 0, 0]);
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
        joined[1..5].copy_from_slice(&taken.to_be_bytes());
        Ok(Some((taken as usize, PyBytes::new(py, &joined))))
    }

    /// Our bell rang: silences it, and sends what was kept as far as there is room now. False if it will never
    /// ring again: the peer has ended it.
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

    /// Says that we sleep: the peer will ring. False if there is something to do first.
    fn park(&self) -> PyResult<bool> {
        self.open()?.park(true).map_err(broken)
    }

    /// We are awake and look for ourselves: the peer need not ring.
    fn unpark(&self) {
        if let Ok(channel) = self.open() {
            channel.unpark();
        }
    }

    /// Whether frames are kept for want of room.
    fn is_stalled(&self) -> bool {
        self.open().is_ok_and(|channel| channel.is_stalled())
    }

    /// Whether a frame is kept for which somebody waits.
    fn is_awaited(&self) -> bool {
        self.open().is_ok_and(|channel| channel.is_awaited())
    }

    /// Whether so much waits for the peer to read that it is asked for nothing more until it does.
    fn is_behind(&self) -> bool {
        self.open().is_ok_and(|channel| channel.is_behind())
    }

    /// What the peer has not taken yet: bytes that it has read so far, bytes that are in the ring, and how many
    /// frames, of how many bytes, wait for room.
    fn untaken(&self) -> PyResult<(u64, usize, usize, usize)> {
        let untaken = self.open()?.untaken().map_err(broken)?;
        Ok((untaken.read, untaken.in_ring, untaken.frames, untaken.bytes))
    }

    /// Takes back the frame that began `id` with one of these kinds, the low eight bits of opcodes; False if
    /// any of it went.
    fn take_back(&self, id: u64, kinds: &[u8]) -> PyResult<bool> {
        Ok(self
            .open()?
            .take_back(id, |opcode| kinds.contains(&(opcode as u8))))
    }

    /// Nobody waits for the call `id` any more: takes back all that is kept of it, but for a frame of which
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
    fn allocate<'py>(&self, py: Python<'py>, len: u64) -> PyResult<Bound<'py, Block>> {
        let channel = self.open()?;
        // What the peer has given back and nobody has looked at yet.
        channel.collect().map_err(broken)?;
        let block = py.detach(|| channel.lending().allocate(len));
        let block = block.map_err(|why| no_memory(py, why))?;
        Bound::new(py, Block::new(Memory::Owned(block), true))
    }

    /// Bytes of shared memory that we have set aside on this channel, and of those in use.
    fn memory(&self) -> (u64, u64) {
        self.open()
            .map_or((0, 0), |channel| channel.lending().usage())
    }

    /// Nothing is sent any more, and a thread that waits here wakes.
    fn close(&self) {
        let inner = self
            .inner
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(channel) = inner {
            channel.close();
        }
    }
}
