//! The owner lock: one word that names the member that may change the memory now.
//!
//! ```text
//!   0                  free
//!   member's number    this member holds the lock
//!   with bit 31        a waiter sleeps; the holder wakes it on release
//!   with bit 30        the holder yields the lock to sleepers, or has yielded it
//! ```
//!
//! One exchange acquires the lock and another one releases it. The threads of one process exclude each other by the
//! same word: a mutex in front of it would cost as much again and has no deadline.
//!
//! A waiter spins briefly, then asks the kernel whether the holder is alive. If the holder is dead, the waiter takes
//! the lock over, because no other process would release it. If the holder is alive, the waiter sets bit 31 and sleeps
//! on the word, in slices, because a holder that dies wakes no waiter. A *stopped* holder keeps the lock; waiters fail
//! at their deadline.
//!
//! A holder that releases the lock and wants it again acquires it long before the waiter that it wakes. For small
//! transactions this is right: a wake-up takes as long as many of them. A waiter beside large transactions, or one that
//! has waited for long, sets bit 30: then the lock is free for a moment, and members that have not slept leave it to
//! those that have.
//!
//! A woken waiter cannot know whether others still sleep, so it acquires the lock with bit 31 set, at the cost of one
//! needless wake-up. If a woken waiter is killed, the wake-up is lost; the sleep slices of the others make up for it.

use super::{HeapError, Members};
use crate::crash;
use crate::sync::{AtomicU64, Ordering};

/// A waiter sleeps.
const SLEEPERS: u64 = 1 << 31;
/// The lock is reserved for waiters that have slept.
const FOR_SLEEPERS: u64 = 1 << 30;
/// The bits that do not belong to the holder's number.
const FLAGS: u64 = SLEEPERS | FOR_SLEEPERS;
/// The number of times a waiter spins before it asks whether the holder is alive: a few microseconds, many times the
/// length of a small transaction.
const MAX_SPINS: u32 = if cfg!(loom) { 1 } else { 64 };

/// A deadline that never passes. Deadlines are in nanoseconds of CLOCK_MONOTONIC.
pub const NEVER: u64 = u64::MAX;

/// Acquires the lock for this member until [`release`]. Returns true if the lock was taken over from a dead holder. The
/// caller must then read the log, since the last holder may have died within a transaction. Fails with
/// [`HeapError::Busy`] at the deadline, after a short spin if that has passed, or once `is_poisoned` returns true while
/// another member holds the lock; a free lock is acquired nevertheless, so the caller checks the poison again.
/// `changes` returns the number of times the lock has been held. Not re-entrant: a thread that holds the lock waits for
/// itself.
///
/// A lock that is reserved for sleepers counts as held, and `Busy` then has holder 0. A waiter that has slept takes it,
/// and any waiter at its deadline, but a deadline of 0 is refused.
#[inline]
pub(super) fn acquire<M: Members>(
    word: &AtomicU64,
    members: &M,
    deadline: u64,
    is_poisoned: impl Fn() -> bool,
    changes: impl Fn() -> u64,
) -> Result<bool, HeapError> {
    let self_id = members.self_id();
    // SeqCst: the changes of the last holder are visible, and the lock is acquired before the caller reads the poison.
    // Relaxed: a failed exchange is retried.
    let taken = word.compare_exchange(0, self_id, Ordering::SeqCst, Ordering::Relaxed);
    let taken_over = match taken {
        Ok(_) => false,
        Err(_) => wait(word, members, deadline, is_poisoned, changes)?,
    };
    crash::point!(LockAcquired);
    Ok(taken_over)
}

/// Waits for the lock and acquires it: the part of [`acquire`] for a lock that is held. Returns and fails as `acquire`
/// does.
#[cold]
fn wait<M: Members>(
    word: &AtomicU64,
    members: &M,
    deadline: u64,
    is_poisoned: impl Fn() -> bool,
    changes: impl Fn() -> u64,
) -> Result<bool, HeapError> {
    let self_id = members.self_id();
    for _ in 0..MAX_SPINS {
        pause();
        // Relaxed, and SeqCst when acquired: see `acquire`.
        if word.load(Ordering::Relaxed) == 0
            && word
                .compare_exchange(0, self_id, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
        {
            return Ok(false);
        }
    }
    let mut sleep = SlicedSleep::new(deadline);
    let before = changes();
    // Relaxed: the exchange below decides.
    let mut found = word.load(Ordering::Relaxed);
    loop {
        let holder = found & !FLAGS;
        // The kernel orders the death of a holder after its changes.
        let is_free = match holder {
            0 if found & FOR_SLEEPERS == 0 => true,
            // A waiter with deadline 0 is refused and comes again with a later one. At its deadline a waiter takes a
            // reserved lock, because the sleepers it was reserved for may have died.
            0 => sleep.has_slept() || (deadline > 0 && sleep.is_expired()),
            _ => holder != self_id && !members.is_alive(holder),
        };
        if !is_free && (sleep.is_expired() || is_poisoned()) {
            return Err(HeapError::Busy { holder });
        }
        let wanted = match is_free {
            true => self_id,
            false if sleep.wants_priority(changes().wrapping_sub(before)) => found | FOR_SLEEPERS,
            false => found,
        } | SLEEPERS;
        // SeqCst: see `acquire`. The kernel compares the word again before the thread sleeps.
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
            Err(_) if sleep.is_expired() => return Err(HeapError::Busy { holder }),
            Err(now) => found = now,
        }
    }
}

/// Returns the member that holds the lock now; 0 if none does. A hint.
pub(super) fn holder(word: &AtomicU64) -> u64 {
    // Relaxed: a hint.
    word.load(Ordering::Relaxed) & !FLAGS
}

/// Releases the lock, and wakes a sleeper. Returns the word found as the error if this member did not hold the lock: a
/// process has overwritten the word, which is free now.
#[inline]
pub(super) fn release<M: Members>(word: &AtomicU64, members: &M) -> Result<(), u64> {
    // SeqCst: the next holder sees the changes of this one, and this store is before the read of the poison in
    // `check_fenced`.
    let found = word.swap(0, Ordering::SeqCst);
    crash::point!(LockReleased);
    if found & SLEEPERS != 0 {
        if found & FOR_SLEEPERS != 0 {
            // Relaxed, both: the next holder sees all that the swap above released, because this exchange continues its
            // release sequence. If the exchange fails, another member has acquired the lock.
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

    /// The first sleep, in nanoseconds. Each sleep is twice as long as the last one.
    const FIRST_SLICE: u64 = 50_000;
    /// The longest sleep, in nanoseconds; after it the waiter asks again whether the holder is alive.
    const MAX_SLICE: u64 = 10_000_000;

    /// Pauses this thread briefly between two attempts.
    pub(super) fn pause() {
        std::hint::spin_loop();
    }

    /// The mean time that the lock is held, in nanoseconds, above which yielding it to a sleeper costs little: about
    /// the time of a wake-up.
    const LONG_HOLD: u64 = 30_000;
    /// The wait, in nanoseconds, after which a sleeper gets priority whatever it costs.
    const PRIORITY_AFTER: u64 = 10_000_000;

    /// A sleep in slices until a deadline.
    pub(super) struct SlicedSleep {
        deadline: u64,
        slice: u64,
        /// The time at which the first sleep began.
        since: Option<u64>,
    }

    impl SlicedSleep {
        /// Creates a sleep until this deadline, which has not begun.
        pub(super) fn new(deadline: u64) -> Self {
            SlicedSleep {
                deadline,
                slice: FIRST_SLICE,
                since: None,
            }
        }

        /// Returns true once the waiter has slept.
        pub(super) fn has_slept(&self) -> bool {
            self.since.is_some()
        }

        /// Returns true if others should leave the lock to this waiter. `held` is the number of times that others held
        /// it meanwhile.
        pub(super) fn wants_priority(&self, held: u64) -> bool {
            let enough = PRIORITY_AFTER.min(LONG_HOLD.saturating_mul(held.max(1)));
            self.since
                .is_some_and(|since| clock::now() - since > enough)
        }

        /// Returns true once the deadline has passed.
        pub(super) fn is_expired(&self) -> bool {
            clock::now() >= self.deadline
        }

        /// Sleeps until woken, for at most a slice, if the word still holds `value`. The next slice is twice as long.
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

    /// Wakes a sleeper.
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

    /// A model without deadline: yields to the other threads. The first sleep already counts as long.
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
        pub(super) fn is_expired(&self) -> bool {
            false
        }
        pub(super) fn sleep_on(&mut self, _word: &AtomicU64, _value: u64) {
            self.0 = true;
            pause();
        }
    }

    pub(super) fn wake(_word: &AtomicU64) {}
}
