//! `OpenStore`: a store that this process has open, and `StoreRef`: a weak reference to it.

use crate::objects::members::Holder;
use crate::objects::store::StoreMembership;
use crate::objects::store::{ObjectStore, StoreRefused};
use crate::python::objects::shared_object::SharedObject;
use crate::python::objects::stores::converters::{BufferOwner, Converters};
use crate::python::objects::stores::error;
use crate::python::support::owner::current_owner;
use crate::store::{ContainerRef, OpenTransaction, StoreError, StoredValue};
use pyo3::exceptions::PyReferenceError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, Weak};

/// A weak reference to a store that this process has open, from which proxies are made.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct StoreRef(pub(super) Weak<OpenStore>);

impl StoreRef {
    /// Returns the store. Raises ReferenceError if it is no longer open.
    pub(crate) fn inner(&self) -> PyResult<Arc<OpenStore>> {
        let inner = self.0.upgrade();
        inner.ok_or_else(|| PyReferenceError::new_err("the store is no longer open"))
    }
}

#[pymethods]
impl StoreRef {
    /// Returns the id of the process that changes the store now; 0 if no process does, -1 if it runs in another
    /// container.
    fn holder(&self) -> PyResult<i64> {
        Ok(self.inner()?.membership.holder_pid())
    }

    /// Returns the id of the only process that may change the store; 0 if there is none, -1 if it runs in another
    /// container.
    fn owner(&self) -> PyResult<i64> {
        Ok(match self.inner()?.membership.owner() {
            Some(Holder::Process(pid)) => i64::from(pid),
            Some(Holder::Elsewhere) => -1,
            None => 0,
        })
    }

    /// Returns True if this process may change the store.
    fn may_write(&self) -> PyResult<bool> {
        Ok(self.inner()?.membership.may_write())
    }

    /// Returns True if another task of this thread is in a transaction.
    fn is_beside_sibling(&self, py: Python<'_>) -> PyResult<bool> {
        let owner = || current_owner(py).unwrap_or(0);
        Ok(self.inner()?.membership.is_beside_sibling(owner))
    }

    /// Ends a watch of one of its containers.
    fn unwatch(&self, py: Python<'_>, watch: u64) -> PyResult<()> {
        self.inner()?
            .run_checked(py, |store, _, deadline| store.unwatch(deadline, watch))
    }

    /// Returns the number of the class of this name, and adds the class with this description if there is none.
    fn class_number(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyString>,
        description: &Bound<'_, PyAny>,
    ) -> PyResult<u32> {
        let (this, owner) = (self.inner()?, BufferOwner::default());
        let description = this.converters.value(description, &owner, 0)?;
        let key = this.converters.key(name.as_any(), &owner)?;
        this.run_checked(py, |store, open, deadline| {
            store.define_class(open, deadline, &key, &description)
        })
    }

    /// Returns True if other processes know the class of this number, because its transaction has been committed.
    fn has_class(&self, py: Python<'_>, number: u32) -> PyResult<bool> {
        self.inner()?
            .run_checked(py, |store, _, deadline| store.has_class(deadline, number))
    }

    /// Returns a dict of all classes, in the order of their numbers, with their descriptions.
    fn classes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let this = self.inner()?;
        let found = this.run_checked(py, |store, open, deadline| store.classes(open, deadline))?;
        this.to_python(py, found)
    }
}

/// A store that this process has open, which its handles and all proxies share.
pub struct OpenStore {
    /// The handle of the shared object that is open for as long as any handle of the store.
    pub(super) object: Py<SharedObject>,
    pub(crate) membership: Arc<StoreMembership>,
    pub(super) converters: Converters,
    /// The Python object of this store, which all its handles share.
    pub(super) opened: Py<PyAny>,
    pub(super) root: ContainerRef,
    /// The longest busy timeout that a handle was given, in nanoseconds.
    pub(super) busy_timeout: AtomicU64,
    /// Set as soon as the store is made.
    pub(super) store_ref: OnceLock<Py<StoreRef>>,
}

impl OpenStore {
    /// Returns the weak reference to this store.
    #[inline]
    pub(super) fn store_ref<'py>(&self, py: Python<'py>) -> &Bound<'py, StoreRef> {
        let store_ref = self.store_ref.get();
        store_ref
            .expect("it is set as soon as a store is made")
            .bind(py)
    }

    /// Returns the busy timeout in nanoseconds.
    pub(crate) fn busy_timeout(&self) -> u64 {
        self.busy_timeout.load(Relaxed) // Relaxed: under the GIL.
    }

    /// Returns the busy timeout of an operation that may move to a copy, in nanoseconds: at least 1.
    pub(super) fn wait_limit(&self) -> u64 {
        self.busy_timeout().max(1)
    }

    /// Returns the Python object of this store, which all its handles share.
    pub(crate) fn opened<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.opened.bind(py)
    }

    /// Converts a stored value to the object that programs see.
    #[inline]
    pub(super) fn to_python<'py>(
        &self,
        py: Python<'py>,
        found: StoredValue,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.converters
            .to_python(self.store_ref(py).as_any(), found)
    }

    /// Runs an operation on the store without a wait, and once more without the GIL if it has to wait: for at most the
    /// busy timeout. Returns the result, or the error of the contents. Raises the exception for a refused operation,
    /// and LocalProtocolError if the store is closed.
    #[inline]
    pub(super) fn run<R: Send>(
        &self,
        py: Python<'_>,
        operate: impl Fn(&ObjectStore, Option<&mut OpenTransaction>, u64) -> Result<R, StoreError>
        + Sync,
    ) -> PyResult<Result<R, StoreError>> {
        self.object.get().open(py)?;
        let owner = || current_owner(py).unwrap_or(0);
        let busy = match self.membership.with_store(owner, 0, &operate) {
            Ok(done) => return Ok(Ok(done)),
            Err(StoreRefused::Store(error)) => return Ok(Err(error)),
            Err(error) => error,
        };
        if !busy.is_busy() {
            return Err(self.refusal_error(py, busy));
        }
        self.run_detached(py, operate)
    }

    /// Runs an operation on the store without the GIL, and waits for at most the busy timeout: see [`run`](Self::run).
    pub(super) fn run_detached<R: Send>(
        &self,
        py: Python<'_>,
        operate: impl Fn(&ObjectStore, Option<&mut OpenTransaction>, u64) -> Result<R, StoreError>
        + Sync,
    ) -> PyResult<Result<R, StoreError>> {
        let owner = current_owner(py)?;
        let busy_timeout = self.wait_limit();
        let done = py.detach(|| self.membership.with_store(|| owner, busy_timeout, &operate));
        match done {
            Ok(done) => Ok(Ok(done)),
            Err(StoreRefused::Store(error)) => Ok(Err(error)),
            Err(error) => Err(self.refusal_error(py, error)),
        }
    }

    /// Runs an operation on the store. Returns the result, or raises the exception for any error.
    pub(super) fn run_checked<R: Send>(
        &self,
        py: Python<'_>,
        operate: impl Fn(&ObjectStore, Option<&mut OpenTransaction>, u64) -> Result<R, StoreError>
        + Sync,
    ) -> PyResult<R> {
        self.run(py, operate)?
            .map_err(|error| self.store_error(py, error))
    }

    /// Returns the exception for an operation that was refused.
    #[cold]
    pub(crate) fn refusal_error(&self, py: Python<'_>, error: StoreRefused) -> PyErr {
        error::refusal_error(py, &self.membership, error)
    }

    /// Returns the exception for an error of the contents.
    #[cold]
    pub(super) fn store_error(&self, py: Python<'_>, error: StoreError) -> PyErr {
        error::store_error(py, &self.membership, error)
    }

    /// Returns the exception of this class of `shmrpc.errors`; `text` continues the sentence that begins with the
    /// store's name.
    #[cold]
    pub(crate) fn named_error(&self, py: Python<'_>, class: &str, text: String) -> PyErr {
        error::named_error(py, &self.membership, class, text)
    }

    /// Returns true if a message waits. May itself wait until the store is free, for as long as the busy timeout, and
    /// does not release the GIL.
    pub(super) fn has_messages(&self) -> Result<bool, StoreRefused> {
        self.membership.with_store(
            || 0,
            self.wait_limit(),
            |store, _, deadline| store.has_messages(deadline),
        )
    }

    /// Waits in this thread, on behalf of the handle `object`, until `is_ready` returns true. Returns true; false after
    /// the timeout, None if waits were stopped. Calls `is_ready` without the GIL. Raises its error, but an error of the
    /// object only as `SharedObject::wait_in` does.
    pub(crate) fn wait_in(
        &self,
        py: Python<'_>,
        object: &SharedObject,
        set: usize,
        timeout: Option<f64>,
        mut is_ready: impl FnMut() -> Result<bool, StoreRefused> + Send,
    ) -> PyResult<Option<bool>> {
        let mut refusal = None;
        let waited = object.wait_in(py, set, timeout, |_| match is_ready() {
            Ok(is_ready) => Ok(is_ready),
            Err(StoreRefused::Object(error)) => Err(error),
            Err(other) => {
                refusal = Some(other);
                Ok(true)
            }
        });
        match refusal {
            Some(refusal) => Err(self.refusal_error(py, refusal)),
            None => waited,
        }
    }
}
