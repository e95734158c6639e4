//! Gives idle memory back: one thread for all arenas of the process, which lives while there are any extents.

use crate::clock;
use crate::crash;
use crate::sync::lock;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, Weak};
use std::thread;
use std::time::Duration;

/// For how long an extent has to be free before it is given back, in nanoseconds.
const PATIENCE: u64 = if cfg!(feature = "crashpoints") {
    20_000_000 // A test does not wait for long.
} else {
    5_000_000_000
};
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(if cfg!(feature = "crashpoints") {
    10
} else {
    1000
});

/// An owner of memory that may fall idle.
pub trait Swept: Send + Sync {
    /// Gives back what has been free for `patience` nanoseconds at `now`.
    fn sweep(&self, now: u64, patience: u64);
    /// Whether there may be anything to give back, now or later. If not, it is watched no more.
    fn is_swept(&self) -> bool;
}

struct Watched {
    /// The process that it belongs to: a forked child has no thread, and perhaps a lock held for ever.
    process: u32,
    swept: Mutex<Vec<Weak<dyn Swept>>>,
}

static WATCHED: AtomicPtr<Watched> = AtomicPtr::new(std::ptr::null_mut());

fn watched() -> &'static Watched {
    let process = std::process::id();
    loop {
        // Acquire: pairs with the exchange below; what it points to is complete.
        let current = WATCHED.load(Ordering::Acquire);
        // SAFETY: null, or leaked below and so valid for ever.
        if let Some(watched) = unsafe { current.as_ref() }
            && watched.process == process
        {
            return watched;
        }
        let fresh = Box::into_raw(Box::new(Watched {
            process,
            swept: Mutex::new(Vec::new()),
        }));
        // AcqRel: publishes what was made here, and sees what another thread has made.
        if WATCHED
            .compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            // SAFETY: made above, and no other thread has seen it.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

/// Gives the idle memory of `swept` back from now on, until it has none.
pub fn watch(swept: Weak<dyn Swept>) {
    let mut all = lock(&watched().swept);
    all.push(swept);
    if all.len() == 1 {
        let thread = thread::Builder::new().name("shmrpc-sweeper".to_owned());
        // Without a thread nothing is given back before the connection ends.
        if thread.spawn(sweep_all).is_err() {
            all.clear();
        }
    }
}

fn sweep_all() {
    let watched = watched();
    loop {
        thread::sleep(PAUSE);
        crash::point!(SweepBegun);
        let now = clock::now();
        let all = lock(&watched.swept).clone();
        for swept in all.iter().filter_map(Weak::upgrade) {
            swept.sweep(now, PATIENCE);
        }
        let mut all = lock(&watched.swept);
        all.retain(|each| each.upgrade().is_some_and(|swept| swept.is_swept()));
        if all.is_empty() {
            return;
        }
    }
}
