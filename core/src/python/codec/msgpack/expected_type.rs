//! `ExpectedType`: a declared type, for Python.

use crate::python::codec::msgpack::buffers::Buffers;
use crate::python::codec::msgpack::reader::Reader;
use crate::python::codec::msgpack::type_spec::{
    ANY, Array, BOOL, BYTES, FLOAT, INT, MEMORYVIEW, NDARRAY, NONE, STR, Scalars, TypeSpec,
};
use crate::python::codec::msgpack::unreadable::Unreadable;
use crate::python::codec::parcel::Parcel;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

/// A declared type of None, bool, int, float, str, bytes, memoryviews, NumPy arrays and containers of them.
///
/// `scalars` are the names of the types that a single value may have, such as "int", or "any" for all of them. `dtypes`
/// are the element types of an "ndarray", if not all are expected. `each` is the type of the items of a list, or with
/// `is_tuple` of a tuple of any length; `items` are the types of the items of a tuple. `keys` and `values` are the
/// types in a dict.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct ExpectedType(Arc<TypeSpec>);

impl ExpectedType {
    pub(crate) fn spec(&self) -> &TypeSpec {
        &self.0
    }
}

#[pymethods]
impl ExpectedType {
    #[new]
    #[pyo3(signature = (scalars, *, dtypes=None, each=None, is_tuple=false, items=None, keys=None, values=None))]
    #[allow(clippy::too_many_arguments)] // By keyword alone, in one place.
    fn new(
        scalars: Vec<String>,
        dtypes: Option<Vec<String>>,
        each: Option<PyRef<'_, ExpectedType>>,
        is_tuple: bool,
        items: Option<Vec<PyRef<'_, ExpectedType>>>,
        keys: Option<PyRef<'_, ExpectedType>>,
        values: Option<PyRef<'_, ExpectedType>>,
    ) -> PyResult<Self> {
        let bits = scalars.iter().map(|name| bit(name));
        let spec = |each: &PyRef<'_, ExpectedType>| each.0.clone();
        let each = each.as_ref().map(|of| Array::Each {
            of: spec(of),
            is_list: !is_tuple,
        });
        let items = items.map(|items| Array::Fixed(items.iter().map(spec).collect()));
        Ok(ExpectedType(Arc::new(TypeSpec {
            scalars: bits.reduce(|a, b| Ok(a? | b?)).unwrap_or(Ok(0))?,
            array: each.or(items),
            map: keys.as_ref().map(spec).zip(values.as_ref().map(spec)),
            dtypes,
        })))
    }

    /// Returns the value of a body, which is bytes or a parcel.
    ///
    /// Raises ValueError if the value is not of this type, or if the core cannot read it. Copies of the parcel's
    /// buffers that were made until then replace these buffers.
    fn read<'py>(&self, py: Python<'py>, body: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let spec = self.spec();
        let value = match body.cast::<Parcel>() {
            Ok(parcel) => {
                let parcel = parcel.get();
                let buffers = Buffers::new(parcel.buffers(py)?.iter().collect());
                let value = Reader::decode(py, parcel.body(py).as_bytes(), Some(&buffers), spec);
                if value.is_err() {
                    parcel.set_buffers(buffers.into_tuple(py)?);
                }
                value
            }
            Err(_) => Reader::decode(py, body.extract()?, None, spec),
        };
        let unreadable = |Unreadable| {
            PyValueError::new_err("the value is not of the expected type, or needs the codec")
        };
        value.map_err(unreadable)
    }
}

/// Returns the bit of the type of this name. Raises ValueError for an unknown name.
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
