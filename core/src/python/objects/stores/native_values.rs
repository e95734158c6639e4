//! Conversion of values of the types that the core itself knows to cells and bytes of a store, and back.

use crate::store::{Bytes, Cell, Content, Type, Value, trim};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyUnicodeEncodeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyString};
use std::cell::{Cell as Count, RefCell};

/// The objects and buffers that the values of an operation borrow from.
#[derive(Default)]
pub(crate) struct BufferOwner<'py> {
    objects: RefCell<Vec<Bound<'py, PyAny>>>,
    buffers: RefCell<Vec<PyBuffer<u8>>>,
    /// The minimum number of bytes that the values take in a store.
    pub(super) needed: Count<u64>,
}

impl<'py> BufferOwner<'py> {
    /// Keeps a text alive, and returns its bytes in UTF-8. Raises EncodeError.
    pub(super) fn text<'k>(&'k self, text: &Bound<'py, PyString>) -> PyResult<&'k [u8]> {
        let bytes: *const str = utf8(text)?;
        self.objects.borrow_mut().push(text.clone().into_any());
        // SAFETY: a str never changes, and this one lives as long as `self`.
        Ok(unsafe { &*bytes }.as_bytes())
    }

    /// Keeps a bytes object alive, and returns its bytes.
    pub(super) fn bytes<'k>(&'k self, bytes: &Bound<'py, PyBytes>) -> &'k [u8] {
        let all: *const [u8] = bytes.as_bytes();
        self.objects.borrow_mut().push(bytes.clone().into_any());
        // SAFETY: as above.
        unsafe { &*all }
    }

    /// Keeps the buffer of an object open, and returns its bytes. Raises BufferError if they are not contiguous.
    pub(super) fn buffer<'k>(&'k self, object: &Bound<'py, PyAny>) -> PyResult<&'k [u8]> {
        let buffer = PyBuffer::<u8>::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the buffer is not contiguous"));
        }
        let (from, len) = (buffer.buf_ptr().cast::<u8>(), buffer.len_bytes());
        self.buffers.borrow_mut().push(buffer);
        if len == 0 {
            return Ok(&[]);
        }
        // SAFETY: the buffer stays at its address and keeps its length while `self` holds it. A program that writes to
        // it during a copy gets what Python gives with `bytes(buffer)`.
        Ok(unsafe { std::slice::from_raw_parts(from, len) })
    }
}

/// Returns a stored text. Raises DecodeError if another process has overwritten the bytes, so that they are no text.
pub(super) fn text_of<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyString>> {
    PyString::from_bytes(py, bytes).map_err(|cause| unreadable_text_error(py, cause))
}

/// Returns the DecodeError for a stored text.
#[cold]
fn unreadable_text_error(py: Python<'_>, cause: PyErr) -> PyErr {
    let made = || {
        let class = py.import("shmrpc.errors")?.getattr("DecodeError")?;
        class.call1((format!(
            "a text in the store cannot be read: {}",
            cause.value(py)
        ),))
    };
    made().map_or_else(|error| error, PyErr::from_value)
}

/// Returns a text in UTF-8. Raises EncodeError if it has lone surrogates.
#[inline]
fn utf8<'t>(text: &'t Bound<'_, PyString>) -> PyResult<&'t str> {
    text.to_str()
        .map_err(|error| unencodable_text_error(text, error))
}

/// Returns the EncodeError for a text with lone surrogates, and any other error itself.
#[cold]
fn unencodable_text_error(text: &Bound<'_, PyString>, error: PyErr) -> PyErr {
    let py = text.py();
    if !error.is_instance_of::<PyUnicodeEncodeError>(py) {
        return error;
    }
    let made = || {
        let shown = text.get_item(pyo3::types::PySlice::new(py, 0, 40, 1))?;
        let shown = shown.repr()?;
        let words = format!(
            "a text with lone surrogates cannot be stored: {shown}; store os.fsencode(text), which is bytes"
        );
        py.import("shmrpc.errors")?
            .getattr("EncodeError")?
            .call1((words,))
    };
    made().map_or_else(|error| error, PyErr::from_value)
}

/// Converts None, or an object whose type is exactly bool, int, float, str or bytes, to a value. Returns None for any
/// other object. Raises EncodeError for a text with lone surrogates.
#[inline]
pub(super) fn plain<'k, 'py>(
    object: &Bound<'py, PyAny>,
    owner: &'k BufferOwner<'py>,
) -> PyResult<Option<Value<'k>>> {
    if let Ok(int) = object.cast_exact::<PyInt>() {
        return int_value(int).map(Some);
    }
    if let Ok(text) = object.cast_exact::<PyString>() {
        let short = Cell::text(utf8(text)?.as_bytes());
        return Ok(Some(match short {
            Some(cell) => Value::Immediate(cell),
            None => Value::Blob(Type::Text, Bytes::Borrowed(owner.text(text)?)),
        }));
    }
    if let Ok(float) = object.cast_exact::<PyFloat>() {
        return Ok(Some(Value::Immediate(Cell::float(float.value()))));
    }
    if object.is_none() {
        return Ok(Some(Value::Immediate(Cell::NONE)));
    }
    if let Ok(bool) = object.cast_exact::<PyBool>() {
        return Ok(Some(Value::Immediate(Cell::bool(bool.is_true()))));
    }
    if let Ok(bytes) = object.cast_exact::<PyBytes>() {
        return Ok(Some(match Cell::bytes(bytes.as_bytes()) {
            Some(cell) => Value::Immediate(cell),
            None => Value::Blob(Type::Bytes, Bytes::Borrowed(owner.bytes(bytes))),
        }));
    }
    Ok(None)
}

/// Converts an int to a cell or, if it is large, to bytes.
#[inline]
fn int_value<'k>(int: &Bound<'_, PyInt>) -> PyResult<Value<'k>> {
    if let Ok(small) = int.extract::<i64>()
        && let Some(cell) = Cell::int(small)
    {
        return Ok(Value::Immediate(cell));
    }
    let py = int.py();
    let bits: usize = int.call_method0(intern!(py, "bit_length"))?.extract()?;
    let signed = PyDict::new(py);
    signed.set_item(intern!(py, "signed"), true)?;
    let to_bytes = intern!(py, "to_bytes");
    let bytes = int.call_method(to_bytes, (bits / 8 + 1, "little"), Some(&signed))?;
    let mut bytes: Vec<u8> = bytes.extract()?;
    trim(&mut bytes);
    Ok(Value::Blob(Type::Int, Bytes::Owned(bytes)))
}

/// Returns the int of these two's complement bytes, which are little-endian; 0 without bytes.
#[cold]
pub(super) fn int_of<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let signed = PyDict::new(py);
    signed.set_item(intern!(py, "signed"), true)?;
    let bytes = (PyBytes::new(py, bytes), "little");
    py.get_type::<PyInt>()
        .call_method(intern!(py, "from_bytes"), bytes, Some(&signed))
}

/// Converts a cell that holds its whole value to an object; an empty cell to None. Raises DecodeError for a text that
/// is not UTF-8, and TypeError for a reference or a corrupt cell.
#[inline]
pub(crate) fn cell_to_python(py: Python<'_>, cell: Cell) -> PyResult<Bound<'_, PyAny>> {
    Ok(match cell.content() {
        Some(Content::Int(value)) => value.into_pyobject(py)?.into_any(),
        Some(Content::Float(value)) => PyFloat::new(py, value).into_any(),
        Some(Content::Text(bytes, len)) => text_of(py, &bytes[..len])?.into_any(),
        Some(Content::Bytes(bytes, len)) => PyBytes::new(py, &bytes[..len]).into_any(),
        Some(Content::Bool(value)) => PyBool::new(py, value).to_owned().into_any(),
        Some(Content::None | Content::Nothing) => py.None().into_bound(py),
        // The core checks each cell that it returns.
        Some(Content::At(..)) | None => {
            return Err(PyTypeError::new_err("the cell has no value of this type"));
        }
    })
}
