//! `ReentrantLock`: a lock for the threads of this process, none of which waits for the lock.

use crate::sync::lock;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A lock that its thread can acquire again, for example in the handler of a signal.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct ReentrantLock(Arc<Mutex<LockState>>);

/// The thread that holds the lock, and how many times.
#[derive(Default)]
struct LockState {
    thread: usize,
    count: usize,
}

/// Returns a number for the calling thread that no other living thread has: the address of a variable of its own.
fn thread_number() -> usize {
    thread_local!(static MARKER: u8 = const { 0 });
    MARKER.with(|marker| std::ptr::from_ref(marker).addr())
}

#[pymethods]
impl ReentrantLock {
    #[new]
    fn new() -> Self {
        ReentrantLock(Arc::default())
    }

    /// Acquires the lock, and returns a guard that releases it. Returns None if another thread holds the lock.
    fn try_acquire(&self) -> Option<LockGuard> {
        let mut state = lock(&self.0);
        if state.count > 0 && state.thread != thread_number() {
            return None;
        }
        state.thread = thread_number();
        state.count += 1;
        Some(LockGuard {
            state: self.0.clone(),
            is_released: AtomicBool::new(false),
        })
    }
}

/// One acquisition of a lock.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct LockGuard {
    state: Arc<Mutex<LockState>>,
    is_released: AtomicBool,
}

#[pymethods]
impl LockGuard {
    /// Releases the lock. Idempotent.
    fn release(&self) {
        // Relaxed: the lock orders what it protects.
        if !self.is_released.swap(true, Ordering::Relaxed) {
            lock(&self.state).count -= 1;
        }
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.release();
    }
}
