//! `Store`: a handle of a store.

use crate::objects::members::Holder;
use crate::objects::store::{MESSAGES, StoreMembership};
use crate::python::objects::shared_object::SharedObject;
use crate::python::objects::stores::converters::{BufferOwner, Converters};
use crate::python::objects::stores::open_store::{OpenStore, StoreRef};
use crate::python::support::owner::current_owner;
use crate::store::{ContainerRef, StoreError, encoding};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyByteArray, PyList};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

/// A handle of a store. All handles of a store in this process share the [`OpenStore`].
#[pyclass(frozen, subclass, weakref, module = "shmrpc._core")]
pub struct Store {
    inner: Arc<OpenStore>,
    /// The handle of the shared object that belongs to this handle of the store alone.
    object: Py<SharedObject>,
}

impl Store {
    /// Returns the open store. Raises LocalProtocolError if this handle is closed.
    #[inline]
    pub(super) fn inner(&self, py: Python<'_>) -> PyResult<&OpenStore> {
        self.object.get().open(py)?;
        Ok(&self.inner)
    }
}

#[pymethods]
impl Store {
    /// Makes a handle of a store. `opened` is the store context, which all handles share: its `_object` is open for as
    /// long as one of the handles, its `converter` has the functions of [`Converters`], and its `_store_ref` is set if
    /// there is a handle. `busy_timeout` is the time in seconds for which an operation waits while another process
    /// changes the store: the longest one of all handles counts.
    #[new]
    fn new(
        py: Python<'_>,
        object: Py<SharedObject>,
        opened: &Bound<'_, PyAny>,
        busy_timeout: f64,
    ) -> PyResult<Self> {
        let busy_timeout = (busy_timeout * 1e9) as u64;
        let store_ref = opened.getattr_opt("_store_ref")?;
        let store_ref = store_ref.as_ref().and_then(|it| it.cast::<StoreRef>().ok());
        if let Some(inner) = store_ref.and_then(|store_ref| store_ref.get().0.upgrade()) {
            inner.busy_timeout.fetch_max(busy_timeout, Relaxed); // Relaxed: under the GIL.
            return Ok(Store { inner, object });
        }
        let shared = opened.getattr("_object")?.cast_into::<SharedObject>()?;
        let membership = shared.get().open_as::<StoreMembership>(py)?;
        let initialized = py.detach(|| membership.initialize());
        let limit = membership.shape().amount;
        let mut inner = OpenStore {
            object: shared.unbind(),
            membership,
            converters: Converters::new(&opened.getattr("converter")?, limit)?,
            opened: opened.clone().unbind(),
            root: ContainerRef { at: 0, id: 0 },
            busy_timeout: AtomicU64::new(busy_timeout),
            store_ref: OnceLock::new(),
        };
        inner.root = initialized.map_err(|error| inner.refusal_error(py, error))?;
        let inner = Arc::new(inner);
        let store_ref = Py::new(py, StoreRef(Arc::downgrade(&inner)))?;
        let _ = inner.store_ref.set(store_ref);
        Ok(Store { inner, object })
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let this = self.inner(key.py())?;
        this.get_item(this.root, key)
    }

    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let this = self.inner(key.py())?;
        this.set_item(this.root, key, value)
    }

    fn __delitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let this = self.inner(key.py())?;
        this.delete_item(this.root, key)
    }

    fn __contains__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let this = self.inner(py)?;
        this.contains(py, this.root, key)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let this = self.inner(py)?;
        this.len(py, this.root)
    }

    /// Raises LocalProtocolError if this handle is closed.
    fn _check(&self, py: Python<'_>) -> PyResult<()> {
        self.inner(py).map(drop)
    }

    /// The address and the number of the root dict.
    #[getter]
    fn _root_place(&self) -> (u64, u64) {
        (self.inner.root.at, self.inner.root.id)
    }

    // --- messages ---

    /// Adds a message: at the end, or with `is_back` at the beginning, because it was taken and comes back.
    #[pyo3(signature = (value, is_back = false))]
    fn _put(&self, py: Python<'_>, value: &Bound<'_, PyAny>, is_back: bool) -> PyResult<()> {
        let (this, owner) = (self.inner(py)?, BufferOwner::default());
        let value = this.converters.value(value, &owner, 0)?;
        this.run_checked(py, |store, open, deadline| {
            store.send(open, deadline, &value, is_back)
        })
    }

    /// Removes the first message, and returns it in a list, which is empty if there is none. With `waits`, the list is
    /// also empty while another task of this thread is in a transaction, whose end wakes the waiters.
    #[pyo3(signature = (waits = false))]
    fn _take<'py>(&self, py: Python<'py>, waits: bool) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let this = self.inner(py)?;
        if waits
            && this
                .membership
                .waits_for_sibling(|| current_owner(py).unwrap_or(0))
        {
            return Ok(Vec::new());
        }
        Ok(this.receive(py)?.into_iter().collect())
    }

    /// Removes the first message, and appends it to `got`. Returns False if there is none. So the caller has the
    /// message even if a signal handler raises as soon as this call returns.
    fn _take_into(&self, got: &Bound<'_, PyList>) -> PyResult<bool> {
        let taken = self._take(got.py(), false)?;
        taken.iter().try_for_each(|message| got.append(message))?;
        Ok(!taken.is_empty())
    }

    /// Waits in this thread until there is a message, which another receiver may take first. Returns True; False after
    /// the timeout, None if waits were stopped.
    fn _wait_for_message(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<bool>> {
        let this = self.inner(py)?;
        this.wait_in(py, self.object.get(), MESSAGES, timeout, || {
            this.has_messages()
        })
    }

    /// Returns True if there is a message.
    fn _has_messages(&self, py: Python<'_>) -> PyResult<bool> {
        let this = self.inner(py)?;
        this.run_checked(py, |store, _, deadline| store.has_messages(deadline))
    }

    /// Returns a copy of the first message in a list, which is empty if there is none. The message stays, and the next
    /// waiter is woken for it.
    fn _peek<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let this = self.inner(py)?;
        let found = this.run_checked(py, |store, open, deadline| {
            store.first_message(open, deadline)
        })?;
        if found.is_some() {
            this.membership.pass_message_on();
        }
        let found = found.map(|(whole, _)| this.to_python(py, whole));
        found.into_iter().collect()
    }

    /// Moves all other members to a copy if a member holds the owner lock for longer than the busy timeout. Returns the
    /// id of the process of this member, -1 if it runs in another container; None if no member holds the lock.
    fn _fail_over(&self, py: Python<'_>) -> PyResult<Option<i32>> {
        let this = self.inner(py)?;
        let busy_timeout = this.wait_limit();
        let replaced = py.detach(|| this.membership.fail_over(busy_timeout));
        match replaced.map_err(|error| this.refusal_error(py, error))? {
            Some(Holder::Process(pid)) => Ok(Some(pid)),
            Some(Holder::Elsewhere) => Ok(Some(-1)),
            None => Ok(None),
        }
    }

    // --- files ---

    /// Returns all classes as a dict and the whole contents as bytes, both of the same moment.
    fn _saved<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyByteArray>)> {
        let this = self.inner(py)?;
        let (classes, all) =
            this.run_checked(py, |store, open, deadline| store.snapshot(open, deadline))?;
        let bytes = py.detach(|| {
            let mut bytes = Vec::new();
            let written = encoding::encode(&all, &mut bytes);
            drop(all);
            written.map(|()| bytes)
        });
        let bytes = bytes.map_err(|_| self.inner.store_error(py, StoreError::NoMemory))?;
        let saved = PyByteArray::new_with(py, bytes.len(), |to| {
            to.copy_from_slice(&bytes);
            Ok(())
        });
        Ok((this.to_python(py, classes)?, saved?))
    }

    /// Replaces the whole contents by those in the bytes of `_saved`. `numbers` are the numbers of the saved classes in
    /// this store. Raises ValueError if the bytes hold no values.
    fn _load(&self, py: Python<'_>, bytes: PyBackedBytes, numbers: Vec<u32>) -> PyResult<()> {
        let this = self.inner(py)?;
        let restore_key = |exact: &[u8]| this.converters.restore_key(py, exact);
        let items = encoding::Decoder::new(&bytes, &numbers, restore_key).dict();
        let items = items.map_err(|error| match error {
            encoding::DecodeError::InvalidAt(at) => {
                PyValueError::new_err(format!("no value begins at byte {at} of its values"))
            }
            encoding::DecodeError::UnknownClass(number) => {
                PyValueError::new_err(format!("it has no class of number {number}"))
            }
            encoding::DecodeError::Key(error) => error,
        })?;
        this.run_checked(py, |store, open, deadline| {
            store.replace_items(open, deadline, this.root, &items)
        })
    }

    // --- figures ---

    /// The reference from which proxies of the store are made.
    #[getter]
    fn _store_ref(&self, py: Python<'_>) -> Py<StoreRef> {
        self.inner.store_ref(py).clone().unbind()
    }

    /// Returns the bytes of memory for values, the bytes of them that are free, the maximum number of bytes, and the
    /// number of containers ever made.
    fn _usage(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64)> {
        let this = self.inner(py)?;
        let (usage, made) = this.run_checked(py, |store, _, deadline| {
            Ok((store.usage(deadline)?, store.containers_made(deadline)?))
        })?;
        Ok((usage.backed, usage.spare, usage.limit, made))
    }
}
