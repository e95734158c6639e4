//! Values as items of a queue: small ones as they lie in it, large ones to be copied once, into a chunk of their own.

use crate::memory::bytes;
use crate::objects::error::ObjectError;
use crate::objects::queue::QueueMembership;
use crate::python::codec::msgpack::writer::OutgoingBody;
use crate::python::codec::parcel::ByteView;
use crate::queue::parcel::{MOST_BUFFERS, Parts};
use crate::queue::{Form, Head, PutOutcome};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Bytes from here on are copied without the GIL.
const LONG: u64 = 64 << 10;

/// A large item that is put: copied once, into the queue.
pub(crate) struct Large {
    form: Form,
    head: Head,
    /// What comes before the buffers.
    before: Vec<u8>,
    parts: Parts,
    buffers: Vec<ByteView>,
}

pub(crate) enum Piece {
    /// This many bytes of the items that are small.
    Small(usize),
    Large(Large),
}

/// Values as items.
pub(crate) struct Encoded {
    pub(crate) count: u64,
    /// The small items, as they lie in the queue.
    pub(crate) small: OutgoingBody,
    /// What they are among, if there are large ones.
    pub(crate) pieces: Vec<Piece>,
    /// Bytes of all.
    pub(crate) len: u64,
}

impl Encoded {
    pub(crate) fn new() -> Self {
        Encoded {
            count: 0,
            small: OutgoingBody::new(),
            pieces: Vec::new(),
            len: 0,
        }
    }

    pub(crate) fn put(
        &self,
        membership: &QueueMembership,
        patience: u64,
    ) -> Result<PutOutcome, ObjectError> {
        if self.pieces.is_empty() {
            return membership.put(&self.small.bytes, self.count, patience);
        }
        membership.put_large(self.len, self.count, patience, |to, at| self.write(to, at))
    }

    /// Writes all into a chunk that has room; the bytes used.
    pub(crate) fn write(&self, to: *mut u8, at: u64) -> u64 {
        let (mut done, mut used) = (0, 0);
        for piece in &self.pieces {
            match piece {
                Piece::Small(len) => {
                    let from = self.small.bytes[done..done + len].as_ptr();
                    // SAFETY: the chunk has room for all pieces with their gaps, see `add_large`; it is nobody else's.
                    unsafe { bytes::copy(to.wrapping_add(used), from, *len) };
                    done += len;
                    used += len;
                }
                Piece::Large(large) => used = large.write(to, at, used),
            }
        }
        used as u64
    }

    pub(crate) fn add_large(&mut self, large: Large) {
        self.end_small();
        self.len += large.room();
        self.pieces.push(Piece::Large(large));
    }

    /// The small items so far are a piece before what comes.
    pub(crate) fn end_small(&mut self) {
        let before = self.pieces.iter().map(|piece| match piece {
            Piece::Small(len) => *len,
            Piece::Large(_) => 0,
        });
        let len = self.small.bytes.len() - before.sum::<usize>();
        if len > 0 {
            self.pieces.push(Piece::Small(len));
            self.len += len as u64;
        }
    }

    /// Whether it takes long to copy.
    pub(crate) fn is_long(&self) -> bool {
        self.small.bytes.len() as u64 >= LONG || self.len >= LONG
    }
}

impl Large {
    /// A value of this body, with these buffers.
    pub(crate) fn parcel(body: &[u8], buffers: Vec<ByteView>) -> PyResult<Self> {
        let lengths = buffers.iter().map(|buffer| buffer.len() as u64);
        let parts = laid_out(body, lengths)?;
        Ok(Large::new(Form::Parcel, parts, body, buffers))
    }

    /// One whose only buffer, of `len` bytes, somebody else fills: of a value of this body, or no value.
    pub(crate) fn to_fill(len: u64, body: Option<&[u8]>) -> PyResult<Self> {
        Ok(match body {
            Some(body) => {
                let parts = laid_out(body, std::iter::once(len))?;
                Large::new(Form::Parcel, parts, body, Vec::new())
            }
            None => Large::raw(len, Vec::new()),
        })
    }

    /// Bytes that are no value.
    pub(crate) fn raw(len: u64, buffers: Vec<ByteView>) -> Self {
        let parts = Parts {
            body: (0, 0),
            buffers: vec![(0, len)],
            len,
        };
        Large::new(Form::Raw, parts, &[], buffers)
    }

    pub(crate) fn new(form: Form, parts: Parts, body: &[u8], buffers: Vec<ByteView>) -> Self {
        let mut before = match form {
            Form::Parcel => parts.head(),
            _ => Vec::new(),
        };
        before.extend_from_slice(body);
        Large {
            form,
            head: Head::new(parts.len, form),
            before,
            parts,
            buffers,
        }
    }

    /// The bytes that it takes at most, wherever it begins.
    pub(crate) fn room(&self) -> u64 {
        8 + 64 + self.parts.len.next_multiple_of(8)
    }

    /// Where its first buffer is, and how long it is, if it begins at `at`.
    pub(crate) fn first_buffer(&self, at: u64) -> (u64, u64) {
        let (begin, len) = self.hole();
        (self.head.payload_from(at) + begin, len)
    }

    /// The same, counted from where its payload begins.
    pub(crate) fn hole(&self) -> (u64, u64) {
        self.parts.buffers[0]
    }

    /// Writes it `used` bytes into a chunk that has room, whose items begin at `to` in our memory and at `at` in the queue's;
    /// the bytes used then.
    pub(crate) fn write(&self, to: *mut u8, at: u64, used: usize) -> usize {
        let begin = self.head.payload_from(at + used as u64) - at;
        // SAFETY: the chunk has `room`, and is nobody else's.
        unsafe {
            let head = self.head.0.to_ne_bytes();
            bytes::copy(to.wrapping_add(used), head.as_ptr(), head.len());
            self.write_payload(to.wrapping_add(begin as usize));
        }
        (begin + self.parts.len).next_multiple_of(8) as usize
    }

    /// What its payload is, and the bytes of it.
    pub(crate) fn payload(&self) -> (Form, u64) {
        (self.form, self.parts.len)
    }

    /// Writes its payload, but for buffers that somebody else fills.
    ///
    /// # Safety
    /// This many bytes from `to` on are writable, and nobody else's.
    pub(crate) unsafe fn write_payload(&self, to: *mut u8) {
        let place = |part: u64| to.wrapping_add(part as usize);
        // SAFETY: the parts lie within the payload, and do not overlap.
        unsafe {
            let before = &self.before;
            bytes::copy(place(0), before.as_ptr(), before.len());
            for (buffer, &(part, len)) in self.buffers.iter().zip(&self.parts.buffers) {
                bytes::copy(place(part), buffer.as_ptr(), len as usize);
            }
        }
    }
}

/// What is written from `at` on is an item's payload: its head and its end.
pub(crate) fn finish(items: &mut Vec<u8>, at: usize, form: Form) {
    let head = Head::new((items.len() - at - 8) as u64, form);
    items[at..at + 8].copy_from_slice(&head.0.to_ne_bytes());
    items.resize(items.len().next_multiple_of(8), 0);
}

/// Writes an item of these bytes.
pub(crate) fn append(items: &mut Vec<u8>, payload: &ByteView, form: Form) {
    let at = items.len();
    items.extend_from_slice(&[0; 8]);
    // SAFETY: they are elsewhere; a buffer of Python's that another thread writes meanwhile is its user's affair.
    unsafe { bytes::append_from(items, payload.as_ptr(), payload.len()) };
    finish(items, at, form);
}

/// Where the parts of a value go.
pub(crate) fn laid_out(
    body: &[u8],
    lengths: impl ExactSizeIterator<Item = u64>,
) -> PyResult<Parts> {
    let fits = u32::try_from(body.len()).is_ok() && lengths.len() <= MOST_BUFFERS;
    let parts = fits
        .then(|| Parts::new(body.len() as u64, lengths))
        .flatten();
    parts.ok_or_else(|| {
        let text = "the value is too large for a queue: it has over 4 GiB, or 65536 buffers";
        PyValueError::new_err(text)
    })
}
