//! `ReturnedObjects`: objects that a queue or a topic has handed out and that reached no caller.

use crate::sync::lock;
use pyo3::prelude::*;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// Objects that were put back, because a signal handler raised before they reached their caller.
#[derive(Default)]
pub(super) struct ReturnedObjects {
    objects: Mutex<VecDeque<Py<PyAny>>>,
    /// True if there are any. Relaxed: the thread that sets the flag wakes the waiters afterwards.
    exist: AtomicBool,
}

impl ReturnedObjects {
    /// Returns true if there are any objects.
    #[inline]
    pub(super) fn exist(&self) -> bool {
        self.exist.load(Relaxed)
    }

    /// Returns the number of objects.
    pub(super) fn len(&self) -> usize {
        lock(&self.objects).len()
    }

    /// Removes and returns up to `max_items` objects.
    #[cold]
    pub(super) fn take<'py>(&self, py: Python<'py>, max_items: usize) -> Vec<Bound<'py, PyAny>> {
        let mut objects = lock(&self.objects);
        let count = max_items.min(objects.len());
        let taken = objects.drain(..count);
        let taken = taken.map(|object| object.into_bound(py)).collect();
        self.exist.store(!objects.is_empty(), Relaxed);
        taken
    }

    /// Puts objects back, before all others. The caller wakes the waiters.
    pub(super) fn put_back(&self, returned: Vec<Bound<'_, PyAny>>) {
        let mut objects = lock(&self.objects);
        for object in returned.into_iter().rev() {
            objects.push_front(object.unbind());
        }
        self.exist.store(!objects.is_empty(), Relaxed);
    }
}
