//! `Claim`: a program's handle of an item that this process has claimed.

use crate::python::codec::values::Values;
use crate::python::objects::queues::claimed_item::ClaimedItem;
use crate::python::objects::shared_object::SharedObject;
use crate::queue::{self, ClaimEnd};
use crate::sync::lock;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex};

/// An item of a queue that this process has claimed: no other process gets it until the claim ends.
///
/// `acknowledge` and `nack` return False if the claim had ended.
#[pyclass(frozen, weakref, module = "shmrpc._core")]
pub struct Claim {
    /// Keeps this process a member for as long as the claim lives.
    _queue: Py<SharedObject>,
    values: Arc<Values>,
    claim: queue::Claim,
    /// None once the claim has ended. Views of the item then keep its memory.
    item: Mutex<Option<Arc<ClaimedItem>>>,
    value: Mutex<Option<Py<PyAny>>>,
}

impl Claim {
    pub(crate) fn new(queue: Py<SharedObject>, values: Arc<Values>, item: ClaimedItem) -> Self {
        Claim {
            _queue: queue,
            values,
            claim: item.claim(),
            item: Mutex::new(Some(Arc::new(item))),
            value: Mutex::new(None),
        }
    }

    /// Returns the item. Raises ValueError once the claim has ended.
    fn item(&self) -> PyResult<Arc<ClaimedItem>> {
        let item = lock(&self.item).clone();
        item.ok_or_else(|| PyValueError::new_err("the claim has ended"))
    }

    /// Drops the kept value, and ends the claim by a call of `end`, whose error leaves the claim. Returns false if the
    /// claim had ended.
    fn end(
        &self,
        py: Python<'_>,
        end: impl FnOnce(&Arc<ClaimedItem>) -> PyResult<bool>,
    ) -> PyResult<bool> {
        let value = lock(&self.value).take();
        drop(value); // Not under the lock, because a destructor may run any code.
        let Some(item) = lock(&self.item).clone() else {
            return Ok(false);
        };
        let has_ended = end(&item)?;
        let own = lock(&self.item).take();
        py.detach(|| drop((own, item)));
        Ok(has_ended)
    }
}

#[pymethods]
impl Claim {
    /// The value, which is read at the first use and kept until the claim ends. Raises ValueError once the claim has
    /// ended, and the error of an item that cannot be read.
    #[getter]
    fn value<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if let Some(value) = &*lock(&self.value) {
            return Ok(value.bind(py).clone());
        }
        let read = self.item()?.read_in_place(py, &self.values)?;
        // Another thread may have read it first. The own value is then dropped after the lock is released, because a
        // destructor may run any code.
        let value = lock(&self.value)
            .get_or_insert_with(|| read.clone().unbind())
            .clone_ref(py);
        Ok(value.into_bound(py))
    }

    /// The number of deliveries of the item, including this one.
    #[getter]
    fn deliveries(&self) -> u64 {
        self.claim.deliveries
    }

    /// The position of the item among all items ever put, from 0 on.
    #[getter]
    fn number(&self) -> u64 {
        self.claim.number
    }

    /// True if the claim has not ended, as far as this process knows.
    #[getter]
    fn is_held(&self) -> bool {
        let item = lock(&self.item);
        item.as_ref().is_some_and(|item| item.is_claimed())
    }

    /// Ends the claim, because the item is done. Views of the item stay readable. Returns False if the claim had ended.
    fn acknowledge(&self, py: Python<'_>) -> PyResult<bool> {
        // One reference is the claim's and one is that of `end`; any others are views.
        self.end(py, |item| {
            let keeps_memory = Arc::strong_count(item) > 2;
            item.acknowledge(py, ClaimEnd::Done, keeps_memory)
        })
    }

    /// Ends the claim, and puts the item back at the head of the queue. Returns False if the claim had ended.
    fn nack(&self, py: Python<'_>) -> PyResult<bool> {
        self.end(py, |item| item.nack(py))
    }
}
