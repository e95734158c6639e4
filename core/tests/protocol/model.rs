//! Helpers of the models: threads of loom or of the machine, a waker, and plain memory.

use _core::ring::HeapMemory;
use _core::ring::frame::FrameReader;
#[cfg(loom)]
pub use loom::{
    sync::atomic::{AtomicU64, Ordering, fence},
    sync::{Arc, Condvar, Mutex},
    thread,
};
#[cfg(not(loom))]
pub use std::{
    sync::atomic::{AtomicU64, Ordering, fence},
    sync::{Arc, Condvar, Mutex},
    thread,
};

pub fn model(check: impl Fn() + Send + Sync + 'static) {
    model_within(3, check);
}

/// Run a model with this number of preemptions, unless LOOM_MAX_PREEMPTIONS sets another bound: with 4 it takes half a
/// minute, with 5 a few minutes.
#[cfg(not(loom))]
pub fn model_within(_preemptions: usize, check: impl Fn() + Send + Sync + 'static) {
    for _ in 0..2_000 {
        check();
    }
}

#[cfg(loom)]
pub fn model_within(preemptions: usize, check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    let tried = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = tried.clone();
    builder.check(move || {
        // Relaxed: all of loom's threads are one thread of the machine.
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        check();
    });
    let tried = tried.load(std::sync::atomic::Ordering::Relaxed);
    assert!(tried > 1, "only one interleaving was tried");
}

/// A ring that two threads share.
pub type Shared = std::sync::Arc<HeapMemory>;

/// A frame that was taken.
pub struct Frame {
    pub opcode: u32,
    pub id: u64,
    pub payload: Vec<u8>,
}

/// Take the next frame if it is there.
pub fn receive(reader: &mut FrameReader<Shared>) -> Option<Frame> {
    let header = reader.peek().unwrap()?;
    let mut payload = vec![0; header.len];
    reader.take(&mut payload);
    Some(Frame {
        opcode: header.opcode,
        id: header.id,
        payload,
    })
}

/// A waker like the kernel's: a wake-up before the sleep is not lost.
pub struct LoopWaker {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl LoopWaker {
    pub fn new() -> Self {
        LoopWaker {
            rung: Mutex::new(false),
            changed: Condvar::new(),
        }
    }

    pub fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }

    /// Loom reports a deadlock if the wake-up never comes.
    pub fn sleep(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// A number in plain memory, as in a lent block. Loom reports any two unordered accesses; on the machine's threads,
/// ThreadSanitizer does.
#[cfg(loom)]
pub struct Plain(loom::cell::UnsafeCell<u64>);
#[cfg(not(loom))]
pub struct Plain(std::cell::UnsafeCell<u64>);

// SAFETY: the claim that loom and ThreadSanitizer check: no thread reads while another writes.
unsafe impl Sync for Plain {}

#[cfg(loom)]
impl Plain {
    pub fn new() -> Self {
        Plain(loom::cell::UnsafeCell::new(0))
    }

    pub fn read(&self) -> u64 {
        // SAFETY: loom panics if this is concurrent with a write.
        self.0.with(|number| unsafe { *number })
    }

    pub fn write(&self, value: u64) {
        // SAFETY: loom panics if this is concurrent with another access.
        self.0.with_mut(|number| unsafe { *number = value });
    }
}

#[cfg(not(loom))]
impl Plain {
    pub fn new() -> Self {
        Plain(std::cell::UnsafeCell::new(0))
    }

    pub fn read(&self) -> u64 {
        // SAFETY: the claim of the tests: no thread writes meanwhile.
        unsafe { *self.0.get() }
    }

    pub fn write(&self, value: u64) {
        // SAFETY: the claim of the tests: no other thread accesses it meanwhile.
        unsafe { *self.0.get() = value };
    }
}
