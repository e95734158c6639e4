//! `PendingItems`: encoded values that wait for room in a queue.

use crate::objects::error::ObjectError;
use crate::objects::queue::QueueMembership;
use crate::python::codec::items::EncodedItems;
use crate::python::objects::error::object_error;
use crate::python::objects::queues::waiting::{OWNER_LOCK_TIMEOUT, attempt, wait_to_put, was_put};
use crate::python::objects::shared_object::SharedObject;
use pyo3::prelude::*;
use std::sync::Arc;

/// Encoded values that wait for room in a queue.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct PendingItems {
    queue: Py<SharedObject>,
    membership: Arc<QueueMembership>,
    items: EncodedItems,
}

impl PendingItems {
    pub(crate) fn new(
        queue: Py<SharedObject>,
        membership: Arc<QueueMembership>,
        items: EncodedItems,
    ) -> Self {
        PendingItems {
            queue,
            membership,
            items,
        }
    }
}

/// Puts encoded items, all or none. Returns false if there is no room. Raises QueueShutDown, QueueBusy if a member
/// holds the owner lock for too long, and ValueError for items that can never fit.
pub(crate) fn put_items(
    py: Python<'_>,
    membership: &QueueMembership,
    items: &EncodedItems,
) -> PyResult<bool> {
    let put = |timeout| items.put(membership, timeout);
    let outcome = if items.is_long() {
        let outcome = py.detach(|| match put(0) {
            Err(ObjectError::Changing { .. }) => membership.with_lock_timeout(put),
            outcome => outcome,
        });
        outcome.map_err(|error| object_error(py, membership, error))?
    } else {
        attempt(py, membership, put)?
    };
    was_put(py, membership, outcome)
}

#[pymethods]
impl PendingItems {
    /// Puts the values: all, or none of them. Returns False if there is no room.
    fn put_now(&self, py: Python<'_>) -> PyResult<bool> {
        self.queue.get().open(py)?;
        put_items(py, &self.membership, &self.items)
    }

    /// Returns True if there may be room for the values: a hint.
    fn may_put(&self) -> bool {
        self.membership.may_put(self.items.count)
    }

    /// Waits in a thread until the values are put. Returns True; False after the timeout, None if waits were stopped.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<bool>> {
        let (membership, items) = (&*self.membership, &self.items);
        let queue = (self.queue.get(), membership);
        wait_to_put(py, queue, items.count, timeout, || {
            items.put(membership, OWNER_LOCK_TIMEOUT)
        })
    }

    /// The number of values.
    #[getter]
    fn count(&self) -> u64 {
        self.items.count
    }
}
