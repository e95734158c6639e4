//! Python's values on their way into a store, and out of it.

use crate::python::objects::stores::store::StoreRef;
use crate::python::support::buffer::copy_of;
use crate::store::{Bytes, Cell, Content, DEPTH, Key, StoredValue, Type, Value, trim};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyMemoryError, PyRecursionError, PyTypeError, PyUnicodeEncodeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyBytes, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PySet, PyString, PyTuple,
};
use std::cell::{Cell as Count, RefCell};

/// What the values of an operation borrow from.
#[derive(Default)]
pub(crate) struct BufferOwner<'py> {
    objects: RefCell<Vec<Bound<'py, PyAny>>>,
    buffers: RefCell<Vec<PyBuffer<u8>>>,
    /// Bytes that they take in a store at least.
    needed: Count<u64>,
}

impl<'py> BufferOwner<'py> {
    fn text<'k>(&'k self, text: &Bound<'py, PyString>) -> PyResult<&'k [u8]> {
        let bytes: *const str = utf8(text)?;
        self.objects.borrow_mut().push(text.clone().into_any());
        // SAFETY: a str never changes, and this one lives as long as we do.
        Ok(unsafe { &*bytes }.as_bytes())
    }

    fn bytes<'k>(&'k self, bytes: &Bound<'py, PyBytes>) -> &'k [u8] {
        let all: *const [u8] = bytes.as_bytes();
        self.objects.borrow_mut().push(bytes.clone().into_any());
        // SAFETY: as above.
        unsafe { &*all }
    }

    /// The bytes of an object with the buffer protocol, contiguous.
    fn buffer<'k>(&'k self, object: &Bound<'py, PyAny>) -> PyResult<&'k [u8]> {
        let buffer = PyBuffer::<u8>::get(object)?;
        let (from, len) = (buffer.buf_ptr().cast::<u8>(), buffer.len_bytes());
        self.buffers.borrow_mut().push(buffer);
        if len == 0 {
            return Ok(&[]);
        }
        // SAFETY: the buffer stays where it is, and of this length, as long as we have it. Whoever writes to it while it
        // is copied gets what Python gives with `bytes(buffer)`.
        Ok(unsafe { std::slice::from_raw_parts(from, len) })
    }
}

/// How values that are none of the core's own are told to it. Each is a function.
pub(crate) struct Hooks {
    /// Makes of a value what can be written: `("as", value)`, `("packed", bytes)`, `("buffer", said, bytes)` or
    /// `("record", class, fields, extra or None)`.
    convert: Py<PyAny>,
    /// Makes of a key a plain value that equals it, or else the bytes that it is compared by, and those of which it is
    /// made again.
    key: Py<PyAny>,
    /// Makes of such bytes, or of packed ones, the value.
    unpack: Py<PyAny>,
    /// Makes the instance of a class out of its number, its fields and what it has beyond them.
    instance: Py<PyAny>,
    /// Makes a buffer's value out of what is said of it and its bytes.
    copied: Py<PyAny>,
    /// What a program sees of a list, a dict, a set and a buffer: made of a [`StoreRef`](crate::python::objects::stores::store::StoreRef), and of where
    /// it lies and its number.
    views: [Py<PyAny>; 4],
    /// The same of a record, by the number of its class.
    record: Py<PyAny>,
    /// Makes the error for a value that takes more bytes than the store may have.
    too_large: Py<PyAny>,
    /// Bytes that the store may have.
    limit: u64,
}

impl Hooks {
    pub(crate) fn new(all: &Bound<'_, PyAny>, limit: u64) -> PyResult<Self> {
        let get = |name: &str| Ok::<_, PyErr>(all.getattr(name)?.unbind());
        Ok(Hooks {
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

    /// Room for so many values or keys, each of which takes `bytes` in the store at least. An error if that is more than
    /// the store may have, before this process takes memory for them.
    pub(crate) fn room<'py, T>(
        &self,
        of: &Bound<'py, PyAny>,
        keeper: &BufferOwner<'py>,
        count: usize,
        bytes: u64,
    ) -> PyResult<Vec<T>> {
        let needed = keeper.needed.get().saturating_add(count as u64 * bytes);
        keeper.needed.set(needed);
        if needed > self.limit {
            let error = self.too_large.bind(of.py()).call1((needed, self.limit))?;
            return Err(PyErr::from_value(error));
        }
        vec_of(count)
    }

    /// The values of an iterable, of which there are so many.
    pub(crate) fn values<'k, 'py>(
        &self,
        of: &Bound<'py, PyAny>,
        items: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
        keeper: &'k BufferOwner<'py>,
        depth: usize,
    ) -> PyResult<Vec<Value<'k>>> {
        let mut values = self.room(of, keeper, items.len(), CELL)?;
        for item in items {
            values.push(self.value(&item, keeper, depth)?);
        }
        Ok(values)
    }

    /// The same of keys.
    fn keys<'k, 'py>(
        &self,
        of: &Bound<'py, PyAny>,
        items: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
        keeper: &'k BufferOwner<'py>,
    ) -> PyResult<Vec<Key<'k>>> {
        let mut keys = self.room(of, keeper, items.len(), CELL)?;
        for item in all_of(items)? {
            keys.push(self.key(&item, keeper)?);
        }
        Ok(keys)
    }

    /// A value, to be written.
    pub(crate) fn value<'k, 'py>(
        &self,
        object: &Bound<'py, PyAny>,
        keeper: &'k BufferOwner<'py>,
        depth: usize,
    ) -> PyResult<Value<'k>> {
        if let Some(value) = plain(object, keeper)? {
            return Ok(value);
        }
        // One deeper than a container may be: what is no container fits there, and the core looks itself.
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
                keeper,
                depth,
            )?));
        }
        if let Ok(tuple) = object.cast_exact::<PyTuple>() {
            return Ok(Value::Tuple(self.values(
                object,
                tuple.iter(),
                keeper,
                depth,
            )?));
        }
        if let Ok(dict) = object.cast_exact::<PyDict>() {
            return Ok(Value::Dict(self.items(dict, keeper, depth)?));
        }
        if let Ok(set) = object.cast_exact::<PySet>() {
            return Ok(Value::Set(self.keys(object, set.iter(), keeper)?));
        }
        if let Ok(set) = object.cast_exact::<PyFrozenSet>() {
            return Ok(Value::FrozenSet(self.keys(object, set.iter(), keeper)?));
        }
        self.converted(object, keeper, depth)
    }

    fn items<'k, 'py>(
        &self,
        dict: &Bound<'py, PyDict>,
        keeper: &'k BufferOwner<'py>,
        depth: usize,
    ) -> PyResult<Vec<(Key<'k>, Value<'k>)>> {
        let mut items = self.room(dict.as_any(), keeper, dict.len(), 2 * CELL)?;
        for (key, value) in all_of(dict.iter())? {
            items.push((self.key(&key, keeper)?, self.value(&value, keeper, depth)?));
        }
        Ok(items)
    }

    fn converted<'k, 'py>(
        &self,
        object: &Bound<'py, PyAny>,
        keeper: &'k BufferOwner<'py>,
        depth: usize,
    ) -> PyResult<Value<'k>> {
        let made = self.convert.bind(object.py()).call1((object,))?;
        let made = made.cast_into::<PyTuple>()?;
        let (what, first) = (made.get_item(0)?, made.get_item(1)?);
        Ok(match what.cast::<PyString>()?.to_str()? {
            // In its place, and no deeper.
            "as" => self.value(&first, keeper, depth - 1)?,
            "packed" => {
                let bytes = keeper.bytes(first.cast::<PyBytes>()?);
                Value::Blob(Type::Packed, Bytes::Borrowed(bytes))
            }
            "buffer" => {
                let said = keeper.bytes(first.cast::<PyBytes>()?);
                let bytes = keeper.buffer(&made.get_item(2)?)?;
                Value::Buffer(Bytes::Borrowed(said), Bytes::Borrowed(bytes))
            }
            "record" => {
                let fields = made.get_item(2)?.cast_into::<PyList>()?;
                let fields = self.values(fields.as_any(), fields.iter(), keeper, depth)?;
                let extra = made.get_item(3)?;
                let extra = match extra.cast::<PyDict>() {
                    Ok(extra) => Some(self.items(extra, keeper, depth)?),
                    Err(_) => None,
                };
                Value::Record(first.extract()?, fields, extra)
            }
            other => return Err(PyTypeError::new_err(format!("no such form: {other}"))),
        })
    }

    /// A key, or a member of a set.
    #[inline]
    pub(crate) fn key<'k, 'py>(
        &self,
        object: &Bound<'py, PyAny>,
        keeper: &'k BufferOwner<'py>,
    ) -> PyResult<Key<'k>> {
        Ok(match plain(object, keeper)? {
            Some(Value::Immediate(cell)) => Key::Immediate(cell),
            Some(Value::Blob(kind, bytes)) => Key::Blob(kind, bytes),
            _ => {
                let made = self.key.bind(object.py()).call1((object,))?;
                match plain(&made, keeper)? {
                    Some(Value::Immediate(cell)) => Key::Immediate(cell),
                    Some(Value::Blob(kind, bytes)) => Key::Blob(kind, bytes),
                    _ if made.is_instance_of::<PyTuple>() && made.len()? == 3 => {
                        let made = made.cast_into::<PyTuple>()?;
                        let equal = self.key(&made.get_item(1)?, keeper)?;
                        Key::Alias(Box::new(equal), made.get_item(2)?.extract()?)
                    }
                    _ => {
                        let (canonical, exact) = made.extract()?;
                        Key::Other(canonical, exact)
                    }
                }
            }
        })
    }

    /// The key that is made again of these bytes.
    pub(crate) fn key_again(&self, py: Python<'_>, exact: &[u8]) -> PyResult<Key<'static>> {
        let key = self.unpack.bind(py).call1((PyBytes::new(py, exact),))?;
        Ok(self.key(&key, &BufferOwner::default())?.into_owned())
    }

    /// What was found, as a program sees it.
    pub(crate) fn seen<'py>(
        &self,
        store_ref: &Bound<'py, StoreRef>,
        found: StoredValue,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = store_ref.py();
        Ok(match found {
            StoredValue::Immediate(cell) => immediate(py, cell)?,
            StoredValue::Blob(kind, bytes) => match kind {
                Type::Text => text_of(py, &bytes)?.into_any(),
                Type::Bytes => copy_of(py, &bytes)?.into_any(),
                Type::Int => int_of(py, &bytes)?,
                _ => self.unpack.bind(py).call1((copy_of(py, &bytes)?,))?,
            },
            StoredValue::Tuple(items) => PyTuple::new(py, self.all(store_ref, items)?)?.into_any(),
            StoredValue::FrozenSet(items) => {
                PyFrozenSet::new(py, self.all(store_ref, items)?)?.into_any()
            }
            StoredValue::Container(kind, place, class) => {
                let place = (store_ref, place.at, place.id);
                match kind {
                    Type::Record => self.record.bind(py).call1((class,))?.call1(place)?,
                    Type::Dict => self.views[1].bind(py).call1(place)?,
                    Type::Set => self.views[2].bind(py).call1(place)?,
                    Type::Buffer => self.views[3].bind(py).call1(place)?,
                    _ => self.views[0].bind(py).call1(place)?,
                }
            }
            StoredValue::List(items) => PyList::new(py, self.all(store_ref, items)?)?.into_any(),
            StoredValue::Set(items) => PySet::new(py, self.all(store_ref, items)?)?.into_any(),
            StoredValue::Dict(items) => self.dict(store_ref, items)?.into_any(),
            StoredValue::Record(class, fields, extra) => {
                let fields = PyList::new(py, self.all(store_ref, fields)?)?;
                let extra = self.dict(store_ref, extra)?;
                self.instance.bind(py).call1((class, fields, extra))?
            }
            StoredValue::Buffer(said, bytes) => {
                let said = (PyBytes::new(py, &said), copy_of(py, &bytes)?);
                self.copied.bind(py).call1(said)?
            }
        })
    }

    pub(crate) fn all<'py>(
        &self,
        store_ref: &Bound<'py, StoreRef>,
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
            seen.push(self.seen(store_ref, item)?);
        }
        Ok(seen)
    }

    fn dict<'py>(
        &self,
        store_ref: &Bound<'py, StoreRef>,
        items: Vec<(StoredValue, StoredValue)>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(store_ref.py());
        for (key, value) in items {
            dict.set_item(self.seen(store_ref, key)?, self.seen(store_ref, value)?)?;
        }
        Ok(dict)
    }
}

/// Bytes of a cell.
const CELL: u64 = 8;

/// A text that was stored. Raises DecodeError if it is none: another process may have written over it.
fn text_of<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyString>> {
    PyString::from_bytes(py, bytes).map_err(|cause| no_text_there(py, cause))
}

#[cold]
fn no_text_there(py: Python<'_>, cause: PyErr) -> PyErr {
    let made = || {
        let class = py.import("shmrpc.errors")?.getattr("DecodeError")?;
        class.call1((format!(
            "a text in the store cannot be read: {}",
            cause.value(py)
        ),))
    };
    made().map_or_else(|error| error, PyErr::from_value)
}

/// An empty vector with room for so many items.
fn vec_of<T>(count: usize) -> PyResult<Vec<T>> {
    let mut room = Vec::new();
    match room.try_reserve_exact(count) {
        Ok(()) => Ok(room),
        Err(_) => Err(PyMemoryError::new_err(format!(
            "no memory for {count} items on their way into a store"
        ))),
    }
}

/// All items of a dict or a set, as they are now: while one is converted, code of the program may run, and change it.
fn all_of<T>(items: impl ExactSizeIterator<Item = T>) -> PyResult<Vec<T>> {
    let mut all = vec_of(items.len())?;
    all.extend(items);
    Ok(all)
}

/// A text in UTF-8. Raises EncodeError if it is none.
#[inline]
fn utf8<'t>(text: &'t Bound<'_, PyString>) -> PyResult<&'t str> {
    text.to_str().map_err(|error| no_text(text, error))
}

#[cold]
fn no_text(text: &Bound<'_, PyString>, error: PyErr) -> PyErr {
    let py = text.py();
    if !error.is_instance_of::<PyUnicodeEncodeError>(py) {
        return error;
    }
    let made = || {
        let shown = text.get_item(pyo3::types::PySlice::new(py, 0, 40, 1))?;
        let shown = shown.repr()?;
        let words = format!(
            "a text with lone surrogates cannot be stored: {shown}; store os.fsencode(text), which is bytes"
        );
        py.import("shmrpc.errors")?
            .getattr("EncodeError")?
            .call1((words,))
    };
    made().map_or_else(|error| error, PyErr::from_value)
}

/// A value that is no container, if it is of a type of the core's own.
#[inline]
fn plain<'k, 'py>(
    object: &Bound<'py, PyAny>,
    keeper: &'k BufferOwner<'py>,
) -> PyResult<Option<Value<'k>>> {
    if let Ok(int) = object.cast_exact::<PyInt>() {
        return int_value(int).map(Some);
    }
    if let Ok(text) = object.cast_exact::<PyString>() {
        let short = Cell::text(utf8(text)?.as_bytes());
        return Ok(Some(match short {
            Some(cell) => Value::Immediate(cell),
            None => Value::Blob(Type::Text, Bytes::Borrowed(keeper.text(text)?)),
        }));
    }
    if let Ok(float) = object.cast_exact::<PyFloat>() {
        return Ok(Some(Value::Immediate(Cell::float(float.value()))));
    }
    if object.is_none() {
        return Ok(Some(Value::Immediate(Cell::NONE)));
    }
    if let Ok(bool) = object.cast_exact::<PyBool>() {
        return Ok(Some(Value::Immediate(Cell::bool(bool.is_true()))));
    }
    if let Ok(bytes) = object.cast_exact::<PyBytes>() {
        return Ok(Some(match Cell::bytes(bytes.as_bytes()) {
            Some(cell) => Value::Immediate(cell),
            None => Value::Blob(Type::Bytes, Bytes::Borrowed(keeper.bytes(bytes))),
        }));
    }
    Ok(None)
}

#[inline]
fn int_value<'k>(int: &Bound<'_, PyInt>) -> PyResult<Value<'k>> {
    if let Ok(small) = int.extract::<i64>()
        && let Some(cell) = Cell::int(small)
    {
        return Ok(Value::Immediate(cell));
    }
    let py = int.py();
    let bits: usize = int.call_method0(intern!(py, "bit_length"))?.extract()?;
    let signed = PyDict::new(py);
    signed.set_item(intern!(py, "signed"), true)?;
    let to_bytes = intern!(py, "to_bytes");
    let bytes = int.call_method(to_bytes, (bits / 8 + 1, "little"), Some(&signed))?;
    let mut bytes: Vec<u8> = bytes.extract()?;
    trim(&mut bytes);
    Ok(Value::Blob(Type::Int, Bytes::Owned(bytes)))
}

#[cold]
fn int_of<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let signed = PyDict::new(py);
    signed.set_item(intern!(py, "signed"), true)?;
    let bytes = (PyBytes::new(py, bytes), "little");
    py.get_type::<PyInt>()
        .call_method(intern!(py, "from_bytes"), bytes, Some(&signed))
}

/// What a cell says.
#[inline]
pub(crate) fn immediate(py: Python<'_>, cell: Cell) -> PyResult<Bound<'_, PyAny>> {
    Ok(match cell.content() {
        Some(Content::Int(value)) => value.into_pyobject(py)?.into_any(),
        Some(Content::Float(value)) => PyFloat::new(py, value).into_any(),
        Some(Content::Text(bytes, len)) => text_of(py, &bytes[..len])?.into_any(),
        Some(Content::Bytes(bytes, len)) => PyBytes::new(py, &bytes[..len]).into_any(),
        Some(Content::Bool(value)) => PyBool::new(py, value).to_owned().into_any(),
        Some(Content::None | Content::Nothing) => py.None().into_bound(py),
        // The core looks at each cell that it gives out.
        Some(Content::At(..)) | None => return Err(PyTypeError::new_err("no cell says so")),
    })
}
