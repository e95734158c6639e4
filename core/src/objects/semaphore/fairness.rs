//! Reserved permits for members that have waited for long.
//!
//! A free permit goes to the first thread that tries, and a running thread tries before one that has to wake up. So a
//! thread that releases a permit and acquires it again at once gets it again, without end. Therefore a thread that was
//! woken too late for a permit, and has waited for long, requests a reservation. The next permit that is released is
//! then *reserved* for [`RESERVED`] nanoseconds: only threads that have waited for long acquire it. The permit is idle
//! while one of them wakes up, so a reservation is made at most once in a long wait.
//!
//! ```text
//!     0  until      u64   the end of the reservation, in nanoseconds of CLOCK_MONOTONIC; 0: there is none
//!     8  requested  u64   1: a thread has waited for long
//! ```
//!
//! Both are hints: no thread waits longer for them than until that time, whatever they hold, and a thread that finds
//! the time over clears them.

use crate::clock;
use crate::memory::mapping::SharedMapping;
use crate::sync::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;

/// The longest reservation, in nanoseconds: an event loop notices a wake-up only at the end of its iteration.
const RESERVED: u64 = 5_000_000;

/// The reservation of permits, as all members see it.
pub struct Fairness {
    mapping: Arc<SharedMapping>,
    at: usize,
}

// Relaxed, all of it: hints.
impl Fairness {
    /// Wraps the words at byte `at` of the memory.
    pub fn new(mapping: Arc<SharedMapping>, at: usize) -> Self {
        Fairness { mapping, at }
    }

    /// Returns the word of the end of the reservation.
    fn until(&self) -> &AtomicU64 {
        self.mapping.u64_at(self.at)
    }

    /// Returns the word of the request.
    fn requested(&self) -> &AtomicU64 {
        self.mapping.u64_at(self.at + 8)
    }

    /// Returns the time for which permits are still reserved; None if they are not. Clears a reservation that is over.
    #[inline]
    pub fn reserved_for(&self) -> Option<Duration> {
        match self.until().load(Relaxed) {
            0 => None,
            until => self.time_left(until),
        }
    }

    /// Returns the time until `until`. Clears the reservation and returns None if that time has passed or is too far
    /// away.
    #[cold]
    fn time_left(&self, until: u64) -> Option<Duration> {
        let left = until.saturating_sub(clock::now());
        if (1..=RESERVED).contains(&left) {
            return Some(Duration::from_nanos(left));
        }
        self.clear();
        None
    }

    /// Requests a reservation, for a thread that has waited for long and has found no permit.
    pub fn request(&self) {
        self.requested().store(1, Relaxed);
    }

    /// Ends the reservation, because a thread that has waited for long has a permit.
    pub fn clear(&self) {
        self.until().store(0, Relaxed);
        self.requested().store(0, Relaxed);
    }

    /// Reserves the permit that is about to be released, if a reservation is requested; the request stays until
    /// `clear`. Returns true if the permit is reserved.
    #[inline]
    pub fn reserve(&self) -> bool {
        let is_requested = self.requested().load(Relaxed) != 0;
        if is_requested {
            self.until().store(clock::now() + RESERVED, Relaxed);
        }
        is_requested
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
    fn a_permit_is_not_reserved_without_a_request() {
        let fairness = fairness();
        assert!(!fairness.reserve() && fairness.reserved_for().is_none());
        fairness.request();
        fairness.clear();
        assert!(!fairness.reserve() && fairness.reserved_for().is_none());
    }

    #[test]
    fn a_reservation_ends_after_its_time() {
        let fairness = fairness();
        fairness.request();
        assert!(fairness.reserve());
        let left = fairness.reserved_for().map_or(0, |left| left.as_nanos());
        assert!(left <= u128::from(RESERVED));
        sleep(Duration::from_nanos(RESERVED));
        assert!(fairness.reserved_for().is_none());
        assert!(!fairness.reserve(), "the request is forgotten");
    }

    #[test]
    fn a_time_that_is_not_near_is_no_reservation() {
        let fairness = fairness();
        for until in [1, clock::now() + 2 * RESERVED, u64::MAX] {
            fairness.until().store(until, Relaxed);
            assert!(fairness.reserved_for().is_none());
            assert_eq!(fairness.until().load(Relaxed), 0);
        }
    }
}
