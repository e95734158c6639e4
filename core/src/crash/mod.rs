//! Crash points: places at which a test kills or stops a process. Empty without the feature `crashpoints`.
//!
//! A point lies between two steps of which a peer may have seen the first alone. With the feature, and in unit tests,
//! each point counts how often it is passed, and an armed one kills its process, as `kill -9` would, or stops it.
//! Without the feature the macro is empty, so that a release contains none of it.

/// Mark a crash point. Empty without the feature.
macro_rules! point {
    ($name:ident) => {
        #[cfg(any(test, feature = "crashpoints"))]
        crate::crash::pass(crate::crash::Point::$name);
    };
}

pub(crate) use point;

#[cfg(any(test, feature = "crashpoints"))]
mod points;

#[cfg(any(test, feature = "crashpoints"))]
pub use enabled::*;
#[cfg(any(test, feature = "crashpoints"))]
pub use points::*;

#[cfg(any(test, feature = "crashpoints"))]
mod enabled {
    use super::points::{NAMES, Point};
    use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

    /// Value for no armed point.
    const NONE: u64 = u64::MAX;

    static PASSED: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];
    static ARMED: AtomicU64 = AtomicU64::new(NONE);
    static LEFT: AtomicU64 = AtomicU64::new(0);
    static SIGNAL: AtomicI32 = AtomicI32::new(libc::SIGKILL);
    static OBITUARY: AtomicI32 = AtomicI32::new(-1);

    /// Count that a point is passed, and send the signal to this process if the point is armed and this is the armed
    /// time. Does not return from SIGKILL.
    pub(crate) fn pass(point: Point) {
        // Relaxed, here and below: they are counters, and the test arms before it goes on.
        PASSED[point as usize].fetch_add(1, Ordering::Relaxed);
        if ARMED.load(Ordering::Relaxed) == point as u64
            && LEFT.fetch_sub(1, Ordering::Relaxed) == 1
        {
            match SIGNAL.load(Ordering::Relaxed) {
                libc::SIGKILL => die(),
                // SAFETY: no memory is involved. The process continues after SIGCONT.
                other => drop(unsafe { libc::raise(other) }),
            }
        }
    }

    /// Arm a point by its number, in place of the one that was armed: the process gets `signal` once, when it passes
    /// the point for the `times`th time, at least 1, from now on. Before SIGKILL, and no other signal, it writes the
    /// time, in nanoseconds of CLOCK_MONOTONIC, as eight bytes to the descriptor `obituary`.
    pub fn arm(point: usize, times: u64, signal: i32, obituary: i32) {
        // Relaxed, all: see `pass`.
        LEFT.store(times, Ordering::Relaxed);
        SIGNAL.store(signal, Ordering::Relaxed);
        OBITUARY.store(obituary, Ordering::Relaxed);
        ARMED.store(point as u64, Ordering::Relaxed);
    }

    /// Return the number of times that each point was passed by this process, by the number of the point.
    #[cfg_attr(not(feature = "python"), allow(dead_code))]
    pub fn passed() -> Vec<u64> {
        // Relaxed: see `pass`.
        let counts = PASSED.iter().map(|count| count.load(Ordering::Relaxed));
        counts.collect()
    }

    /// Write the time to the obituary, and kill this process.
    fn die() -> ! {
        // Relaxed: see `pass`.
        let obituary = OBITUARY.load(Ordering::Relaxed);
        let now = crate::clock::now();
        // SAFETY: eight bytes of `now` are readable; an invalid descriptor is an error, which is ignored.
        unsafe { libc::write(obituary, (&raw const now).cast(), 8) };
        // SAFETY: no memory is involved.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        loop {
            std::thread::park(); // The signal comes before the call returns, but to another thread perhaps.
        }
    }
}
