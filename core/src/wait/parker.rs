//! A thread that sleeps until another thread of this process wakes it, or a signal comes.
//!
//! The standard library's condition variables and parkers sleep on after a signal. A thread of Python's must not: its
//! handler runs once we are back in Python.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const AWAKE: u32 = 0;
const WOKEN: u32 = 1;

/// Where one thread sleeps. A wake-up is kept for a thread that does not sleep at that moment.
#[derive(Debug, Default)]
pub struct Parker(AtomicU32);

impl Parker {
    /// Wakes the thread, or lets its next sleep end at once.
    pub fn wake(&self) {
        // Release: pairs with the Acquire of `sleep`; what is before the wake-up is seen after the sleep.
        if self.0.swap(WOKEN, Ordering::Release) == AWAKE {
            let word = self.0.as_ptr();
            // SAFETY: the kernel uses the address alone, and the word lives as long as `self`.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    word,
                    libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                    1,
                )
            };
        }
    }

    /// Sleeps until it is woken, a signal comes, or `limit` has passed. Takes the wake-up.
    pub fn sleep(&self, limit: Duration) {
        let limit = libc::timespec {
            tv_sec: limit.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(limit.subsec_nanos()),
        };
        let how = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word and `limit` live through the call; only this process has the word. The kernel sleeps only if
        // nobody has woken us before. Whatever ended the sleep, the caller looks again.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.0.as_ptr(),
                how,
                AWAKE,
                &raw const limit,
            )
        };
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
