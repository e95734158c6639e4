//! `CallIds`: numbers of a connection's calls.

use pyo3::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter from 1 on: each call of the counter returns the next number.
#[pyclass(frozen, module = "shmrpc._core")]
#[derive(Default)]
pub struct CallIds(AtomicU64);

impl CallIds {
    #[inline]
    /// Returns the next number.
    pub(crate) fn next(&self) -> u64 {
        // Relaxed: it shares nothing but the number itself.
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

#[pymethods]
impl CallIds {
    #[new]
    fn new() -> Self {
        CallIds::default()
    }

    fn __call__(&self) -> u64 {
        self.next()
    }
}
