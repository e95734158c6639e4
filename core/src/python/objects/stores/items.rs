//! Operations on the items of containers, with Python's values.

use crate::python::objects::stores::converters::BufferOwner;
use crate::python::objects::stores::native_values::cell_to_python;
use crate::python::objects::stores::open_store::OpenStore;
use crate::store::{ContainerRef, Item, Number, StoreError, StoredValue, Type};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt, PyList};

/// Tries of an operation while other members replace the value each time.
const TRIES: usize = 64;
/// Most words that are copied with the GIL held. That takes tens of microseconds, less than other threads wait for the
/// GIL.
const LITTLE: u64 = 1024;

/// Runs an expression with an item of a dict, or an extra attribute of a record, by a key of Python's.
macro_rules! with_key {
    ($inner:expr, $key:expr, |$item:ident| $body:expr) => {{
        let owner = BufferOwner::default();
        let key = $inner.converters.key($key, &owner)?;
        let $item = &Item::Key(&key);
        $body
    }};
}

pub(super) use with_key;

impl OpenStore {
    #[inline]
    pub(super) fn get<'py>(
        &self,
        py: Python<'py>,
        container: ContainerRef,
        item: &Item<'_>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let found = self.run(py, |store, open, deadline| {
            store.get(open, deadline, container, item)
        })?;
        match found {
            Ok(StoredValue::Immediate(cell)) => cell_to_python(py, cell).map(Some),
            Ok(StoredValue::Container(Type::Buffer, at, _)) => {
                self.get_buffer(py, container, item, at)
            }
            Ok(found) => self.to_python(py, found).map(Some),
            Err(StoreError::KeyNotFound) => Ok(None),
            Err(error) => Err(self.store_error(py, error)),
        }
    }

    /// Returns a buffer that is at `at`, or at another place by then, because another member may replace it before it
    /// is pinned.
    fn get_buffer<'py>(
        &self,
        py: Python<'py>,
        container: ContainerRef,
        item: &Item<'_>,
        at: ContainerRef,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let is_gone = |error: &PyErr| {
            let gone = py
                .import("shmrpc.errors")
                .and_then(|it| it.getattr("ObjectDeleted"));
            gone.is_ok_and(|gone| error.is_instance(py, &gone))
        };
        let mut at = at;
        for _ in 0..TRIES {
            match self.to_python(py, StoredValue::Container(Type::Buffer, at, 0)) {
                Err(error) if is_gone(&error) => {}
                seen => return seen.map(Some),
            }
            match self.run(py, |store, open, deadline| {
                store.get(open, deadline, container, item)
            })? {
                Ok(StoredValue::Container(Type::Buffer, again, _)) => at = again,
                Ok(found) => return self.to_python(py, found).map(Some),
                Err(StoreError::KeyNotFound) => return Ok(None),
                Err(error) => return Err(self.store_error(py, error)),
            }
        }
        Err(self.store_error(py, StoreError::ContainerDeleted))
    }

    #[inline]
    pub(super) fn set(
        &self,
        py: Python<'_>,
        container: ContainerRef,
        item: &Item<'_>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let owner = BufferOwner::default();
        let value = self.converters.value(value, &owner, 0)?;
        self.run_checked(py, |store, open, deadline| {
            store.set(open, deadline, container, item, &value)
        })
    }

    /// Removes an item and returns a copy of it; None if there is no such key. Unless the value cannot fail to be made,
    /// it is made first, so that an item that cannot be made stays.
    pub(super) fn pop<'py>(
        &self,
        py: Python<'py>,
        container: ContainerRef,
        item: &Item<'_>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.run(py, |store, open, deadline| {
            store.remove(open, deadline, container, item, StoredValue::is_plain)
        })? {
            Ok(found) => return self.to_python(py, found).map(Some),
            Err(StoreError::KeyNotFound) => return Ok(None),
            Err(StoreError::Unwanted) => {}
            Err(error) => return Err(self.store_error(py, error)),
        }
        for _ in 0..TRIES {
            let (whole, known) = match self.run(py, |store, open, deadline| {
                store.get_copy(open, deadline, container, item)
            })? {
                Ok(found) => found,
                Err(StoreError::KeyNotFound) => return Ok(None),
                Err(error) => return Err(self.store_error(py, error)),
            };
            let made = self.to_python(py, whole)?;
            match self.run(py, |store, open, deadline| {
                store.remove(open, deadline, container, item, |found| *found == known)
            })? {
                Ok(_) => return Ok(Some(made)),
                // Another member has replaced it.
                Err(StoreError::KeyNotFound | StoreError::Unwanted) => {}
                Err(error) => return Err(self.store_error(py, error)),
            }
        }
        Err(self.too_many_changes(py))
    }

    /// Takes the first message and returns a copy of it; None if there is none. As in [`pop`](Self::pop), a message
    /// that cannot be made stays.
    pub(super) fn receive<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.run(py, |store, open, deadline| {
            store.receive(open, deadline, StoredValue::is_plain)
        })? {
            Ok(found) => return found.map(|found| self.to_python(py, found)).transpose(),
            Err(StoreError::Unwanted) => {}
            Err(error) => return Err(self.store_error(py, error)),
        }
        for _ in 0..TRIES {
            let first = self.run_checked(py, |store, open, deadline| {
                store.first_message(open, deadline)
            })?;
            let Some((whole, known)) = first else {
                return Ok(None);
            };
            // Another waiter, which was not woken, may be able to make it.
            let made = self.to_python(py, whole);
            let made = made.inspect_err(|_| self.membership.pass_message_on())?;
            match self.run(py, |store, open, deadline| {
                store.receive(open, deadline, |found| *found == known)
            })? {
                Ok(Some(_)) => return Ok(Some(made)),
                Ok(None) => return Ok(None),
                // Another process has taken it.
                Err(StoreError::Unwanted) => {}
                Err(error) => return Err(self.store_error(py, error)),
            }
        }
        Err(self.too_many_changes(py))
    }

    /// Returns the error for a value that other members change before each try to remove it.
    #[cold]
    fn too_many_changes(&self, py: Python<'_>) -> PyErr {
        let text = format!(
            "changed {TRIES} times while a value was taken out of it; try again, or do so in a transaction"
        );
        self.named_error(py, "StoreBusy", text)
    }

    /// Removes an item. Returns false if there is no such key.
    pub(super) fn delete(
        &self,
        py: Python<'_>,
        container: ContainerRef,
        item: &Item<'_>,
    ) -> PyResult<bool> {
        match self.run(py, |store, open, deadline| {
            store.delete(open, deadline, container, item)
        })? {
            Ok(()) => Ok(true),
            Err(StoreError::KeyNotFound) => Ok(false),
            Err(error) => Err(self.store_error(py, error)),
        }
    }

    /// Adds to an item and returns the sum; None if the sum is not for a cell.
    pub(super) fn add<'py>(
        &self,
        py: Python<'py>,
        container: ContainerRef,
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
            store.add(open, deadline, container, item, by)
        })? {
            Ok(cell) => cell_to_python(py, cell).map(Some),
            Err(StoreError::NotANumber) => Ok(None),
            Err(error) => Err(self.store_error(py, error)),
        }
    }

    /// Returns the value of a key. Raises KeyError.
    #[inline]
    pub(super) fn get_item<'py>(
        &self,
        container: ContainerRef,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let found = with_key!(self, key, |item| self.get(key.py(), container, item))?;
        found.ok_or_else(|| PyKeyError::new_err((key.clone().unbind(),)))
    }

    #[inline]
    pub(super) fn set_item(
        &self,
        container: ContainerRef,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        with_key!(self, key, |item| self.set(key.py(), container, item, value)).map(drop)
    }

    /// Removes a key. Raises KeyError.
    pub(super) fn delete_item(
        &self,
        container: ContainerRef,
        key: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        match with_key!(self, key, |item| self.delete(key.py(), container, item))? {
            true => Ok(()),
            false => Err(PyKeyError::new_err((key.clone().unbind(),))),
        }
    }

    pub(super) fn len(&self, py: Python<'_>, container: ContainerRef) -> PyResult<usize> {
        let len = self.run_checked(py, |store, open, deadline| {
            store.len(open, deadline, container)
        })?;
        Ok(len as usize)
    }

    pub(super) fn contains(
        &self,
        py: Python<'_>,
        container: ContainerRef,
        key: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let owner = BufferOwner::default();
        let key = self.converters.key(key, &owner)?;
        self.run_checked(py, |store, open, deadline| {
            store.contains(open, deadline, container, &key)
        })
    }

    pub(super) fn keys<'py>(
        &self,
        py: Python<'py>,
        container: ContainerRef,
    ) -> PyResult<Bound<'py, PyList>> {
        let keys = self.run_checked(py, |store, open, deadline| {
            store.keys(open, deadline, container)
        })?;
        PyList::new(
            py,
            self.converters
                .all_to_python(self.store_ref(py).as_any(), keys)?,
        )
    }

    pub(super) fn items<'py>(
        &self,
        py: Python<'py>,
        container: ContainerRef,
    ) -> PyResult<Bound<'py, PyList>> {
        let items = self.run_checked(py, |store, open, deadline| {
            store.items(open, deadline, container)
        })?;
        let items: PyResult<Vec<_>> = items
            .into_iter()
            .map(|(key, value)| Ok((self.to_python(py, key)?, self.to_python(py, value)?)))
            .collect();
        PyList::new(py, items?)
    }

    pub(super) fn copy<'py>(
        &self,
        py: Python<'py>,
        container: ContainerRef,
    ) -> PyResult<Bound<'py, PyAny>> {
        let copied = match self.run(py, |store, open, deadline| {
            store.copy_at_most(open, deadline, container, LITTLE)
        })? {
            Err(StoreError::CopyTooLarge) => self.run_detached(py, |store, open, deadline| {
                store.copy(open, deadline, container)
            })?,
            copied => copied,
        };
        let found = copied.map_err(|error| self.store_error(py, error))?;
        self.to_python(py, found)
    }

    pub(super) fn clear(&self, py: Python<'_>, container: ContainerRef) -> PyResult<()> {
        self.run_checked(py, |store, open, deadline| {
            store.clear(open, deadline, container)
        })
    }
}
