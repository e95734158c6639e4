//! The lease: one word that says which member may change things now.
//!
//! ```text
//!   0                  nobody
//!   member's number    it holds the lease
//!   with bit 31        and somebody sleeps, whom it wakes when it gives the lease back
//! ```
//!
//! It is taken by one exchange, and given back by another. The threads of one process exclude each other by the same
//! word: a mutex before it would cost as much again, and has no deadline.
//!
//! A waiter looks again for a moment, then asks whether the holder lives. If not, the waiter takes over: nobody else
//! gives back what a dead one held. If it does, the waiter sets the bit, and sleeps on the word; in slices, since one
//! that dies wakes nobody. What a *stopped* process holds it keeps, and others end at their deadline.
//!
//! Whoever was woken cannot know whether others still sleep, and so takes the lease with the bit set: that costs one
//! wake-up in vain. One that is killed after it was woken has taken a wake-up along; the others' slices make up for it.

use super::{Members, SharedError};
use crate::crash;
use crate::sync::{AtomicU64, Ordering};

/// Somebody sleeps.
const SLEEPERS: u64 = 1 << 31;
/// How often a waiter looks before it asks whether the holder lives: a few microseconds, many times what a small
/// transaction takes.
const LOOKS: u32 = if cfg!(loom) { 1 } else { 64 };

/// A deadline that never comes. Deadlines are in nanoseconds of CLOCK_MONOTONIC.
pub const NEVER: u64 = u64::MAX;

/// Takes the lease for `me` until [`give_back`]. The caller looks at the entries next: the last holder may have
/// died. Whether it is known to have. `is_ended`: nobody is to wait for it any more.
#[inline]
pub(super) fn take<M: Members>(
    word: &AtomicU64,
    members: &M,
    deadline: u64,
    is_ended: impl Fn() -> bool,
) -> Result<bool, SharedError> {
    let me = members.me();
    // SeqCst: what the last holder has changed is seen, and the lease is ours before the caller looks for a mark. Relaxed: a
    // failure is looked at again.
    let taken = word.compare_exchange(0, me, Ordering::SeqCst, Ordering::Relaxed);
    let taken_over = match taken {
        Ok(_) => false,
        Err(_) => wait(word, members, deadline, is_ended)?,
    };
    crash::point!(LeaseTaken);
    Ok(taken_over)
}

#[cold]
fn wait<M: Members>(
    word: &AtomicU64,
    members: &M,
    deadline: u64,
    is_ended: impl Fn() -> bool,
) -> Result<bool, SharedError> {
    let me = members.me();
    for _ in 0..LOOKS {
        pause();
        // Relaxed, and SeqCst if it is taken: see `take`.
        if word.load(Ordering::Relaxed) == 0
            && word
                .compare_exchange(0, me, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
        {
            return Ok(false);
        }
    }
    let mut sleep = Sleep::new(deadline);
    // Relaxed: what counts is what the exchange finds.
    let mut found = word.load(Ordering::Relaxed);
    loop {
        let holder = found & !SLEEPERS;
        // That a holder is dead, and what it did before, is ordered by the kernel.
        let is_free = holder == 0 || (holder != me && !members.lives(holder));
        if !is_free && (sleep.is_over() || is_ended()) {
            return Err(SharedError::Busy { holder });
        }
        let wanted = if is_free { me } else { found } | SLEEPERS;
        // SeqCst: see `take`. The kernel looks at the word once more before we sleep.
        match word.compare_exchange(found, wanted, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) if is_free => {
                crash::point!(LeaseTakenOver);
                return Ok(holder != 0);
            }
            Ok(_) => {
                crash::point!(LeaseAwaited);
                sleep.on(word, wanted);
                found = word.load(Ordering::Relaxed);
            }
            Err(_) if sleep.is_over() => return Err(SharedError::Busy { holder }),
            Err(now) => found = now,
        }
    }
}

/// The member that has the lease just now.
pub(super) fn holder(word: &AtomicU64) -> u64 {
    // Relaxed: a look.
    word.load(Ordering::Relaxed) & !SLEEPERS
}

/// Gives the lease back. What was found in its place if that was not ours: somebody has written over it.
#[inline]
pub(super) fn give_back<M: Members>(word: &AtomicU64, members: &M) -> Result<(), u64> {
    // SeqCst: the next holder sees what we have changed, and it is before our look for a mark in `check_fenced`.
    let found = word.swap(0, Ordering::SeqCst);
    crash::point!(LeaseGivenBack);
    if found & SLEEPERS != 0 {
        wake(word);
    }
    if found & !SLEEPERS == members.me() {
        return Ok(());
    }
    Err(found)
}

#[cfg(not(loom))]
use asleep::{Sleep, pause, wake};

#[cfg(not(loom))]
mod asleep {
    use crate::clock;
    use crate::sync::AtomicU64;
    use crate::wait::futex::{self, Reach};
    use std::time::Duration;

    /// The first sleep, in nanoseconds; each is twice as long as the last.
    const FIRST: u64 = 50_000;
    /// The longest one: after so long we ask again whether the holder lives.
    const LONGEST: u64 = 10_000_000;

    pub(super) fn pause() {
        std::hint::spin_loop();
    }

    /// Slices of sleep, until a deadline.
    pub(super) struct Sleep {
        deadline: u64,
        slice: u64,
    }

    impl Sleep {
        pub(super) fn new(deadline: u64) -> Self {
            Sleep {
                deadline,
                slice: FIRST,
            }
        }

        pub(super) fn is_over(&self) -> bool {
            clock::now() >= self.deadline
        }

        /// Sleeps for a slice if the word still holds `value`.
        pub(super) fn on(&mut self, word: &AtomicU64, value: u64) {
            let left = self.deadline.saturating_sub(clock::now());
            let slice = Duration::from_nanos(self.slice.min(left));
            let half = futex::low_half(word.as_ptr());
            futex::wait(half, value as u32, slice, Reach::Host);
            self.slice = (2 * self.slice).min(LONGEST);
        }
    }

    #[cold]
    pub(super) fn wake(word: &AtomicU64) {
        futex::wake(futex::low_half(word.as_ptr()), Reach::Host);
    }
}

#[cfg(loom)]
use modelled::{Sleep, pause, wake};

#[cfg(loom)]
mod modelled {
    use crate::sync::AtomicU64;

    pub(super) fn pause() {
        loom::thread::yield_now();
    }

    /// Lets the others go on, without a deadline.
    pub(super) struct Sleep;

    impl Sleep {
        pub(super) fn new(_deadline: u64) -> Self {
            Sleep
        }
        pub(super) fn is_over(&self) -> bool {
            false
        }
        pub(super) fn on(&mut self, _word: &AtomicU64, _value: u64) {
            pause();
        }
    }

    pub(super) fn wake(_word: &AtomicU64) {}
}
