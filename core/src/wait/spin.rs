//! Whether it pays to look again for a while before sleeping.
//!
//! A wait that ends within what a sleep would cost is better spun through; any
//! other is better slept through. Nobody knows beforehand, so each waiter keeps a
//! moving average of the gaps between messages and spins only while that is
//! shorter than its limit. One long pause does not end a hot phase, since what a
//! single gap can add is bounded; a steady slow rhythm does, after a few messages.

use crate::clock;
use std::sync::OnceLock;

/// A new gap counts for one part in this many.
const WEIGHT: u64 = 8;
/// A gap counts for at most this many limits, so that old pauses are soon forgotten.
const CLAMP: u64 = 4;

/// The judgement of one waiter.
#[derive(Clone, Debug)]
pub struct Spin {
    /// The longest a wait may spin, in nanoseconds. 0: never.
    limit: u64,
    /// The moving average of the gaps, in nanoseconds.
    average: u64,
}

impl Spin {
    /// Spins for up to `limit` nanoseconds at a time; never where only one CPU is usable.
    pub fn new(limit: u64) -> Self {
        let limit = if usable_cpus() > 1 { limit } else { 0 };
        Spin { limit, average: 0 }
    }

    /// How long the next wait may spin, in nanoseconds.
    #[inline]
    pub fn budget(&self) -> u64 {
        if self.average < self.limit {
            self.limit
        } else {
            0
        }
    }

    /// How long it pays to wait for the next piece of something that moves, in nanoseconds.
    #[inline]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// A message came `gap` nanoseconds after the one before, or after we began to wait for it.
    #[inline]
    pub fn record(&mut self, gap: u64) {
        let gap = gap.min(self.limit * CLAMP);
        self.average = (self.average * (WEIGHT - 1) + gap) / WEIGHT;
    }
}

/// After this much spinning, in nanoseconds, the peer is probably not running: our CPU may be
/// what it wants.
const PATIENCE: u64 = 4_000;
/// A yield that takes longer than this, in nanoseconds, let somebody else run.
const YIELD: u64 = 1_000;
/// After this many waits in a row in which somebody else ran on our CPU, one is slept through.
const CROWDED: u32 = 8;
/// A yield that takes longer than this, in nanoseconds, let somebody compute for a whole turn of the scheduler's.
const TURN: u64 = 2_500_000;
/// Two of them within this time, in nanoseconds, are no chance.
const SOON: u64 = 20_000_000;
/// How long waits are slept through after those, in nanoseconds: each time twice as long, within these.
const SHORTEST: u64 = 2_000_000;
const LONGEST: u64 = 1_000_000_000;

/// Whether the peer, or anybody, competes for the CPU that we spin on.
///
/// On a crowded host a spinning waiter hands its CPU on. But two sides that share one CPU while
/// another idles would hand it back and forth for ever: the scheduler places a task when it
/// wakes, and these never sleep. So after a few such waits one must be slept through.
///
/// Beside a process that computes, handing the CPU on costs a whole turn of the scheduler's, milliseconds,
/// while a sleeper is put in front when it is woken. So for a time every wait is slept through then, and for twice
/// that if the next try ends in the same way.
#[derive(Debug, Default)]
pub struct Crowding {
    waits: u32,
    now: bool,
    /// Until when waits are slept through, and for how long the last time, in nanoseconds.
    until: u64,
    length: u64,
}

impl Crowding {
    /// A wait begins at `now`; whether it is one to sleep through.
    #[inline]
    pub fn must_sleep(&mut self, now: u64) -> bool {
        if now < self.until {
            return true;
        }
        self.waits = if std::mem::take(&mut self.now) {
            self.waits + 1
        } else {
            0
        };
        if self.waits < CROWDED {
            return false;
        }
        self.waits = 0;
        true
    }

    /// To be called now and then after spinning for `spun` nanoseconds: lets another thread run. True if it is
    /// better to sleep now.
    #[inline]
    pub fn pause(&mut self, spun: u64) -> bool {
        if spun <= PATIENCE {
            return false;
        }
        let before = clock::now();
        std::thread::yield_now();
        self.yielded(before, clock::now())
    }

    /// Takes note of a yield.
    #[inline]
    fn yielded(&mut self, before: u64, after: u64) -> bool {
        let took = after - before;
        if took <= TURN {
            self.now |= took > YIELD;
            return false;
        }
        (self.waits, self.now) = (0, false);
        // Undisturbed for as long as it had slept before, the waiter has found a quieter time.
        let again = before.saturating_sub(self.until) < self.length.max(SOON);
        self.length = if again {
            (self.length * 2).clamp(SHORTEST, LONGEST)
        } else {
            0
        };
        self.until = after + self.length;
        again
    }
}

/// The CPUs that this process may run on, counted once.
fn usable_cpus() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn spin(limit: u64) -> Spin {
        Spin { limit, average: 0 }
    }

    #[test]
    fn a_quick_rhythm_spins_and_a_slow_one_sleeps() {
        let mut spin = spin(50_000);
        for _ in 0..100 {
            spin.record(1_000);
        }
        assert_eq!(spin.budget(), 50_000);
        for _ in 0..5 {
            spin.record(2_000_000);
        }
        assert_eq!(spin.budget(), 0);
    }

    #[test]
    fn one_pause_does_not_end_a_hot_phase() {
        let mut spin = spin(50_000);
        spin.record(1_000);
        spin.record(10_000_000_000);
        assert!(spin.budget() > 0);
    }

    #[test]
    fn a_rhythm_that_quickens_spins_again_soon() {
        let mut spin = spin(50_000);
        for _ in 0..1000 {
            spin.record(u64::MAX);
        }
        let messages = (0..).take_while(|_| {
            spin.record(30_000);
            spin.budget() == 0
        });
        assert!(messages.count() < 20);
    }

    #[test]
    fn a_shared_cpu_is_slept_on_after_a_few_waits() {
        let mut crowding = Crowding::default();
        let sleeps = (0..CROWDED * 2 + 1).filter(|_| {
            let sleep = crowding.must_sleep(1);
            crowding.now = true;
            sleep
        });
        assert_eq!(sleeps.count(), 2);
        crowding.now = false;
        assert!(!crowding.must_sleep(1));
        assert_eq!(crowding.waits, 0);
    }

    #[test]
    fn beside_who_computes_waits_are_slept_through_twice_as_long_each_time() {
        let (mut crowding, mut now) = (Crowding::default(), 1_000_000_000);
        assert!(!crowding.yielded(now, now + TURN + 1), "once is chance");
        now += SOON;
        for length in [2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000] {
            assert!(!crowding.must_sleep(now));
            assert!(crowding.yielded(now, now + TURN + 1));
            now += TURN + 1;
            assert!(crowding.must_sleep(now + length * 1_000_000 - 1));
            now += length * 1_000_000;
        }
        assert!(!crowding.must_sleep(now));
        assert!(!crowding.yielded(now, now + TURN));
        // After a quiet time it begins anew.
        now += LONGEST;
        assert!(!crowding.yielded(now, now + TURN + 1));
        assert!(crowding.yielded(now + SOON, now + SOON + TURN + 1));
        assert_eq!(crowding.length, SHORTEST);
    }

    #[test]
    fn a_limit_of_zero_never_spins() {
        assert_eq!(spin(0).budget(), 0);
    }
}
