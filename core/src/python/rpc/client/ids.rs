//! `Ids`: the numbers of a connection's calls.

use pyo3::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts up from 1: each call of it gives the next number.
#[pyclass(frozen, module = "shmrpc._core")]
#[derive(Default)]
pub struct Ids(AtomicU64);

impl Ids {
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        // Relaxed: nothing but the number itself is shared by it.
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

#[pymethods]
impl Ids {
    #[new]
    fn new() -> Self {
        Ids::default()
    }

    fn __call__(&self) -> u64 {
        self.next()
    }
}
