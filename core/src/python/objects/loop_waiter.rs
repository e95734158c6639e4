//! `LoopWaiter`: an event loop's slot in a wait set.

use crate::objects::error::ObjectError;
use crate::objects::membership::LoopSlot;
use crate::objects::object::Object;
use crate::python::objects::error::object_error;
use crate::sync::lock;
use crate::wait::wait_set::WaitSetError;
use pyo3::prelude::*;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex};

/// The slot of an event loop in a wait set. Its descriptor is readable once the loop was woken.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct LoopWaiter {
    sleeper: Mutex<Option<LoopSlot>>,
    descriptor: i32,
    /// The wait set of the object that the slot is in.
    set: usize,
    object: Arc<dyn Object>,
}

impl LoopWaiter {
    /// Takes over a slot in the wait set `set` of `object`, and frees it when this is dropped.
    pub(crate) fn new(sleeper: LoopSlot, set: usize, object: Arc<dyn Object>) -> Self {
        LoopWaiter {
            descriptor: sleeper.as_fd().as_raw_fd(),
            sleeper: Mutex::new(Some(sleeper)),
            set,
            object,
        }
    }

    /// Calls `operate` with the slot, or does nothing if the slot is freed. Raises an error in a forked child, and for
    /// a slot that another process has overwritten.
    fn with(
        &self,
        py: Python<'_>,
        operate: impl FnOnce(&mut LoopSlot) -> Result<(), WaitSetError>,
    ) -> PyResult<()> {
        let used = match &mut *lock(&self.sleeper) {
            _ if !self.object.membership().is_here() => Err(ObjectError::Forked),
            Some(sleeper) => operate(sleeper)
                .map_err(|error| self.object.membership().slot_error(self.set, error)),
            None => Ok(()),
        };
        used.map_err(|error| object_error(py, self.object.membership(), error))
    }
}

impl LoopWaiter {
    /// Withdraws an earlier announcement, announces that the loop is about to sleep, and makes the descriptor readable
    /// at once if `is_ready` then returns true.
    pub(crate) fn arm(&self, py: Python<'_>, is_ready: impl Fn() -> bool) -> PyResult<()> {
        self.with(py, |sleeper| {
            sleeper.withdraw()?;
            sleeper.announce()?;
            if is_ready() {
                sleeper.ring();
            }
            Ok(())
        })
    }
}

#[pymethods]
impl LoopWaiter {
    /// Returns the number of the descriptor, also after the slot was freed.
    pub(crate) fn fileno(&self) -> i32 {
        self.descriptor
    }

    /// Moves the loop to the end of the order in which sleepers are woken.
    pub(crate) fn draw_ticket(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |sleeper| {
            sleeper.draw_ticket();
            Ok(())
        })
    }

    /// Announces that the loop is about to sleep. The caller checks once more afterwards.
    fn announce(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, LoopSlot::announce)
    }

    /// Withdraws the announcement, because the loop is awake and about to check.
    fn withdraw(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, LoopSlot::withdraw)
    }

    /// Withdraws the announcement because the wait ends. If this slot was woken meanwhile, wakes the next sleeper
    /// instead.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, LoopSlot::cancel)
    }

    /// Frees the slot. Idempotent.
    pub(crate) fn close(&self) {
        let sleeper = lock(&self.sleeper).take();
        if !self.object.membership().is_here() {
            std::mem::forget(sleeper); // The slot belongs to the parent, as its doorbell does.
        }
    }
}

impl Drop for LoopWaiter {
    fn drop(&mut self) {
        self.close();
        if !self.object.membership().is_here() {
            std::mem::forget(self.object.clone());
        }
    }
}
