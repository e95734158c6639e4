//! The lease: one word that says which member may change things now.
//!
//! ```text
//!   0                  nobody
//!   member's number    it holds the lease
//!   with bit 31        and somebody sleeps, whom it wakes when it gives the lease back
//!   with bit 30        it leaves the lease to those that sleep, or has left it to them
//! ```
//!
//! It is taken by one exchange, and given back by another. The threads of one process exclude each other by the same
//! word: a mutex before it would cost as much again, and has no deadline.
//!
//! A waiter looks again for a moment, then asks whether the holder lives. If not, the waiter takes over: nobody else
//! gives back what a dead one held. If it does, the waiter sets the bit, and sleeps on the word; in slices, since one
//! that dies wakes nobody. What a *stopped* process holds it keeps, and others end at their deadline.
//!
//! Whoever gives the lease back and wants it again has it long before the one that it wakes. With small transactions that is
//! as it should be: a wake-up takes as long as many of them. One that waits beside large ones, or for long, sets bit 30: then
//! the lease is nobody's for a moment, and those that have not slept for it leave it to those that have.
//!
//! Whoever was woken cannot know whether others still sleep, and so takes the lease with the bit set: that costs one
//! wake-up in vain. One that is killed after it was woken has taken a wake-up along; the others' slices make up for it.

use super::{HeapError, Members};
use crate::crash;
use crate::sync::{AtomicU64, Ordering};

/// Somebody sleeps.
const SLEEPERS: u64 = 1 << 31;
/// It is left to those that have slept.
const FOR_SLEEPERS: u64 = 1 << 30;
/// What is not the holder's number.
const FLAGS: u64 = SLEEPERS | FOR_SLEEPERS;
/// How often a waiter looks before it asks whether the holder lives: a few microseconds, many times what a small
/// transaction takes.
const MAX_SPINS: u32 = if cfg!(loom) { 1 } else { 64 };

/// A deadline that never comes. Deadlines are in nanoseconds of CLOCK_MONOTONIC.
pub const NEVER: u64 = u64::MAX;

/// Takes the lease for `me` until [`give_back`]. The caller looks at the entries next: the last holder may have
/// died. Whether it is known to have. `is_ended`: nobody is to wait for it any more. `changes`: how often it was held so
/// far.
#[inline]
pub(super) fn acquire<M: Members>(
    word: &AtomicU64,
    members: &M,
    deadline: u64,
    is_poisoned: impl Fn() -> bool,
    changes: impl Fn() -> u64,
) -> Result<bool, HeapError> {
    let me = members.self_id();
    // SeqCst: what the last holder has changed is seen, and the lease is ours before the caller looks for a mark. Relaxed: a
    // failure is looked at again.
    let taken = word.compare_exchange(0, me, Ordering::SeqCst, Ordering::Relaxed);
    let taken_over = match taken {
        Ok(_) => false,
        Err(_) => wait(word, members, deadline, is_poisoned, changes)?,
    };
    crash::point!(LockAcquired);
    Ok(taken_over)
}

#[cold]
fn wait<M: Members>(
    word: &AtomicU64,
    members: &M,
    deadline: u64,
    is_poisoned: impl Fn() -> bool,
    changes: impl Fn() -> u64,
) -> Result<bool, HeapError> {
    let me = members.self_id();
    for _ in 0..MAX_SPINS {
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
    let mut sleep = SlicedSleep::new(deadline);
    let before = changes();
    // Relaxed: what counts is what the exchange finds.
    let mut found = word.load(Ordering::Relaxed);
    loop {
        let holder = found & !FLAGS;
        // That a holder is dead, and what it did before, is ordered by the kernel.
        let is_free = match holder {
            0 if found & FOR_SLEEPERS == 0 => true,
            // One that may not wait at all is refused, and comes again with a deadline. At that the lease is left to nobody:
            // those who were to have it may have died.
            0 => sleep.has_slept() || (deadline > 0 && sleep.is_over()),
            _ => holder != me && !members.is_alive(holder),
        };
        if !is_free && (sleep.is_over() || is_poisoned()) {
            return Err(HeapError::Busy { holder });
        }
        let wanted = match is_free {
            true => me,
            false if sleep.wants_priority(changes().wrapping_sub(before)) => found | FOR_SLEEPERS,
            false => found,
        } | SLEEPERS;
        // SeqCst: see `take`. The kernel looks at the word once more before we sleep.
        match word.compare_exchange(found, wanted, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) if is_free => {
                crash::point!(LockTakenOver);
                return Ok(holder != 0);
            }
            Ok(_) => {
                crash::point!(LockAwaited);
                sleep.sleep_on(word, wanted);
                found = word.load(Ordering::Relaxed);
            }
            Err(_) if sleep.is_over() => return Err(HeapError::Busy { holder }),
            Err(now) => found = now,
        }
    }
}

/// The member that has the lease just now.
pub(super) fn holder(word: &AtomicU64) -> u64 {
    // Relaxed: a look.
    word.load(Ordering::Relaxed) & !FLAGS
}

/// Gives the lease back. What was found in its place if that was not ours: somebody has written over it.
#[inline]
pub(super) fn release<M: Members>(word: &AtomicU64, members: &M) -> Result<(), u64> {
    // SeqCst: the next holder sees what we have changed, and it is before our look for a mark in `check_fenced`.
    let found = word.swap(0, Ordering::SeqCst);
    crash::point!(LockReleased);
    if found & SLEEPERS != 0 {
        if found & FOR_SLEEPERS != 0 {
            // Relaxed, both: the next holder sees what the exchange above has released, since this continues it. If it
            // fails, somebody has come meanwhile.
            let _ = word.compare_exchange(0, FOR_SLEEPERS, Ordering::Relaxed, Ordering::Relaxed);
        }
        wake(word);
    }
    if found & !FLAGS == members.self_id() {
        return Ok(());
    }
    Err(found)
}

#[cfg(not(loom))]
use asleep::{SlicedSleep, pause, wake};

#[cfg(not(loom))]
mod asleep {
    use crate::clock;
    use crate::sync::AtomicU64;
    use crate::wait::futex::{self, Reach};
    use std::time::Duration;

    /// The first sleep, in nanoseconds; each is twice as long as the last.
    const FIRST_SLICE: u64 = 50_000;
    /// The longest one: after so long we ask again whether the holder lives.
    const MAX_SLICE: u64 = 10_000_000;

    pub(super) fn pause() {
        std::hint::spin_loop();
    }

    /// How long the lease is held, in nanoseconds, if leaving it to a sleeper costs little beside that: about as long as it
    /// takes to wake one.
    const LONG_HOLD: u64 = 30_000;
    /// For how long one waits, in nanoseconds, until it comes before others whatever that costs.
    const PRIORITY_AFTER: u64 = 10_000_000;

    /// Slices of sleep, until a deadline.
    pub(super) struct SlicedSleep {
        deadline: u64,
        slice: u64,
        /// When the first one began.
        since: Option<u64>,
    }

    impl SlicedSleep {
        pub(super) fn new(deadline: u64) -> Self {
            SlicedSleep {
                deadline,
                slice: FIRST_SLICE,
                since: None,
            }
        }

        pub(super) fn has_slept(&self) -> bool {
            self.since.is_some()
        }

        /// Whether others are to leave the lease to us; it was held so often meanwhile.
        pub(super) fn wants_priority(&self, held: u64) -> bool {
            let enough = PRIORITY_AFTER.min(LONG_HOLD.saturating_mul(held.max(1)));
            self.since
                .is_some_and(|since| clock::now() - since > enough)
        }

        pub(super) fn is_over(&self) -> bool {
            clock::now() >= self.deadline
        }

        /// Sleeps for a slice if the word still holds `value`.
        pub(super) fn sleep_on(&mut self, word: &AtomicU64, value: u64) {
            let now = clock::now();
            self.since.get_or_insert(now);
            let left = self.deadline.saturating_sub(now);
            let slice = Duration::from_nanos(self.slice.min(left));
            let half = futex::low_half(word.as_ptr());
            futex::wait(half, value as u32, slice, Reach::Host);
            self.slice = (2 * self.slice).min(MAX_SLICE);
        }
    }

    #[cold]
    pub(super) fn wake(word: &AtomicU64) {
        futex::wake(futex::low_half(word.as_ptr()), Reach::Host);
    }
}

#[cfg(loom)]
use modelled::{SlicedSleep, pause, wake};

#[cfg(loom)]
mod modelled {
    use crate::sync::AtomicU64;

    pub(super) fn pause() {
        loom::thread::yield_now();
    }

    /// Lets the others go on, without a deadline. The first time was too long.
    pub(super) struct SlicedSleep(bool);

    impl SlicedSleep {
        pub(super) fn new(_deadline: u64) -> Self {
            SlicedSleep(false)
        }
        pub(super) fn has_slept(&self) -> bool {
            self.0
        }
        pub(super) fn wants_priority(&self, _held: u64) -> bool {
            self.0
        }
        pub(super) fn is_over(&self) -> bool {
            false
        }
        pub(super) fn sleep_on(&mut self, _word: &AtomicU64, _value: u64) {
            self.0 = true;
            pause();
        }
    }

    pub(super) fn wake(_word: &AtomicU64) {}
}
