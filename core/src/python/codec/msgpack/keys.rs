//! The keys of maps, which come again and again: each str is made once.

use crate::sync::lock;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::sync::Mutex;

/// Keys that are remembered, a power of two; each at the place that its hash says.
const PLACES: usize = 512;
/// Longer keys are not remembered, in bytes.
const LONGEST: usize = 32;

/// Never held while an object is made: that may run any code.
static KEYS: Mutex<[Option<Py<PyString>>; PLACES]> = Mutex::new([const { None }; PLACES]);

/// The str of these bytes; None if they are not UTF-8.
#[inline]
pub(super) fn key<'py>(py: Python<'py>, bytes: &[u8]) -> Option<Bound<'py, PyAny>> {
    if bytes.is_empty() || bytes.len() > LONGEST {
        return text(py, bytes);
    }
    let place = place_of(bytes);
    if let Some(known) = &lock(&KEYS)[place] {
        if known
            .to_str(py)
            .is_ok_and(|known| known.as_bytes() == bytes)
        {
            return Some(known.bind(py).clone().into_any());
        }
    }
    let made = text(py, bytes)?;
    let kept = made.cast::<PyString>().ok()?.clone().unbind();
    let before = lock(&KEYS)[place].replace(kept);
    drop(before);
    Some(made)
}

/// A new str; None if the bytes are not UTF-8, or there is no memory.
#[inline]
pub(super) fn text<'py>(py: Python<'py>, bytes: &[u8]) -> Option<Bound<'py, PyAny>> {
    // SAFETY: the bytes are there for the time of the call, and the GIL is ours. A new reference comes, or null with an
    // exception.
    unsafe {
        let made = ffi::PyUnicode_FromStringAndSize(bytes.as_ptr().cast(), bytes.len() as isize);
        if made.is_null() {
            ffi::PyErr_Clear();
            return None;
        }
        Some(Bound::from_owned_ptr(py, made))
    }
}

/// FNV-1a, folded.
#[inline]
fn place_of(bytes: &[u8]) -> usize {
    let step = |hash: u32, &byte: &u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let hash = bytes.iter().fold(0x811c_9dc5, step);
    (hash ^ (hash >> 15)) as usize % PLACES
}
