//! For how long a loop may go on with what never has to wait.

use crate::clock;
use crate::connection::channel::SLICE;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// So often the clock is looked at: a look takes as long as a tenth of what is done meanwhile.
const EACH: u32 = 8;

/// Until when a loop may go on without a turn. Before the first one begins, that is over.
#[pyclass(frozen, module = "shmrpc._core")]
#[derive(Default)]
pub struct Slice {
    end: AtomicU64,
    looks: AtomicU32,
}

impl Slice {
    /// `is_over` for what takes less time than a look at the clock: a few times in a row it is not.
    #[inline]
    pub fn is_over_by_now(&self) -> bool {
        let looks = self.looks.load(Relaxed);
        self.looks.store(looks.wrapping_add(1), Relaxed);
        looks % EACH == 0 && self.is_over()
    }
}

#[pymethods]
impl Slice {
    #[new]
    fn new() -> Self {
        Slice::default()
    }

    /// Whether the loop is to turn now.
    fn is_over(&self) -> bool {
        // Relaxed, here and below: the loop's thread alone writes; another one that looks errs by a turn.
        clock::now() >= self.end.load(Relaxed)
    }

    /// One begins; or it is over, since the loop has turned.
    fn set(&self, begins: bool) {
        let end = if begins { clock::now() + SLICE } else { 0 };
        self.end.store(end, Relaxed);
    }
}
