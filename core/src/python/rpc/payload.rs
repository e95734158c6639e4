//! Payloads of outgoing frames.

use crate::clock;
use crate::connection::channel::{Channel, FrameRole, LARGE_BODY, SendError, SendOutcome};
use crate::python::codec::msgpack::outgoing_body::OutgoingBody;
use crate::python::codec::parcel::{ByteView, Parcel, weight};
use crate::ring::frame::KeptPayload;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

/// The smallest body, in bytes, that is kept alive rather than copied.
const LARGE: usize = 16 << 10;

/// The payload of an outgoing frame, with the owner of the body in case there is no room for the frame now.
pub(crate) struct Payload<'a> {
    body: &'a [u8],
    /// The owner of a large body; None for a small body, which is cheaper to copy than to keep.
    owner: Option<PyBackedBytes>,
    /// Buffers beside the body.
    buffers: Vec<ByteView>,
}

impl<'a> Payload<'a> {
    /// Returns a payload of bytes that are copied if there is no room.
    #[inline(always)]
    pub(crate) fn copied(body: &'a [u8]) -> Self {
        Payload {
            body,
            owner: None,
            buffers: Vec::new(),
        }
    }

    /// Returns a payload of a written body, and takes the buffers beside it.
    #[inline(always)]
    pub(crate) fn from_outgoing(body: &'a mut OutgoingBody) -> Self {
        Payload {
            body: &body.bytes,
            owner: None,
            buffers: std::mem::take(&mut body.buffers),
        }
    }

    /// Returns a payload of bytes or of a parcel. Raises TypeError for any other object or a parcel with a released
    /// buffer, and Unmapped for a parcel for which this process has no room.
    #[inline(always)]
    pub(crate) fn new(payload: &'a Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(body) = payload.cast::<PyBytes>() {
            return Ok(Payload::with_buffers(body, Vec::new()));
        }
        let parcel = payload.cast::<Parcel>()?;
        let py = payload.py();
        let buffers = parcel.get().buffers(py)?;
        let buffers = buffers.iter().map(|buffer| ByteView::new(&buffer));
        Ok(Payload::with_buffers(
            parcel.get().body(py),
            buffers.collect::<PyResult<_>>()?,
        ))
    }

    /// Returns a payload of this body and these buffers, which keeps a large body alive.
    fn with_buffers(body: &'a Bound<'_, PyBytes>, buffers: Vec<ByteView>) -> Self {
        let bytes = body.as_bytes();
        let owner = (bytes.len() >= LARGE).then(|| PyBackedBytes::from(body.clone()));
        Payload {
            body: bytes,
            owner,
            buffers,
        }
    }

    /// Returns the weight of the payload in a stream's credit, in bytes: the size of the body and a small part of the
    /// buffers.
    pub(crate) fn weight(&self) -> usize {
        weight(
            self.body.len(),
            self.buffers.iter().map(ByteView::len).sum(),
        )
    }

    /// Returns true if the payload takes so long to send that the caller must release the GIL: a large body, or any
    /// buffers beside the body.
    pub(crate) fn is_large(&self) -> bool {
        self.body.len() >= LARGE || !self.buffers.is_empty()
    }

    /// Sends a request, and spins for its reply: see [`Channel::spin`]. Returns true if a frame has arrived, perhaps of
    /// another call, and the time. Fails as `send` does, or if the peer has left; with a violation that the spin finds
    /// also after the request was sent. The caller has released the GIL; the time that sending a large payload takes is
    /// no part of the spin.
    #[inline(always)]
    pub(crate) fn exchange(
        &mut self,
        channel: &Channel,
        opcode: u32,
        id: u64,
    ) -> Result<(bool, u64), SendError> {
        let is_large = self.is_large();
        let mut start = channel.check_peer()?;
        let sent = self.send(channel, opcode, id, FrameRole::Begin)?;
        if is_large {
            start = clock::now(); // The time that sending took is no wait.
        }
        Ok(channel.spin(sent, start)?)
    }

    /// Sends a frame. Returns false if there is no room now: the channel keeps the frame, and the peer rings once there
    /// is room. Fails as `send` does; a frame that begins a call also if the peer has left.
    #[inline(always)]
    pub(crate) fn send_or_keep(
        &mut self,
        channel: &Channel,
        opcode: u32,
        id: u64,
        role: FrameRole,
    ) -> Result<bool, SendError> {
        if role == FrameRole::Begin {
            channel.check_peer()?;
        }
        let sent = self.send(channel, opcode, id, role)?;
        if sent == SendOutcome::Queued {
            channel.await_room()?;
        }
        Ok(sent != SendOutcome::Queued)
    }

    /// Sends a frame, and fails, as [`Channel::publish`] does. A client may wait for up to 2 ms if the payload has
    /// buffers or a large body: see [`Channel::send_parcel`]. The caller sends a payload once, and drops the rest of it
    /// with the GIL.
    #[inline(always)]
    pub(crate) fn send(
        &mut self,
        channel: &Channel,
        opcode: u32,
        id: u64,
        role: FrameRole,
    ) -> Result<SendOutcome, SendError> {
        let (body, owner) = (self.body, self.owner.take());
        let keep = || match owner {
            Some(owner) => Box::new(owner) as KeptPayload,
            None => Box::new(body.to_vec()),
        };
        if body.len() <= LARGE_BODY && self.buffers.is_empty() {
            return channel.publish(opcode, id, body, keep, role);
        }
        let buffers: Vec<_> = self.buffers.iter().map(|b| (b.as_ptr(), b.len())).collect();
        // SAFETY: each is readable for as long as its `ByteView` lives.
        unsafe { channel.send_parcel(opcode, id, body, &buffers, keep, role) }
    }
}
