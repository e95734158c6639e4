//! `Progress`: how far a worker of a pool is in its chunks of tasks.

use crate::pool::progress;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use std::os::fd::BorrowedFd;

/// The memory that a pool and one of its workers share: see [`progress`].
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Progress(progress::Progress);

fn check(slot: usize) -> PyResult<usize> {
    if slot < progress::SLOTS {
        Ok(slot)
    } else {
        Err(PyIndexError::new_err(slot))
    }
}

fn check_seat(seat: usize) -> PyResult<usize> {
    if seat < progress::COROUTINES {
        Ok(seat)
    } else {
        Err(PyIndexError::new_err(seat))
    }
}

#[pymethods]
impl Progress {
    /// Chunks and coroutines that a worker has at a time, and bytes of the memory.
    #[classattr]
    const SLOTS: usize = progress::SLOTS;
    #[classattr]
    const SEATS: usize = progress::COROUTINES;
    #[classattr]
    const SIZE: usize = progress::SIZE;

    #[new]
    fn new(file: i32) -> PyResult<Self> {
        // SAFETY: the caller keeps `file` open during the call; a closed one is an error.
        let file = unsafe { BorrowedFd::borrow_raw(file) };
        Ok(Progress(progress::Progress::new(file)?))
    }

    fn open(&self, slot: usize, count: u32) -> PyResult<()> {
        self.0.open(check(slot)?, count);
        Ok(())
    }

    fn begin(&self, slot: usize) -> PyResult<bool> {
        Ok(self.0.begin(check(slot)?))
    }

    fn take_back(&self, slot: usize, keep: u32) -> PyResult<u32> {
        Ok(self.0.shorten(check(slot)?, keep).limit)
    }

    fn begun(&self, slot: usize) -> PyResult<u32> {
        Ok(self.0.begun(check(slot)?))
    }

    fn stop(&self, slot: usize) -> PyResult<bool> {
        Ok(self.0.stop(check(slot)?) != 0)
    }

    fn is_stopped(&self, slot: usize) -> PyResult<bool> {
        Ok(self.0.is_stopped(check(slot)?))
    }

    fn took(&self, slot: usize, nanoseconds: u64) -> PyResult<()> {
        self.0.record_duration(check(slot)?, nanoseconds);
        Ok(())
    }

    fn time(&self, slot: usize) -> PyResult<u64> {
        Ok(self.0.last_duration(check(slot)?))
    }

    fn seat(&self, seat: usize) -> PyResult<()> {
        self.0.clear_coroutine(check_seat(seat)?);
        Ok(())
    }

    fn claim(&self, seat: usize) -> PyResult<bool> {
        Ok(self.0.take_coroutine(check_seat(seat)?))
    }

    fn is_claimed(&self, seat: usize) -> PyResult<bool> {
        Ok(self.0.is_coroutine_taken(check_seat(seat)?))
    }
}
