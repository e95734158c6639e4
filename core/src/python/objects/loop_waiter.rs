//! `LoopWaiter`: the place of an event loop among those that wait for what a name has.

use crate::objects::error::ObjectError;
use crate::objects::membership::LoopSlot;
use crate::objects::object::Object;
use crate::python::objects::shared_object::failed;
use crate::sync::lock;
use crate::wait::wait_set::WaitSetError;
use pyo3::prelude::*;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex};

/// The place of an event loop, whose descriptor is readable once it was woken.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct LoopWaiter {
    sleeper: Mutex<Option<LoopSlot>>,
    descriptor: i32,
    /// Which wait set of the name it is in.
    set: usize,
    object: Arc<dyn Object>,
}

impl LoopWaiter {
    pub(crate) fn new(sleeper: LoopSlot, set: usize, object: Arc<dyn Object>) -> Self {
        LoopWaiter {
            descriptor: sleeper.as_fd().as_raw_fd(),
            sleeper: Mutex::new(Some(sleeper)),
            set,
            object,
        }
    }

    fn with(
        &self,
        py: Python<'_>,
        use_it: impl FnOnce(&mut LoopSlot) -> Result<(), WaitSetError>,
    ) -> PyResult<()> {
        let used = match &mut *lock(&self.sleeper) {
            _ if !self.object.membership().is_here() => Err(ObjectError::Forked),
            Some(sleeper) => use_it(sleeper)
                .map_err(|error| self.object.membership().slot_error(self.set, error)),
            None => Ok(()),
        };
        used.map_err(|error| failed(py, self.object.membership(), error))
    }
}

impl LoopWaiter {
    /// Lets the descriptor be readable once there is something, and at once if there is: `is_there` is asked after it was
    /// announced that the loop sleeps.
    pub(crate) fn arm(&self, py: Python<'_>, is_there: impl Fn() -> bool) -> PyResult<()> {
        self.with(py, |sleeper| {
            sleeper.withdraw()?;
            sleeper.announce()?;
            if is_there() {
                sleeper.ring();
            }
            Ok(())
        })
    }
}

#[pymethods]
impl LoopWaiter {
    pub(crate) fn fileno(&self) -> i32 {
        self.descriptor
    }

    /// Takes a place at the end of the line.
    pub(crate) fn draw_ticket(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |sleeper| {
            sleeper.draw_ticket();
            Ok(())
        })
    }

    /// Says that the loop is about to sleep: look once more afterwards.
    fn announce(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, LoopSlot::announce)
    }

    /// The loop is awake, and about to look.
    fn withdraw(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, LoopSlot::withdraw)
    }

    /// The loop waits no more: a wake-up that came meanwhile is handed on.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, LoopSlot::cancel)
    }

    /// Gives the place back. Again: nothing.
    pub(crate) fn close(&self) {
        let sleeper = lock(&self.sleeper).take();
        if !self.object.membership().is_here() {
            std::mem::forget(sleeper); // It is the parent's, as its doorbell is.
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
