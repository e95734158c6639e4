//! Proxies of dicts, lists and records.

use crate::python::objects::stores::converters::BufferOwner;
use crate::python::objects::stores::items::with_key;
use crate::python::objects::stores::open_store::StoreRef;
use crate::python::objects::stores::proxy::Proxy;
use crate::python::objects::stores::store::Store;
use crate::store::{Item, StoreError};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyString;

/// Proxy of a dict of a store.
#[pyclass(frozen, subclass, extends = Proxy, module = "shmrpc._core")]
pub struct DictProxy;

#[pymethods]
impl DictProxy {
    #[new]
    fn new(
        store_ref: &Bound<'_, StoreRef>,
        at: u64,
        id: u64,
    ) -> PyResult<PyClassInitializer<Self>> {
        Ok(PyClassInitializer::from(Proxy::new(store_ref, at, id)?).add_subclass(DictProxy))
    }

    fn __getitem__<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let base = slf.as_super().get();
        base.inner.get_item(base.container, key)
    }

    fn __setitem__(
        slf: &Bound<'_, Self>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let base = slf.as_super().get();
        base.inner.set_item(base.container, key, value)
    }

    fn __delitem__(slf: &Bound<'_, Self>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let base = slf.as_super().get();
        base.inner.delete_item(base.container, key)
    }

    fn __contains__(slf: PyRef<'_, Self>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let base = slf.as_super();
        base.inner.contains(slf.py(), base.container, key)
    }
}

/// A field of the records of a class: a Python descriptor.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct RecordField {
    number: u64,
}

#[pymethods]
impl RecordField {
    #[new]
    fn new(number: u64) -> Self {
        RecordField { number }
    }

    /// The number of the field.
    #[getter]
    fn number(&self) -> u64 {
        self.number
    }

    fn __get__<'py>(
        slf: &Bound<'py, Self>,
        record: Option<&Bound<'py, PyAny>>,
        _class: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(record) = record.filter(|record| !record.is_none()) else {
            return Ok(slf.clone().into_any());
        };
        let (py, record) = (slf.py(), record.cast::<Proxy>()?.get());
        let found = record
            .inner
            .get(py, record.container, &Item::Field(slf.get().number))?;
        found.ok_or_else(|| record.inner.store_error(py, StoreError::ContainerDeleted))
    }

    fn __set__(&self, record: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let (py, record) = (record.py(), record.cast::<Proxy>()?.get());
        let item = Item::Field(self.number);
        record
            .inner
            .set(py, record.container, &item, value)
            .map(drop)
    }
}

/// Proxy of a list of a store: operations on single items. Python's `_slice`, `_set_slice` and `_delete_slice` do the
/// rest.
#[pyclass(frozen, subclass, extends = Proxy, module = "shmrpc._core")]
pub struct ListProxy;

#[pymethods]
impl ListProxy {
    #[new]
    fn new(
        store_ref: &Bound<'_, StoreRef>,
        at: u64,
        id: u64,
    ) -> PyResult<PyClassInitializer<Self>> {
        Ok(PyClassInitializer::from(Proxy::new(store_ref, at, id)?).add_subclass(ListProxy))
    }

    fn __getitem__<'py>(
        slf: &Bound<'py, Self>,
        index: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Ok(number) = index.extract::<i64>() else {
            return slf.call_method1("_slice", (index,));
        };
        let py = slf.py();
        let base = slf.as_super().get();
        let found = base.inner.get(py, base.container, &Item::Index(number))?;
        found.ok_or_else(|| PyIndexError::new_err("index out of range"))
    }

    /// Adds a value at the end.
    fn append(slf: &Bound<'_, Self>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let (base, owner) = (slf.as_super().get(), BufferOwner::default());
        let value = [base.inner.converters.value(value, &owner, 0)?];
        base.inner.run_checked(slf.py(), |store, open, deadline| {
            store.splice(open, deadline, base.container, u64::MAX, u64::MAX, &value)
        })
    }

    fn __setitem__(
        slf: &Bound<'_, Self>,
        index: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let Ok(number) = index.extract::<i64>() else {
            return slf.call_method1("_set_slice", (index, value)).map(drop);
        };
        let base = slf.as_super().get();
        base.inner
            .set(slf.py(), base.container, &Item::Index(number), value)
            .map(drop)
    }

    fn __delitem__(slf: &Bound<'_, Self>, index: &Bound<'_, PyAny>) -> PyResult<()> {
        let Ok(number) = index.extract::<i64>() else {
            return slf.call_method1("_delete_slice", (index,)).map(drop);
        };
        let base = slf.as_super().get();
        base.inner
            .delete(slf.py(), base.container, &Item::Index(number))
            .map(drop)
    }
}

/// Proxy of a record whose fields are indexed by the members of an IntEnum.
#[pyclass(frozen, subclass, extends = Proxy, module = "shmrpc._core")]
pub struct StructProxy;

#[pymethods]
impl StructProxy {
    #[new]
    fn new(
        store_ref: &Bound<'_, StoreRef>,
        at: u64,
        id: u64,
    ) -> PyResult<PyClassInitializer<Self>> {
        Ok(PyClassInitializer::from(Proxy::new(store_ref, at, id)?).add_subclass(StructProxy))
    }

    fn __getitem__<'py>(slf: &Bound<'py, Self>, field: u64) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let base = slf.as_super().get();
        let found = base.inner.get(py, base.container, &Item::Field(field))?;
        found.ok_or_else(|| PyIndexError::new_err("index out of range"))
    }

    fn __setitem__(slf: &Bound<'_, Self>, field: u64, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let base = slf.as_super().get();
        base.inner
            .set(slf.py(), base.container, &Item::Field(field), value)
            .map(drop)
    }
}

/// Adds to a number in a container, and returns the sum; None if this is for Python, because a number or the sum does
/// not fit a cell. `key` is a key of a dict or a store, an index of a list, the number of a field of a struct, or the
/// name of a field of an object.
#[pyfunction]
pub fn add_to<'py>(
    container: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
    by: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = container.py();
    if let Ok(store) = container.cast::<Store>() {
        let this = store.get().inner(py)?;
        return with_key!(this, key, |item| this.add(py, this.root, item, by));
    }
    let proxy = container.cast::<Proxy>()?.get();
    let this = &*proxy.inner;
    if container.is_instance_of::<DictProxy>() {
        return with_key!(this, key, |item| this.add(py, proxy.container, item, by));
    }
    let item = if container.is_instance_of::<ListProxy>() {
        Item::Index(key.extract()?)
    } else if container.is_instance_of::<StructProxy>() {
        Item::Field(key.extract()?)
    } else {
        let field = container.get_type().getattr(key.cast::<PyString>()?)?;
        Item::Field(field.cast::<RecordField>()?.get().number)
    };
    this.add(py, proxy.container, &item, by)
}
