//! NumPy arrays, by NumPy's C interface. This reads and makes them in a tenth of the time that NumPy's Python functions
//! take.
//!
//! NumPy is never imported here. This relies on what every extension module built for NumPy 2 relies on: the table of
//! functions in `_ARRAY_API`, and the first fields of an array.

use crate::memory::bytes;
use crate::python::support::buffer::LONG;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyString};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// The first fields of every array.
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

/// Bit of `flags`: the elements are in C order, without gaps.
const C_CONTIGUOUS: c_int = 1;
/// The supported ABI, that of NumPy 2.
const ABI: c_uint = 0x0200_0000;
/// The maximum number of axes; NumPy's own functions handle arrays with more.
pub(crate) const MAX_AXES: usize = 32;

/// Indices in the table of functions.
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

/// Type numbers of bool, integers, floats and complex numbers, in the machine's byte order.
const NUMBERS: [c_int; 18] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 23];

/// An element type, for which NumPy has one object.
pub(crate) struct Dtype {
    descr: Py<PyAny>,
    /// Its text on the wire, such as `<f8`.
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

// SAFETY: every use has the GIL, which the code that reads or makes an array holds.
unsafe impl Send for NumPy {}
// SAFETY: as above.
unsafe impl Sync for NumPy {}

static NUMPY: PyOnceLock<NumPy> = PyOnceLock::new();

/// An array whose elements are numbers in C order.
pub(crate) struct Array<'a> {
    pub(crate) dtype: &'static Dtype,
    pub(crate) shape: &'a [ffi::Py_ssize_t],
    pub(crate) data: *const u8,
    /// Its length in bytes.
    pub(crate) len: usize,
}

/// Owner of the memory that an array refers to.
pub(crate) enum MemoryOwner {
    /// The array itself.
    Array,
    /// An object of this type.
    Object(*mut ffi::PyTypeObject),
}

impl NumPy {
    /// Returns NumPy; None unless the program has imported it with the supported ABI. Runs no Python code.
    #[inline]
    pub(crate) fn known(py: Python<'_>) -> Option<&'static NumPy> {
        NUMPY.get(py).or_else(|| {
            let found = NumPy::find(py)?;
            Some(NUMPY.get_or_init(py, || found))
        })
    }

    #[cold]
    /// Looks NumPy up among the imported modules; None if it is missing or has another ABI.
    fn find(py: Python<'_>) -> Option<NumPy> {
        // SAFETY: the dict of the interpreter, which lives as long as the interpreter.
        let modules = unsafe { Bound::from_borrowed_ptr(py, ffi::PyImport_GetModuleDict()) };
        let modules = modules.cast_into_exact::<PyDict>().ok()?;
        let module = modules.get_item("numpy._core._multiarray_umath").ok()??;
        let module = module.cast_into::<pyo3::types::PyModule>().ok()?;
        let capsule = module.dict().get_item("_ARRAY_API").ok()??;
        // SAFETY: the GIL is held; the object was checked to be a capsule without a name.
        let table = unsafe {
            if ffi::PyCapsule_CheckExact(capsule.as_ptr()) == 0
                || ffi::PyCapsule_IsValid(capsule.as_ptr(), std::ptr::null()) == 0
            {
                return None;
            }
            ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()).cast::<*mut c_void>()
        };
        // SAFETY: the table of every version of NumPy has a function that returns the version at this index.
        let version =
            unsafe { std::mem::transmute::<*mut c_void, AbiVersion>(*table.add(ABI_VERSION))() };
        if version != ABI {
            return None;
        }
        // SAFETY: in this ABI the table has a type and functions of these types at these indices.
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

    /// Returns true for the type of arrays.
    #[inline]
    pub(crate) fn is_array(&self, kind: *mut ffi::PyTypeObject) -> bool {
        self.array == kind
    }

    /// Returns the element type with this text on the wire; None if there is none.
    #[inline]
    pub(crate) fn dtype(&self, text: &[u8]) -> Option<&Dtype> {
        self.dtypes.iter().find(|each| each.text.as_bytes() == text)
    }

    /// Returns a description of an array; None if its elements are no numbers, or have gaps or another order, or if it
    /// has more than [`MAX_AXES`] axes.
    ///
    /// # Safety
    /// `array` is alive and exactly of the type of arrays, the GIL is held, and nothing changes the array while the
    /// result is used: no Python code runs.
    #[inline]
    pub(crate) unsafe fn describe<'a>(
        &'static self,
        array: *mut ffi::PyObject,
    ) -> Option<Array<'a>> {
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
        // This is the length of the memory, unless an axis has no length.
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

    /// Returns the owner of the memory that an array refers to, through all arrays between.
    ///
    /// # Safety
    /// `array` is alive and exactly of the type of arrays, and the GIL is held.
    #[inline]
    pub(crate) unsafe fn memory_owner(&self, mut array: *mut ffi::PyObject) -> MemoryOwner {
        loop {
            // SAFETY: as above; an array keeps its base alive.
            unsafe {
                let base = (*array.cast::<Fields>()).base;
                if base.is_null() {
                    return MemoryOwner::Array;
                }
                if ffi::Py_TYPE(base) != self.array {
                    return MemoryOwner::Object(ffi::Py_TYPE(base));
                }
                array = base;
            }
        }
    }

    /// Returns a new array over the elements at `data`, or over memory of its own if that is null; None if there is no
    /// memory.
    ///
    /// # Safety
    /// The elements are readable for as long as the array lives.
    #[inline]
    unsafe fn new_array<'py>(
        &self,
        py: Python<'py>,
        dtype: &Dtype,
        shape: &[ffi::Py_ssize_t],
        data: *mut c_void,
    ) -> Option<Bound<'py, PyAny>> {
        // SAFETY: the type and the function are NumPy's own. The function takes over a reference to the element type,
        // and returns a new array, or null with an exception.
        unsafe {
            let array = (self.new_from_descr)(
                self.array,
                dtype.descr.clone_ref(py).into_ptr(),
                shape.len() as c_int,
                shape.as_ptr(),
                std::ptr::null(),
                data,
                0,
                std::ptr::null_mut(),
            );
            Bound::from_owned_ptr_or_err(py, array).ok()
        }
    }

    /// Returns a read-only array over the `len` bytes at `data`; None if the bytes do not have this shape.
    ///
    /// # Safety
    /// The bytes are readable for as long as `owner` lives.
    #[inline]
    pub(crate) unsafe fn view_of<'py>(
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
        // SAFETY: the array keeps `owner`, which keeps the bytes. NumPy's function takes over the reference, also if it
        // fails.
        unsafe {
            let array = self.new_array(py, dtype, shape, data.cast_mut().cast())?;
            if (self.set_base_object)(array.as_ptr(), owner.into_ptr()) != 0 {
                ffi::PyErr_Clear();
                return None;
            }
            Some(array)
        }
    }

    /// Returns an array with memory of its own and a copy of the `len` bytes at `data`; None if the bytes do not have
    /// this shape, or if there is no memory. Copies `LONG` bytes or more without the GIL.
    ///
    /// # Safety
    /// The bytes are readable for the time of the call.
    pub(crate) unsafe fn copy_of<'py>(
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
        // SAFETY: without data NumPy allocates memory for all elements, which have `len` bytes.
        unsafe {
            let array = self.new_array(py, dtype, shape, std::ptr::null_mut())?;
            let to = (*array.as_ptr().cast::<Fields>()).data.addr();
            let from = data.addr();
            // No other code knows the array, and the caller keeps the bytes.
            let copy = move || bytes::copy(to as *mut u8, from as *const u8, len);
            match len < LONG {
                true => copy(),
                false => py.detach(copy),
            }
            Some(array)
        }
    }

    /// Returns the number of bytes of an array of this shape; None for a length below 0, for more bytes than a usize
    /// counts, and for more than [`MAX_AXES`] axes.
    fn size(&self, dtype: &Dtype, shape: &[ffi::Py_ssize_t]) -> Option<usize> {
        let count = shape.iter().try_fold(1usize, |all, &each| {
            all.checked_mul(usize::try_from(each).ok()?)
        })?;
        let size = count.checked_mul(dtype.size)?;
        (shape.len() <= MAX_AXES).then_some(size)
    }

    /// Returns a read-only array over the elements in `bytes`; None if the bytes do not have this shape.
    pub(crate) fn view_of_bytes<'py>(
        &self,
        dtype: &Dtype,
        shape: &[ffi::Py_ssize_t],
        bytes: Bound<'py, PyBytes>,
    ) -> Option<Bound<'py, PyAny>> {
        let (data, len) = (bytes.as_bytes().as_ptr(), bytes.as_bytes().len());
        // SAFETY: the bytes live as long as their object, and never change.
        unsafe { self.view_of(dtype, shape, data, len, bytes.into_any()) }
    }
}
