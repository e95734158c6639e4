//! The sweeper: a thread that gives idle memory back to the system. One per process, alive while there are extents.

use crate::clock;
use crate::crash;
use crate::fork_guard::PerProcess;
use crate::sync::lock;
use std::sync::{Mutex, Weak};
use std::thread;
use std::time::Duration;

/// Idle time after which an extent is removed, in nanoseconds.
const PATIENCE: u64 = if cfg!(feature = "crashpoints") {
    20_000_000 // A test does not wait for long.
} else {
    5_000_000_000
};
/// Pause between two sweeps.
const PAUSE: Duration = Duration::from_millis(if cfg!(feature = "crashpoints") {
    10
} else {
    1000
});

/// An owner of memory that may become idle.
pub trait Swept: Send + Sync {
    /// Remove the memory that has been free for `patience` nanoseconds at `now`. Errors are ignored.
    fn sweep(&self, now: u64, patience: u64);
    /// Return false if there will be no memory to remove; it is then no longer swept.
    fn is_swept(&self) -> bool;
}

/// The owners of this process.
static WATCHED: PerProcess<Mutex<Vec<Weak<dyn Swept>>>> = PerProcess::empty();

/// Sweep the idle memory of `swept` from now on, in the background, until its `is_swept` returns false or it is
/// dropped. Without a thread for that, which is no error, the memory stays until the end of the connection.
pub fn watch(swept: Weak<dyn Swept>) {
    let Ok(mut all) = WATCHED.get().map(lock) else {
        return; // Without a page to know this process by nothing is given back before the connection ends.
    };
    all.push(swept);
    if all.len() == 1 {
        let thread = thread::Builder::new().name("shmrpc-sweeper".to_owned());
        // Without the thread, memory is removed only at the end of the connection.
        if thread.spawn(sweep_all).is_err() {
            all.clear();
        }
    }
}

/// Sweep all watched owners again and again, until none is left.
fn sweep_all() {
    let Ok(watched) = WATCHED.get() else {
        return;
    };
    loop {
        thread::sleep(PAUSE);
        crash::point!(SweepBegun);
        let now = clock::now();
        let all = lock(watched).clone();
        for swept in all.iter().filter_map(Weak::upgrade) {
            swept.sweep(now, PATIENCE);
        }
        let mut all = lock(watched);
        all.retain(|each| each.upgrade().is_some_and(|swept| swept.is_swept()));
        if all.is_empty() {
            return;
        }
    }
}
