//! A cache of the keys of maps, which occur again and again, so that each str is made once.

use crate::sync::lock;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::sync::Mutex;

/// Number of cached keys, a power of two. The hash of a key selects its slot.
const SLOTS: usize = 512;
/// Longest key that is cached, in bytes.
const MAX_KEY_LEN: usize = 32;

/// The lock is never held while an object is made, because that may run any code.
static KEYS: Mutex<[Option<Py<PyString>>; SLOTS]> = Mutex::new([const { None }; SLOTS]);

/// Returns the str of these bytes; None if they are not UTF-8, or if there is no memory.
#[inline]
pub(super) fn text_of_key<'py>(py: Python<'py>, bytes: &[u8]) -> Option<Bound<'py, PyAny>> {
    if bytes.is_empty() || bytes.len() > MAX_KEY_LEN {
        return new_text(py, bytes);
    }
    let slot = slot_of(bytes);
    if let Some(known) = &lock(&KEYS)[slot] {
        if known
            .to_str(py)
            .is_ok_and(|known| known.as_bytes() == bytes)
        {
            return Some(known.bind(py).clone().into_any());
        }
    }
    let made = new_text(py, bytes)?;
    let kept = made.cast::<PyString>().ok()?.clone().unbind();
    let before = lock(&KEYS)[slot].replace(kept);
    drop(before);
    Some(made)
}

/// Returns a new str; None if the bytes are not UTF-8, or if there is no memory.
#[inline]
pub(super) fn new_text<'py>(py: Python<'py>, bytes: &[u8]) -> Option<Bound<'py, PyAny>> {
    // SAFETY: the bytes live for the time of the call, and the GIL is held. The result is a new reference, or null with
    // an exception.
    unsafe {
        let made = ffi::PyUnicode_FromStringAndSize(bytes.as_ptr().cast(), bytes.len() as isize);
        if made.is_null() {
            ffi::PyErr_Clear();
            return None;
        }
        Some(Bound::from_owned_ptr(py, made))
    }
}

/// Hashes a key by FNV-1a, folded to the number of slots.
#[inline]
fn slot_of(bytes: &[u8]) -> usize {
    let step = |hash: u32, &byte: &u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let hash = bytes.iter().fold(0x811c_9dc5, step);
    (hash ^ (hash >> 15)) as usize % SLOTS
}
