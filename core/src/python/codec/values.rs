//! Values as items of a queue or records of a topic: written to shared memory, and read from it.

use crate::bytes::u64_at;
use crate::python::codec::encoder::Encoder;
use crate::python::codec::items::{LargeItem, append, finish};
use crate::python::codec::msgpack::buffers::Buffers;
use crate::python::codec::msgpack::outgoing_body::OutgoingBody;
use crate::python::codec::msgpack::reader::Reader;
use crate::python::codec::msgpack::type_spec::TypeSpec;
use crate::python::codec::parcel::{ByteView, Parcel};
use crate::python::support::buffer::copy_of;
use crate::queue::parcel::Parts;
use crate::queue::{Form, Head};
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

/// Functions that write and read the values of a queue or a topic.
///
/// `encoder` writes plain values, `encode` returns the body of any other, and `decode` the value of a body. For an
/// exception of these, `unencodable` and `undecodable` return the one to raise: they take the exception, and the index
/// of the value among those that are written together, or the number of the value; None if that is not known. With
/// `raw`, values are bytes.
pub(crate) struct Values {
    pub(crate) encoder: Py<Encoder>,
    pub(crate) encode: Py<PyAny>,
    pub(crate) decode: Py<PyAny>,
    pub(crate) unencodable: Py<PyAny>,
    pub(crate) undecodable: Py<PyAny>,
    pub(crate) raw: bool,
    /// Returns the value of a body with arrays that can be written; None where no receiver owns the values.
    pub(crate) decode_own: Option<Py<PyAny>>,
}

/// Returns true if a signal handler has raised the exception, which then says nothing of the value that was read or
/// written; also for any exception that is no `Exception`.
#[cold]
pub(crate) fn is_from_signal_handler(py: Python<'_>, error: &PyErr) -> PyResult<bool> {
    if !error.is_instance_of::<PyException>(py) {
        return Ok(true);
    }
    let asked = py
        .import("shmrpc.basics.signals")?
        .getattr("is_from_signal_handler")?;
    asked
        .call1((error.clone_ref(py).into_value(py),))?
        .extract()
}

/// Returns the exception that `function` returns for an exception and the number of an item. Returns the exception
/// itself if a signal handler has raised it, and any exception that `function` raises.
#[cold]
fn exception_for(py: Python<'_>, function: &Py<PyAny>, error: PyErr, number: Option<u64>) -> PyErr {
    match is_from_signal_handler(py, &error) {
        Ok(false) => {}
        Ok(true) => return error,
        Err(error) => return error,
    }
    match function.bind(py).call1((error.into_value(py), number)) {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// Returns the TypeError for a value that is not bytes, of an object opened with raw=True.
#[cold]
fn not_bytes_error(py: Python<'_>, error: PyErr) -> PyErr {
    let why = error.value(py);
    let text = format!(
        "{why}; an object opened with raw=True carries only bytes: convert the value, or open it with raw=False everywhere"
    );
    PyTypeError::new_err(text)
}

impl Values {
    /// Appends a value to the small items, or returns it as an item if it is large. `index` is the position among
    /// values that are written together. Raises what `unencodable` returns, the exception of a signal handler itself,
    /// and ValueError for a value that no queue can hold. `small` then has the items that it had before.
    pub(crate) fn write(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        small: &mut OutgoingBody,
        index: Option<u64>,
    ) -> PyResult<Option<LargeItem>> {
        let unencodable = |error| exception_for(py, &self.unencodable, error, index);
        if self.raw {
            let bytes =
                ByteView::new(value).map_err(|error| unencodable(not_bytes_error(py, error)))?;
            return Ok(write_raw(bytes, small));
        }
        let at = small.bytes.len();
        small.bytes.extend_from_slice(&[0; 8]);
        if self.encoder.get().write(value, small).is_err() {
            small.bytes.truncate(at);
            small.buffers.clear();
            let body = self.encode.bind(py).call1((value,)).map_err(unencodable)?;
            return write_body(py, &body, small);
        }
        if !small.buffers.is_empty() {
            let buffers = std::mem::take(&mut small.buffers);
            let large = LargeItem::parcel(&small.bytes[at + 8..], buffers);
            small.bytes.truncate(at);
            return large.map(Some);
        }
        finish(&mut small.bytes, at, Form::Value);
        Ok(None)
    }

    /// Returns the value of an item's body. With `owns`, the receiver may write its arrays. Raises what `undecodable`
    /// returns, and the exception of a signal handler itself.
    pub(crate) fn read<'py>(
        &self,
        py: Python<'py>,
        body: &[u8],
        number: Option<u64>,
        owns: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let read = match owns {
            true => Reader::decode_owned(py, body, None),
            false => Reader::decode(py, body, None, &TypeSpec::ANY),
        };
        match read {
            Ok(value) => Ok(value),
            Err(_) => self.decoded(py, PyBytes::new(py, body).as_any(), number, owns),
        }
    }

    /// Returns the value of a body, decoded by Python. Raises what `read` raises.
    fn decoded<'py>(
        &self,
        py: Python<'py>,
        body: &Bound<'py, PyAny>,
        number: Option<u64>,
        owns: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let own = self.decode_own.as_ref().filter(|_| owns);
        let value = own.unwrap_or(&self.decode).bind(py).call1((body,));
        value.map_err(|error| exception_for(py, &self.undecodable, error, number))
    }

    /// Returns the value of a payload that was copied to private memory; None if no correct item has such a payload.
    /// Raises what `read` raises.
    #[inline]
    pub(crate) fn read_copied<'py>(
        &self,
        py: Python<'py>,
        form: Option<Form>,
        payload: &[u8],
        number: Option<u64>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let owns = self.decode_own.is_some();
        let value = match form {
            Some(Form::Value) => self.read(py, payload, number, owns),
            Some(Form::Raw) => copy_of(py, payload).map(Bound::into_any),
            Some(Form::Parcel) => {
                let parts = Parts::read(payload.len() as u64, |at, to| {
                    to.copy_from_slice(&payload[at as usize..at as usize + to.len()]);
                });
                let Some(parts) = parts else {
                    return Ok(None);
                };
                let part = |&(at, len): &(u64, u64)| {
                    copy_of(py, &payload[at as usize..(at + len) as usize])
                };
                let buffers = parts.buffers.iter().map(part);
                let buffers = buffers.collect::<PyResult<Vec<_>>>()?;
                let body = part(&parts.body)?;
                self.read_parcel(py, body, PyTuple::new(py, buffers)?, number, owns)
            }
            None => return Ok(None),
        };
        value.map(Some)
    }

    /// Returns the value of an item's body with buffers, copied so that no part refers to a buffer; None if the core
    /// cannot read the value.
    pub(crate) fn read_owned<'py>(
        py: Python<'py>,
        body: &Bound<'py, PyBytes>,
        buffers: Vec<Bound<'py, PyAny>>,
    ) -> Option<Bound<'py, PyAny>> {
        Reader::decode_owned(py, body.as_bytes(), Some(&Buffers::new(buffers))).ok()
    }

    /// Returns the value of an item's body with buffers. With `owns`, the receiver may write its arrays. Raises what
    /// `read` raises.
    pub(crate) fn read_parcel<'py>(
        &self,
        py: Python<'py>,
        body: Bound<'py, PyBytes>,
        buffers: Bound<'py, PyTuple>,
        number: Option<u64>,
        owns: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let buffers_beside = Buffers::new(buffers.iter().collect());
        let read = match owns {
            true => Reader::decode_owned(py, body.as_bytes(), Some(&buffers_beside)),
            false => Reader::decode(py, body.as_bytes(), Some(&buffers_beside), &TypeSpec::ANY),
        };
        if let Ok(value) = read {
            return Ok(value);
        }
        let parcel = Bound::new(py, Parcel::from_parts(body, buffers, 0))?;
        self.decoded(py, parcel.as_any(), number, owns)
    }
}

/// Appends a body to the small items, or returns it as an item if it has buffers. Raises TypeError for an object that
/// is no body, Unmapped for a lost parcel, and ValueError for one that is too large.
#[cold]
fn write_body(
    py: Python<'_>,
    body: &Bound<'_, PyAny>,
    small: &mut OutgoingBody,
) -> PyResult<Option<LargeItem>> {
    let Ok(parcel) = body.cast::<Parcel>() else {
        append(&mut small.bytes, &ByteView::new(body)?, Form::Value);
        return Ok(None);
    };
    let body = parcel.get().body(py).as_bytes();
    let buffers = parcel.get().buffers(py)?;
    let buffers = buffers.iter().map(|buffer| ByteView::new(&buffer));
    let buffers = buffers.collect::<PyResult<Vec<_>>>()?;
    LargeItem::parcel(body, buffers).map(Some)
}

/// Appends raw bytes to the small items if they take at most `SMALL` bytes with their head, or returns them as an item.
fn write_raw(bytes: ByteView, small: &mut OutgoingBody) -> Option<LargeItem> {
    if bytes.len() as u64 + 8 <= crate::queue::SMALL {
        append(&mut small.bytes, &bytes, Form::Raw);
        return None;
    }
    Some(LargeItem::raw(bytes.len() as u64, vec![bytes]))
}

/// Returns the head and the payload of the item at `at`; None if there is no whole item, because another member may
/// have overwritten the head before the copy.
#[inline]
pub(crate) fn item_at(items: &[u8], at: usize) -> Option<(Head, &[u8])> {
    let head = Head(u64_at(items.get(at..at + 8)?, 0));
    let payload = items.get(at + 8..at + 8 + head.size() as usize)?;
    Some((head, payload))
}
