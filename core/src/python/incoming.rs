//! Frames on their way in: taken out of the ring, and made objects of Python's.

use super::block::{Block, copy_out};
use super::errors::broken;
use super::parcel::{self as body, Parcel};
use crate::connection::buffer::Buffer;
use crate::connection::channel::{self, Receiver};
use crate::connection::ledger::Carrier;
use crate::connection::parcel::{self, Lies, PARCEL};
use crate::ring::frame::Header;
use crate::violation::Violation;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::sync::Arc;

/// What a parcel's payload says, and the memory that each buffer lies in; None for those in the payload.
pub(super) type Opened = (parcel::Parsed, Vec<Option<Buffer>>);

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
    body::weight(body, lens.fold(0, usize::saturating_add))
}

fn split_off<'a>(bytes: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (first, rest) = bytes.split_at(len);
    *bytes = rest;
    first
}

/// The next frame that is there, taken and opened.
pub(super) fn receive_one<'py>(
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
