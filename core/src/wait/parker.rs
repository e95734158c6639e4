//! A parker: a thread sleeps until another thread of this process wakes it, or a signal comes.
//!
//! The standard library's condition variables and parkers continue to sleep after a signal. A Python thread must wake,
//! because the signal's handler runs in Python.

use crate::wait::futex::{self, Reach};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const AWAKE: u32 = 0;
const WOKEN: u32 = 1;

/// The sleep of one thread at a time. A wake-up is kept if the thread is awake; several count as one.
#[derive(Debug, Default)]
pub struct Parker(AtomicU32);

impl Parker {
    /// Wake the thread, or let its next sleep end at once.
    pub fn wake(&self) {
        // Release: pairs with the Acquire of `sleep`: what is before the wake-up is visible after the sleep.
        if self.0.swap(WOKEN, Ordering::Release) == AWAKE {
            futex::wake(self.0.as_ptr(), Reach::Process);
        }
    }

    /// Sleep until a wake-up or a signal comes or `limit` has passed, or spuriously: the caller checks again.
    /// Consumes the wake-up.
    pub fn sleep(&self, limit: Duration) {
        // The futex sleeps only if no wake-up is pending. Whatever ended the sleep, the caller checks again.
        futex::wait(self.0.as_ptr(), AWAKE, limit, Reach::Process);
        self.0.swap(AWAKE, Ordering::Acquire);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_wake_up_before_the_sleep_is_kept_and_taken_once() {
        let parker = Parker::default();
        parker.wake();
        parker.wake();
        parker.sleep(LONG);
        parker.sleep(Duration::from_millis(1));
    }

    #[test]
    fn a_sleeper_is_woken_each_time() {
        let (ours, theirs) = (Arc::new(Parker::default()), Arc::new(Parker::default()));
        let (other, back) = (theirs.clone(), ours.clone());
        let thread = thread::spawn(move || {
            for _ in 0..1000 {
                other.sleep(LONG);
                back.wake();
            }
        });
        for _ in 0..1000 {
            theirs.wake();
            ours.sleep(LONG);
        }
        thread.join().unwrap();
    }
}
