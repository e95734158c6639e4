//! `YieldBudget`: the time for which a task may go on before it yields to the event loop.

use crate::clock;
use crate::connection::channel::SLICE;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Checks between two reads of the clock, each of which takes as long as a tenth of the work between.
const CHECKS_PER_READ: u32 = 8;

/// The end of the time for which a task may go on without a turn of the event loop. Before the first begin, it has
/// passed.
#[pyclass(frozen, module = "shmrpc._core")]
#[derive(Default)]
pub struct YieldBudget {
    end: AtomicU64,
    checks: AtomicU32,
}

impl YieldBudget {
    /// Does what `is_spent` does, for work that takes less time than a read of the clock: returns false a few times in
    /// a row without one.
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

    /// Returns True if the event loop has to turn now.
    fn is_spent(&self) -> bool {
        // Relaxed, here and below: only the loop's thread writes; another thread that reads errs by one turn.
        clock::now() >= self.end.load(Relaxed)
    }

    /// Begins a new budget.
    fn begin(&self) {
        self.end.store(clock::now() + SLICE, Relaxed);
    }

    /// Ends the budget, because the event loop has turned.
    fn end(&self) {
        self.end.store(0, Relaxed);
    }
}
