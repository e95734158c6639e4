//! NumPy's arrays by its C interface: looked at, and made over memory of ours, in a tenth of the time that its functions for
//! Python take.
//!
//! NumPy is never imported here. What this relies on is what every extension module that was built for NumPy 2 relies on:
//! the table of functions in `_ARRAY_API`, and the first fields of an array.

use crate::memory::bytes;
use crate::python::support::buffer::LONG;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyString};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// What every array begins with.
#[repr(C)]
struct Fields {
    head: ffi::PyObject,
    data: *mut c_char,
    nd: c_int,
    dimensions: *mut ffi::Py_ssize_t,
    strides: *mut ffi::Py_ssize_t,
    base: *mut ffi::PyObject,
    descr: *mut ffi::PyObject,
    flags: c_int,
}

/// In `flags`: the elements lie in C order, without gaps.
const C_CONTIGUOUS: c_int = 1;
/// The ABI that is known here, of NumPy 2.
const ABI: c_uint = 0x0200_0000;
/// Arrays with more axes are left to NumPy's own functions.
pub(crate) const MAX_AXES: usize = 32;

/// The places in the table of functions.
const ABI_VERSION: usize = 0;
const ARRAY_TYPE: usize = 2;
const DESCR_FROM_TYPE: usize = 45;
const NEW_FROM_DESCR: usize = 94;
const SET_BASE_OBJECT: usize = 282;

type AbiVersion = unsafe extern "C" fn() -> c_uint;
type DescrFromType = unsafe extern "C" fn(c_int) -> *mut ffi::PyObject;
type NewFromDescr = unsafe extern "C" fn(
    *mut ffi::PyTypeObject,
    *mut ffi::PyObject,
    c_int,
    *const ffi::Py_ssize_t,
    *const ffi::Py_ssize_t,
    *mut c_void,
    c_int,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;
type SetBaseObject = unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> c_int;

/// The numbers of the types of elements that are bool, integers, floats or complex, of the machine's byte order.
const NUMBERS: [c_int; 18] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 23];

/// A type of elements, of which NumPy has one object.
pub(crate) struct Dtype {
    descr: Py<PyAny>,
    /// What travels for it, such as `<f8`.
    text: Box<str>,
    /// Bytes of an element.
    size: usize,
}

impl Dtype {
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// NumPy, as the program has imported it.
pub(crate) struct NumPy {
    array: *mut ffi::PyTypeObject,
    new_from_descr: NewFromDescr,
    set_base_object: SetBaseObject,
    dtypes: Vec<Dtype>,
}

// SAFETY: used with the GIL alone, which whoever looks at an array or makes one holds.
unsafe impl Send for NumPy {}
// SAFETY: as above.
unsafe impl Sync for NumPy {}

static NUMPY: PyOnceLock<NumPy> = PyOnceLock::new();

/// An array whose elements are numbers and lie in C order.
pub(crate) struct Array<'a> {
    pub(crate) dtype: &'static Dtype,
    pub(crate) shape: &'a [ffi::Py_ssize_t],
    pub(crate) data: *const u8,
    /// Its length in bytes.
    pub(crate) len: usize,
}

/// Whose memory an array looks at.
pub(crate) enum Memory {
    Own,
    /// What an object of this type has.
    Of(*mut ffi::PyTypeObject),
}

impl NumPy {
    /// NumPy, if the program has imported it and this knows its ABI. Runs no Python code.
    #[inline]
    pub(crate) fn known(py: Python<'_>) -> Option<&'static NumPy> {
        NUMPY.get(py).or_else(|| {
            let found = NumPy::find(py)?;
            Some(NUMPY.get_or_init(py, || found))
        })
    }

    #[cold]
    fn find(py: Python<'_>) -> Option<NumPy> {
        // SAFETY: the dict of the interpreter, which lives as long as it does.
        let modules = unsafe { Bound::from_borrowed_ptr(py, ffi::PyImport_GetModuleDict()) };
        let modules = modules.cast_into_exact::<PyDict>().ok()?;
        let module = modules.get_item("numpy._core._multiarray_umath").ok()??;
        let module = module.cast_into::<pyo3::types::PyModule>().ok()?;
        let capsule = module.dict().get_item("_ARRAY_API").ok()??;
        // SAFETY: the GIL is ours; it is checked that it is a capsule without a name.
        let table = unsafe {
            if ffi::PyCapsule_CheckExact(capsule.as_ptr()) == 0
                || ffi::PyCapsule_IsValid(capsule.as_ptr(), std::ptr::null()) == 0
            {
                return None;
            }
            ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()).cast::<*mut c_void>()
        };
        // SAFETY: NumPy's table, which has a function that tells its version in this place in every version of NumPy.
        let version =
            unsafe { std::mem::transmute::<*mut c_void, AbiVersion>(*table.add(ABI_VERSION))() };
        if version != ABI {
            return None;
        }
        // SAFETY: in this ABI the table has a type and functions of these types in these places.
        let (array, descr_from_type, new_from_descr, set_base_object) = unsafe {
            (
                (*table.add(ARRAY_TYPE)).cast::<ffi::PyTypeObject>(),
                std::mem::transmute::<*mut c_void, DescrFromType>(*table.add(DESCR_FROM_TYPE)),
                std::mem::transmute::<*mut c_void, NewFromDescr>(*table.add(NEW_FROM_DESCR)),
                std::mem::transmute::<*mut c_void, SetBaseObject>(*table.add(SET_BASE_OBJECT)),
            )
        };
        let dtypes = NUMBERS.iter().map(|&number| {
            // SAFETY: a new reference, or null with an exception.
            let descr = unsafe { Bound::from_owned_ptr_or_err(py, descr_from_type(number)) }?;
            let text = descr.getattr(intern!(py, "str"))?.cast_into::<PyString>()?;
            PyResult::Ok(Dtype {
                text: text.to_str()?.into(),
                size: descr.getattr(intern!(py, "itemsize"))?.extract()?,
                descr: descr.unbind(),
            })
        });
        Some(NumPy {
            array,
            new_from_descr,
            set_base_object,
            dtypes: dtypes.collect::<PyResult<_>>().ok()?,
        })
    }

    /// Whether this is the type of arrays.
    #[inline]
    pub(crate) fn is_array(&self, kind: *mut ffi::PyTypeObject) -> bool {
        self.array == kind
    }

    /// The type of elements that travels as `text`.
    #[inline]
    pub(crate) fn dtype(&self, text: &[u8]) -> Option<&Dtype> {
        self.dtypes.iter().find(|each| each.text.as_bytes() == text)
    }

    /// What there is to say of an array; None if its elements are no numbers, or have gaps or another order.
    ///
    /// # Safety
    /// `array` is alive and exactly of the type of arrays, the GIL is ours, and nothing changes it for as long as the
    /// result is used: no Python code runs.
    #[inline]
    pub(crate) unsafe fn look<'a>(&'static self, array: *mut ffi::PyObject) -> Option<Array<'a>> {
        // SAFETY: as above, and every array begins with these fields.
        let fields = unsafe { &*array.cast::<Fields>() };
        let axes = fields.nd as usize;
        if fields.flags & C_CONTIGUOUS == 0 || axes > MAX_AXES {
            return None;
        }
        let dtype = self
            .dtypes
            .iter()
            .find(|each| each.descr.as_ptr() == fields.descr)?;
        let shape: &[_] = if axes == 0 {
            &[]
        } else {
            // SAFETY: as above; with axes there are as many dimensions.
            unsafe { std::slice::from_raw_parts(fields.dimensions, axes) }
        };
        // It is the length of memory that there is, unless an axis has no length.
        let count = shape
            .iter()
            .fold(1, |all: usize, &each| all.wrapping_mul(each as usize));
        Some(Array {
            dtype,
            shape,
            data: fields.data.cast_const().cast(),
            len: count.wrapping_mul(dtype.size),
        })
    }

    /// Whose memory an array looks at, through all arrays between.
    ///
    /// # Safety
    /// `array` is alive and exactly of the type of arrays, and the GIL is ours.
    #[inline]
    pub(crate) unsafe fn memory(&self, mut array: *mut ffi::PyObject) -> Memory {
        loop {
            // SAFETY: as above: an array keeps what it looks at alive.
            unsafe {
                let base = (*array.cast::<Fields>()).base;
                if base.is_null() {
                    return Memory::Own;
                }
                if ffi::Py_TYPE(base) != self.array {
                    return Memory::Of(ffi::Py_TYPE(base));
                }
                array = base;
            }
        }
    }

    /// A read-only array over the `len` bytes at `data`; None if they are not of this shape.
    ///
    /// # Safety
    /// They are readable for as long as `owner` lives.
    #[inline]
    pub(crate) unsafe fn make<'py>(
        &self,
        dtype: &Dtype,
        shape: &[ffi::Py_ssize_t],
        data: *const u8,
        len: usize,
        owner: Bound<'py, PyAny>,
    ) -> Option<Bound<'py, PyAny>> {
        let py = owner.py();
        if self.size(dtype, shape)? != len {
            return None;
        }
        // SAFETY: the type and the functions are NumPy's own. The one takes a reference to the type of the elements, and gives
        // a new array or null with an exception; the other one takes a reference to the owner, also if it fails.
        unsafe {
            let made = (self.new_from_descr)(
                self.array,
                dtype.descr.clone_ref(py).into_ptr(),
                shape.len() as c_int,
                shape.as_ptr(),
                std::ptr::null(),
                data.cast_mut().cast(),
                0,
                std::ptr::null_mut(),
            );
            let made = Bound::from_owned_ptr_or_err(py, made).ok()?;
            if (self.set_base_object)(made.as_ptr(), owner.into_ptr()) != 0 {
                ffi::PyErr_Clear();
                return None;
            }
            Some(made)
        }
    }

    /// An array with memory of its own, to which the `len` bytes at `data` are copied; None if they are not of this shape.
    ///
    /// # Safety
    /// They are readable meanwhile.
    pub(crate) unsafe fn copied<'py>(
        &self,
        py: Python<'py>,
        dtype: &Dtype,
        shape: &[ffi::Py_ssize_t],
        data: *const u8,
        len: usize,
    ) -> Option<Bound<'py, PyAny>> {
        if self.size(dtype, shape)? != len {
            return None;
        }
        // SAFETY: as in `make`; with no data NumPy takes memory for all elements, of which there are `len` bytes.
        unsafe {
            let made = (self.new_from_descr)(
                self.array,
                dtype.descr.clone_ref(py).into_ptr(),
                shape.len() as c_int,
                shape.as_ptr(),
                std::ptr::null(),
                std::ptr::null_mut(),
                0,
                std::ptr::null_mut(),
            );
            let made = Bound::from_owned_ptr_or_err(py, made).ok()?;
            let to = (*made.as_ptr().cast::<Fields>()).data.addr();
            let from = data.addr();
            // No other code has the array so far, and the caller keeps the data that is copied.
            let copy = move || bytes::copy(to as *mut u8, from as *const u8, len);
            match len < LONG {
                true => copy(),
                false => py.detach(copy),
            }
            Some(made)
        }
    }

    /// Bytes of the elements of an array of this shape; None if there can be none such.
    fn size(&self, dtype: &Dtype, shape: &[ffi::Py_ssize_t]) -> Option<usize> {
        let count = shape.iter().try_fold(1usize, |all, &each| {
            all.checked_mul(usize::try_from(each).ok()?)
        })?;
        let size = count.checked_mul(dtype.size)?;
        (shape.len() <= MAX_AXES).then_some(size)
    }

    /// A read-only array of the elements in `bytes`.
    pub(crate) fn of_bytes<'py>(
        &self,
        dtype: &Dtype,
        shape: &[ffi::Py_ssize_t],
        bytes: Bound<'py, PyBytes>,
    ) -> Option<Bound<'py, PyAny>> {
        let (data, len) = (bytes.as_bytes().as_ptr(), bytes.as_bytes().len());
        // SAFETY: the bytes live as long as their object, and nobody changes them.
        unsafe { self.make(dtype, shape, data, len, bytes.into_any()) }
    }
}
