//! `Converters`: conversion of Python's values to values of a store, and back.

pub(crate) use crate::python::objects::stores::native_values::BufferOwner;
use crate::python::objects::stores::native_values::{cell_to_python, int_of, plain, text_of};
use crate::python::support::buffer::copy_of;
use crate::store::{Bytes, DEPTH, Key, StoredValue, Type, Value};
use pyo3::exceptions::{PyMemoryError, PyRecursionError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFrozenSet, PyList, PySet, PyString, PyTuple};

/// The number of bytes of a cell.
const CELL: u64 = 8;

/// Functions of Python for values of types that the core does not know.
pub(crate) struct Converters {
    /// Converts a value into a form that can be stored: `("as", value)`, `("packed", bytes)`, `("buffer", description,
    /// bytes)` or `("record", class, fields, extra or None)`.
    convert: Py<PyAny>,
    /// Converts a key into an equal plain value, or into the bytes by which it is compared and the bytes from which it
    /// is restored.
    key: Py<PyAny>,
    /// Makes a value from the bytes of a key, or from packed bytes.
    unpack: Py<PyAny>,
    /// Makes an instance of a class from the number of the class, its fields and its extra attributes.
    instance: Py<PyAny>,
    /// Makes a value from the description and the bytes of a buffer.
    copied: Py<PyAny>,
    /// Classes of a list, a dict, a set and a buffer, as programs see them. Each takes a
    /// [`StoreRef`](crate::python::objects::stores::open_store::StoreRef), an address and a number.
    views: [Py<PyAny>; 4],
    /// Takes the number of a class, and returns the class that programs see for its records.
    record: Py<PyAny>,
    /// Makes the error for a value that takes more bytes than the store may have.
    too_large: Py<PyAny>,
    /// The maximum number of bytes of the store.
    limit: u64,
}

impl Converters {
    /// Takes the functions from the attributes of `all`; `limit` is the maximum number of bytes of the store. Raises
    /// AttributeError if a function is missing.
    pub(crate) fn new(all: &Bound<'_, PyAny>, limit: u64) -> PyResult<Self> {
        let get = |name: &str| Ok::<_, PyErr>(all.getattr(name)?.unbind());
        Ok(Converters {
            convert: get("convert")?,
            key: get("encode_key")?,
            unpack: get("unpack")?,
            instance: get("make_instance")?,
            copied: get("copy_buffer")?,
            views: [
                get("list_class")?,
                get("dict_class")?,
                get("set_class")?,
                get("view_buffer")?,
            ],
            record: get("record_class")?,
            too_large: get("too_large_error")?,
            limit,
        })
    }

    /// Returns an empty vector with room for `count` values or keys, each of which takes at least `bytes` bytes in the
    /// store, and adds these bytes to `owner.needed`. Raises the error `too_large` if the sum exceeds the limit of the
    /// store, before this process allocates memory, and MemoryError.
    pub(crate) fn room<'py, T>(
        &self,
        of: &Bound<'py, PyAny>,
        owner: &BufferOwner<'py>,
        count: usize,
        bytes: u64,
    ) -> PyResult<Vec<T>> {
        let needed = owner.needed.get().saturating_add(count as u64 * bytes);
        owner.needed.set(needed);
        if needed > self.limit {
            let error = self.too_large.bind(of.py()).call1((needed, self.limit))?;
            return Err(PyErr::from_value(error));
        }
        vec_with_capacity(count)
    }

    /// Converts the items of an iterable to values of a store. Raises what `value` raises.
    pub(crate) fn values<'k, 'py>(
        &self,
        of: &Bound<'py, PyAny>,
        items: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
        owner: &'k BufferOwner<'py>,
        depth: usize,
    ) -> PyResult<Vec<Value<'k>>> {
        let mut values = self.room(of, owner, items.len(), CELL)?;
        for item in items {
            values.push(self.value(&item, owner, depth)?);
        }
        Ok(values)
    }

    /// Converts the items of an iterable to keys of a store. Raises what `room` and `key` raise.
    fn keys<'k, 'py>(
        &self,
        of: &Bound<'py, PyAny>,
        items: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
        owner: &'k BufferOwner<'py>,
    ) -> PyResult<Vec<Key<'k>>> {
        let mut keys = self.room(of, owner, items.len(), CELL)?;
        for item in snapshot_of(items)? {
            keys.push(self.key(&item, owner)?);
        }
        Ok(keys)
    }

    /// Converts an object to a value of a store. `depth` is the number of containers around the value. Raises
    /// RecursionError for a value that is nested too deep, what `room` raises, and what the functions raise.
    pub(crate) fn value<'k, 'py>(
        &self,
        object: &Bound<'py, PyAny>,
        owner: &'k BufferOwner<'py>,
        depth: usize,
    ) -> PyResult<Value<'k>> {
        if let Some(value) = plain(object, owner)? {
            return Ok(value);
        }
        // One level more than containers may have, because a value that is no container fits there; the core itself
        // checks the rest.
        if depth > DEPTH {
            return Err(PyRecursionError::new_err(format!(
                "the value is nested more than {DEPTH} deep, or contains itself: store parts of it under keys of their own"
            )));
        }
        let depth = depth + 1;
        if let Ok(list) = object.cast_exact::<PyList>() {
            return Ok(Value::List(self.values(
                object,
                list.iter(),
                owner,
                depth,
            )?));
        }
        if let Ok(tuple) = object.cast_exact::<PyTuple>() {
            return Ok(Value::Tuple(self.values(
                object,
                tuple.iter(),
                owner,
                depth,
            )?));
        }
        if let Ok(dict) = object.cast_exact::<PyDict>() {
            return Ok(Value::Dict(self.items(dict, owner, depth)?));
        }
        if let Ok(set) = object.cast_exact::<PySet>() {
            return Ok(Value::Set(self.keys(object, set.iter(), owner)?));
        }
        if let Ok(set) = object.cast_exact::<PyFrozenSet>() {
            return Ok(Value::FrozenSet(self.keys(object, set.iter(), owner)?));
        }
        self.converted(object, owner, depth)
    }

    /// Converts the items of a dict to keys and values of a store. Raises what `key` and `value` raise.
    fn items<'k, 'py>(
        &self,
        dict: &Bound<'py, PyDict>,
        owner: &'k BufferOwner<'py>,
        depth: usize,
    ) -> PyResult<Vec<(Key<'k>, Value<'k>)>> {
        let mut items = self.room(dict.as_any(), owner, dict.len(), 2 * CELL)?;
        for (key, value) in snapshot_of(dict.iter())? {
            items.push((self.key(&key, owner)?, self.value(&value, owner, depth)?));
        }
        Ok(items)
    }

    /// Converts an object of a type that the core does not know, by the function `convert`. `depth` counts the object
    /// itself. Raises what `convert` and `value` raise.
    fn converted<'k, 'py>(
        &self,
        object: &Bound<'py, PyAny>,
        owner: &'k BufferOwner<'py>,
        depth: usize,
    ) -> PyResult<Value<'k>> {
        let converted = self.convert.bind(object.py()).call1((object,))?;
        let converted = converted.cast_into::<PyTuple>()?;
        let (what, first) = (converted.get_item(0)?, converted.get_item(1)?);
        Ok(match what.cast::<PyString>()?.to_str()? {
            // At the same depth, because it replaces the value.
            "as" => self.value(&first, owner, depth - 1)?,
            "packed" => {
                let bytes = owner.bytes(first.cast::<PyBytes>()?);
                Value::Blob(Type::Packed, Bytes::Borrowed(bytes))
            }
            "buffer" => {
                let description = owner.bytes(first.cast::<PyBytes>()?);
                let bytes = owner.buffer(&converted.get_item(2)?)?;
                Value::Buffer(Bytes::Borrowed(description), Bytes::Borrowed(bytes))
            }
            "record" => {
                let fields = converted.get_item(2)?.cast_into::<PyList>()?;
                let fields = self.values(fields.as_any(), fields.iter(), owner, depth)?;
                let extra = converted.get_item(3)?;
                let extra = match extra.cast::<PyDict>() {
                    Ok(extra) => Some(self.items(extra, owner, depth)?),
                    Err(_) => None,
                };
                Value::Record(first.extract()?, fields, extra)
            }
            other => return Err(PyTypeError::new_err(format!("no such form: {other}"))),
        })
    }

    /// Converts an object to a key of a dict, or a member of a set. Raises what the functions raise.
    #[inline]
    pub(crate) fn key<'k, 'py>(
        &self,
        object: &Bound<'py, PyAny>,
        owner: &'k BufferOwner<'py>,
    ) -> PyResult<Key<'k>> {
        Ok(match plain(object, owner)? {
            Some(Value::Immediate(cell)) => Key::Immediate(cell),
            Some(Value::Blob(kind, bytes)) => Key::Blob(kind, bytes),
            _ => {
                let converted = self.key.bind(object.py()).call1((object,))?;
                match plain(&converted, owner)? {
                    Some(Value::Immediate(cell)) => Key::Immediate(cell),
                    Some(Value::Blob(kind, bytes)) => Key::Blob(kind, bytes),
                    _ if converted.is_instance_of::<PyTuple>() && converted.len()? == 3 => {
                        let converted = converted.cast_into::<PyTuple>()?;
                        let equal = self.key(&converted.get_item(1)?, owner)?;
                        Key::Alias(Box::new(equal), converted.get_item(2)?.extract()?)
                    }
                    _ => {
                        let (canonical, exact) = converted.extract()?;
                        Key::Other(canonical, exact)
                    }
                }
            }
        })
    }

    /// Restores a key from its bytes. Raises what `unpack` and `key` raise.
    pub(crate) fn restore_key(&self, py: Python<'_>, exact: &[u8]) -> PyResult<Key<'static>> {
        let key = self.unpack.bind(py).call1((PyBytes::new(py, exact),))?;
        Ok(self.key(&key, &BufferOwner::default())?.into_owned())
    }

    /// Converts a stored value to the object that programs see: a proxy for a container, a copy for a value that was
    /// copied. Raises DecodeError for a text that is not UTF-8, what the functions raise, and MemoryError.
    pub(crate) fn to_python<'py>(
        &self,
        store_ref: &Bound<'py, PyAny>,
        found: StoredValue,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = store_ref.py();
        Ok(match found {
            StoredValue::Immediate(cell) => cell_to_python(py, cell)?,
            StoredValue::Blob(kind, bytes) => match kind {
                Type::Text => text_of(py, &bytes)?.into_any(),
                Type::Bytes => copy_of(py, &bytes)?.into_any(),
                Type::Int => int_of(py, &bytes)?,
                _ => self.unpack.bind(py).call1((copy_of(py, &bytes)?,))?,
            },
            StoredValue::Tuple(items) => {
                PyTuple::new(py, self.all_to_python(store_ref, items)?)?.into_any()
            }
            StoredValue::FrozenSet(items) => {
                PyFrozenSet::new(py, self.all_to_python(store_ref, items)?)?.into_any()
            }
            StoredValue::Container(kind, container, class) => {
                let reference = (store_ref, container.at, container.id);
                match kind {
                    Type::Record => self.record.bind(py).call1((class,))?.call1(reference)?,
                    Type::Dict => self.views[1].bind(py).call1(reference)?,
                    Type::Set => self.views[2].bind(py).call1(reference)?,
                    Type::Buffer => self.views[3].bind(py).call1(reference)?,
                    _ => self.views[0].bind(py).call1(reference)?,
                }
            }
            StoredValue::List(items) => {
                PyList::new(py, self.all_to_python(store_ref, items)?)?.into_any()
            }
            StoredValue::Set(items) => {
                PySet::new(py, self.all_to_python(store_ref, items)?)?.into_any()
            }
            StoredValue::Dict(items) => self.dict(store_ref, items)?.into_any(),
            StoredValue::Record(class, fields, extra) => {
                let fields = PyList::new(py, self.all_to_python(store_ref, fields)?)?;
                let extra = self.dict(store_ref, extra)?;
                self.instance.bind(py).call1((class, fields, extra))?
            }
            StoredValue::Buffer(description, bytes) => {
                let description = (PyBytes::new(py, &description), copy_of(py, &bytes)?);
                self.copied.bind(py).call1(description)?
            }
        })
    }

    /// Converts stored values to the objects that programs see. Raises what `to_python` raises, and MemoryError.
    pub(crate) fn all_to_python<'py>(
        &self,
        store_ref: &Bound<'py, PyAny>,
        items: Vec<StoredValue>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let mut seen = Vec::new();
        if seen.try_reserve_exact(items.len()).is_err() {
            return Err(PyMemoryError::new_err(format!(
                "no memory for {} items of a store",
                items.len()
            )));
        }
        for item in items {
            seen.push(self.to_python(store_ref, item)?);
        }
        Ok(seen)
    }

    /// Converts stored keys and values to a dict.
    fn dict<'py>(
        &self,
        store_ref: &Bound<'py, PyAny>,
        items: Vec<(StoredValue, StoredValue)>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(store_ref.py());
        for (key, value) in items {
            dict.set_item(
                self.to_python(store_ref, key)?,
                self.to_python(store_ref, value)?,
            )?;
        }
        Ok(dict)
    }
}

/// Returns an empty vector with room for `count` items. Raises MemoryError.
fn vec_with_capacity<T>(count: usize) -> PyResult<Vec<T>> {
    let mut room = Vec::new();
    match room.try_reserve_exact(count) {
        Ok(()) => Ok(room),
        Err(_) => Err(PyMemoryError::new_err(format!(
            "no memory for {count} items on their way into a store"
        ))),
    }
}

/// Returns the current items of a dict or a set, which code of the program may change while an item is converted.
fn snapshot_of<T>(items: impl ExactSizeIterator<Item = T>) -> PyResult<Vec<T>> {
    let mut all = vec_with_capacity(items.len())?;
    all.extend(items);
    Ok(all)
}
