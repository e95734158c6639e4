//! The spin budget of a waiter: how long it spins before it sleeps.
//!
//! A wait that ends within the cost of a sleep should spin; any other should sleep. The length of a wait is unknown in
//! advance, so each waiter keeps a moving average of the gaps between messages, and spins only while that is shorter
//! than its limit. One long pause does not end a busy phase, because the effect of a single gap is bounded; a steady
//! slow rhythm does, after a few messages.
//!
//! The limit follows the cost of a sleep: the waker stores the time of the wake-up, and the sleeper measures its delay.
//! The cost is subtracted from gaps that included sleeps: otherwise two sides that sleep would consider each other too
//! slow to do anything else. A wait may be longer if the waiter works between its waits: then spinning uses no more
//! than a few times the CPU time of the work.

/// Inverse weight of a new gap in the moving average.
const WEIGHT: u64 = 8;
/// Maximum gap, in limits, so that old pauses are soon forgotten.
const MAX_GAP_FACTOR: u64 = 4;
/// Cost of a sleep before the first measurement, in nanoseconds, and its minimum and maximum.
const INITIAL_WAKE_COST: u64 = 50_000;
const MIN_WAKE_COST: u64 = 10_000;
const MAX_WAKE_COST: u64 = 150_000;
/// A wait spins if it is no longer than this many sleeps cost.
const SLEEPS_WORTH: u64 = 4;
/// A wait spins up to this many sleeps if it is also no longer than `WORK_FACTOR` times the work between two waits.
/// Longer waits gain little from spinning.
const MAX_SLEEPS_WORTH: u64 = 12;
const WORK_FACTOR: u64 = 2;

/// The spin budget of one waiter.
#[derive(Clone, Debug)]
pub struct SpinBudget {
    /// Maximum time for which a wait spins, in nanoseconds; 0: never.
    max: u64,
    /// Moving average of the gaps without the cost of sleeps, in nanoseconds.
    average: u64,
    /// Moving average of the delay from a wake-up to the sleeper's next check, in nanoseconds.
    wake: u64,
    /// Moving average of the work between two waits, in nanoseconds.
    work: u64,
    /// True while waits spin.
    is_spinning: bool,
}

impl SpinBudget {
    /// Create a budget of up to `max` nanoseconds for each wait.
    pub fn new(max: u64) -> Self {
        SpinBudget {
            max,
            average: 0,
            wake: INITIAL_WAKE_COST,
            work: 0,
            is_spinning: true,
        }
    }

    /// Return the time for which the next wait may spin, in nanoseconds; 0 if it must sleep at once.
    #[inline]
    pub fn budget(&mut self) -> u64 {
        let limit = self.limit();
        // Hysteresis, because the cost of sleeps within a gap is only an estimate.
        self.is_spinning = self.average
            < if self.is_spinning {
                limit
            } else {
                limit / 4 * 3
            };
        if self.is_spinning { limit } else { 0 }
    }

    /// Return the longest time for which spinning pays, in nanoseconds: for the next piece of a frame in transit.
    #[inline]
    pub fn limit(&self) -> u64 {
        let busy = (WORK_FACTOR * self.work).min(MAX_SLEEPS_WORTH * self.wake);
        self.max.min(busy.max(SLEEPS_WORTH * self.wake))
    }

    /// Record a message that came `gap` nanoseconds after the previous one, or after the wait began. `sleeps` is the
    /// number of sleeps in the gap, of both sides, whose cost is subtracted. A long gap counts as a few limits.
    #[inline]
    pub fn record(&mut self, gap: u64, sleeps: u64) {
        let max_gap = self.limit() * MAX_GAP_FACTOR;
        let gap = gap.saturating_sub(sleeps * self.wake);
        update_average(&mut self.average, gap.min(max_gap));
    }

    /// Record the work between two waits, in nanoseconds.
    #[inline]
    pub fn record_work(&mut self, time: u64) {
        update_average(&mut self.work, time.min(MAX_WAKE_COST * MAX_SLEEPS_WORTH));
    }

    /// Record the delay from a wake-up to the end of the sleep, in nanoseconds.
    pub fn record_sleep(&mut self, late: u64) {
        update_average(&mut self.wake, late.clamp(MIN_WAKE_COST, MAX_WAKE_COST));
    }
}

/// Add a value to a moving average.
#[inline]
fn update_average(average: &mut u64, new: u64) {
    *average = (*average * (WEIGHT - 1) + new) / WEIGHT;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn short_gaps_spin_and_long_gaps_sleep() {
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
    fn one_pause_does_not_end_a_busy_phase() {
        let mut spin = SpinBudget::new(50_000);
        spin.record(1_000, 0);
        spin.record(10_000_000_000, 0);
        assert!(spin.budget() > 0);
    }

    #[test]
    fn shorter_gaps_soon_spin_again() {
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
    fn two_sleeping_sides_learn_to_spin() {
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
    fn infrequent_calls_do_not_spin_because_of_their_sleep_costs() {
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
    fn long_work_allows_long_spins_up_to_a_bound() {
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
