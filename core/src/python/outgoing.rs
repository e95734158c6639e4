//! Frames on their way out.

use super::parcel::{Flat, Parcel, weight};
use crate::clock;
use crate::connection::channel::{self, SendError, Sent};
use crate::ring::frame::Kept;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

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

    /// What it counts for in a stream's credit, in bytes.
    pub(super) fn weight(&self) -> usize {
        weight(self.body.len(), self.buffers.iter().map(Flat::len).sum())
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
