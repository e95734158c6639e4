//! Frames on their way in: taken out of the ring, and made objects of Python's. A frame is large, so that each call on
//! its way is inlined: otherwise it is copied again and again, 30 ns in all.

use crate::connection::buffer;
use crate::connection::channel::{Channel, Receiver};
use crate::connection::parcel::{self, Lies, PARCEL};
use crate::connection::peer_extents::Carrier;
use crate::python::codec::msgpack::reader::Buffers;
use crate::python::codec::parcel::{self as body, Parcel};
use crate::python::support::buffer::{Buffer, copy_of, copy_out};
use crate::python::support::errors::broken;
use crate::ring::frame::Header;
use crate::violation::Violation;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::ops::Range;

/// Bodies of up to this many bytes are read where they were copied to, without an object of their own.
const SHORT: usize = 4096;

/// A frame that was taken out of the ring, one way or the other.
pub(crate) enum Arrival {
    /// A short one: its payload is in the caller's buffer.
    Short {
        opcode: u32,
        id: u64,
    },
    Whole(Frame),
}

impl Arrival {
    /// Takes the next frame, if one is there; the payload of a short one replaces what is in `body`.
    #[inline(always)]
    pub(crate) fn next(
        py: Python<'_>,
        channel: &Channel,
        body: &mut Vec<u8>,
    ) -> PyResult<Option<Self>> {
        let mut receiver = channel.receiver();
        let Some(header) = receiver.peek().map_err(broken)? else {
            channel.release(&receiver);
            return Ok(None);
        };
        Arrival::take(py, channel, &mut receiver, header, body).map(Some)
    }

    /// Takes the frame that was found. ChannelError if its peer broke the rules.
    #[inline(always)]
    pub(crate) fn take(
        py: Python<'_>,
        channel: &Channel,
        receiver: &mut Receiver,
        header: Header,
        body: &mut Vec<u8>,
    ) -> PyResult<Self> {
        let Header { opcode, id, len } = header;
        if len > SHORT || opcode & PARCEL != 0 || receiver.is_lost() {
            return Frame::take(py, channel, receiver, header).map(Arrival::Whole);
        }
        body.clear();
        body.resize(len, 0);
        receiver.take(body).map_err(broken)?;
        channel.release(receiver);
        Ok(Arrival::Short { opcode, id })
    }

    #[inline]
    pub(crate) fn opcode(&self) -> u32 {
        match self {
            Arrival::Short { opcode, .. } => *opcode,
            Arrival::Whole(frame) => frame.opcode,
        }
    }

    #[inline]
    pub(crate) fn id(&self) -> u64 {
        match self {
            Arrival::Short { id, .. } => *id,
            Arrival::Whole(frame) => frame.id,
        }
    }

    /// The frame, with an object for its payload.
    pub(crate) fn into_frame(self, py: Python<'_>, body: &[u8]) -> Frame {
        match self {
            Arrival::Short { opcode, id } => Frame {
                opcode,
                id,
                payload: Taken::Plain(PyBytes::new(py, body).unbind()),
            },
            Arrival::Whole(frame) => frame,
        }
    }
}

/// A frame that was taken out of the ring.
pub(crate) struct Frame {
    pub(crate) opcode: u32,
    pub(crate) id: u64,
    pub(crate) payload: Taken,
}

/// The payload of a frame that was taken.
pub(crate) enum Taken {
    /// It is the body.
    Plain(Py<PyBytes>),
    /// It is a parcel's.
    Parcel(Vec<u8>, Opened),
    /// This process has no room for it: the violation that says so. What it was for learns it as it looks.
    Lost(Violation),
}

/// What a parcel's payload says, and the memory that each buffer lies in; None for those in the payload.
type Opened = (parcel::Parsed, Vec<Option<buffer::Buffer>>);

impl Frame {
    /// Takes the next frame, if one is there.
    #[inline(always)]
    pub(crate) fn next(py: Python<'_>, channel: &Channel) -> PyResult<Option<Self>> {
        let mut receiver = channel.receiver();
        let Some(header) = receiver.peek().map_err(broken)? else {
            channel.release(&receiver);
            return Ok(None);
        };
        Frame::take(py, channel, &mut receiver, header).map(Some)
    }

    /// Takes the frame that was found. ChannelError if its peer broke the rules.
    #[inline(always)]
    pub(crate) fn take(
        py: Python<'_>,
        channel: &Channel,
        receiver: &mut Receiver,
        header: Header,
    ) -> PyResult<Self> {
        let Header { opcode, id, .. } = header;
        let payload = take(py, channel, receiver, header)?;
        channel.release(receiver);
        Ok(Frame {
            opcode: opcode & !PARCEL,
            id,
            payload,
        })
    }

    /// What it counts for in a stream's credit, in bytes.
    pub(crate) fn weight(&self, py: Python<'_>) -> usize {
        match &self.payload {
            Taken::Plain(payload) => payload.as_bytes(py).len(),
            Taken::Parcel(_, (parsed, _)) => weight(parsed),
            Taken::Lost(_) => 0,
        }
    }

    /// (opcode, id, body): see `open`.
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

    /// The body, which may have up to `max_frame` bytes. The receiver must not be locked: a copy may let the GIL go.
    #[inline(always)]
    pub(crate) fn open<'py>(self, py: Python<'py>, max_frame: usize) -> PyResult<Body<'py>> {
        match self.payload {
            Taken::Plain(payload) => Ok(Body::Plain(payload.into_bound(py))),
            Taken::Parcel(payload, opened) => open_parcel(py, max_frame, payload, opened),
            Taken::Lost(why) => Ok(Body::Lost(why)),
        }
    }
}

/// A body that has come.
pub(crate) enum Body<'py> {
    Plain(Bound<'py, PyBytes>),
    WithBuffers(Box<WithBuffers<'py>>),
    /// This process has no room for it.
    Lost(Violation),
}

/// A body, and the buffers beside it.
pub(crate) struct WithBuffers<'py> {
    body: Bytes<'py>,
    buffers: Buffers<'py>,
    /// How many bytes the buffers have together.
    size: usize,
}

/// The bytes of a body with buffers.
pub(crate) enum Bytes<'py> {
    Whole(Bound<'py, PyBytes>),
    /// A part of the frame's payload.
    Part(Vec<u8>, Range<usize>),
}

impl Bytes<'_> {
    fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Whole(bytes) => bytes.as_bytes(),
            Bytes::Part(payload, range) => &payload[range.clone()],
        }
    }
}

impl<'py> Body<'py> {
    /// Its bytes and the buffers beside it; None if it is lost.
    #[inline]
    pub(crate) fn parts(&self) -> Option<(&[u8], Option<&Buffers<'py>>)> {
        match self {
            Body::Plain(bytes) => Some((bytes.as_bytes(), None)),
            Body::WithBuffers(all) => Some((all.body.as_slice(), Some(&all.buffers))),
            Body::Lost(_) => None,
        }
    }

    /// What it counts for where bytes are counted.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Body::Plain(bytes) => bytes.as_bytes().len(),
            Body::WithBuffers(all) => body::weight(all.body.as_slice().len(), all.size),
            Body::Lost(_) => 0,
        }
    }

    /// As Python has it: bytes, or a parcel.
    pub(crate) fn into_object(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let parcel = match self {
            Body::Plain(bytes) => return Ok(bytes.into_any()),
            Body::WithBuffers(all) => {
                let body = match all.body {
                    Bytes::Whole(body) => body,
                    Bytes::Part(payload, range) => copy_of(py, &payload[range])?,
                };
                Parcel::make(body, all.buffers.into_tuple(py)?, all.size)
            }
            Body::Lost(why) => Parcel::lost(py, why),
        };
        Ok(Bound::new(py, parcel)?.into_any())
    }
}

#[inline(always)]
fn take(
    py: Python<'_>,
    channel: &Channel,
    receiver: &mut Receiver,
    header: Header,
) -> PyResult<Taken> {
    if receiver.is_lost() {
        return Ok(lose(receiver, header));
    }
    if header.opcode & PARCEL != 0 {
        let mut payload = Vec::new();
        if payload.try_reserve_exact(header.len).is_err() {
            return Ok(lose(receiver, header));
        }
        payload.resize(header.len, 0);
        receiver.take(&mut payload).map_err(broken)?;
        // Before anybody takes the next frame: that may be the end of the lease by which a buffer of ours comes back.
        return match open_all(channel, &payload) {
            Ok(opened) => Ok(Taken::Parcel(payload, opened)),
            Err(why) if why.own_limit().is_some() => Ok(Taken::Lost(why)),
            Err(violation) => Err(broken(violation)),
        };
    }
    let mut has_room = false;
    let payload = PyBytes::new_with(py, header.len, |bytes| {
        has_room = true;
        receiver.take(bytes).map_err(broken)
    });
    match payload {
        Err(_) if !has_room => Ok(lose(receiver, header)),
        payload => Ok(Taken::Plain(payload?.unbind())),
    }
}

/// A frame for which there is no memory: it is dropped, and whoever waits for it is told so.
#[cold]
fn lose(receiver: &mut Receiver, header: Header) -> Taken {
    receiver.discard();
    Taken::Lost(Violation::NoMemory { len: header.len })
}

fn open_all(channel: &Channel, payload: &[u8]) -> Result<Opened, Violation> {
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

#[inline(never)]
fn open_parcel<'py>(
    py: Python<'py>,
    max_frame: usize,
    payload: Vec<u8>,
    (parsed, memories): Opened,
) -> PyResult<Body<'py>> {
    let mut here = &payload[parsed.here..];
    let mut bytes = 0;
    let mut body = None;
    let mut buffers = Vec::with_capacity(memories.len());
    for (entry, memory) in parsed.entries.iter().zip(memories) {
        if parsed.body.is_none() && body.is_none() {
            if entry.len > max_frame as u64 {
                let (len, max) = (entry.len, max_frame as u64);
                return Err(broken(Violation::Oversize { len, max }));
            }
            body = Some(match &memory {
                Some(memory) => copy_out(py, memory)?,
                None => copy_of(py, split_off(&mut here, entry.len as usize))?,
            });
            continue;
        }
        bytes = entry.len.saturating_add(bytes as u64) as usize;
        buffers.push(match memory {
            Some(memory) => Bound::new(py, Buffer::new(memory, false))?.into_any(),
            None => copy_of(py, split_off(&mut here, entry.len as usize))?.into_any(),
        });
    }
    let body = match (body, parsed.body) {
        (Some(body), _) => Bytes::Whole(body),
        (None, Some(range)) => Bytes::Part(payload, range),
        (None, None) => return Err(broken(Violation::Table)),
    };
    Ok(match (buffers.is_empty(), body) {
        (true, Bytes::Whole(body)) => Body::Plain(body),
        (true, Bytes::Part(payload, range)) => Body::Plain(copy_of(py, &payload[range])?),
        (false, body) => Body::WithBuffers(Box::new(WithBuffers {
            body,
            buffers: Buffers::new(buffers),
            size: bytes,
        })),
    })
}

/// What a parcel counts for in a stream's credit, in bytes.
fn weight(parsed: &parcel::Parsed) -> usize {
    let mut lens = parsed.entries.iter().map(|entry| entry.len as usize);
    let body = match &parsed.body {
        Some(body) => body.len(),
        None => lens.next().unwrap_or(0),
    };
    body::weight(body, lens.fold(0, usize::saturating_add))
}

fn split_off<'a>(bytes: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (first, rest) = bytes.split_at(len);
    *bytes = rest;
    first
}
