//! The right to spin for a permit instead of sleeping: one thread of all members has it, the others sleep.
//!
//! Where many threads want a lock that is held for moments, its holder and one spinning thread keep two CPUs busy. More
//! spinning threads would take the permit's cache line away from both, and each woken thread would run in the place of
//! one that has work to do. So a word holds the time until which a thread spins. Meanwhile others sleep at once, and a
//! release wakes no sleeper:
//!
//! ```text
//!   spinner                                 releaser
//!   word = until, unless another spins      permit = 0
//!   permit? take it                         fence(SeqCst)
//!   not found: word = 0                     a sleeper, and no spinner? wake one
//!   fence(SeqCst)
//!   permit? take it, or wake one
//! ```
//!
//! One of the two fences is first, so one side sees the other: either the releaser sees that the spinner has stopped,
//! or the spinner sees the permit. The spinner's second check is the one before a sleep, or the one in
//! [`pass_on`](super::waiting) if the wait ends otherwise.
//!
//! The word is a time by the clock of all processes, and counts for at most [`LONGEST_SPIN`]. So a thread that dies or
//! is stopped while it spins, or a corrupt word, keeps others from sleeping or waking no longer than that. If a thread
//! slept meanwhile, the watcher rechecks, as for a woken process that does not react.

use crate::clock;
use crate::sync::{AtomicU64, Ordering};

/// The longest spin, in nanoseconds.
pub const LONGEST_SPIN: u64 = 60_000;

/// Returns true if a thread of a member spins now.
#[inline]
pub fn has_spinner(word: &AtomicU64) -> bool {
    // Relaxed: ordered by the fence of the caller.
    let until = word.load(Ordering::Relaxed);
    until != 0 && is_in_future(until, clock::now())
}

/// Returns true if `until` is within [`LONGEST_SPIN`] after `now`.
fn is_in_future(until: u64, now: u64) -> bool {
    until.wrapping_sub(now).wrapping_sub(1) < LONGEST_SPIN
}

/// The right of this thread to spin, which is released when dropped.
pub struct SoleSpinner<'a> {
    word: &'a AtomicU64,
    until: u64,
}

impl<'a> SoleSpinner<'a> {
    /// Takes the right to spin until `until`, at most `LONGEST_SPIN` after `now`, both in nanoseconds of
    /// CLOCK_MONOTONIC. Returns None if another thread has the right, or takes it at the same time.
    pub fn begin(word: &'a AtomicU64, now: u64, until: u64) -> Option<Self> {
        // Relaxed, all: a thread that sees the word late wakes a sleeper, or spins as well.
        let found = word.load(Ordering::Relaxed);
        if is_in_future(found, now) {
            return None;
        }
        let begun = word.compare_exchange(found, until, Ordering::Relaxed, Ordering::Relaxed);
        begun.ok().map(|_| SoleSpinner { word, until })
    }
}

impl Drop for SoleSpinner<'_> {
    /// Gives the right back, unless its time was over and another thread has it.
    fn drop(&mut self) {
        // Relaxed: the fence before our last look orders it. It fails if our time was over, and another thread spins.
        let ours = self.until;
        let _ = (self.word).compare_exchange(ours, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_thread_spins_at_a_time() {
        let (word, now) = (AtomicU64::new(0), clock::now());
        let spinner = SoleSpinner::begin(&word, now, now + LONGEST_SPIN).unwrap();
        assert!(has_spinner(&word));
        assert!(SoleSpinner::begin(&word, now, now + 1).is_none());
        drop(spinner);
        assert!(!has_spinner(&word));
        assert!(SoleSpinner::begin(&word, now, now + 1).is_some());
    }

    #[test]
    fn a_spinner_whose_time_is_over_neither_blocks_nor_ends_the_next_one() {
        let (word, now) = (AtomicU64::new(0), clock::now());
        let stopped = SoleSpinner::begin(&word, now, now + 5).unwrap();
        let other = SoleSpinner::begin(&word, now + 5, now + LONGEST_SPIN).unwrap();
        drop(stopped);
        assert!(has_spinner(&word));
        drop(other);
        assert!(!has_spinner(&word));
    }

    #[test]
    fn a_word_that_is_no_near_future_time_is_ignored() {
        let now = clock::now();
        for corrupt in [
            1,
            now,
            now - 1,
            now + 1_000_000_000,
            u64::MAX,
            u64::MAX - LONGEST_SPIN,
        ] {
            let word = AtomicU64::new(corrupt);
            assert!(!has_spinner(&word), "{corrupt}");
            assert!(
                SoleSpinner::begin(&word, now, now + 1).is_some(),
                "{corrupt}"
            );
        }
    }
}
