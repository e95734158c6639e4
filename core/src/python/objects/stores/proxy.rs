//! `Proxy`: a container of a store, as programs see it.

use crate::objects::registry::Handle;
use crate::objects::store::CHANGES;
use crate::objects::store::StoreMembership;
use crate::python::objects::stores::converters::BufferOwner;
use crate::python::objects::stores::items::with_key;
use crate::python::objects::stores::open_store::{OpenStore, StoreRef};
use crate::python::support::mapped_bytes::MappedBytes;
use crate::store::{ContainerRef, Item, StoreError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};
use std::sync::Arc;

/// Proxy of a container of a store, of any type.
#[pyclass(frozen, subclass, weakref, module = "shmrpc._core")]
pub struct Proxy {
    pub(super) inner: Arc<OpenStore>,
    pub(super) container: ContainerRef,
}

#[pymethods]
impl Proxy {
    /// Makes a proxy of the container with this address and number. Raises ReferenceError if the store is no longer
    /// open.
    #[new]
    pub(super) fn new(store_ref: &Bound<'_, StoreRef>, at: u64, id: u64) -> PyResult<Self> {
        let (inner, container) = (store_ref.get().inner()?, ContainerRef { at, id });
        inner.membership.add_proxy(id);
        Ok(Proxy { inner, container })
    }

    /// The reference from which further proxies of the store are made.
    #[getter]
    fn _store_ref(&self, py: Python<'_>) -> Py<StoreRef> {
        self.inner.store_ref(py).clone().unbind()
    }

    /// The address and the number of the container, by which it is identified.
    #[getter]
    fn _place(&self) -> (u64, u64) {
        (self.container.at, self.container.id)
    }

    /// The store context, which all handles and proxies share.
    #[getter]
    fn _store_context(&self, py: Python<'_>) -> Py<PyAny> {
        self.inner.opened.clone_ref(py)
    }

    /// The name of the store.
    #[getter]
    fn _store_name(&self) -> &str {
        self.inner.membership.name()
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.inner.len(py, self.container)
    }

    /// Returns a copy of the container and of all containers in it.
    fn _copy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.inner.copy(py, self.container)
    }

    /// Returns a copy that can be stored elsewhere. A container that this process has removed is copied with its last
    /// contents.
    fn _copy_to_put<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let this = &*self.inner;
        let found = this.run_checked(py, |store, open, deadline| {
            store.copy_for_insert(open, deadline, self.container)
        })?;
        this.to_python(py, found)
    }

    /// Removes all items.
    fn _clear(&self, py: Python<'_>) -> PyResult<()> {
        self.inner.clear(py, self.container)
    }

    // --- dicts and sets ---

    /// Returns the value of a key; `default` if there is none.
    fn _get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let this = &*self.inner;
        let found = with_key!(this, key, |item| this.get(py, self.container, item))?;
        Ok(found.unwrap_or(default))
    }

    /// Removes a key, and returns a copy of its value; `default` if there is none.
    fn _pop<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let this = &*self.inner;
        let found = with_key!(this, key, |item| this.pop(py, self.container, item))?;
        Ok(found.unwrap_or(default))
    }

    /// Returns True if the dict has this key, or the set this member.
    fn _contains(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.inner.contains(py, self.container, key)
    }

    /// Returns the keys of a dict, or the members of a set.
    fn _keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.inner.keys(py, self.container)
    }

    /// Returns the (key, value) pairs of a dict.
    fn _items<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.inner.items(py, self.container)
    }

    /// Adds a member to a set. Returns False if the set had it.
    fn _insert(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let owner = BufferOwner::default();
        let key = self.inner.converters.key(key, &owner)?;
        self.inner.run_checked(py, |store, open, deadline| {
            store.insert(open, deadline, self.container, &key)
        })
    }

    /// Removes a member of a set. Returns False if the set had none.
    fn _discard(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let owner = BufferOwner::default();
        let key = self.inner.converters.key(key, &owner)?;
        self.inner.run_checked(py, |store, open, deadline| {
            store.discard(open, deadline, self.container, &key)
        })
    }

    // --- lists ---

    /// Returns the items from the index `from` up to, not including, `to`.
    fn _range<'py>(&self, py: Python<'py>, from: u64, to: u64) -> PyResult<Bound<'py, PyList>> {
        let this = &*self.inner;
        let found = this.run_checked(py, |store, open, deadline| {
            store.range(open, deadline, self.container, from, to)
        })?;
        PyList::new(
            py,
            this.converters
                .all_to_python(this.store_ref(py).as_any(), found)?,
        )
    }

    /// Replaces the items from the index `from` up to, not including, `to` by these values.
    fn _splice(
        &self,
        py: Python<'_>,
        from: u64,
        to: u64,
        values: &Bound<'_, PyList>,
    ) -> PyResult<()> {
        let (this, owner) = (&*self.inner, BufferOwner::default());
        let values = this
            .converters
            .values(values.as_any(), values.iter(), &owner, 0)?;
        this.run_checked(py, |store, open, deadline| {
            store.splice(open, deadline, self.container, from, to, &values)
        })
    }

    /// Reorders the items: `order` has their former indices. Returns False if other members have changed the number of
    /// items.
    fn _permute(&self, py: Python<'_>, order: Vec<u32>) -> PyResult<bool> {
        self.inner.run_checked(py, |store, open, deadline| {
            store.permute(open, deadline, self.container, &order)
        })
    }

    /// Removes an item of a list, and returns a copy of it. Raises IndexError.
    fn _remove<'py>(&self, py: Python<'py>, index: i64) -> PyResult<Bound<'py, PyAny>> {
        let found = self.inner.pop(py, self.container, &Item::Index(index))?;
        found.ok_or_else(|| self.inner.store_error(py, StoreError::IndexOutOfRange(0)))
    }

    // --- extra attributes of a record ---

    /// Returns the extra attribute of this name in a list, which is empty if there is none.
    fn _extra<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'py, PyString>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (this, owner) = (&*self.inner, BufferOwner::default());
        let key = this.converters.key(name.as_any(), &owner)?;
        let found = this.get(py, self.container, &Item::Extra(&key))?;
        Ok(found.into_iter().collect())
    }

    /// Sets the extra attribute of this name.
    fn _set_extra(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyString>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (this, owner) = (&*self.inner, BufferOwner::default());
        let key = this.converters.key(name.as_any(), &owner)?;
        this.set(py, self.container, &Item::Extra(&key), value)
            .map(drop)
    }

    /// Removes the extra attribute of this name. Returns False if there is none.
    fn _drop_extra(&self, py: Python<'_>, name: &Bound<'_, PyString>) -> PyResult<bool> {
        let (this, owner) = (&*self.inner, BufferOwner::default());
        let key = this.converters.key(name.as_any(), &owner)?;
        this.delete(py, self.container, &Item::Extra(&key))
    }

    // --- waiting for a change ---

    /// Begins a watch of the container, and returns the number of the watch, which the caller ends by `unwatch`. Raises
    /// LocalProtocolError in a transaction.
    fn _watch(&self, py: Python<'_>) -> PyResult<u64> {
        self.inner
            .run_checked(py, |store, open, deadline| match open {
                Some(_) => Err(StoreError::InTransaction),
                None => store.watch(deadline, self.container),
            })
    }

    /// Returns True if the container has changed since the watch began.
    fn _has_changed(&self, py: Python<'_>, watch: u64) -> PyResult<bool> {
        self.inner.run_checked(py, |store, _, deadline| {
            store.has_changed(deadline, self.container, watch)
        })
    }

    /// Waits in this thread until the container has changed since the watch began. Returns True; False after the
    /// timeout, None if waits were stopped.
    fn _wait(&self, py: Python<'_>, watch: u64, timeout: Option<f64>) -> PyResult<Option<bool>> {
        let (this, container) = (&*self.inner, self.container);
        this.wait_in(py, this.object.get(), CHANGES, timeout, || {
            this.membership.with_store(
                || 0,
                this.wait_limit(),
                |store, _, deadline| store.has_changed(deadline, container, watch),
            )
        })
    }

    // --- buffers ---

    /// Pins a buffer until the returned bytes are dropped, and returns its bytes in place, read-only unless this
    /// process may change the store, and its description. Raises LocalProtocolError in a transaction.
    fn _pin<'py>(&self, py: Python<'py>) -> PyResult<(MappedBytes, Bound<'py, PyBytes>)> {
        let this = &*self.inner;
        let (block, len, description) =
            this.run_checked(py, |store, open, deadline| match open {
                Some(_) => Err(StoreError::InTransaction),
                None => store.pin(deadline, self.container),
            })?;
        let address = this.membership.address_of(block + 64, len);
        let is_writable = this.membership.may_write();
        let owner = PinnedBuffer {
            membership: this.membership.clone(),
            _handle: this.object.get().handle(),
            block,
        };
        let pinned = MappedBytes::new(owner, (address.addr(), len as usize), is_writable);
        Ok((pinned, PyBytes::new(py, &description)))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.inner.membership.remove_proxy(self.container.id);
    }
}

/// A pinned buffer of a store, which stays where it is for as long as this lives.
struct PinnedBuffer {
    membership: Arc<StoreMembership>,
    /// Keeps this process a member.
    _handle: Option<Arc<Handle>>,
    block: u64,
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        self.membership.unpin(self.block);
    }
}
