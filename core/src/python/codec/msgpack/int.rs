//! Small ints, read where the interpreter keeps them: a call into it for each would take twice as long as all the rest.

use pyo3::ffi;

/// An int of up to one digit of 30 bits, as CPython has it from 3.12 on.
#[cfg(Py_3_12)]
#[repr(C)]
struct Int {
    base: ffi::PyObject,
    /// The sign in the lowest two bits: 0 is positive, 1 zero, 2 negative. From the fourth bit on the number of digits.
    tag: usize,
    digit: u32,
}

/// The same before 3.12.
#[cfg(not(Py_3_12))]
#[repr(C)]
struct Int {
    base: ffi::PyObject,
    /// The number of digits, negative for a negative int.
    size: ffi::Py_ssize_t,
    digit: u32,
}

/// The value of an int that has no more than one digit.
///
/// # Safety
/// `value` is an int and alive.
#[inline]
pub(super) unsafe fn small(value: *mut ffi::PyObject) -> Option<i64> {
    let value = value.cast::<Int>();
    // SAFETY: as above; nobody changes an int. Its digit is looked at only if it has one.
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
