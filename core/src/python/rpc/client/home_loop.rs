//! `HomeLoop`: the event loop that a client belongs to.

use crate::sync::this_thread;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The event loop of a client, with a fast check that a call runs in this loop.
pub(crate) struct HomeLoop {
    event_loop: Py<PyAny>,
    thread: usize,
    /// asyncio's dictionary of running tasks by their loops; None where CPython has no such dictionary.
    tasks: Option<Py<PyDict>>,
    /// Raises the error for a call in another loop.
    check: Py<PyAny>,
}

impl HomeLoop {
    /// Returns the home loop of a client, which this thread runs: the fast check passes in this thread alone.
    pub(crate) fn new(py: Python<'_>, event_loop: Py<PyAny>, check: Py<PyAny>) -> PyResult<Self> {
        // A look-up of the running loop costs a system call before CPython 3.14, which has no such dictionary.
        let tasks = py.import("asyncio.tasks")?.getattr("_current_tasks").ok();
        Ok(HomeLoop {
            event_loop,
            thread: this_thread(),
            tasks: tasks.and_then(|tasks| tasks.cast_into().ok().map(Bound::unbind)),
            check,
        })
    }

    /// Raises LocalProtocolError if this code runs in another loop or thread.
    #[inline]
    pub(crate) fn check(&self, py: Python<'_>) -> PyResult<()> {
        if self.thread == this_thread()
            && let Some(tasks) = &self.tasks
            && tasks.bind(py).contains(&self.event_loop)?
        {
            return Ok(());
        }
        // No task of the loop runs here, but a program may drive a coroutine by hand.
        self.check.bind(py).call0().map(drop)
    }

    /// Visits the client's own references for the garbage collector; asyncio's dictionary of tasks is not among them.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.event_loop)?;
        visit.call(&self.check)
    }
}
