//! What goes into frames on their way out.

use crate::clock;
use crate::connection::channel::{Channel, LARGE_BODY, Role, SendError, Sent};
use crate::python::codec::msgpack::writer::Written;
use crate::python::codec::parcel::{Flat, Parcel, weight};
use crate::ring::frame::Kept;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

/// Bytes of a body from here on are kept rather than copied.
const LARGE: usize = 16 << 10;

/// A body on its way out, with what keeps it alive should there be no room for it now.
pub(crate) struct Payload<'a> {
    body: &'a [u8],
    /// Only of a large one: a small one is cheaper copied than kept.
    owner: Option<PyBackedBytes>,
    /// What travels beside it.
    buffers: Vec<Flat>,
}

impl<'a> Payload<'a> {
    /// Of bytes that are copied, should there be no room.
    #[inline(always)]
    pub(crate) fn copied(body: &'a [u8]) -> Self {
        Payload {
            body,
            owner: None,
            buffers: Vec::new(),
        }
    }

    /// The same, with what was written beside them.
    #[inline(always)]
    pub(crate) fn of_written(written: &'a mut Written) -> Self {
        Payload {
            body: &written.body,
            owner: None,
            buffers: std::mem::take(&mut written.beside),
        }
    }

    /// Of bytes, or of a parcel.
    #[inline(always)]
    pub(crate) fn new(payload: &'a Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(body) = payload.cast::<PyBytes>() {
            return Ok(Payload::of(body, Vec::new()));
        }
        let parcel = payload.cast::<Parcel>()?;
        let py = payload.py();
        let buffers = parcel.get().buffers(py)?;
        let buffers = buffers.iter().map(|buffer| Flat::new(&buffer));
        Ok(Payload::of(
            parcel.get().body(py),
            buffers.collect::<PyResult<_>>()?,
        ))
    }

    fn of(body: &'a Bound<'_, PyBytes>, buffers: Vec<Flat>) -> Self {
        let bytes = body.as_bytes();
        let owner = (bytes.len() >= LARGE).then(|| PyBackedBytes::from(body.clone()));
        Payload {
            body: bytes,
            owner,
            buffers,
        }
    }

    /// What it counts for in a stream's credit, in bytes.
    pub(crate) fn weight(&self) -> usize {
        weight(self.body.len(), self.buffers.iter().map(Flat::len).sum())
    }

    /// Whether sending it takes long enough for others to work meanwhile.
    pub(crate) fn is_large(&self) -> bool {
        self.body.len() >= LARGE || !self.buffers.is_empty()
    }

    /// Sends a request, unless the peer has left, and looks for its answer: see [`Channel::spin`].
    #[inline(always)]
    pub(crate) fn exchange(
        &mut self,
        channel: &Channel,
        opcode: u32,
        id: u64,
    ) -> Result<(bool, u64), SendError> {
        let is_large = self.is_large();
        let mut start = channel.look()?;
        let sent = self.send(channel, opcode, id, Role::Begins)?;
        if is_large {
            start = clock::now(); // The time that it took is no wait.
        }
        Ok(channel.spin(sent, start)?)
    }

    /// Sends a frame; one that begins a call only if the peer has not left. If there is no room for it now, the peer
    /// rings once there is. Whether it went.
    #[inline(always)]
    pub(crate) fn send_or_keep(
        &mut self,
        channel: &Channel,
        opcode: u32,
        id: u64,
        role: Role,
    ) -> Result<bool, SendError> {
        if role == Role::Begins {
            channel.look()?;
        }
        let sent = self.send(channel, opcode, id, role)?;
        if sent == Sent::Kept {
            channel.await_room()?;
        }
        Ok(sent != Sent::Kept)
    }

    /// Sends a frame. What is left of the payload is to be dropped with the GIL. `role` is as in [`Channel::publish`].
    #[inline(always)]
    pub(crate) fn send(
        &mut self,
        channel: &Channel,
        opcode: u32,
        id: u64,
        role: Role,
    ) -> Result<Sent, SendError> {
        let (body, owner) = (self.body, self.owner.take());
        let keep = || match owner {
            Some(owner) => Box::new(owner) as Kept,
            None => Box::new(body.to_vec()),
        };
        if body.len() <= LARGE_BODY && self.buffers.is_empty() {
            return channel.publish(opcode, id, body, keep, role);
        }
        let buffers: Vec<_> = self.buffers.iter().map(|b| (b.as_ptr(), b.len())).collect();
        // SAFETY: each is readable for as long as its `Flat` lives.
        unsafe { channel.send_parcel(opcode, id, body, &buffers, keep, role) }
    }
}
