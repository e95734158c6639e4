//! `WorkerProgress`: the progress of a pool's worker in its chunks of tasks.

use crate::pool::progress;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use std::os::fd::BorrowedFd;

/// The memory that a pool and one of its workers share: see [`progress`]. Methods raise IndexError for a slot or a
/// coroutine that a worker does not have.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct WorkerProgress(progress::Progress);

/// Returns the slot. Raises IndexError if a worker has no slot of this number.
fn check_slot(slot: usize) -> PyResult<usize> {
    if slot < progress::SLOTS {
        Ok(slot)
    } else {
        Err(PyIndexError::new_err(slot))
    }
}

/// Returns the number of a coroutine. Raises IndexError if a worker has no coroutine of this number.
fn check_coroutine(coroutine: usize) -> PyResult<usize> {
    if coroutine < progress::COROUTINES {
        Ok(coroutine)
    } else {
        Err(PyIndexError::new_err(coroutine))
    }
}

#[pymethods]
impl WorkerProgress {
    /// The maximum number of chunks that a worker has at a time.
    #[classattr]
    const SLOTS: usize = progress::SLOTS;
    /// The maximum number of coroutines that a worker has at a time.
    #[classattr]
    const COROUTINES: usize = progress::COROUTINES;
    /// Bytes of the memory.
    #[classattr]
    const SIZE: usize = progress::SIZE;

    /// Maps the memory, a file of `SIZE` bytes. Raises OSError if the memory cannot be mapped.
    #[new]
    fn new(file: i32) -> PyResult<Self> {
        // SAFETY: the caller keeps `file` open during the call; a closed one is an error.
        let file = unsafe { BorrowedFd::borrow_raw(file) };
        Ok(WorkerProgress(progress::Progress::new(file)?))
    }

    /// By the pool: announces a chunk of `count` tasks in this slot, none of which has begun.
    fn open(&self, slot: usize, count: u32) -> PyResult<()> {
        self.0.open(check_slot(slot)?, count);
        Ok(())
    }

    /// By the worker: begins the next task. Returns False if the chunk has ended.
    fn begin(&self, slot: usize) -> PyResult<bool> {
        Ok(self.0.begin(check_slot(slot)?))
    }

    /// By the pool: ends the chunk before task `keep`, or the first task that has not begun. Returns the new end.
    fn shorten(&self, slot: usize, keep: u32) -> PyResult<u32> {
        Ok(self.0.shorten(check_slot(slot)?, keep).limit)
    }

    /// Returns the number of tasks that have begun.
    fn count_begun(&self, slot: usize) -> PyResult<u32> {
        Ok(self.0.begun(check_slot(slot)?))
    }

    /// By the pool: requests a stop of the current task; the pool then sends a signal. Returns False if there is no
    /// task.
    fn stop(&self, slot: usize) -> PyResult<bool> {
        Ok(self.0.stop(check_slot(slot)?) != 0)
    }

    /// By the worker: returns True if the pool has requested a stop of the current task.
    fn is_stopped(&self, slot: usize) -> PyResult<bool> {
        Ok(self.0.is_stopped(check_slot(slot)?))
    }

    /// By the worker: records the duration of the last task.
    fn record_duration(&self, slot: usize, nanoseconds: u64) -> PyResult<()> {
        self.0.record_duration(check_slot(slot)?, nanoseconds);
        Ok(())
    }

    /// By the pool: returns the duration of the last task that the worker has recorded, in nanoseconds.
    fn last_duration(&self, slot: usize) -> PyResult<u64> {
        Ok(self.0.last_duration(check_slot(slot)?))
    }

    /// By the pool: announces a coroutine with this number, which has not begun.
    fn clear_coroutine(&self, coroutine: usize) -> PyResult<()> {
        self.0.clear_coroutine(check_coroutine(coroutine)?);
        Ok(())
    }

    /// By the worker: begins the coroutine. By the pool: takes the coroutine back. Returns False if the other side was
    /// first.
    fn take_coroutine(&self, coroutine: usize) -> PyResult<bool> {
        Ok(self.0.take_coroutine(check_coroutine(coroutine)?))
    }

    /// Returns True if the coroutine was begun, or taken back.
    fn is_coroutine_taken(&self, coroutine: usize) -> PyResult<bool> {
        Ok(self.0.is_coroutine_taken(check_coroutine(coroutine)?))
    }
}
