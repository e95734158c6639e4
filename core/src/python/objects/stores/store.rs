//! `Store`: the values of a store, and `Proxy`: one container of it.

use crate::objects::members::Holder;
use crate::objects::store::{CHANGES, MESSAGES, ObjectStore, StoreMembership, StoreRefused};
use crate::python::objects::shared_object::{SharedObject, failed};
use crate::python::objects::stores::convert::{BufferOwner, Hooks, immediate};
use crate::python::support::buffer::fill;
use crate::python::support::owner::current_owner;
use crate::store::{
    ContainerRef, DEPTH, Item, Number, OpenTransaction, StoreError, StoredValue, Type, encoding,
};
use pyo3::exceptions::{
    PyIndexError, PyKeyError, PyMemoryError, PyOverflowError, PyRecursionError, PyReferenceError,
    PyTypeError, PyValueError,
};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyByteArray, PyBytes, PyFloat, PyInt, PyList, PyString};
use std::os::raw::c_int;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, Weak};

/// How often a buffer is looked for that others replace all the time.
const TRIES: usize = 64;
/// This many words are copied with the GIL held, which takes less than others wait for it: tens of microseconds.
const LITTLE: u64 = 1024;

/// A handle of a store: all handles of a name have what this process has of it in common.
#[pyclass(frozen, subclass, weakref, module = "shmrpc._core")]
pub struct Store {
    inner: Arc<Inner>,
    /// The handle's own use of the name, which may be closed before that of the others.
    name: Py<SharedObject>,
}

/// What a proxy is made of: what this process has of the store that it is of.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct StoreRef(Weak<Inner>);

impl StoreRef {
    pub(crate) fn inner(&self) -> PyResult<Arc<Inner>> {
        let inner = self.0.upgrade();
        inner.ok_or_else(|| PyReferenceError::new_err("the store is not there any more"))
    }
}

#[pymethods]
impl StoreRef {
    /// The process that changes the store just now: 0 if none does.
    fn holder(&self) -> PyResult<i64> {
        Ok(self.inner()?.membership.holder_pid())
    }

    /// The process that alone changes the store: 0 if there is none, -1 if it is one of another container.
    fn owner(&self) -> PyResult<i64> {
        Ok(match self.inner()?.membership.owner() {
            Some(Holder::Process(pid)) => i64::from(pid),
            Some(Holder::Elsewhere) => -1,
            None => 0,
        })
    }

    /// Whether this process can change the store.
    fn may_write(&self) -> PyResult<bool> {
        Ok(self.inner()?.membership.may_write())
    }

    /// Whether another task of this thread is within a transaction.
    fn is_beside_sibling(&self, py: Python<'_>) -> PyResult<bool> {
        let owner = || current_owner(py).unwrap_or(0);
        Ok(self.inner()?.membership.is_beside_sibling(owner))
    }

    /// Ends a watch of one of its containers.
    fn unwatch(&self, py: Python<'_>, watch: u64) -> PyResult<()> {
        self.inner()?
            .run_whole(py, |store, _, deadline| store.unwatch(deadline, watch))
    }

    /// The number of a class, of which this is said if there is none of this name.
    fn class_number(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyString>,
        said: &Bound<'_, PyAny>,
    ) -> PyResult<u32> {
        let (us, keeper) = (self.inner()?, BufferOwner::default());
        let said = us.hooks.value(said, &keeper, 0)?;
        let key = us.hooks.key(name.as_any(), &keeper)?;
        us.run_whole(py, |store, open, deadline| {
            store.define_class(open, deadline, &key, &said)
        })
    }

    /// Returns true if other processes know the class of this number: its transaction has been committed.
    fn has_class(&self, py: Python<'_>, number: u32) -> PyResult<bool> {
        self.inner()?
            .run_whole(py, |store, _, deadline| store.has_class(deadline, number))
    }

    /// A dict of all classes, in the order of their numbers, with what is said of each.
    fn classes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let us = self.inner()?;
        let found = us.run_whole(py, |store, open, deadline| store.classes(open, deadline))?;
        us.seen(py, found)
    }
}

/// What this process has of a store: its handles and all proxies share it.
pub struct Inner {
    /// Open as long as a handle is that was not closed.
    name: Py<SharedObject>,
    pub(crate) membership: Arc<StoreMembership>,
    hooks: Hooks,
    /// What this process has of it, as Python sees it.
    opened: Py<PyAny>,
    root: ContainerRef,
    /// In nanoseconds: the longest that a handle was given.
    patience: AtomicU64,
    /// Set as soon as this is made.
    store_ref: OnceLock<Py<StoreRef>>,
}

/// An item of a dict or of what a record has beyond its fields, by a key of Python's.
macro_rules! with_key {
    ($inner:expr, $key:expr, |$item:ident| $body:expr) => {{
        let keeper = BufferOwner::default();
        let key = $inner.hooks.key($key, &keeper)?;
        let $item = &Item::Key(&key);
        $body
    }};
}

impl Inner {
    #[inline]
    fn store_ref<'py>(&self, py: Python<'py>) -> &Bound<'py, StoreRef> {
        let store_ref = self.store_ref.get();
        store_ref
            .expect("it is set as soon as a store is made")
            .bind(py)
    }

    pub(crate) fn patience(&self) -> u64 {
        self.patience.load(Relaxed) // Relaxed: under the GIL.
    }

    /// That of what is done within a wait, which goes on in a copy if there is one.
    fn patience_of_waits(&self) -> u64 {
        self.patience().max(1)
    }

    /// What this process has of it, as Python sees it.
    pub(crate) fn opened<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.opened.bind(py)
    }

    #[inline]
    fn seen<'py>(&self, py: Python<'py>, found: StoredValue) -> PyResult<Bound<'py, PyAny>> {
        self.hooks.seen(self.store_ref(py), found)
    }

    /// Does something with the store; if that has to wait, then without the GIL.
    #[inline]
    fn run<R: Send>(
        &self,
        py: Python<'_>,
        operate: impl Fn(&ObjectStore, Option<&mut OpenTransaction>, u64) -> Result<R, StoreError>
        + Sync,
    ) -> PyResult<Result<R, StoreError>> {
        self.name.get().open(py)?;
        let owner = || current_owner(py).unwrap_or(0);
        let busy = match self.membership.with_store(owner, 0, &operate) {
            Ok(done) => return Ok(Ok(done)),
            Err(StoreRefused::Store(error)) => return Ok(Err(error)),
            Err(error) => error,
        };
        if !busy.is_busy() {
            return Err(self.refused(py, busy));
        }
        self.run_detached(py, operate)
    }

    /// Does something with the store without the GIL.
    fn run_detached<R: Send>(
        &self,
        py: Python<'_>,
        operate: impl Fn(&ObjectStore, Option<&mut OpenTransaction>, u64) -> Result<R, StoreError>
        + Sync,
    ) -> PyResult<Result<R, StoreError>> {
        let owner = current_owner(py)?;
        let patience = self.patience_of_waits();
        let done = py.detach(|| self.membership.with_store(|| owner, patience, &operate));
        match done {
            Ok(done) => Ok(Ok(done)),
            Err(StoreRefused::Store(error)) => Ok(Err(error)),
            Err(error) => Err(self.refused(py, error)),
        }
    }

    /// The same, where no key or index can be missing.
    fn run_whole<R: Send>(
        &self,
        py: Python<'_>,
        operate: impl Fn(&ObjectStore, Option<&mut OpenTransaction>, u64) -> Result<R, StoreError>
        + Sync,
    ) -> PyResult<R> {
        self.run(py, operate)?
            .map_err(|error| self.raised(py, error))
    }

    #[cold]
    pub(crate) fn refused(&self, py: Python<'_>, error: StoreRefused) -> PyErr {
        match error {
            StoreRefused::Object(error) => failed(py, &self.membership, error),
            StoreRefused::Store(error) => self.raised(py, error),
            StoreRefused::Replaced => self.error(
                py,
                "StoreBusy",
                "is being replaced by a copy: try again".to_owned(),
            ),
            StoreRefused::Full { asked, used, limit } => self.error(
                py,
                "StoreFull",
                format!(
                    "has no room for {asked} bytes more: {used} of max_memory={limit} are in use; remove something, or \
                     open it with more"
                ),
            ),
            StoreRefused::TooMany(most) => self.error(
                py,
                "StoreFull",
                format!(
                    "can change {most} words at most in one transaction, and this one would change more: make it several"
                ),
            ),
        }
    }

    #[cold]
    fn raised(&self, py: Python<'_>, error: StoreError) -> PyErr {
        match error {
            StoreError::ContainerDeleted => self.error(
                py,
                "Gone",
                "does not have this container any more: it was removed or replaced".to_owned(),
            ),
            StoreError::IndexOutOfRange(len) => {
                PyIndexError::new_err(format!("index out of range: there are {len}"))
            }
            StoreError::InTransaction => self.error(
                py,
                "LocalProtocolError",
                "cannot do this within a transaction: look at a buffer, or wait for a change, before it or after it"
                    .to_owned(),
            ),
            StoreError::KeyNotFound => PyKeyError::new_err("no such key"),
            StoreError::NotANumber => PyTypeError::new_err("expected a number to add to"),
            StoreError::WrongType => PyTypeError::new_err("the container is of another type"),
            StoreError::Unwanted => PyKeyError::new_err("the item is another one by now"),
            StoreError::NestingTooDeep => PyRecursionError::new_err(format!(
                "containers and tuples of a store are nested {DEPTH} deep at most: store parts of this under keys of their own"
            )),
            StoreError::NoMemory => PyMemoryError::new_err(format!(
                "store '{}': no memory for a copy of this; copy a part of it",
                self.membership.name()
            )),
            StoreError::CopyTooLarge => PyOverflowError::new_err("there is more to copy than was to be"),
            StoreError::CapacityExceeded => PyOverflowError::new_err(
                "a container of a store has less than 2^32 items; of one store 4,096 views of buffers are open, and \
                 1,024 waits for changes under way, at most",
            ),
            StoreError::Heap(error) => {
                let refusal = self.membership.map_error(StoreError::Heap(error));
                self.refused(py, refusal)
            }
        }
    }

    #[cold]
    pub(crate) fn error(&self, py: Python<'_>, class: &str, text: String) -> PyErr {
        let text = format!("store '{}' {text}", self.membership.name());
        let made = || py.import("shmrpc.errors")?.getattr(class)?.call1((text,));
        made().map_or_else(|error| error, PyErr::from_value)
    }

    // --- items ---

    #[inline]
    fn get<'py>(
        &self,
        py: Python<'py>,
        place: ContainerRef,
        item: &Item<'_>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let found = self.run(py, |store, open, deadline| {
            store.get(open, deadline, place, item)
        })?;
        match found {
            Ok(StoredValue::Immediate(cell)) => immediate(py, cell).map(Some),
            Ok(StoredValue::Container(Type::Buffer, at, _)) => self.get_buffer(py, place, item, at),
            Ok(found) => self.seen(py, found).map(Some),
            Err(StoreError::KeyNotFound) => Ok(None),
            Err(error) => Err(self.raised(py, error)),
        }
    }

    /// The same of a buffer that lies there, or at another place by then: others may replace it before it is pinned.
    fn get_buffer<'py>(
        &self,
        py: Python<'py>,
        place: ContainerRef,
        item: &Item<'_>,
        at: ContainerRef,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let is_gone = |error: &PyErr| {
            let gone = py.import("shmrpc.errors").and_then(|it| it.getattr("Gone"));
            gone.is_ok_and(|gone| error.is_instance(py, &gone))
        };
        let mut at = at;
        for _ in 0..TRIES {
            match self.seen(py, StoredValue::Container(Type::Buffer, at, 0)) {
                Err(error) if is_gone(&error) => {}
                seen => return seen.map(Some),
            }
            match self.run(py, |store, open, deadline| {
                store.get(open, deadline, place, item)
            })? {
                Ok(StoredValue::Container(Type::Buffer, again, _)) => at = again,
                Ok(found) => return self.seen(py, found).map(Some),
                Err(StoreError::KeyNotFound) => return Ok(None),
                Err(error) => return Err(self.raised(py, error)),
            }
        }
        Err(self.raised(py, StoreError::ContainerDeleted))
    }

    #[inline]
    fn set(
        &self,
        py: Python<'_>,
        place: ContainerRef,
        item: &Item<'_>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let keeper = BufferOwner::default();
        let value = self.hooks.value(value, &keeper, 0)?;
        self.run_whole(py, |store, open, deadline| {
            store.set(open, deadline, place, item, &value)
        })
    }

    /// Removes an item and returns a copy; None if there is no such key. The value is made first, unless that cannot fail, so
    /// an item that cannot be made stays.
    fn pop<'py>(
        &self,
        py: Python<'py>,
        place: ContainerRef,
        item: &Item<'_>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.run(py, |store, open, deadline| {
            store.remove(open, deadline, place, item, StoredValue::is_plain)
        })? {
            Ok(found) => return self.seen(py, found).map(Some),
            Err(StoreError::KeyNotFound) => return Ok(None),
            Err(StoreError::Unwanted) => {}
            Err(error) => return Err(self.raised(py, error)),
        }
        for _ in 0..TRIES {
            let (whole, known) = match self.run(py, |store, open, deadline| {
                store.get_copy(open, deadline, place, item)
            })? {
                Ok(found) => found,
                Err(StoreError::KeyNotFound) => return Ok(None),
                Err(error) => return Err(self.raised(py, error)),
            };
            let made = self.seen(py, whole)?;
            match self.run(py, |store, open, deadline| {
                store.remove(open, deadline, place, item, |found| *found == known)
            })? {
                Ok(_) => return Ok(Some(made)),
                // It is another one by now.
                Err(StoreError::KeyNotFound | StoreError::Unwanted) => {}
                Err(error) => return Err(self.raised(py, error)),
            }
        }
        Err(self.restless(py))
    }

    /// Takes the first message and returns it, copied; None if there is none. As [`pop`](Self::pop): what cannot be made stays.
    fn receive<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.run(py, |store, open, deadline| {
            store.receive(open, deadline, StoredValue::is_plain)
        })? {
            Ok(found) => return found.map(|found| self.seen(py, found)).transpose(),
            Err(StoreError::Unwanted) => {}
            Err(error) => return Err(self.raised(py, error)),
        }
        for _ in 0..TRIES {
            let first = self.run_whole(py, |store, open, deadline| {
                store.first_message(open, deadline)
            })?;
            let Some((whole, known)) = first else {
                return Ok(None);
            };
            // Another one that was not woken may be able to make it.
            let made = self.seen(py, whole);
            let made = made.inspect_err(|_| self.membership.pass_message_on())?;
            match self.run(py, |store, open, deadline| {
                store.receive(open, deadline, |found| *found == known)
            })? {
                Ok(Some(_)) => return Ok(Some(made)),
                Ok(None) => return Ok(None),
                // Another process has taken it.
                Err(StoreError::Unwanted) => {}
                Err(error) => return Err(self.raised(py, error)),
            }
        }
        Err(self.restless(py))
    }

    /// The error for what others change each time before it is removed.
    #[cold]
    fn restless(&self, py: Python<'_>) -> PyErr {
        let text = format!(
            "changed {TRIES} times while a value was taken out of it; try again, or do so in a transaction"
        );
        self.error(py, "StoreBusy", text)
    }

    /// Removes an item; false if there is no such key.
    fn delete(&self, py: Python<'_>, place: ContainerRef, item: &Item<'_>) -> PyResult<bool> {
        match self.run(py, |store, open, deadline| {
            store.delete(open, deadline, place, item)
        })? {
            Ok(()) => Ok(true),
            Err(StoreError::KeyNotFound) => Ok(false),
            Err(error) => Err(self.raised(py, error)),
        }
    }

    /// Adds to an item; None if that is not for a cell.
    fn add<'py>(
        &self,
        py: Python<'py>,
        place: ContainerRef,
        item: &Item<'_>,
        by: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let by = if let Ok(by) = by.cast_exact::<PyInt>() {
            match by.extract() {
                Ok(by) => Number::Int(by),
                Err(_) => return Ok(None),
            }
        } else if let Ok(by) = by.cast_exact::<PyFloat>() {
            Number::Float(by.value())
        } else {
            return Ok(None);
        };
        match self.run(py, |store, open, deadline| {
            store.add(open, deadline, place, item, by)
        })? {
            Ok(cell) => immediate(py, cell).map(Some),
            Err(StoreError::NotANumber) => Ok(None),
            Err(error) => Err(self.raised(py, error)),
        }
    }

    /// The value of a key. Raises KeyError.
    #[inline]
    fn get_item<'py>(
        &self,
        place: ContainerRef,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let found = with_key!(self, key, |item| self.get(key.py(), place, item))?;
        found.ok_or_else(|| PyKeyError::new_err((key.clone().unbind(),)))
    }

    #[inline]
    fn set_item(
        &self,
        place: ContainerRef,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        with_key!(self, key, |item| self.set(key.py(), place, item, value)).map(drop)
    }

    /// Removes a key. Raises KeyError.
    fn delete_item(&self, place: ContainerRef, key: &Bound<'_, PyAny>) -> PyResult<()> {
        match with_key!(self, key, |item| self.delete(key.py(), place, item))? {
            true => Ok(()),
            false => Err(PyKeyError::new_err((key.clone().unbind(),))),
        }
    }

    fn len(&self, py: Python<'_>, place: ContainerRef) -> PyResult<usize> {
        let len = self.run_whole(py, |store, open, deadline| store.len(open, deadline, place))?;
        Ok(len as usize)
    }

    fn contains(
        &self,
        py: Python<'_>,
        place: ContainerRef,
        key: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let keeper = BufferOwner::default();
        let key = self.hooks.key(key, &keeper)?;
        self.run_whole(py, |store, open, deadline| {
            store.contains(open, deadline, place, &key)
        })
    }

    fn keys<'py>(&self, py: Python<'py>, place: ContainerRef) -> PyResult<Bound<'py, PyList>> {
        let keys = self.run_whole(py, |store, open, deadline| {
            store.keys(open, deadline, place)
        })?;
        PyList::new(py, self.hooks.all(self.store_ref(py), keys)?)
    }

    fn items<'py>(&self, py: Python<'py>, place: ContainerRef) -> PyResult<Bound<'py, PyList>> {
        let items = self.run_whole(py, |store, open, deadline| {
            store.items(open, deadline, place)
        })?;
        let items: PyResult<Vec<_>> = items
            .into_iter()
            .map(|(key, value)| Ok((self.seen(py, key)?, self.seen(py, value)?)))
            .collect();
        PyList::new(py, items?)
    }

    fn copy<'py>(&self, py: Python<'py>, place: ContainerRef) -> PyResult<Bound<'py, PyAny>> {
        let copied = match self.run(py, |store, open, deadline| {
            store.copy_at_most(open, deadline, place, LITTLE)
        })? {
            Err(StoreError::CopyTooLarge) => self.run_detached(py, |store, open, deadline| {
                store.copy(open, deadline, place)
            })?,
            copied => copied,
        };
        let found = copied.map_err(|error| self.raised(py, error))?;
        self.seen(py, found)
    }

    fn clear(&self, py: Python<'_>, place: ContainerRef) -> PyResult<()> {
        self.run_whole(py, |store, open, deadline| {
            store.clear(open, deadline, place)
        })
    }
}

impl Store {
    /// What its operations are done with. Raises LocalProtocolError if it was closed.
    #[inline]
    fn inner(&self, py: Python<'_>) -> PyResult<&Inner> {
        self.name.get().open(py)?;
        Ok(&self.inner)
    }
}

#[pymethods]
impl Store {
    /// A handle of a name that is a store. `opened` is what this process has of it: `name`, which is open as long as one of
    /// its handles is, `converter` with the functions of [`Hooks`], and `_store_ref` if it has a handle. `patience`: for how
    /// many seconds an operation waits for another process that changes the store.
    #[new]
    fn new(
        py: Python<'_>,
        name: Py<SharedObject>,
        opened: &Bound<'_, PyAny>,
        patience: f64,
    ) -> PyResult<Self> {
        let patience = (patience * 1e9) as u64;
        let store_ref = opened.getattr_opt("_store_ref")?;
        let store_ref = store_ref.as_ref().and_then(|it| it.cast::<StoreRef>().ok());
        if let Some(inner) = store_ref.and_then(|store_ref| store_ref.get().0.upgrade()) {
            inner.patience.fetch_max(patience, Relaxed); // Relaxed: under the GIL.
            return Ok(Store { inner, name });
        }
        let shared = opened.getattr("_object")?.cast_into::<SharedObject>()?;
        let membership = shared.get().open_as::<StoreMembership>(py)?;
        let founded = py.detach(|| membership.initialize());
        let limit = membership.shape().amount;
        let mut inner = Inner {
            name: shared.unbind(),
            membership,
            hooks: Hooks::new(&opened.getattr("converter")?, limit)?,
            opened: opened.clone().unbind(),
            root: ContainerRef { at: 0, id: 0 },
            patience: AtomicU64::new(patience),
            store_ref: OnceLock::new(),
        };
        inner.root = founded.map_err(|error| inner.refused(py, error))?;
        let inner = Arc::new(inner);
        let store_ref = Py::new(py, StoreRef(Arc::downgrade(&inner)))?;
        let _ = inner.store_ref.set(store_ref);
        Ok(Store { inner, name })
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let us = self.inner(key.py())?;
        us.get_item(us.root, key)
    }

    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let us = self.inner(key.py())?;
        us.set_item(us.root, key, value)
    }

    fn __delitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let us = self.inner(key.py())?;
        us.delete_item(us.root, key)
    }

    fn __contains__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let us = self.inner(py)?;
        us.contains(py, us.root, key)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let us = self.inner(py)?;
        us.len(py, us.root)
    }

    /// Raises LocalProtocolError if it was closed.
    fn _check(&self, py: Python<'_>) -> PyResult<()> {
        self.inner(py).map(drop)
    }

    /// Where the dict lies that it is, and its number.
    #[getter]
    fn _root_place(&self) -> (u64, u64) {
        (self.inner.root.at, self.inner.root.id)
    }

    // --- messages ---

    /// `is_back`: one that was taken comes before the others again.
    #[pyo3(signature = (value, is_back = false))]
    fn _put(&self, py: Python<'_>, value: &Bound<'_, PyAny>, is_back: bool) -> PyResult<()> {
        let (us, keeper) = (self.inner(py)?, BufferOwner::default());
        let value = us.hooks.value(value, &keeper, 0)?;
        us.run_whole(py, |store, open, deadline| {
            store.send(open, deadline, &value, is_back)
        })
    }

    /// The first message, as a tuple; empty if there is none. `waits`: and while another task of this thread is within a
    /// transaction, whose end wakes those that wait for messages.
    #[pyo3(signature = (waits = false))]
    fn _take<'py>(&self, py: Python<'py>, waits: bool) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let us = self.inner(py)?;
        if waits
            && us
                .membership
                .waits_for_sibling(|| current_owner(py).unwrap_or(0))
        {
            return Ok(Vec::new());
        }
        Ok(us.receive(py)?.into_iter().collect())
    }

    /// Appends the first message to `got`; whether there is one. Where a signal handler raises as soon as this is back in
    /// Python, the caller has it.
    fn _take_into(&self, got: &Bound<'_, PyList>) -> PyResult<bool> {
        let taken = self._take(got.py(), false)?;
        taken.iter().try_for_each(|message| got.append(message))?;
        Ok(!taken.is_empty())
    }

    /// Waits in this thread until a message may be there.
    fn _wait_for_message(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<bool>> {
        let us = self.inner(py)?;
        us.wait_in(py, self.name.get(), MESSAGES, timeout, || us.has_messages())
    }

    fn _has_messages(&self, py: Python<'_>) -> PyResult<bool> {
        let us = self.inner(py)?;
        us.has_messages().map_err(|error| us.refused(py, error))
    }

    /// The first message, copied, as a tuple; it stays.
    fn _peek<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let us = self.inner(py)?;
        let found = us.run_whole(py, |store, open, deadline| {
            store.first_message(open, deadline)
        })?;
        if found.is_some() {
            us.membership.pass_message_on();
        }
        let found = found.map(|(whole, _)| us.seen(py, whole));
        found.into_iter().collect()
    }

    /// Moves all members to a copy if one of them holds the store and does not go on: its process, -1 if that is one of
    /// another container; None if nobody does.
    fn _replace(&self, py: Python<'_>) -> PyResult<Option<i32>> {
        let us = self.inner(py)?;
        let patience = us.patience_of_waits();
        let replaced = py.detach(|| us.membership.fail_over(patience));
        match replaced.map_err(|error| us.refused(py, error))? {
            Some(Holder::Process(pid)) => Ok(Some(pid)),
            Some(Holder::Elsewhere) => Ok(Some(-1)),
            None => Ok(None),
        }
    }

    // --- what is kept in files ---

    /// All classes, as a dict, and all that is in it, as bytes: of one moment.
    fn _saved<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyByteArray>)> {
        let us = self.inner(py)?;
        let (classes, all) =
            us.run_whole(py, |store, open, deadline| store.snapshot(open, deadline))?;
        let bytes = py.detach(|| {
            let mut bytes = Vec::new();
            let written = encoding::encode(&all, &mut bytes);
            drop(all);
            written.map(|()| bytes)
        });
        let bytes = bytes.map_err(|_| self.inner.raised(py, StoreError::NoMemory))?;
        let saved = PyByteArray::new_with(py, bytes.len(), |to| {
            to.copy_from_slice(&bytes);
            Ok(())
        });
        Ok((us.seen(py, classes)?, saved?))
    }

    /// Puts what such bytes hold in the place of all that is in it. `numbers`: those that the classes have here. Raises
    /// ValueError if the bytes hold no values.
    fn _load(&self, py: Python<'_>, bytes: PyBackedBytes, numbers: Vec<u32>) -> PyResult<()> {
        let us = self.inner(py)?;
        let again = |exact: &[u8]| us.hooks.key_again(py, exact);
        let items = encoding::Decoder::new(&bytes, &numbers, again).dict();
        let items = items.map_err(|error| match error {
            encoding::DecodeError::InvalidAt(at) => {
                PyValueError::new_err(format!("no value begins at byte {at} of its values"))
            }
            encoding::DecodeError::UnknownClass(number) => {
                PyValueError::new_err(format!("it has no class of number {number}"))
            }
            encoding::DecodeError::Key(error) => error,
        })?;
        us.run_whole(py, |store, open, deadline| {
            store.replace_items(open, deadline, us.root, &items)
        })
    }

    // --- what can be seen ---

    /// What its proxies are made of.
    #[getter]
    fn _store_ref(&self, py: Python<'_>) -> Py<StoreRef> {
        self.inner.store_ref(py).clone().unbind()
    }

    /// Bytes of memory that values take, those of them that are free, and as many as there may be.
    fn _usage(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64)> {
        let us = self.inner(py)?;
        let (usage, made) = us.run_whole(py, |store, _, deadline| {
            Ok((store.usage(deadline)?, store.containers_made(deadline)?))
        })?;
        Ok((usage.backed, usage.spare, usage.limit, made))
    }
}

impl Inner {
    fn has_messages(&self) -> Result<bool, StoreRefused> {
        self.membership.with_store(
            || 0,
            self.patience_of_waits(),
            |store, _, deadline| store.has_messages(deadline),
        )
    }

    /// Waits in this thread, on behalf of a use of the name, until `is_there`: False if the timeout is over, None if waits
    /// were stopped. One that cannot look any more raises why.
    pub(crate) fn wait_in(
        &self,
        py: Python<'_>,
        name: &SharedObject,
        set: usize,
        timeout: Option<f64>,
        mut is_there: impl FnMut() -> Result<bool, StoreRefused> + Send,
    ) -> PyResult<Option<bool>> {
        let mut refusal = None;
        let waited = name.wait_in(py, set, timeout, |_| match is_there() {
            Ok(is_there) => Ok(is_there),
            Err(StoreRefused::Object(error)) => Err(error),
            Err(other) => {
                refusal = Some(other);
                Ok(true)
            }
        });
        match refusal {
            Some(refusal) => Err(self.refused(py, refusal)),
            None => waited,
        }
    }
}

/// A container of a store. `kind` is its type, by the numbers of the core.
#[pyclass(frozen, subclass, weakref, module = "shmrpc._core")]
pub struct Proxy {
    inner: Arc<Inner>,
    place: ContainerRef,
}

#[pymethods]
impl Proxy {
    #[new]
    fn new(store_ref: &Bound<'_, StoreRef>, at: u64, id: u64) -> PyResult<Self> {
        let (inner, place) = (store_ref.get().inner()?, ContainerRef { at, id });
        inner.membership.add_proxy(id);
        Ok(Proxy { inner, place })
    }

    /// What proxies of its store are made of.
    #[getter]
    fn _store_ref(&self, py: Python<'_>) -> Py<StoreRef> {
        self.inner.store_ref(py).clone().unbind()
    }

    /// Where it is, and its number: the same for no other.
    #[getter]
    fn _place(&self) -> (u64, u64) {
        (self.place.at, self.place.id)
    }

    /// What this process has of its store.
    #[getter]
    fn _store_context(&self, py: Python<'_>) -> Py<PyAny> {
        self.inner.opened.clone_ref(py)
    }

    /// The name of its store.
    #[getter]
    fn _store_name(&self) -> &str {
        self.inner.membership.name()
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.inner.len(py, self.place)
    }

    fn _copy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.inner.copy(py, self.place)
    }

    /// A copy that is to be put elsewhere: what this process has removed is as it was then.
    fn _copy_to_put<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let us = &*self.inner;
        let found = us.run_whole(py, |store, open, deadline| {
            store.copy_for_insert(open, deadline, self.place)
        })?;
        us.seen(py, found)
    }

    fn _clear(&self, py: Python<'_>) -> PyResult<()> {
        self.inner.clear(py, self.place)
    }

    // --- dicts and sets ---

    /// The value of a key, or `default`.
    fn _get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let us = &*self.inner;
        let found = with_key!(us, key, |item| us.get(py, self.place, item))?;
        Ok(found.unwrap_or(default))
    }

    /// Removes a key, and returns its value, copied, or `default`.
    fn _pop<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let us = &*self.inner;
        let found = with_key!(us, key, |item| us.pop(py, self.place, item))?;
        Ok(found.unwrap_or(default))
    }

    fn _contains(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.inner.contains(py, self.place, key)
    }

    fn _keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.inner.keys(py, self.place)
    }

    fn _items<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.inner.items(py, self.place)
    }

    /// Adds a member to a set: whether it was not there.
    fn _insert(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let keeper = BufferOwner::default();
        let key = self.inner.hooks.key(key, &keeper)?;
        self.inner.run_whole(py, |store, open, deadline| {
            store.insert(open, deadline, self.place, &key)
        })
    }

    /// Removes a member of a set: whether it was there.
    fn _discard(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let keeper = BufferOwner::default();
        let key = self.inner.hooks.key(key, &keeper)?;
        self.inner.run_whole(py, |store, open, deadline| {
            store.discard(open, deadline, self.place, &key)
        })
    }

    // --- lists ---

    /// The items from one index up to another.
    fn _range<'py>(&self, py: Python<'py>, from: u64, to: u64) -> PyResult<Bound<'py, PyList>> {
        let us = &*self.inner;
        let found = us.run_whole(py, |store, open, deadline| {
            store.range(open, deadline, self.place, from, to)
        })?;
        PyList::new(py, us.hooks.all(us.store_ref(py), found)?)
    }

    /// Puts values in the place of those from one index up to another.
    fn _splice(
        &self,
        py: Python<'_>,
        from: u64,
        to: u64,
        values: &Bound<'_, PyList>,
    ) -> PyResult<()> {
        let (us, keeper) = (&*self.inner, BufferOwner::default());
        let values = us
            .hooks
            .values(values.as_any(), values.iter(), &keeper, 0)?;
        us.run_whole(py, |store, open, deadline| {
            store.splice(open, deadline, self.place, from, to, &values)
        })
    }

    /// Puts the items into another order; False if they are others by now.
    fn _permute(&self, py: Python<'_>, order: Vec<u32>) -> PyResult<bool> {
        self.inner.run_whole(py, |store, open, deadline| {
            store.permute(open, deadline, self.place, &order)
        })
    }

    /// Removes an item of a list, and returns it, copied.
    fn _remove<'py>(&self, py: Python<'py>, index: i64) -> PyResult<Bound<'py, PyAny>> {
        let found = self.inner.pop(py, self.place, &Item::Index(index))?;
        found.ok_or_else(|| self.inner.raised(py, StoreError::IndexOutOfRange(0)))
    }

    // --- what a record has beyond its fields ---

    /// An attribute, in a list; that is empty if there is none.
    fn _extra<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'py, PyString>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (us, keeper) = (&*self.inner, BufferOwner::default());
        let key = us.hooks.key(name.as_any(), &keeper)?;
        let found = us.get(py, self.place, &Item::Extra(&key))?;
        Ok(found.into_iter().collect())
    }

    fn _set_extra(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyString>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (us, keeper) = (&*self.inner, BufferOwner::default());
        let key = us.hooks.key(name.as_any(), &keeper)?;
        us.set(py, self.place, &Item::Extra(&key), value).map(drop)
    }

    fn _drop_extra(&self, py: Python<'_>, name: &Bound<'_, PyString>) -> PyResult<bool> {
        let (us, keeper) = (&*self.inner, BufferOwner::default());
        let key = us.hooks.key(name.as_any(), &keeper)?;
        us.delete(py, self.place, &Item::Extra(&key))
    }

    // --- waiting for a change ---

    /// Begins to watch it: the number of the watch.
    fn _watch(&self, py: Python<'_>) -> PyResult<u64> {
        self.inner
            .run_whole(py, |store, open, deadline| match open {
                Some(_) => Err(StoreError::InTransaction),
                None => store.watch(deadline, self.place),
            })
    }

    fn _has_changed(&self, py: Python<'_>, watch: u64) -> PyResult<bool> {
        self.inner.run_whole(py, |store, _, deadline| {
            store.has_changed(deadline, self.place, watch)
        })
    }

    /// Waits in this thread until it has changed: False if the timeout is over, None if waits were stopped.
    fn _wait(&self, py: Python<'_>, watch: u64, timeout: Option<f64>) -> PyResult<Option<bool>> {
        let (us, place) = (&*self.inner, self.place);
        us.wait_in(py, us.name.get(), CHANGES, timeout, || {
            us.membership.with_store(
                || 0,
                us.patience_of_waits(),
                |store, _, deadline| store.has_changed(deadline, place, watch),
            )
        })
    }

    // --- buffers ---

    /// The bytes of a buffer where they lie, and what is said of them.
    fn _pin<'py>(&self, py: Python<'py>) -> PyResult<(Pinned, Bound<'py, PyBytes>)> {
        let us = &*self.inner;
        let (block, len, said) = us.run_whole(py, |store, open, deadline| match open {
            Some(_) => Err(StoreError::InTransaction),
            None => store.pin(deadline, self.place),
        })?;
        let address = us.membership.address_of(block + 64, len);
        let pinned = Pinned {
            is_writable: us.membership.may_write(),
            inner: us.membership.clone(),
            _stay: us.name.get().stay(),
            block,
            address: address.addr(),
            len: len as usize,
        };
        Ok((pinned, PyBytes::new(py, &said)))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.inner.membership.remove_proxy(self.place.id);
    }
}

/// Bytes of a buffer of a store, which stay where they are as long as this or a view of it is there.
#[pyclass(frozen, weakref, module = "shmrpc._core")]
pub struct Pinned {
    inner: Arc<StoreMembership>,
    /// Keeps this process a member.
    _stay: Option<Arc<crate::objects::registry::Handle>>,
    /// False of what another process alone may change: it is not mapped writable.
    is_writable: bool,
    block: u64,
    address: usize,
    len: usize,
}

#[pymethods]
impl Pinned {
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let us = slf.get();
        // SAFETY: the memory is mapped as long as the membership, which this object has, and writable if that is said.
        unsafe {
            fill(
                view,
                slf.as_any(),
                us.address,
                us.len,
                us.is_writable,
                flags,
            )
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.inner.unpin(self.block);
    }
}

/// A dict of a store.
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
        base.inner.get_item(base.place, key)
    }

    fn __setitem__(
        slf: &Bound<'_, Self>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let base = slf.as_super().get();
        base.inner.set_item(base.place, key, value)
    }

    fn __delitem__(slf: &Bound<'_, Self>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let base = slf.as_super().get();
        base.inner.delete_item(base.place, key)
    }

    fn __contains__(slf: PyRef<'_, Self>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let base = slf.as_super();
        base.inner.contains(slf.py(), base.place, key)
    }
}

/// A field of the records of a class: a descriptor.
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
            .get(py, record.place, &Item::Field(slf.get().number))?;
        found.ok_or_else(|| record.inner.raised(py, StoreError::ContainerDeleted))
    }

    fn __set__(&self, record: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let (py, record) = (record.py(), record.cast::<Proxy>()?.get());
        let item = Item::Field(self.number);
        record.inner.set(py, record.place, &item, value).map(drop)
    }
}

/// A list of a store: its single items. `_slice` and `_set_slice` do the rest.
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
        let found = base.inner.get(py, base.place, &Item::Index(number))?;
        found.ok_or_else(|| PyIndexError::new_err("index out of range"))
    }

    /// Adds a value at the end.
    fn append(slf: &Bound<'_, Self>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let (base, keeper) = (slf.as_super().get(), BufferOwner::default());
        let value = [base.inner.hooks.value(value, &keeper, 0)?];
        base.inner.run_whole(slf.py(), |store, open, deadline| {
            store.splice(open, deadline, base.place, u64::MAX, u64::MAX, &value)
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
            .set(slf.py(), base.place, &Item::Index(number), value)
            .map(drop)
    }

    fn __delitem__(slf: &Bound<'_, Self>, index: &Bound<'_, PyAny>) -> PyResult<()> {
        let Ok(number) = index.extract::<i64>() else {
            return slf.call_method1("_delete_slice", (index,)).map(drop);
        };
        let base = slf.as_super().get();
        base.inner
            .delete(slf.py(), base.place, &Item::Index(number))
            .map(drop)
    }
}

/// A record whose fields are known by the members of an IntEnum.
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
        let found = base.inner.get(py, base.place, &Item::Field(field))?;
        found.ok_or_else(|| PyIndexError::new_err("index out of range"))
    }

    fn __setitem__(slf: &Bound<'_, Self>, field: u64, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let base = slf.as_super().get();
        base.inner
            .set(slf.py(), base.place, &Item::Field(field), value)
            .map(drop)
    }
}

/// Adds to a number of a container, and returns the sum; None if that takes more than a cell. `key`: of a dict or a store a
/// key, of a list an index, of a struct the number of a field, of an object the name of one.
#[pyfunction]
pub fn add_to<'py>(
    container: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
    by: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = container.py();
    if let Ok(store) = container.cast::<Store>() {
        let us = store.get().inner(py)?;
        return with_key!(us, key, |item| us.add(py, us.root, item, by));
    }
    let proxy = container.cast::<Proxy>()?.get();
    let us = &*proxy.inner;
    if container.is_instance_of::<DictProxy>() {
        return with_key!(us, key, |item| us.add(py, proxy.place, item, by));
    }
    let item = if container.is_instance_of::<ListProxy>() {
        Item::Index(key.extract()?)
    } else if container.is_instance_of::<StructProxy>() {
        Item::Field(key.extract()?)
    } else {
        let field = container.get_type().getattr(key.cast::<PyString>()?)?;
        Item::Field(field.cast::<RecordField>()?.get().number)
    };
    us.add(py, proxy.place, &item, by)
}
