//! `WorkerProgress`: the state of a pool's worker in its chunks of tasks.

use crate::pool::progress;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use std::os::fd::BorrowedFd;

/// The memory that a pool and one of its workers share: see [`progress`].
#[pyclass(frozen, module = "shmrpc._core")]
pub struct WorkerProgress(progress::Progress);

fn check(slot: usize) -> PyResult<usize> {
    if slot < progress::SLOTS {
        Ok(slot)
    } else {
        Err(PyIndexError::new_err(slot))
    }
}

fn check_coroutine(coroutine: usize) -> PyResult<usize> {
    if coroutine < progress::COROUTINES {
        Ok(coroutine)
    } else {
        Err(PyIndexError::new_err(coroutine))
    }
}

#[pymethods]
impl WorkerProgress {
    /// Most chunks and coroutines that a worker has at a time, and bytes of the memory.
    #[classattr]
    const SLOTS: usize = progress::SLOTS;
    #[classattr]
    const COROUTINES: usize = progress::COROUTINES;
    #[classattr]
    const SIZE: usize = progress::SIZE;

    #[new]
    fn new(file: i32) -> PyResult<Self> {
        // SAFETY: the caller keeps `file` open during the call; a closed one is an error.
        let file = unsafe { BorrowedFd::borrow_raw(file) };
        Ok(WorkerProgress(progress::Progress::new(file)?))
    }

    fn open(&self, slot: usize, count: u32) -> PyResult<()> {
        self.0.open(check(slot)?, count);
        Ok(())
    }

    fn begin(&self, slot: usize) -> PyResult<bool> {
        Ok(self.0.begin(check(slot)?))
    }

    fn shorten(&self, slot: usize, keep: u32) -> PyResult<u32> {
        Ok(self.0.shorten(check(slot)?, keep).limit)
    }

    fn count_begun(&self, slot: usize) -> PyResult<u32> {
        Ok(self.0.begun(check(slot)?))
    }

    fn stop(&self, slot: usize) -> PyResult<bool> {
        Ok(self.0.stop(check(slot)?) != 0)
    }

    fn is_stopped(&self, slot: usize) -> PyResult<bool> {
        Ok(self.0.is_stopped(check(slot)?))
    }

    fn record_duration(&self, slot: usize, nanoseconds: u64) -> PyResult<()> {
        self.0.record_duration(check(slot)?, nanoseconds);
        Ok(())
    }

    fn last_duration(&self, slot: usize) -> PyResult<u64> {
        Ok(self.0.last_duration(check(slot)?))
    }

    fn clear_coroutine(&self, coroutine: usize) -> PyResult<()> {
        self.0.clear_coroutine(check_coroutine(coroutine)?);
        Ok(())
    }

    fn take_coroutine(&self, coroutine: usize) -> PyResult<bool> {
        Ok(self.0.take_coroutine(check_coroutine(coroutine)?))
    }

    fn is_coroutine_taken(&self, coroutine: usize) -> PyResult<bool> {
        Ok(self.0.is_coroutine_taken(check_coroutine(coroutine)?))
    }
}
