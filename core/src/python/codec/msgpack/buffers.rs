//! `Buffers`: the buffers beside a body that is read.

use crate::python::codec::msgpack::unreadable::{Read, Unreadable};
use crate::python::support::buffer::Buffer;
use crate::python::support::in_place_bytes::InPlaceBytes;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::cell::RefCell;
use std::collections::HashMap;

/// The buffers beside a body, each a `Buffer`, `InPlaceBytes` or bytes.
pub(crate) struct Buffers<'py> {
    all: Vec<Bound<'py, PyAny>>,
    /// Copies of buffers by their indices: a buffer that is named twice is copied once.
    copies: RefCell<HashMap<u64, Bound<'py, PyAny>>>,
}

impl<'py> Buffers<'py> {
    pub(crate) fn new(all: Vec<Bound<'py, PyAny>>) -> Self {
        Buffers {
            all,
            copies: RefCell::default(),
        }
    }

    /// Returns the buffers for Python, with the copies in their places.
    pub(crate) fn into_tuple(mut self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        for (index, copy) in self.copies.into_inner() {
            self.all[index as usize] = copy;
        }
        PyTuple::new(py, self.all)
    }

    /// Returns the buffer of this index. Fails if there is none.
    pub(super) fn get(&self, index: u64) -> Read<&Bound<'py, PyAny>> {
        let index = usize::try_from(index).map_err(|_| Unreadable)?;
        self.all.get(index).ok_or(Unreadable)
    }

    /// Returns the bytes of a buffer as a bytes object, copied unless the buffer is one. Fails if there is none of this
    /// index, or if its memory was released.
    pub(super) fn copy(&self, index: u64) -> Read<Bound<'py, PyAny>> {
        let buffer = self.get(index)?;
        if let Ok(bytes) = buffer.cast_exact::<PyBytes>() {
            return Ok(bytes.clone().into_any());
        }
        if let Some(copy) = self.copies.borrow().get(&index) {
            return Ok(copy.clone());
        }
        let copied = match buffer.cast_exact::<InPlaceBytes>() {
            Ok(block) => block.get().to_bytes(buffer.py()),
            Err(_) => {
                let memory = buffer.cast_exact::<Buffer>().map_err(|_| Unreadable)?;
                memory.get().to_bytes(buffer.py())
            }
        };
        let copy = copied.map_err(|_| Unreadable)?.into_any();
        self.copies.borrow_mut().insert(index, copy.clone());
        Ok(copy)
    }
}
