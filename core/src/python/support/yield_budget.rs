//! `YieldBudget`: the time that a task may use before it yields to the event loop.

use crate::clock;
use crate::connection::channel::SLICE;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The number of checks for one read of the clock, which takes as long as a tenth of the work between two reads.
const CHECKS_PER_READ: u32 = 8;

/// The time that a task may use before it yields to the event loop. The budget is spent before the first `begin`.
#[pyclass(frozen, module = "shmrpc._core")]
#[derive(Default)]
pub struct YieldBudget {
    end: AtomicU64,
    checks: AtomicU32,
}

impl YieldBudget {
    /// Does what `is_spent` does, for work that takes less time than a read of the clock: reads the clock in one of
    /// [`CHECKS_PER_READ`] calls, and returns false in the other ones.
    #[inline]
    pub fn is_spent_sampled(&self) -> bool {
        let checks = self.checks.load(Relaxed);
        self.checks.store(checks.wrapping_add(1), Relaxed);
        checks % CHECKS_PER_READ == 0 && self.is_spent()
    }
}

#[pymethods]
impl YieldBudget {
    #[new]
    fn new() -> Self {
        YieldBudget::default()
    }

    /// Returns True if the task must yield to the event loop now.
    fn is_spent(&self) -> bool {
        // Relaxed, here and below: only the loop's thread writes; another thread that reads errs by one turn.
        clock::now() >= self.end.load(Relaxed)
    }

    /// Begins a new budget.
    fn begin(&self) {
        self.end.store(clock::now() + SLICE, Relaxed);
    }

    /// Ends the budget, because the task has yielded to the event loop: it counts as spent until the next `begin`.
    fn end(&self) {
        self.end.store(0, Relaxed);
    }
}
