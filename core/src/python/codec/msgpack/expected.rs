//! `Expected`: the type of a value that is read.

use super::reader::{Buffers, Reader, Unreadable};
use crate::python::codec::parcel::Parcel;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The types of single values, one bit each.
pub(super) type Scalars = u16;
pub(super) const NONE: Scalars = 1;
pub(super) const BOOL: Scalars = 2;
pub(super) const INT: Scalars = 4;
pub(super) const FLOAT: Scalars = 8;
pub(super) const STR: Scalars = 16;
pub(super) const BYTES: Scalars = 32;
/// Whatever MessagePack has, arrays as lists and maps as dicts; and all else that is read here.
pub(super) const ANY: Scalars = 64;
/// NumPy's arrays.
pub(super) const NDARRAY: Scalars = 128;
/// Read-only views of bytes in a row.
pub(super) const MEMORYVIEW: Scalars = 256;

/// What an array is to become.
pub(super) enum Array {
    /// A list, or else a tuple, of any length, whose items are all of this type.
    Each { of: Py<Expected>, list: bool },
    /// A tuple of these.
    Fixed(Vec<Py<Expected>>),
}

/// A declared type, of None, bool, int, float, str, bytes, memoryviews, NumPy's arrays and containers of them: what is read
/// must be of it.
///
/// `scalars`: the names of the types that a single value may have, such as "int", or "any" for whatever there is;
/// `dtypes`: of an "ndarray", the texts of the types that its elements may have, if not all. What
/// an array may be: `each`, the type of the items of a list, or with `is_tuple` of a tuple of any length; or `items`, the
/// types of those of a tuple. `keys` and `values`: those of a dict.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Expected {
    pub(super) scalars: Scalars,
    pub(super) array: Option<Array>,
    pub(super) map: Option<(Py<Expected>, Py<Expected>)>,
    pub(super) dtypes: Option<Vec<String>>,
}

impl Expected {
    /// Whatever there is.
    pub(crate) const ANY: Expected = Expected {
        scalars: ANY,
        array: None,
        map: None,
        dtypes: None,
    };

    /// The types of the items of a tuple.
    #[inline]
    pub(crate) fn items(&self) -> Option<&[Py<Expected>]> {
        match &self.array {
            Some(Array::Fixed(items)) => Some(items),
            _ => None,
        }
    }
}

#[pymethods]
impl Expected {
    #[new]
    #[pyo3(signature = (scalars, *, dtypes=None, each=None, is_tuple=false, items=None, keys=None, values=None))]
    #[allow(clippy::too_many_arguments)] // By keyword alone, in one place.
    fn new(
        scalars: Vec<String>,
        dtypes: Option<Vec<String>>,
        each: Option<Py<Expected>>,
        is_tuple: bool,
        items: Option<Vec<Py<Expected>>>,
        keys: Option<Py<Expected>>,
        values: Option<Py<Expected>>,
    ) -> PyResult<Self> {
        let bits = scalars.iter().map(|name| bit(name));
        let each = each.map(|of| Array::Each {
            of,
            list: !is_tuple,
        });
        Ok(Expected {
            scalars: bits.reduce(|a, b| Ok(a? | b?)).unwrap_or(Ok(0))?,
            array: each.or(items.map(Array::Fixed)),
            map: keys.zip(values),
            dtypes,
        })
    }

    /// The value that bytes, or a parcel, are; ValueError if they are not what is expected. Then what was copied of the
    /// parcel's buffers is in their places.
    fn read<'py>(&self, py: Python<'py>, body: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let read = match body.cast::<Parcel>() {
            Ok(parcel) => {
                let parcel = parcel.get();
                let buffers = Buffers::new(parcel.buffers(py)?.iter().collect());
                let read = Reader::decode(py, parcel.body(py).as_bytes(), Some(&buffers), self);
                if read.is_err() {
                    parcel.set_buffers(buffers.into_tuple(py)?);
                }
                read
            }
            Err(_) => Reader::decode(py, body.extract()?, None, self),
        };
        let unread = |Unreadable| PyValueError::new_err("not what is expected, or not read here");
        read.map_err(unread)
    }
}

fn bit(name: &str) -> PyResult<Scalars> {
    Ok(match name {
        "None" => NONE,
        "bool" => BOOL,
        "int" => INT,
        "float" => FLOAT,
        "str" => STR,
        "bytes" => BYTES,
        "any" => ANY,
        "ndarray" => NDARRAY,
        "memoryview" => MEMORYVIEW,
        _ => {
            let text = format!("expected the name of a type of MessagePack's, got {name:?}");
            return Err(PyValueError::new_err(text));
        }
    })
}
