//! `Turns`: whose turn it is among the threads of this process.

use crate::sync::lock;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Whose turn it is to do what one thread does at a time. A thread may come again, as the handler of a signal does.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Turns(Arc<Mutex<Held>>);

/// The thread whose turn it is, and how often it has it.
#[derive(Default)]
struct Held {
    thread: usize,
    times: usize,
}

/// A number for the calling thread that no other living one has: where one of its variables lies.
fn thread_number() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

#[pymethods]
impl Turns {
    #[new]
    fn new() -> Self {
        Turns(Arc::default())
    }

    /// The turn, until it is ended or goes; None if another thread has it.
    fn take(&self) -> Option<Turn> {
        let mut held = lock(&self.0);
        if held.times > 0 && held.thread != thread_number() {
            return None;
        }
        held.thread = thread_number();
        held.times += 1;
        Some(Turn {
            held: self.0.clone(),
            ended: AtomicBool::new(false),
        })
    }
}

/// A turn that a thread has.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Turn {
    held: Arc<Mutex<Held>>,
    ended: AtomicBool,
}

#[pymethods]
impl Turn {
    /// It is somebody else's. Again: nothing.
    fn end(&self) {
        // Relaxed: the lock orders what the turn is for.
        if !self.ended.swap(true, Ordering::Relaxed) {
            lock(&self.held).times -= 1;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.end();
    }
}
