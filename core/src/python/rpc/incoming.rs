//! Incoming frames: received from the ring, and converted to Python objects.
//!
//! A frame is a large value, so each function that passes a frame on is inlined. Otherwise the copies take 30 ns in
//! all.

use crate::connection::buffer;
use crate::connection::channel::{Channel, Receiver};
use crate::connection::parcel::{self, Location, PARCEL};
use crate::connection::peer_extents::ReleaseSender;
use crate::python::codec::parcel::weight;
use crate::python::rpc::body::{Body, BodyBytes};
use crate::python::support::buffer::{Buffer, copy_of, copy_out};
use crate::python::support::errors::violation_error;
use crate::ring::frame::Header;
use crate::violation::Violation;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

/// The maximum number of bytes of a body that is read from the buffer to which it was copied, without an object.
const SHORT: usize = 4096;

/// A frame that was received.
pub(crate) enum ReceivedFrame {
    /// A short frame, whose payload is in the caller's buffer.
    Short {
        opcode: u32,
        id: u64,
    },
    Whole(Frame),
}

impl ReceivedFrame {
    /// Receives the next frame; None if there is none. The payload of a short frame replaces the contents of `body`.
    ///
    /// Raises ChannelError if the peer broke the rules.
    #[inline(always)]
    pub(crate) fn next(
        py: Python<'_>,
        channel: &Channel,
        body: &mut Vec<u8>,
    ) -> PyResult<Option<Self>> {
        let mut receiver = channel.receiver();
        let Some(header) = receiver.peek().map_err(violation_error)? else {
            channel.release(&receiver);
            return Ok(None);
        };
        ReceivedFrame::receive(py, channel, &mut receiver, header, body).map(Some)
    }

    /// Receives the frame with this header, which `peek` has just returned. The payload of a short frame replaces the
    /// contents of `body`. Raises ChannelError if the peer broke the rules.
    #[inline(always)]
    pub(crate) fn receive(
        py: Python<'_>,
        channel: &Channel,
        receiver: &mut Receiver,
        header: Header,
        body: &mut Vec<u8>,
    ) -> PyResult<Self> {
        let Header { opcode, id, len } = header;
        if len > SHORT || opcode & PARCEL != 0 || receiver.is_lost() {
            return Frame::receive(py, channel, receiver, header).map(ReceivedFrame::Whole);
        }
        body.clear();
        body.resize(len, 0);
        receiver.take(body).map_err(violation_error)?;
        channel.release(receiver);
        Ok(ReceivedFrame::Short { opcode, id })
    }

    #[inline]
    pub(crate) fn opcode(&self) -> u32 {
        match self {
            ReceivedFrame::Short { opcode, .. } => *opcode,
            ReceivedFrame::Whole(frame) => frame.opcode,
        }
    }

    #[inline]
    pub(crate) fn id(&self) -> u64 {
        match self {
            ReceivedFrame::Short { id, .. } => *id,
            ReceivedFrame::Whole(frame) => frame.id,
        }
    }

    /// Returns the frame, with an object for its payload; `body` has the payload of a short frame.
    pub(crate) fn into_frame(self, py: Python<'_>, body: &[u8]) -> Frame {
        match self {
            ReceivedFrame::Short { opcode, id } => Frame {
                opcode,
                id,
                payload: FramePayload::Plain(PyBytes::new(py, body).unbind()),
            },
            ReceivedFrame::Whole(frame) => frame,
        }
    }
}

/// A frame that was received, with its payload.
pub(crate) struct Frame {
    pub(crate) opcode: u32,
    pub(crate) id: u64,
    payload: FramePayload,
}

/// Payload of a frame.
enum FramePayload {
    /// The body itself.
    Plain(Py<PyBytes>),
    /// Payload of a parcel, with its buffers opened.
    Parcel(Vec<u8>, OpenedBuffers),
    /// A payload for which this process has no room, for this reason. The call to which the frame belongs raises it.
    Lost(Violation),
}

/// Entries of a parcel, and the memory of each buffer; None for a buffer that lies in the payload.
type OpenedBuffers = (parcel::Parsed, Vec<Option<buffer::Buffer>>);

impl Frame {
    /// Receives the next frame; None if there is none. Raises ChannelError if the peer broke the rules.
    #[inline(always)]
    pub(crate) fn next(py: Python<'_>, channel: &Channel) -> PyResult<Option<Self>> {
        let mut receiver = channel.receiver();
        let Some(header) = receiver.peek().map_err(violation_error)? else {
            channel.release(&receiver);
            return Ok(None);
        };
        Frame::receive(py, channel, &mut receiver, header).map(Some)
    }

    /// Receives the frame with this header, which `peek` has just returned. Raises ChannelError if the peer broke the
    /// rules.
    #[inline(always)]
    fn receive(
        py: Python<'_>,
        channel: &Channel,
        receiver: &mut Receiver,
        header: Header,
    ) -> PyResult<Self> {
        let Header { opcode, id, .. } = header;
        let payload = receive_payload(py, channel, receiver, header)?;
        channel.release(receiver);
        Ok(Frame {
            opcode: opcode & !PARCEL,
            id,
            payload,
        })
    }

    /// Returns the weight of the frame in a stream's credit, in bytes; 0 for a lost payload.
    pub(crate) fn weight(&self, py: Python<'_>) -> usize {
        match &self.payload {
            FramePayload::Plain(payload) => payload.as_bytes(py).len(),
            FramePayload::Parcel(_, (parsed, _)) => weight_of_parcel(parsed),
            FramePayload::Lost(_) => 0,
        }
    }

    /// Returns (opcode, id, body): see [`open`](Self::open).
    #[inline(always)]
    pub(crate) fn into_tuple<'py>(
        self,
        py: Python<'py>,
        max_frame: usize,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let (opcode, id) = (self.opcode, self.id);
        let body = self.open(py, max_frame)?.into_object(py)?;
        (opcode, id, body).into_pyobject(py)
    }

    /// Returns the body; a lost payload is a lost body and no error. Raises ChannelError if the body of a parcel has
    /// more than `max_frame` bytes; the receiver limits any other body.
    ///
    /// The caller must not hold the lock of the receiver, because a copy may release the GIL.
    #[inline(always)]
    pub(crate) fn open<'py>(self, py: Python<'py>, max_frame: usize) -> PyResult<Body<'py>> {
        match self.payload {
            FramePayload::Plain(payload) => Ok(Body::Plain(payload.into_bound(py))),
            FramePayload::Parcel(payload, opened) => open_parcel(py, max_frame, payload, opened),
            FramePayload::Lost(reason) => Ok(Body::Lost(reason)),
        }
    }
}

/// Receives the payload of the frame with this header, and opens its buffers. Returns a lost payload if this process
/// has no room for it. Raises ChannelError if the peer broke the rules.
#[inline(always)]
fn receive_payload(
    py: Python<'_>,
    channel: &Channel,
    receiver: &mut Receiver,
    header: Header,
) -> PyResult<FramePayload> {
    if receiver.is_lost() {
        return Ok(discard(receiver, header));
    }
    if header.opcode & PARCEL != 0 {
        let mut payload = Vec::new();
        if payload.try_reserve_exact(header.len).is_err() {
            return Ok(discard(receiver, header));
        }
        payload.resize(header.len, 0);
        receiver.take(&mut payload).map_err(violation_error)?;
        // Before the next frame is received, which may end the loan by which a buffer of ours comes back.
        return match open_buffers(channel, &payload) {
            Ok(opened) => Ok(FramePayload::Parcel(payload, opened)),
            Err(reason) if reason.own_limit().is_some() => Ok(FramePayload::Lost(reason)),
            Err(violation) => Err(violation_error(violation)),
        };
    }
    let mut has_room = false;
    let payload = PyBytes::new_with(py, header.len, |bytes| {
        has_room = true;
        receiver.take(bytes).map_err(violation_error)
    });
    match payload {
        Err(_) if !has_room => Ok(discard(receiver, header)),
        payload => Ok(FramePayload::Plain(payload?.unbind())),
    }
}

/// Discards a frame for which there is no memory. Returns the payload of a lost frame.
#[cold]
fn discard(receiver: &mut Receiver, header: Header) -> FramePayload {
    receiver.discard();
    FramePayload::Lost(Violation::NoMemory { len: header.len })
}

/// Opens the memory of all buffers of a parcel. Fails if the peer broke the rules, or if this process has no room: then
/// the loans of all buffers of the parcel end.
fn open_buffers(channel: &Channel, payload: &[u8]) -> Result<OpenedBuffers, Violation> {
    let parsed = parcel::parse(payload)?;
    let mut memories = Vec::with_capacity(parsed.entries.len());
    for (index, entry) in parsed.entries.iter().enumerate() {
        let opened = channel.loans().open(entry).inspect_err(|violation| {
            if violation.own_limit().is_some() {
                // The peer has lent the rest all the same. The loans of the buffers before end as they are dropped.
                for lent in &parsed.entries[index..] {
                    if let Location::AtSender(block) = lent.location {
                        channel.send_release(&parcel::release(block));
                    }
                }
            }
        });
        memories.push(opened?);
    }
    Ok((parsed, memories))
}

/// Returns the body of a parcel, with its buffers. Raises ChannelError for a body of more than `max_frame` bytes, and
/// for a parcel without a body.
#[inline(never)]
fn open_parcel<'py>(
    py: Python<'py>,
    max_frame: usize,
    payload: Vec<u8>,
    (parsed, memories): OpenedBuffers,
) -> PyResult<Body<'py>> {
    let mut inline = &payload[parsed.here..];
    let mut size = 0;
    let mut body = None;
    let mut buffers = Vec::with_capacity(memories.len());
    for (entry, memory) in parsed.entries.iter().zip(memories) {
        if parsed.body.is_none() && body.is_none() {
            if entry.len > max_frame as u64 {
                let (len, max) = (entry.len, max_frame as u64);
                return Err(violation_error(Violation::Oversize { len, max }));
            }
            body = Some(match &memory {
                Some(memory) => copy_out(py, memory)?,
                None => copy_of(py, split_off(&mut inline, entry.len as usize))?,
            });
            continue;
        }
        size = entry.len.saturating_add(size as u64) as usize;
        buffers.push(match memory {
            Some(memory) => Bound::new(py, Buffer::new(memory, false))?.into_any(),
            None => copy_of(py, split_off(&mut inline, entry.len as usize))?.into_any(),
        });
    }
    let body = match (body, parsed.body) {
        (Some(body), _) => BodyBytes::Object(body),
        (None, Some(range)) => BodyBytes::Part(payload, range),
        (None, None) => return Err(violation_error(Violation::Table)),
    };
    Body::new(py, body, buffers, size)
}

/// Returns the weight of a parcel in a stream's credit, in bytes.
fn weight_of_parcel(parsed: &parcel::Parsed) -> usize {
    let mut lens = parsed.entries.iter().map(|entry| entry.len as usize);
    let body = match &parsed.body {
        Some(body) => body.len(),
        None => lens.next().unwrap_or(0),
    };
    weight(body, lens.fold(0, usize::saturating_add))
}

/// Removes the first `len` bytes from `bytes`, and returns them. The caller has checked that there are so many.
fn split_off<'a>(bytes: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (first, rest) = bytes.split_at(len);
    *bytes = rest;
    first
}
