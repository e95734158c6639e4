//! Reading of extensions: large bytes, memoryviews and NumPy arrays, in the body or in buffers beside it.

use crate::python::codec::msgpack::format::{
    ARRAY_EXTENSION, BYTES_EXTENSION, MEMORYVIEW_EXTENSION,
};
use crate::python::codec::msgpack::interpreter_objects::bytes_of;
use crate::python::codec::msgpack::reader::Reader;
use crate::python::codec::msgpack::type_spec::{
    ANY, BYTES, MEMORYVIEW, NDARRAY, Scalars, TypeSpec,
};
use crate::python::codec::msgpack::unreadable::{Read, Unreadable};
use crate::python::codec::numpy::{MAX_AXES, NumPy};
use crate::python::support::buffer::Buffer;
use crate::python::support::in_place_bytes::InPlaceBytes;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

impl<'py> Reader<'_, 'py> {
    /// Reads an extension whose payload has `len` bytes: the code and the payload. Fails if the value is not of the
    /// expected type, or needs a buffer that is missing or released.
    #[inline(never)]
    pub(super) fn extension(
        &mut self,
        py: Python<'py>,
        expected: &TypeSpec,
        len: usize,
    ) -> Read<Bound<'py, PyAny>> {
        let code = self.byte()?;
        let mut payload = Reader::new(self.run(len)?, self.buffers);
        payload.owns = self.owns;
        let is = |kind: Scalars| expected.scalars & (kind | ANY) != 0;
        match code {
            BYTES_EXTENSION if is(BYTES) => {
                let index = payload.unsigned()?;
                payload.end()?;
                self.buffers.ok_or(Unreadable)?.copy(index)
            }
            MEMORYVIEW_EXTENSION if is(MEMORYVIEW) => {
                let view = payload.memoryview(py)?;
                payload.end()?;
                Ok(view)
            }
            ARRAY_EXTENSION if is(NDARRAY) => {
                let made = payload.ndarray(py, expected)?;
                payload.end()?;
                Ok(made)
            }
            _ => Err(Unreadable),
        }
    }

    /// Reads a read-only view of contiguous bytes, whose payload these bytes are.
    fn memoryview(&mut self, py: Python<'py>) -> Read<Bound<'py, PyAny>> {
        let owner = match self.bytes.first() {
            Some(0xc4..=0xc6) => self.bin(py)?,
            _ => {
                let index = self.unsigned()?;
                let buffers = self.buffers.ok_or(Unreadable)?;
                match self.owns {
                    true => buffers.copy(index)?,
                    false => buffers.get(index)?.clone(),
                }
            }
        };
        let view = PyMemoryView::from(&owner).map_err(|_| Unreadable)?;
        view.call_method0(intern!(py, "toreadonly"))
            .map_err(|_| Unreadable)
    }

    /// Reads bytes, whose tag the caller has checked.
    fn bin(&mut self, py: Python<'py>) -> Read<Bound<'py, PyAny>> {
        let tag = self.byte()?;
        let len = self.wide(tag - 0xc4)?;
        bytes_of(py, self.run(len)?)
    }

    /// Reads a NumPy array in C order, whose payload these bytes are. Fails unless the program has imported NumPy.
    fn ndarray(&mut self, py: Python<'py>, expected: &TypeSpec) -> Read<Bound<'py, PyAny>> {
        if self.array()? != 3 {
            return Err(Unreadable);
        }
        let numpy = NumPy::known(py).ok_or(Unreadable)?;
        let dtype = numpy.dtype(self.str()?).ok_or(Unreadable)?;
        let dtypes = expected.dtypes.as_ref();
        if dtypes.is_some_and(|dtypes| !dtypes.iter().any(|each| each == dtype.text())) {
            return Err(Unreadable);
        }
        let axes = self.array()?;
        let mut shape = [0; MAX_AXES];
        let shape = shape.get_mut(..axes).ok_or(Unreadable)?;
        for length in &mut *shape {
            *length = isize::try_from(self.unsigned()?).map_err(|_| Unreadable)?;
        }
        if let Some(0xc4..=0xc6) = self.bytes.first() {
            if self.owns {
                let tag = self.byte()?;
                let len = self.wide(tag - 0xc4)?;
                let run = self.run(len)?;
                // SAFETY: a slice is readable.
                let made = unsafe { numpy.copy_of(py, dtype, shape, run.as_ptr(), len) };
                return made.ok_or(Unreadable);
            }
            let bytes = self.bin(py)?;
            let bytes = bytes.cast_into::<PyBytes>().map_err(|_| Unreadable)?;
            return numpy.view_of_bytes(dtype, shape, bytes).ok_or(Unreadable);
        }
        let index = self.unsigned()?;
        let buffer = self.buffers.ok_or(Unreadable)?.get(index)?;
        if let Ok(bytes) = buffer.cast_exact::<PyBytes>() {
            if self.owns {
                let run = bytes.as_bytes();
                // SAFETY: a slice is readable.
                let made = unsafe { numpy.copy_of(py, dtype, shape, run.as_ptr(), run.len()) };
                return made.ok_or(Unreadable);
            }
            return numpy
                .view_of_bytes(dtype, shape, bytes.clone())
                .ok_or(Unreadable);
        }
        let location = match buffer.cast_exact::<InPlaceBytes>() {
            Ok(block) => Some(block.get().location()),
            Err(_) => buffer
                .cast_exact::<Buffer>()
                .map_err(|_| Unreadable)?
                .get()
                .location(),
        };
        let (data, len) = location.ok_or(Unreadable)?;
        if self.owns {
            // SAFETY: as below.
            return unsafe { numpy.copy_of(py, dtype, shape, data, len) }.ok_or(Unreadable);
        }
        // SAFETY: the memory is mapped for as long as its `Buffer` or `InPlaceBytes` lives.
        unsafe { numpy.view_of(dtype, shape, data, len, buffer.clone()) }.ok_or(Unreadable)
    }
}
