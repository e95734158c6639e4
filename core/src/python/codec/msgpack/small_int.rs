//! Small ints, read from the memory of the interpreter: a call into it for each int would take twice as long as
//! everything else.

use pyo3::ffi;

/// An int of up to one digit of 30 bits, in the layout of CPython 3.12 and later.
#[cfg(Py_3_12)]
#[repr(C)]
struct Int {
    base: ffi::PyObject,
    /// The sign in the lowest two bits: 0 is positive, 1 zero, 2 negative. The number of digits from the fourth bit on.
    tag: usize,
    digit: u32,
}

/// The same in the layout before CPython 3.12.
#[cfg(not(Py_3_12))]
#[repr(C)]
struct Int {
    base: ffi::PyObject,
    /// The number of digits, negative for a negative int.
    size: ffi::Py_ssize_t,
    digit: u32,
}

/// Returns the value of an int that has at most one digit of 30 bits; None for a larger one.
///
/// # Safety
/// `value` is an int and alive.
#[inline]
pub(super) unsafe fn small_int(value: *mut ffi::PyObject) -> Option<i64> {
    let value = value.cast::<Int>();
    // SAFETY: as above; an int never changes. Its digit is read only if it has one.
    unsafe {
        #[cfg(Py_3_12)]
        let sign = match (*value).tag {
            tag @ 0..16 => 1 - (tag & 3) as i64,
            _ => return None,
        };
        #[cfg(not(Py_3_12))]
        let sign = match (*value).size {
            size @ -1..=1 => size as i64,
            _ => return None,
        };
        Some(if sign == 0 {
            0
        } else {
            sign * i64::from((*value).digit)
        })
    }
}
