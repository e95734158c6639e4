//! Operations on the items of containers, with Python's values.
//!
//! All raise LocalProtocolError if the store is closed, StoreBusy if another member changes it for longer than the busy
//! timeout, ObjectDeleted if it no longer has the container, and what the conversion of keys and values raises. Those
//! that change it also raise StoreFull, and LocalProtocolError in a process that may only read.

use crate::clock;
use crate::objects::deadline::deadline_after;
use crate::python::objects::stores::converters::BufferOwner;
use crate::python::objects::stores::native_values::cell_to_python;
use crate::python::objects::stores::open_store::OpenStore;
use crate::store::{ContainerRef, Item, Number, StoreError, StoredValue, Type};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt, PyList};
use std::thread;

/// The number of attempts that an operation has in any case while other members replace the value each time.
const MIN_ATTEMPTS: usize = 64;
/// The maximum number of words that are copied with the GIL. That takes tens of microseconds, less than other threads
/// wait for the GIL.
const MAX_WORDS_WITH_GIL: u64 = 1024;

/// Evaluates an expression with the item of a dict that has a key of Python's.
macro_rules! with_key {
    ($inner:expr, $key:expr, |$item:ident| $body:expr) => {{
        let owner = BufferOwner::default();
        let key = $inner.converters.key($key, &owner)?;
        let $item = &Item::Key(&key);
        $body
    }};
}

pub(super) use with_key;

/// The attempts of an operation that fails when another member changes the value meanwhile.
struct Attempts {
    count: usize,
    /// The busy timeout, in nanoseconds, and its end. It begins after `MIN_ATTEMPTS` attempts, so that an operation that
    /// succeeds reads no clock.
    busy_timeout: u64,
    end: u64,
}

impl Attempts {
    fn begin(store: &OpenStore) -> Self {
        Attempts {
            count: 0,
            busy_timeout: store.busy_timeout(),
            end: 0,
        }
    }

    /// Returns true before an attempt: the busy timeout has not passed, or there were fewer than `MIN_ATTEMPTS`. Raises
    /// the exception of a signal handler.
    #[inline]
    fn may_go_on(&mut self, py: Python<'_>) -> PyResult<bool> {
        if self.count == MIN_ATTEMPTS {
            self.end = deadline_after(self.busy_timeout);
        }
        if self.count >= MIN_ATTEMPTS {
            if clock::now() >= self.end {
                return Ok(false);
            }
            py.check_signals()?;
            // Another process may be in step with this one.
            py.detach(thread::yield_now);
        }
        self.count += 1;
        Ok(true)
    }
}

impl OpenStore {
    /// Returns the value of an item; None if there is no such key. Raises IndexError for an index out of range.
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

    /// Returns the view of the buffer at `at`. Looks the item up again if another member replaces the buffer before it
    /// is pinned, and raises StoreBusy as [`pop`](Self::pop) does. Returns None once there is no such key.
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
        let (mut at, mut attempts) = (at, Attempts::begin(self));
        while attempts.may_go_on(py)? {
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
        Err(self.too_many_changes(py, &attempts, "read"))
    }

    /// Stores a value in an item. Returns true if the item had a value before.
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

    /// Removes an item, and returns a copy of its value; None if there is no such key. Makes the object first where
    /// that can fail, so that the item stays if it fails. Raises StoreBusy if other members change the item again and
    /// again for longer than the busy timeout.
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
        let mut attempts = Attempts::begin(self);
        while attempts.may_go_on(py)? {
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
        Err(self.too_many_changes(py, &attempts, "taken out of it"))
    }

    /// Removes the first message, and returns a copy of it; None if there is none. A message of which no object can be
    /// made stays, as in [`pop`](Self::pop), and the next waiter is woken for it. Raises StoreBusy as `pop` does.
    pub(super) fn receive<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.run(py, |store, open, deadline| {
            store.receive(open, deadline, StoredValue::is_plain)
        })? {
            Ok(found) => return found.map(|found| self.to_python(py, found)).transpose(),
            Err(StoreError::Unwanted) => {}
            Err(error) => return Err(self.store_error(py, error)),
        }
        let mut attempts = Attempts::begin(self);
        while attempts.may_go_on(py)? {
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
        Err(self.too_many_changes(py, &attempts, "taken out of it"))
    }

    /// Returns the error for a value that other members changed at each attempt to use it.
    #[cold]
    fn too_many_changes(&self, py: Python<'_>, attempts: &Attempts, use_of_it: &str) -> PyErr {
        let text = format!(
            "changed {} times while a value was {use_of_it}; try again, or use a transaction",
            attempts.count
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

    /// Adds to an item, and returns the sum; None if this is for Python, because a number or the sum does not fit a
    /// cell.
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

    /// Returns the value of a key. Raises KeyError if there is none.
    #[inline]
    pub(super) fn get_item<'py>(
        &self,
        container: ContainerRef,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let found = with_key!(self, key, |item| self.get(key.py(), container, item))?;
        found.ok_or_else(|| PyKeyError::new_err((key.clone().unbind(),)))
    }

    /// Stores a value under a key.
    #[inline]
    pub(super) fn set_item(
        &self,
        container: ContainerRef,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        with_key!(self, key, |item| self.set(key.py(), container, item, value)).map(drop)
    }

    /// Removes a key. Raises KeyError if there is none.
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

    /// Returns the number of items of a container.
    pub(super) fn len(&self, py: Python<'_>, container: ContainerRef) -> PyResult<usize> {
        let len = self.run_checked(py, |store, open, deadline| {
            store.len(open, deadline, container)
        })?;
        Ok(len as usize)
    }

    /// Returns true if a dict has this key, or a set this member.
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

    /// Returns the keys of a dict, or the members of a set.
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

    /// Returns the (key, value) pairs of a dict.
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

    /// Returns a copy of a container and of all containers in it.
    pub(super) fn copy<'py>(
        &self,
        py: Python<'py>,
        container: ContainerRef,
    ) -> PyResult<Bound<'py, PyAny>> {
        let copied = match self.run(py, |store, open, deadline| {
            store.copy_at_most(open, deadline, container, MAX_WORDS_WITH_GIL)
        })? {
            Err(StoreError::CopyTooLarge) => self.run_detached(py, |store, open, deadline| {
                store.copy(open, deadline, container)
            })?,
            copied => copied,
        };
        let found = copied.map_err(|error| self.store_error(py, error))?;
        self.to_python(py, found)
    }

    /// Removes all items.
    pub(super) fn clear(&self, py: Python<'_>, container: ContainerRef) -> PyResult<()> {
        self.run_checked(py, |store, open, deadline| {
            store.clear(open, deadline, container)
        })
    }
}
