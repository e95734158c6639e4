//! Whether it pays to look again for a while before sleeping.
//!
//! A wait that ends within what a sleep would cost is better spun through; any other is better slept through. Nobody
//! knows beforehand, so each waiter keeps a moving average of the gaps between messages and spins only while that is
//! shorter than its limit. One long pause does not end a hot phase, since what a single gap can add is bounded; a steady
//! slow rhythm does, after a few messages.
//!
//! The limit follows what a sleep costs: who rings says when, and the sleeper looks how late it is. So that is also known
//! of gaps that were slept through, and is left out: else two sides that sleep would find each other too slow to do
//! anything else. A wait may be longer if the waiter works between its waits: then spinning uses no more than a few
//! times the CPU that the work does.

/// A new gap counts for one part in this many.
const WEIGHT: u64 = 8;
/// A gap counts for at most this many limits, so that old pauses are soon forgotten.
const MAX_GAP_FACTOR: u64 = 4;
/// What a sleep costs before the first one, in nanoseconds, and the least and the most that is believed.
const INITIAL_WAKE_COST: u64 = 50_000;
const MIN_WAKE_COST: u64 = 10_000;
const MAX_WAKE_COST: u64 = 150_000;
/// A wait is spun through if it is no longer than this many sleeps cost.
const SLEEPS_WORTH: u64 = 4;
/// Or this many, if it is also no longer than this many times the work between two waits. What is longer is hardly
/// shorter without the sleep.
const MAX_SLEEPS_WORTH: u64 = 12;
const WORK_FACTOR: u64 = 2;

/// The judgement of one waiter.
#[derive(Clone, Debug)]
pub struct SpinBudget {
    /// The longest a wait may ever spin, in nanoseconds. 0: never.
    max: u64,
    /// The moving average of the gaps, in nanoseconds, without what sleeps added to them.
    average: u64,
    /// From a ring until its sleeper looks, in nanoseconds.
    wake: u64,
    /// The moving average of what is worked between two waits, in nanoseconds.
    work: u64,
    /// Whether waits are spun through just now.
    is_spinning: bool,
}

impl SpinBudget {
    /// Spins for up to `most` nanoseconds at a time.
    pub fn new(max: u64) -> Self {
        SpinBudget {
            max,
            average: 0,
            wake: INITIAL_WAKE_COST,
            work: 0,
            is_spinning: true,
        }
    }

    /// How long the next wait may spin, in nanoseconds.
    #[inline]
    pub fn budget(&mut self) -> u64 {
        let limit = self.limit();
        // Between the two it goes on as it does: what sleeps add to a gap is only known about.
        self.is_spinning = self.average
            < if self.is_spinning {
                limit
            } else {
                limit / 4 * 3
            };
        if self.is_spinning { limit } else { 0 }
    }

    /// How long it pays to wait for the next piece of something that moves, in nanoseconds.
    #[inline]
    pub fn limit(&self) -> u64 {
        let busy = (WORK_FACTOR * self.work).min(MAX_SLEEPS_WORTH * self.wake);
        self.max.min(busy.max(SLEEPS_WORTH * self.wake))
    }

    /// A message came `gap` nanoseconds after the one before, or after we began to wait for it. `sleeps`: how many
    /// sleeps that includes, ours and the peer's.
    #[inline]
    pub fn record(&mut self, gap: u64, sleeps: u64) {
        let max_gap = self.limit() * MAX_GAP_FACTOR;
        let gap = gap.saturating_sub(sleeps * self.wake);
        average(&mut self.average, gap.min(max_gap));
    }

    /// This many nanoseconds were worked between two waits.
    #[inline]
    pub fn record_work(&mut self, time: u64) {
        average(&mut self.work, time.min(MAX_WAKE_COST * MAX_SLEEPS_WORTH));
    }

    /// We slept, and look this many nanoseconds after we were rung.
    pub fn record_sleep(&mut self, late: u64) {
        average(&mut self.wake, late.clamp(MIN_WAKE_COST, MAX_WAKE_COST));
    }
}

#[inline]
fn average(average: &mut u64, new: u64) {
    *average = (*average * (WEIGHT - 1) + new) / WEIGHT;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_quick_rhythm_spins_and_a_slow_one_sleeps() {
        let mut spin = SpinBudget::new(50_000);
        for _ in 0..100 {
            spin.record(1_000, 0);
        }
        assert_eq!(spin.budget(), 50_000);
        for _ in 0..5 {
            spin.record(2_000_000, 0);
        }
        assert_eq!(spin.budget(), 0);
    }

    #[test]
    fn one_pause_does_not_end_a_hot_phase() {
        let mut spin = SpinBudget::new(50_000);
        spin.record(1_000, 0);
        spin.record(10_000_000_000, 0);
        assert!(spin.budget() > 0);
    }

    #[test]
    fn a_rhythm_that_quickens_spins_again_soon() {
        let mut spin = SpinBudget::new(50_000);
        for _ in 0..1000 {
            spin.record(u64::MAX, 1);
            spin.budget();
        }
        let messages = (0..).take_while(|_| {
            spin.record(20_000, 0);
            spin.budget() == 0
        });
        assert!(messages.count() < 20);
    }

    #[test]
    fn two_sides_that_sleep_find_out_that_they_need_not() {
        const BETWEEN: u64 = 80_000;
        for wake in [30_000, 150_000] {
            let mut spin = SpinBudget::new(1_000_000);
            spin.record(u64::MAX, 0);
            for _ in 0..50 {
                spin.record(10_000_000, 0);
                spin.budget();
            }
            let calls = (0..).take_while(|_| {
                spin.record_sleep(wake);
                spin.record(BETWEEN + 2 * wake, 2);
                spin.budget() == 0
            });
            assert!(calls.count() < 100, "a sleep costs {wake} ns");
        }
    }

    #[test]
    fn a_call_every_so_often_does_not_begin_to_spin_because_of_what_its_sleeps_cost() {
        let mut spin = SpinBudget::new(1_000_000);
        for _ in 0..50 {
            spin.record(10_000_000, 0);
            spin.budget();
        }
        for _ in 0..1000 {
            spin.record_sleep(INITIAL_WAKE_COST);
            spin.record(300_000, 2);
            assert_eq!(spin.budget(), 0);
        }
    }

    #[test]
    fn who_works_for_long_waits_for_long_and_no_longer_than_that_helps() {
        let mut spin = SpinBudget::new(1_000_000);
        assert_eq!(spin.limit(), SLEEPS_WORTH * INITIAL_WAKE_COST);
        for _ in 0..100 {
            spin.record_work(200_000);
        }
        assert!(spin.limit() > 390_000);
        for _ in 0..100 {
            spin.record_work(20_000_000);
        }
        assert_eq!(spin.limit(), MAX_SLEEPS_WORTH * INITIAL_WAKE_COST);
        spin.max = 100_000;
        assert_eq!(spin.limit(), 100_000, "the user's bound");
    }

    #[test]
    fn a_limit_of_zero_never_spins() {
        assert_eq!(SpinBudget::new(0).budget(), 0);
    }
}
