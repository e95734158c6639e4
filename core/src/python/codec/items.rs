//! Values as items of a queue: small ones as they are stored, large ones to be copied once, into a chunk of their own.

use crate::memory::bytes;
use crate::objects::error::ObjectError;
use crate::objects::queue::QueueMembership;
use crate::python::codec::msgpack::outgoing_body::OutgoingBody;
use crate::python::codec::parcel::ByteView;
use crate::queue::parcel::{MOST_BUFFERS, Parts};
use crate::queue::{Form, Head, PutOutcome};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The smallest number of bytes that are copied without the GIL.
const LONG: u64 = 64 << 10;

/// A large item to be put, which is copied once, into the queue.
pub(crate) struct LargeItem {
    form: Form,
    head: Head,
    /// Bytes before the buffers.
    before: Vec<u8>,
    parts: Parts,
    buffers: Vec<ByteView>,
}

/// A piece of the items that are put together.
pub(crate) enum Piece {
    /// This many bytes of the small items.
    Small(usize),
    Large(LargeItem),
}

/// Encoded values.
pub(crate) struct EncodedItems {
    pub(crate) count: u64,
    /// The small items, as they are stored in the queue.
    pub(crate) small: OutgoingBody,
    /// The order of small and large items, if there are large ones.
    pub(crate) pieces: Vec<Piece>,
    /// Bytes of all items.
    pub(crate) len: u64,
}

impl EncodedItems {
    pub(crate) fn new() -> Self {
        EncodedItems {
            count: 0,
            small: OutgoingBody::new(),
            pieces: Vec::new(),
            len: 0,
        }
    }

    /// Puts all items into the queue, or none if there is no room, and waits for the owner lock for at most `timeout`
    /// nanoseconds. The caller has called `end_small` if there are large items. Fails with `Changing` if another member
    /// holds the lock for longer, and with `TooLarge` for items that can never fit.
    pub(crate) fn put(
        &self,
        membership: &QueueMembership,
        timeout: u64,
    ) -> Result<PutOutcome, ObjectError> {
        if self.pieces.is_empty() {
            return membership.put(&self.small.bytes, self.count, timeout);
        }
        membership.put_large(self.len, self.count, timeout, |to, at| self.write(to, at))
    }

    /// Writes all items into a chunk with room for `len` bytes, which belongs to the caller alone and begins at `to` in
    /// this process and at `at` in the queue. Returns the number of bytes that the items take.
    pub(crate) fn write(&self, to: *mut u8, at: u64) -> u64 {
        let (mut done, mut used) = (0, 0);
        for piece in &self.pieces {
            match piece {
                Piece::Small(len) => {
                    let from = self.small.bytes[done..done + len].as_ptr();
                    // SAFETY: the chunk has room for all pieces with their gaps, see `add_large`, and belongs to this
                    // operation alone.
                    unsafe { bytes::copy(to.wrapping_add(used), from, *len) };
                    done += len;
                    used += len;
                }
                Piece::Large(large) => used = large.write(to, at, used),
            }
        }
        used as u64
    }

    /// Adds a large item after the small items so far.
    pub(crate) fn add_large(&mut self, large: LargeItem) {
        self.end_small();
        self.len += large.room();
        self.pieces.push(Piece::Large(large));
    }

    /// Adds the small items since the last piece as a piece, if there are any. Idempotent.
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

    /// Returns true if the copy takes so long that it must not hold the GIL.
    pub(crate) fn is_long(&self) -> bool {
        self.small.bytes.len() as u64 >= LONG || self.len >= LONG
    }
}

impl LargeItem {
    /// Returns the item of a value with this body and these buffers. Raises ValueError if the value is too large.
    pub(crate) fn parcel(body: &[u8], buffers: Vec<ByteView>) -> PyResult<Self> {
        let lengths = buffers.iter().map(|buffer| buffer.len() as u64);
        let parts = layout_of(body, lengths)?;
        Ok(LargeItem::new(Form::Parcel, parts, body, buffers))
    }

    /// Returns an item whose only buffer, of `len` bytes, the program fills: a value with this body, or raw bytes. The
    /// caller has checked that `len` is not above what any queue or topic may hold. Raises ValueError if the value is
    /// too large.
    pub(crate) fn to_fill(len: u64, body: Option<&[u8]>) -> PyResult<Self> {
        Ok(match body {
            Some(body) => {
                let parts = layout_of(body, std::iter::once(len))?;
                LargeItem::new(Form::Parcel, parts, body, Vec::new())
            }
            None => LargeItem::raw(len, Vec::new()),
        })
    }

    /// Returns an item of `len` raw bytes: those of `buffers`, or bytes that the program fills if there are none.
    pub(crate) fn raw(len: u64, buffers: Vec<ByteView>) -> Self {
        let parts = Parts {
            body: (0, 0),
            buffers: vec![(0, len)],
            len,
        };
        LargeItem::new(Form::Raw, parts, &[], buffers)
    }

    /// Returns an item of this form whose payload has the layout `parts`. Without `buffers` the program fills its
    /// buffer.
    pub(crate) fn new(form: Form, parts: Parts, body: &[u8], buffers: Vec<ByteView>) -> Self {
        let mut before = match form {
            Form::Parcel => parts.head(),
            _ => Vec::new(),
        };
        before.extend_from_slice(body);
        LargeItem {
            form,
            head: Head::new(parts.len, form),
            before,
            parts,
            buffers,
        }
    }

    /// Returns the maximum number of bytes that the item takes, at any offset.
    pub(crate) fn room(&self) -> u64 {
        8 + 64 + self.parts.len.next_multiple_of(8)
    }

    /// Returns the offset and the length of the first buffer, if the item begins at `at`. Panics without a buffer.
    pub(crate) fn first_buffer(&self, at: u64) -> (u64, u64) {
        let (begin, len) = self.buffer_to_fill();
        (self.head.payload_from(at) + begin, len)
    }

    /// Returns the offset of the first buffer from the beginning of the payload, and its length. Panics without one.
    pub(crate) fn buffer_to_fill(&self) -> (u64, u64) {
        self.parts.buffers[0]
    }

    /// Writes the item, except a buffer that the program fills, behind the first `used` bytes of a chunk, which has
    /// `room`, belongs to the caller alone, and begins at `to` in this process and at `at` in the queue. Returns the
    /// number of bytes used then.
    pub(crate) fn write(&self, to: *mut u8, at: u64, used: usize) -> usize {
        let begin = self.head.payload_from(at + used as u64) - at;
        // SAFETY: the chunk has `room`, and belongs to this operation alone.
        unsafe {
            let head = self.head.0.to_ne_bytes();
            bytes::copy(to.wrapping_add(used), head.as_ptr(), head.len());
            self.write_payload(to.wrapping_add(begin as usize));
        }
        (begin + self.parts.len).next_multiple_of(8) as usize
    }

    /// Returns the form of the payload, and its length.
    pub(crate) fn payload(&self) -> (Form, u64) {
        (self.form, self.parts.len)
    }

    /// Writes the payload, except a buffer that the program fills.
    ///
    /// # Safety
    /// The bytes of the payload from `to` on are writable, and no other code uses them.
    pub(crate) unsafe fn write_payload(&self, to: *mut u8) {
        let place = |part: u64| to.wrapping_add(part as usize);
        // SAFETY: the parts are within the payload, and do not overlap.
        unsafe {
            let before = &self.before;
            bytes::copy(place(0), before.as_ptr(), before.len());
            for (buffer, &(part, len)) in self.buffers.iter().zip(&self.parts.buffers) {
                bytes::copy(place(part), buffer.as_ptr(), len as usize);
            }
        }
    }
}

/// Completes the item that begins at `at`, behind whose head the payload was written: writes the head and aligns the
/// end.
pub(crate) fn finish(items: &mut Vec<u8>, at: usize, form: Form) {
    let head = Head::new((items.len() - at - 8) as u64, form);
    items[at..at + 8].copy_from_slice(&head.0.to_ne_bytes());
    items.resize(items.len().next_multiple_of(8), 0);
}

/// Appends an item with these bytes as its payload.
pub(crate) fn append(items: &mut Vec<u8>, payload: &ByteView, form: Form) {
    let at = items.len();
    items.extend_from_slice(&[0; 8]);
    // SAFETY: the bytes are elsewhere. A buffer of Python's that another thread writes meanwhile is its program's
    // affair.
    unsafe { bytes::append_from(items, payload.as_ptr(), payload.len()) };
    finish(items, at, form);
}

/// Returns the layout of the parts of a value. Raises ValueError for a body of 4 GiB or more, and for more than
/// `MOST_BUFFERS` buffers.
pub(crate) fn layout_of(
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

/// Returns the form that this number in a record stands for; None for an unknown number.
pub(crate) fn form_of(number: u8) -> Option<Form> {
    match number {
        0 => Some(Form::Value),
        1 => Some(Form::Raw),
        2 => Some(Form::Parcel),
        _ => None,
    }
}
