//! `Channel`: one side of a connection.

use crate::connection::channel::{self, FrameRole, SendError, SleepMode};
use crate::connection::peer_extents::ReleaseSender;
use crate::connection::segment::{Direction, Segment, SegmentError};
use crate::memory::region::RegionError;
use crate::packet;
use crate::python::rpc::incoming::{Frame, ReceivedFrame};
use crate::python::rpc::payload::Payload;
use crate::python::rpc::reply::{Exchange, Reply};
use crate::python::rpc::requests::Requests;
use crate::python::support::buffer::{Buffer, copy_of};
use crate::python::support::descriptor::Descriptor;
use crate::python::support::errors::{
    ChannelError, no_memory_error, os_error, send_error, violation_error,
};
use crate::python::support::scratch::Scratch;
use crate::sync::lock;
use crate::wait::waker::{LoopWaker, Semaphore, SemaphoreError, Semaphores, Wakers};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::ffi::CString;
use std::sync::{Arc, Mutex};

/// The smallest payload, in bytes, that is not joined with other items: joining copies each payload twice more.
const SMALL_ITEM: usize = 2 << 10;

/// Opens the semaphore `/name` of the user `owner`. Raises OSError, or ChannelError for a semaphore that does not fit.
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
    /// None once the channel is closed. The last call in progress frees its resources.
    inner: Mutex<Option<Arc<channel::Channel>>>,
    requests: Requests,
}

impl Channel {
    /// Returns the open channel, for the time of one call. Raises ChannelError once the channel is closed.
    #[inline]
    pub(crate) fn open(&self) -> PyResult<Arc<channel::Channel>> {
        let inner = lock(&self.inner);
        inner.clone().ok_or_else(|| send_error(SendError::Closed))
    }

    /// Returns the opcode of plain replies: the payload alone is the reply.
    pub(crate) fn reply_opcode(&self) -> u32 {
        self.requests.reply_opcode
    }

    /// Returns the reply of a pipelined call, also once the channel is closed, and forgets the call. Without a reply
    /// returns [`Reply::Other`], which may hold a frame of another call. Raises ChannelError if the peer broke rules.
    #[inline]
    pub(crate) fn pipelined_reply<'py>(
        &self,
        py: Python<'py>,
        id: u64,
        body: &mut Vec<u8>,
    ) -> PyResult<Reply<'py>> {
        let channel = lock(&self.inner).clone();
        self.requests
            .pipelined_reply(py, channel.as_deref(), id, body)
    }

    /// Forgets a pipelined call whose task no longer waits. Returns true if the reply had arrived.
    pub(crate) fn forget(&self, id: u64) -> bool {
        self.requests.forget(id)
    }
}

impl Exchange for Channel {
    #[inline]
    fn exchange<'py>(
        &self,
        py: Python<'py>,
        opcode: u32,
        id: u64,
        payload: Payload<'_>,
        body: &mut Vec<u8>,
    ) -> PyResult<Reply<'py>> {
        let channel = self.open()?;
        let requests = &self.requests;
        requests.exchange(py, &channel, opcode, id, payload, body, false)
    }
}

/// A channel whose requests are pipelined: their tasks yield to the event loop.
pub(crate) struct PipeliningExchange<'a>(pub(crate) &'a Channel);

impl Exchange for PipeliningExchange<'_> {
    #[inline]
    fn exchange<'py>(
        &self,
        py: Python<'py>,
        opcode: u32,
        id: u64,
        payload: Payload<'_>,
        body: &mut Vec<u8>,
    ) -> PyResult<Reply<'py>> {
        let channel = self.0.open()?;
        let requests = &self.0.requests;
        requests.exchange(py, &channel, opcode, id, payload, body, true)
    }
}

impl Channel {
    /// Sends a frame in this role, without the GIL. Returns false if there is no room now: the channel keeps the frame,
    /// and sends it later. Raises the errors of `send_error` and of `Payload::new`.
    fn send_one(
        &self,
        py: Python<'_>,
        opcode: u32,
        id: u64,
        payload: &Bound<'_, PyAny>,
        role: FrameRole,
    ) -> PyResult<bool> {
        let channel = self.open()?;
        let mut payload = Payload::new(payload)?;
        py.detach(|| payload.send_or_keep(&channel, opcode, id, role))
            .map_err(send_error)
    }
}

#[pymethods]
impl Channel {
    /// Opens one side of a segment; the server's side also initializes its file.
    ///
    /// The caller keeps ``bell``, to wait for the doorbell in an event loop. The channel takes ``loans`` over. Raises
    /// OSError, or ChannelError if the segment, the doorbell or a semaphore does not fit.
    #[new]
    #[pyo3(signature = (*, segment, capacity, server, bell, semaphores, owner, loans, blocking, max_frame, max_memory, spin, reply_opcode))]
    #[allow(clippy::too_many_arguments)] // By keyword alone, in one place.
    fn new(
        segment: &Descriptor,
        capacity: usize,
        server: bool,
        bell: &Descriptor,
        semaphores: Option<(String, String)>,
        owner: u32,
        loans: &Descriptor,
        blocking: bool,
        max_frame: usize,
        max_memory: u64,
        spin: f64,
        reply_opcode: u32,
    ) -> PyResult<Self> {
        if blocking && semaphores.is_none() {
            let unfit = "a side that blocks needs semaphores";
            return Err(PyValueError::new_err(unfit));
        }
        // Before a file of another process is read.
        let semaphores = semaphores.map(|(own, peer)| {
            let (ours, theirs) = (open_semaphore(&own, owner)?, open_semaphore(&peer, owner)?);
            PyResult::Ok(Semaphores { ours, theirs })
        });
        // The client may have received any descriptor. Only such a socket can be rung, and waited for in a loop.
        if !server && !bell.with(|file| Ok(packet::is_local_packets(file)))? {
            return Err(ChannelError::new_err(
                "its bell is no local socket of packets",
            ));
        }
        let bells = Wakers {
            loop_waker: LoopWaker::new(bell.with(|file| file.try_clone_to_owned())?),
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
        let sleep = if blocking {
            SleepMode::Thread
        } else {
            SleepMode::Loop
        };
        let inner = channel::Channel::new(
            segment,
            direction,
            bells,
            sleep,
            max_frame,
            (spin * 1e3) as u64,
            loans.take()?,
            max_memory,
        );
        Ok(Channel {
            inner: Mutex::new(Some(inner)),
            requests: Requests::new(sleep, reply_opcode),
        })
    }

    /// Sends a frame. Returns False if there is no room now: the channel keeps the frame, and sends it as the peer
    /// reads. Raises Oversize or Backlog for a frame that cannot be sent, and ChannelError once the channel is closed.
    fn send(
        &self,
        py: Python<'_>,
        opcode: u32,
        id: u64,
        payload: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        self.send_one(py, opcode, id, payload, FrameRole::Other)
    }

    /// Sends a request, and does not wait for the reply. Returns False if there is no room now: the channel keeps the
    /// request, and sends it as the peer reads.
    ///
    /// Raises PeerLeft if the peer was quiet for a while and has left, and Overtaken if a call with a higher id was
    /// begun before.
    fn begin(
        &self,
        py: Python<'_>,
        opcode: u32,
        id: u64,
        payload: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        self.send_one(py, opcode, id, payload, FrameRole::Begin)
    }

    /// Sends a request, and spins for the reply for as long as that is worthwhile.
    ///
    /// Returns only the body of a reply with `reply_opcode`. Returns any other frame as (opcode, id, payload); also
    /// that reply if the yield budget is spent, so that the task yields. Returns None if no frame came in time: the
    /// caller waits. Raises what `begin` raises.
    fn exchange<'py>(
        &self,
        py: Python<'py>,
        opcode: u32,
        id: u64,
        payload: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut body = Scratch::new();
        let payload = Payload::new(payload)?;
        let reply = Exchange::exchange(self, py, opcode, id, payload, &mut body)?;
        reply.into_object(py, &body)
    }

    /// Returns the next frame as (opcode, id, payload); None if there is none now. Keeps frames of pipelined calls for
    /// these.
    fn receive<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let channel = self.open()?;
        let max_frame = channel.max_frame();
        loop {
            let Some(frame) = Frame::next(py, &channel)? else {
                return Ok(None);
            };
            if !self.requests.pipelined.contains(frame.id) {
                return frame.into_tuple(py, max_frame).map(Some);
            }
            let frame = ReceivedFrame::Whole(frame);
            self.requests.pipelined.keep(frame, &[]);
        }
    }

    /// Returns True if pipelined calls are in flight.
    fn has_pipelined_calls(&self) -> bool {
        !self.requests.pipelined.is_empty()
    }

    /// Receives the small frames that are there with this opcode and id, up to `max_items` of them and until a
    /// different frame is next.
    ///
    /// Returns their number, and their payloads joined behind `head` and that number as four big-endian bytes; None if
    /// there is no such frame.
    fn receive_run<'py>(
        &self,
        py: Python<'py>,
        opcode: u32,
        id: u64,
        max_items: usize,
        head: &[u8],
    ) -> PyResult<Option<(usize, Bound<'py, PyBytes>)>> {
        let channel = self.open()?;
        let mut receiver = channel.receiver();
        let mut joined = Vec::new();
        let mut received = 0u32;
        while (received as usize) < max_items {
            match receiver.peek().map_err(violation_error)? {
                Some(header)
                    if header.opcode == opcode
                        && header.id == id
                        && header.len < SMALL_ITEM
                        && !receiver.is_lost() =>
                {
                    if received == 0 {
                        joined.reserve(max_items * (header.len + 8));
                        joined.extend_from_slice(head);
                        joined.extend_from_slice(&[0; 4]);
                    }
                    let from = joined.len();
                    joined.resize(from + header.len, 0);
                    receiver
                        .take(&mut joined[from..])
                        .map_err(violation_error)?;
                    received += 1;
                }
                _ => break,
            }
        }
        channel.release(&receiver);
        if received == 0 {
            return Ok(None);
        }
        joined[head.len()..head.len() + 4].copy_from_slice(&received.to_be_bytes());
        Ok(Some((received as usize, copy_of(py, &joined)?)))
    }

    /// Silences the doorbell of this side, which has rung, and sends kept frames as far as there is room. Returns False
    /// if the doorbell will never ring again, because the peer has closed it.
    fn wake(&self) -> PyResult<bool> {
        let channel = self.open()?;
        let rings = channel.drain_wakeups();
        let mut receiver = channel.receiver();
        if receiver.peek().map_err(violation_error)?.is_some() {
            channel.record_wake(&mut receiver);
        }
        drop(receiver);
        channel.await_room().map_err(violation_error)?;
        Ok(rings)
    }

    /// Returns True if the ring has no more of the bytes that were there at the last check. A frame in pieces may be
    /// incomplete, or complete and not yet received.
    fn is_at_end(&self) -> PyResult<bool> {
        Ok(self.open()?.receiver().is_at_end())
    }

    /// Does what `is_at_end` does, and wakes a peer that waits for room.
    fn settle(&self) -> PyResult<bool> {
        Ok(self.open()?.wake_waiting_writer())
    }

    /// Announces that this side is about to sleep, so that the peer rings. With `patient`, the peer does not ring for
    /// an item of a stream. Returns False if this side must do something before it sleeps.
    #[pyo3(signature = (patient=false))]
    fn park(&self, patient: bool) -> PyResult<bool> {
        self.open()?.park(true, patient).map_err(violation_error)
    }

    /// Withdraws the announcement: this side polls for frames itself, so that the peer need not ring.
    fn unpark(&self) {
        if let Ok(channel) = self.open() {
            channel.unpark();
        }
    }

    /// Returns True if frames are kept because there is no room; False once the channel is closed.
    fn is_stalled(&self) -> bool {
        self.open().is_ok_and(|channel| channel.is_stalled())
    }

    /// Returns True if a caller waits for a kept frame; False once the channel is closed.
    fn is_awaited(&self) -> bool {
        self.open().is_ok_and(|channel| channel.is_awaited())
    }

    /// Returns True if so many bytes wait for the peer that this side should request nothing more before the peer
    /// reads; False once the channel is closed.
    fn is_behind(&self) -> bool {
        self.open().is_ok_and(|channel| channel.is_behind())
    }

    /// Returns the progress of the peer: the number of bytes that it has read so far, the number of unread bytes in the
    /// ring, and the number and the bytes of the frames that wait for room.
    fn untaken(&self) -> PyResult<(u64, usize, usize, usize)> {
        let untaken = self.open()?.unread().map_err(violation_error)?;
        Ok((untaken.read, untaken.in_ring, untaken.frames, untaken.bytes))
    }

    /// Takes back the frame that begins the call `id`, whose kind, the low eight bits of its opcode, is one of `kinds`.
    /// Returns False if any part of the frame was sent. Raises ChannelError once the channel is closed.
    fn take_back(&self, id: u64, kinds: &[u8]) -> PyResult<bool> {
        Ok(self
            .open()?
            .take_back(id, |opcode| kinds.contains(&(opcode as u8))))
    }

    /// Takes back all kept frames of the call `id`, for which no caller waits, except a frame that was sent in part.
    /// Does nothing once the channel is closed.
    fn take_back_all(&self, id: u64) {
        if let Ok(channel) = self.open() {
            channel.take_back_all(id);
        }
    }

    /// Returns True if there is a frame to receive.
    fn has_frame(&self) -> PyResult<bool> {
        Ok(self
            .open()?
            .receiver()
            .peek()
            .map_err(violation_error)?
            .is_some())
    }

    /// Returns the highest id of all received frames; 0 before the first frame, and once the channel is closed.
    fn reached(&self) -> u64 {
        self.open()
            .map_or(0, |channel| channel.receiver().reached())
    }

    /// Allocates a block of shared memory, which the caller writes and then sends, after the blocks that the peer has
    /// released were freed.
    ///
    /// Raises NoMemory if there is none, and Unheard if the message about new memory cannot reach the peer.
    fn allocate<'py>(&self, py: Python<'py>, len: u64) -> PyResult<Bound<'py, Buffer>> {
        let channel = self.open()?;
        // First frees what the peer has released since.
        channel.collect_releases().map_err(violation_error)?;
        let block = py.detach(|| channel.loans().allocate(len));
        let block = block.map_err(|why| no_memory_error(py, why))?;
        Bound::new(py, Buffer::new(block, true))
    }

    /// Returns the bytes of shared memory that this side has allocated for the channel, and the bytes of them in use;
    /// zeros once the channel is closed.
    fn memory(&self) -> (u64, u64) {
        self.open()
            .map_or((0, 0), |channel| channel.loans().allocator().usage())
    }

    /// Closes the channel, and wakes a thread that waits here. Idempotent.
    fn close(&self) {
        let inner = lock(&self.inner).take();
        if let Some(channel) = inner {
            channel.close();
        }
    }
}
