//! Who looks for a permit instead of sleeping: one thread of all members, and the others sleep.
//!
//! Where many want a lock that is held for moments, its holder and one that looks keep two CPUs busy. More that look would
//! take the line of the permit away from both, and each that is woken would run in the place of one that has work to do.
//! So a word says until when somebody looks. Meanwhile others sleep at once, and whoever releases wakes nobody:
//!
//! ```text
//!   looks                                   releases
//!   word = until, if nobody looks           permit = 0
//!   permit? take it                         fence(SeqCst)
//!   in vain: word = 0                       somebody sleeps, and nobody looks? wake one
//!   fence(SeqCst)
//!   permit? take it, or wake one
//! ```
//!
//! Of the two fences one is first, so one of the two sides sees the other: either the releaser sees that nobody looks any
//! more, or whoever has looked sees the permit. The second look is that before a sleep, or that of [`super::membership`]'s
//! `hand_on` where a wait is given up.
//!
//! The word is a time by the clock of all processes, and believed for [`LONGEST`] at most. So whoever dies or is stopped
//! while it looks, or lies, keeps nobody from sleeping or waking for longer; if somebody slept meanwhile, the watcher sees
//! to it, as where somebody was woken and does not hear.

use crate::clock;
use crate::sync::{AtomicU64, Ordering};

/// The most nanoseconds for which somebody may look.
pub const LONGEST: u64 = 60_000;

/// Whether somebody looks now.
#[inline]
pub fn is_looked_for(word: &AtomicU64) -> bool {
    // Relaxed: ordered by the fence of the caller.
    let until = word.load(Ordering::Relaxed);
    until != 0 && is_to_come(until, clock::now())
}

fn is_to_come(until: u64, now: u64) -> bool {
    until.wrapping_sub(now).wrapping_sub(1) < LONGEST
}

/// We look. Dropped, we do so no more.
pub struct Looking<'a> {
    word: &'a AtomicU64,
    until: u64,
}

impl<'a> Looking<'a> {
    /// Says that we look until then; None if somebody else does.
    pub fn begin(word: &'a AtomicU64, now: u64, until: u64) -> Option<Self> {
        // Relaxed, all: whoever sees it late wakes somebody, or looks as well.
        let found = word.load(Ordering::Relaxed);
        if is_to_come(found, now) {
            return None;
        }
        let begun = word.compare_exchange(found, until, Ordering::Relaxed, Ordering::Relaxed);
        begun.ok().map(|_| Looking { word, until })
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        // Relaxed: the fence before our last look orders it. A failure: our time was over, and somebody else looks.
        let ours = self.until;
        let _ = (self.word).compare_exchange(ours, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_looks_at_a_time() {
        let (word, now) = (AtomicU64::new(0), clock::now());
        let looking = Looking::begin(&word, now, now + LONGEST).unwrap();
        assert!(is_looked_for(&word));
        assert!(Looking::begin(&word, now, now + 1).is_none());
        drop(looking);
        assert!(!is_looked_for(&word));
        assert!(Looking::begin(&word, now, now + 1).is_some());
    }

    #[test]
    fn whoever_is_late_keeps_nobody_from_looking_and_takes_no_turn_away() {
        let (word, now) = (AtomicU64::new(0), clock::now());
        let stopped = Looking::begin(&word, now, now + 5).unwrap();
        let other = Looking::begin(&word, now + 5, now + LONGEST).unwrap();
        drop(stopped);
        assert!(is_looked_for(&word));
        drop(other);
        assert!(!is_looked_for(&word));
    }

    #[test]
    fn no_time_that_cannot_be_is_believed() {
        let now = clock::now();
        for lie in [
            1,
            now,
            now - 1,
            now + 1_000_000_000,
            u64::MAX,
            u64::MAX - LONGEST,
        ] {
            let word = AtomicU64::new(lie);
            assert!(!is_looked_for(&word), "{lie}");
            assert!(Looking::begin(&word, now, now + 1).is_some(), "{lie}");
        }
    }
}
