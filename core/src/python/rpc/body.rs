//! Bodies of received frames.

use crate::python::codec::msgpack::buffers::Buffers;
use crate::python::codec::parcel::{Parcel, weight};
use crate::python::support::buffer::copy_of;
use crate::violation::Violation;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ops::Range;

/// The body of a received frame.
pub(crate) enum Body<'py> {
    Plain(Bound<'py, PyBytes>),
    WithBuffers(Box<BodyWithBuffers<'py>>),
    /// A body for which this process has no room, for this reason.
    Lost(Violation),
}

/// A body, and the buffers beside it.
pub(crate) struct BodyWithBuffers<'py> {
    body: BodyBytes<'py>,
    buffers: Buffers<'py>,
    /// Bytes of all buffers.
    size: usize,
}

/// Bytes of a body.
pub(crate) enum BodyBytes<'py> {
    Object(Bound<'py, PyBytes>),
    /// A part of the frame's payload.
    Part(Vec<u8>, Range<usize>),
}

impl<'py> BodyBytes<'py> {
    /// Returns the bytes.
    fn as_slice(&self) -> &[u8] {
        match self {
            BodyBytes::Object(bytes) => bytes.as_bytes(),
            BodyBytes::Part(payload, range) => &payload[range.clone()],
        }
    }

    /// Returns a bytes object, with a copy if the bytes are a part of a payload.
    fn into_object(self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        match self {
            BodyBytes::Object(body) => Ok(body),
            BodyBytes::Part(payload, range) => copy_of(py, &payload[range]),
        }
    }
}

impl<'py> Body<'py> {
    /// Returns a body with these buffers, of `size` bytes in all; a plain body if there are none.
    pub(crate) fn new(
        py: Python<'py>,
        body: BodyBytes<'py>,
        buffers: Vec<Bound<'py, PyAny>>,
        size: usize,
    ) -> PyResult<Self> {
        if buffers.is_empty() {
            return body.into_object(py).map(Body::Plain);
        }
        Ok(Body::WithBuffers(Box::new(BodyWithBuffers {
            body,
            buffers: Buffers::new(buffers),
            size,
        })))
    }

    /// Returns the bytes and the buffers beside them; None if the body is lost.
    #[inline]
    pub(crate) fn parts(&self) -> Option<(&[u8], Option<&Buffers<'py>>)> {
        match self {
            Body::Plain(bytes) => Some((bytes.as_bytes(), None)),
            Body::WithBuffers(all) => Some((all.body.as_slice(), Some(&all.buffers))),
            Body::Lost(_) => None,
        }
    }

    /// Returns the weight of the body in a stream's credit, in bytes; 0 for a lost body.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Body::Plain(bytes) => bytes.as_bytes().len(),
            Body::WithBuffers(all) => weight(all.body.as_slice().len(), all.size),
            Body::Lost(_) => 0,
        }
    }

    /// Returns the body as bytes, or as a parcel if there are buffers or if the body is lost.
    pub(crate) fn into_object(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let parcel = match self {
            Body::Plain(bytes) => return Ok(bytes.into_any()),
            Body::WithBuffers(all) => {
                let body = all.body.into_object(py)?;
                Parcel::from_parts(body, all.buffers.into_tuple(py)?, all.size)
            }
            Body::Lost(reason) => Parcel::lost(py, reason),
        };
        Ok(Bound::new(py, parcel)?.into_any())
    }
}
