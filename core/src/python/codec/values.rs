//! Values as items of a queue or records of a topic: written into shared memory, and read out of it.

use crate::bytes::u64_at;
use crate::python::codec::encoder::Encoder;
use crate::python::codec::items::{Large, append, finish};
use crate::python::codec::msgpack::expected::Expected;
use crate::python::codec::msgpack::reader::{Buffers, Reader};
use crate::python::codec::msgpack::writer::OutgoingBody;
use crate::python::codec::parcel::{ByteView, Parcel};
use crate::python::support::buffer::copy_of;
use crate::queue::parcel::Parts;
use crate::queue::{Form, Head};
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

/// How a name's values are written and read.
///
/// `encoder` writes plain values, `encode` makes the body of any other, `decode` the value of a body. What these raise is
/// raised as what `unencodable` makes of it, with the value's index among those that are written together, and
/// `undecodable`, with its number; None for what is not known. `raw`: they are bytes. `decode_own`
/// makes values whose arrays can be written.
pub(crate) struct Values {
    pub(crate) encoder: Py<Encoder>,
    pub(crate) encode: Py<PyAny>,
    pub(crate) decode: Py<PyAny>,
    pub(crate) unencodable: Py<PyAny>,
    pub(crate) undecodable: Py<PyAny>,
    pub(crate) raw: bool,
    /// The same as `decode`, for values that are the receiver's own; None where there are none.
    pub(crate) decode_own: Option<Py<PyAny>>,
}

/// Tells whether an exception says nothing of the value that was read or written, because a signal handler raised it
/// meanwhile.
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

/// What is raised in the place of an exception: what this function makes of that, and of the number of an item.
#[cold]
fn told_as(py: Python<'_>, function: &Py<PyAny>, error: PyErr, number: Option<u64>) -> PyErr {
    match is_from_signal_handler(py, &error) {
        Ok(false) => {}
        Ok(true) => return error,
        Err(error) => return error,
    }
    match function.bind(py).call1((error.into_value(py), number)) {
        Ok(told) => PyErr::from_value(told),
        Err(error) => error,
    }
}

/// The error for what is not bytes, of a name that has nothing else: with what to do.
#[cold]
fn no_bytes(py: Python<'_>, error: PyErr) -> PyErr {
    let why = error.value(py);
    let text = format!(
        "{why}; a name that was opened with raw=True has bytes alone: make bytes of it, or say raw=False everywhere"
    );
    PyTypeError::new_err(text)
}

impl Values {
    /// Writes a value as an item behind the others, unless it is large: then it comes back. `index`: its place among those
    /// that are written together.
    pub(crate) fn write(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        small: &mut OutgoingBody,
        index: Option<u64>,
    ) -> PyResult<Option<Large>> {
        let unencodable = |error| told_as(py, &self.unencodable, error, index);
        if self.raw {
            let bytes = ByteView::new(value).map_err(|error| unencodable(no_bytes(py, error)))?;
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
            let large = Large::parcel(&small.bytes[at + 8..], buffers)?;
            small.bytes.truncate(at);
            return Ok(Some(large));
        }
        finish(&mut small.bytes, at, Form::Value);
        Ok(None)
    }

    /// The value of an item's body. `owns`: its arrays are the receiver's own.
    pub(crate) fn read<'py>(
        &self,
        py: Python<'py>,
        body: &[u8],
        number: Option<u64>,
        owns: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let read = match owns {
            true => Reader::decode_owned(py, body, None),
            false => Reader::decode(py, body, None, &Expected::ANY),
        };
        match read {
            Ok(value) => Ok(value),
            Err(_) => self.decoded(py, PyBytes::new(py, body).as_any(), number, owns),
        }
    }

    fn decoded<'py>(
        &self,
        py: Python<'py>,
        body: &Bound<'py, PyAny>,
        number: Option<u64>,
        owns: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let own = self.decode_own.as_ref().filter(|_| owns);
        let value = own.unwrap_or(&self.decode).bind(py).call1((body,));
        value.map_err(|error| told_as(py, &self.undecodable, error, number))
    }

    /// The value of an item whose payload was copied; None of a payload that no item has.
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

    /// The value of an item's body with buffers, if the core can read it, without a reference to a buffer.
    pub(crate) fn read_own<'py>(
        py: Python<'py>,
        body: &Bound<'py, PyBytes>,
        buffers: Vec<Bound<'py, PyAny>>,
    ) -> Option<Bound<'py, PyAny>> {
        Reader::decode_owned(py, body.as_bytes(), Some(&Buffers::new(buffers))).ok()
    }

    /// The value of an item's body with buffers. `owns`: its arrays are the receiver's own.
    pub(crate) fn read_parcel<'py>(
        &self,
        py: Python<'py>,
        body: Bound<'py, PyBytes>,
        buffers: Bound<'py, PyTuple>,
        number: Option<u64>,
        owns: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let beside = Buffers::new(buffers.iter().collect());
        let read = match owns {
            true => Reader::decode_owned(py, body.as_bytes(), Some(&beside)),
            false => Reader::decode(py, body.as_bytes(), Some(&beside), &Expected::ANY),
        };
        if let Ok(value) = read {
            return Ok(value);
        }
        let parcel = Bound::new(py, Parcel::from_parts(body, buffers, 0))?;
        self.decoded(py, parcel.as_any(), number, owns)
    }
}

/// Writes a value of this body.
#[cold]
fn write_body(
    py: Python<'_>,
    body: &Bound<'_, PyAny>,
    small: &mut OutgoingBody,
) -> PyResult<Option<Large>> {
    let Ok(parcel) = body.cast::<Parcel>() else {
        append(&mut small.bytes, &ByteView::new(body)?, Form::Value);
        return Ok(None);
    };
    let body = parcel.get().body(py).as_bytes();
    let buffers = parcel.get().buffers(py)?;
    let buffers = buffers.iter().map(|buffer| ByteView::new(&buffer));
    let buffers = buffers.collect::<PyResult<Vec<_>>>()?;
    Large::parcel(body, buffers).map(Some)
}

fn write_raw(bytes: ByteView, small: &mut OutgoingBody) -> Option<Large> {
    if bytes.len() as u64 + 8 <= crate::queue::SMALL {
        append(&mut small.bytes, &bytes, Form::Raw);
        return None;
    }
    Some(Large::raw(bytes.len() as u64, vec![bytes]))
}

/// The item that begins there, if there is one: its head may have been written over after it was checked, before it was
/// copied.
#[inline]
pub(crate) fn item_at(items: &[u8], at: usize) -> Option<(Head, &[u8])> {
    let head = Head(u64_at(items.get(at..at + 8)?, 0));
    let payload = items.get(at + 8..at + 8 + head.size() as usize)?;
    Some((head, payload))
}
