//! Permits for those who have waited for long.
//!
//! A permit that is free goes to whoever asks first, and whoever is awake asks before one that has to wake up. So one that
//! releases a permit and wants it again at once has it again, and that could go on for ever. Therefore one that was woken
//! in vain, and has waited for [`LONG`], says so. A permit that is released then is *kept* for [`KEPT`]: nobody takes it
//! but those that have waited for so long. That costs a permit's idleness while one wakes up, and so it happens to each of
//! them at most once in that time.
//!
//! ```text
//!     0  until  u64   until when permits are kept, in nanoseconds of CLOCK_MONOTONIC; 0: they are not
//!     8  wants  u64   1: somebody has waited for long
//! ```
//!
//! Both are hints: nobody waits longer for them than until that time, whatever stands there, and whoever finds it over
//! clears them.

use crate::clock;
use crate::memory::mapping::SharedMapping;
use crate::sync::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;

/// How long is long.
pub(super) const LONG: Duration = Duration::from_millis(20);
/// For how long a permit is kept at most, in nanoseconds: a loop hears that it was rung for once it has done its turn.
const KEPT: u64 = 5_000_000;

/// What members say of permits for those who have waited for long.
pub(super) struct Fairness {
    mapping: Arc<SharedMapping>,
    at: usize,
}

// Relaxed, all of it: hints.
impl Fairness {
    pub(super) fn new(mapping: Arc<SharedMapping>, at: usize) -> Self {
        Fairness { mapping, at }
    }

    fn until(&self) -> &AtomicU64 {
        self.mapping.u64_at(self.at)
    }

    fn wants(&self) -> &AtomicU64 {
        self.mapping.u64_at(self.at + 8)
    }

    /// For how long permits are kept for those who have waited for long, if they are.
    #[inline]
    pub(super) fn left(&self) -> Option<Duration> {
        match self.until().load(Relaxed) {
            0 => None,
            until => self.left_until(until),
        }
    }

    #[cold]
    fn left_until(&self, until: u64) -> Option<Duration> {
        let left = until.saturating_sub(clock::now());
        if (1..=KEPT).contains(&left) {
            return Some(Duration::from_nanos(left));
        }
        self.clear();
        None
    }

    /// Somebody has waited for long, and was woken in vain.
    pub(super) fn want(&self) {
        self.wants().store(1, Relaxed);
    }

    /// Whoever has waited for long has a permit, or does not want it any more.
    pub(super) fn clear(&self) {
        self.until().store(0, Relaxed);
        self.wants().store(0, Relaxed);
    }

    /// Whether somebody has waited for long. A permit is about to be free: it is kept then.
    #[inline]
    pub(super) fn keep(&self) -> bool {
        let is_wanted = self.wants().load(Relaxed) != 0;
        if is_wanted {
            self.until().store(clock::now() + KEPT, Relaxed);
        }
        is_wanted
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::testing::file_in_memory;
    use std::os::fd::AsFd;
    use std::thread::sleep;

    fn fairness() -> Fairness {
        let file = file_in_memory();
        file.set_len(4096).unwrap();
        let mapping = SharedMapping::new(file.as_fd(), 4096).unwrap();
        Fairness::new(Arc::new(mapping), 64)
    }

    #[test]
    fn what_nobody_wants_is_not_kept() {
        let fairness = fairness();
        assert!(!fairness.keep() && fairness.left().is_none());
        fairness.want();
        fairness.clear();
        assert!(!fairness.keep() && fairness.left().is_none());
    }

    #[test]
    fn what_is_kept_for_one_who_never_comes_is_free_after_a_while() {
        let fairness = fairness();
        fairness.want();
        assert!(fairness.keep());
        let left = fairness.left().map_or(0, |left| left.as_nanos());
        assert!(left <= u128::from(KEPT));
        sleep(Duration::from_nanos(KEPT));
        assert!(fairness.left().is_none());
        assert!(!fairness.keep(), "it was forgotten who wanted it");
    }

    #[test]
    fn a_time_that_cannot_be_is_none() {
        let fairness = fairness();
        for until in [1, clock::now() + 2 * KEPT, u64::MAX] {
            fairness.until().store(until, Relaxed);
            assert!(fairness.left().is_none());
            assert_eq!(fairness.until().load(Relaxed), 0);
        }
    }
}
