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

use crate::clock;

/// A new gap counts for one part in this many.
const WEIGHT: u64 = 8;
/// A gap counts for at most this many limits, so that old pauses are soon forgotten.
const CLAMP: u64 = 4;
/// What a sleep costs before the first one, in nanoseconds, and the least and the most that is believed.
const WAKE: u64 = 50_000;
const CHEAP: u64 = 10_000;
const DEAR: u64 = 150_000;
/// A wait is spun through if it is no longer than this many sleeps cost.
const SLEEPS: u64 = 4;
/// Or this many, if it is also no longer than this many times the work between two waits. What is longer is hardly
/// shorter without the sleep.
const MOST_SLEEPS: u64 = 12;
const WORKS: u64 = 2;

/// The judgement of one waiter.
#[derive(Clone, Debug)]
pub struct Spin {
    /// The longest a wait may ever spin, in nanoseconds. 0: never.
    most: u64,
    /// The moving average of the gaps, in nanoseconds, without what sleeps added to them.
    average: u64,
    /// From a ring until its sleeper looks, in nanoseconds.
    wake: u64,
    /// The moving average of what is worked between two waits, in nanoseconds.
    work: u64,
    /// Whether waits are spun through just now.
    spins: bool,
}

impl Spin {
    /// Spins for up to `most` nanoseconds at a time.
    pub fn new(most: u64) -> Self {
        Spin {
            most,
            average: 0,
            wake: WAKE,
            work: 0,
            spins: true,
        }
    }

    /// How long the next wait may spin, in nanoseconds.
    #[inline]
    pub fn budget(&mut self) -> u64 {
        let limit = self.limit();
        // Between the two it goes on as it does: what sleeps add to a gap is only known about.
        self.spins = self.average < if self.spins { limit } else { limit / 4 * 3 };
        if self.spins { limit } else { 0 }
    }

    /// How long it pays to wait for the next piece of something that moves, in nanoseconds.
    #[inline]
    pub fn limit(&self) -> u64 {
        let busy = (WORKS * self.work).min(MOST_SLEEPS * self.wake);
        self.most.min(busy.max(SLEEPS * self.wake))
    }

    /// A message came `gap` nanoseconds after the one before, or after we began to wait for it. `sleeps`: how many
    /// sleeps that includes, ours and the peer's.
    #[inline]
    pub fn record(&mut self, gap: u64, sleeps: u64) {
        let most = self.limit() * CLAMP;
        let gap = gap.saturating_sub(sleeps * self.wake);
        average(&mut self.average, gap.min(most));
    }

    /// This many nanoseconds were worked between two waits.
    #[inline]
    pub fn worked(&mut self, time: u64) {
        average(&mut self.work, time.min(DEAR * MOST_SLEEPS));
    }

    /// We slept, and look this many nanoseconds after we were rung.
    pub fn slept(&mut self, late: u64) {
        average(&mut self.wake, late.clamp(CHEAP, DEAR));
    }
}

#[inline]
fn average(average: &mut u64, new: u64) {
    *average = (*average * (WEIGHT - 1) + new) / WEIGHT;
}

/// After this much spinning, in nanoseconds, the peer is probably not running: our CPU may be
/// what it wants.
const PATIENCE: u64 = 4_000;
/// A yield that takes longer than this, in nanoseconds, let somebody else run.
const YIELD: u64 = 1_000;
/// After this many waits in a row in which somebody else ran on our CPU, one is slept through; if that was in vain, after
/// twice as many, and so on.
const CROWDED: u32 = 8;
/// How often that is doubled at most.
const MOST_DOUBLINGS: u32 = 4;
/// A yield that takes longer than this, in nanoseconds, let somebody compute for a whole turn of the scheduler's.
const TURN: u64 = 2_500_000;
/// Two of them within this time, in nanoseconds, are no chance.
const SOON: u64 = 20_000_000;
/// How long waits are slept through after those, in nanoseconds: each time twice as long, within these.
const SHORTEST: u64 = 2_000_000;
const LONGEST: u64 = 1_000_000_000;

/// What became of an offer of our CPU to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Nobody wanted it.
    Refused,
    /// Somebody ran.
    Taken,
    /// Somebody computed for a whole turn of the scheduler's, not for the first time: it is better to sleep now.
    Regretted,
}

/// Whether the peer, or anybody, competes for the CPU that we spin on.
///
/// On a crowded host a spinning waiter hands its CPU on. But two sides that share one CPU while
/// another idles would hand it back and forth for ever: the scheduler places a task when it
/// wakes, and these never sleep. So after a few such waits one must be slept through. Where that changes nothing, as
/// where no CPU idles, it is tried less and less often.
///
/// Beside a process that computes, handing the CPU on costs a whole turn of the scheduler's, milliseconds,
/// while a sleeper is put in front when it is woken. So for a time every wait is slept through then, and for twice
/// that if the next try ends in the same way.
#[derive(Debug, Default)]
pub struct Crowding {
    waits: u32,
    now: bool,
    /// Whether the last wait was slept through after such ones.
    slept: bool,
    /// How many such sleeps there were in a row.
    in_vain: u32,
    /// Until when waits are slept through, and for how long the last time, in nanoseconds.
    until: u64,
    length: u64,
}

impl Crowding {
    /// A wait begins at `now`; whether it is one to sleep through.
    #[inline]
    pub fn must_sleep(&mut self, now: u64) -> bool {
        if self.regrets(now) {
            return true;
        }
        if std::mem::take(&mut self.now) {
            self.waits += 1;
        } else if !self.slept {
            (self.waits, self.in_vain) = (0, 0);
        }
        self.slept = self.waits >= CROWDED << self.in_vain;
        if self.slept {
            self.waits = 0;
            self.in_vain = (self.in_vain + 1).min(MOST_DOUBLINGS);
        }
        self.slept
    }

    /// To be called now and then after spinning for `spun` nanoseconds: lets another thread run. True if it is
    /// better to sleep now.
    #[inline]
    pub fn pause(&mut self, spun: u64) -> bool {
        spun > PATIENCE && self.offer() == Offer::Regretted
    }

    /// Whether somebody else ran on our CPU in the waits before this one, maybe whoever we wait for.
    #[inline]
    pub fn shares(&self) -> bool {
        self.waits > 0
    }

    /// Lets another thread run at once.
    #[inline]
    pub fn offer(&mut self) -> Offer {
        let before = clock::now();
        std::thread::yield_now();
        self.yielded(before, clock::now())
    }

    /// Whether offers have turned out so dear lately that waits are slept through at `now`.
    #[inline]
    pub fn regrets(&self, now: u64) -> bool {
        now < self.until
    }

    /// Takes note of a yield.
    #[inline]
    fn yielded(&mut self, before: u64, after: u64) -> Offer {
        let took = after - before;
        if took <= YIELD {
            return Offer::Refused;
        }
        if took <= TURN {
            self.now = true;
            return Offer::Taken;
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
        match again {
            true => Offer::Regretted,
            false => Offer::Taken,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_quick_rhythm_spins_and_a_slow_one_sleeps() {
        let mut spin = Spin::new(50_000);
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
        let mut spin = Spin::new(50_000);
        spin.record(1_000, 0);
        spin.record(10_000_000_000, 0);
        assert!(spin.budget() > 0);
    }

    #[test]
    fn a_rhythm_that_quickens_spins_again_soon() {
        let mut spin = Spin::new(50_000);
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
            let mut spin = Spin::new(1_000_000);
            spin.record(u64::MAX, 0);
            for _ in 0..50 {
                spin.record(10_000_000, 0);
                spin.budget();
            }
            let calls = (0..).take_while(|_| {
                spin.slept(wake);
                spin.record(BETWEEN + 2 * wake, 2);
                spin.budget() == 0
            });
            assert!(calls.count() < 100, "a sleep costs {wake} ns");
        }
    }

    #[test]
    fn a_call_every_so_often_does_not_begin_to_spin_because_of_what_its_sleeps_cost() {
        let mut spin = Spin::new(1_000_000);
        for _ in 0..50 {
            spin.record(10_000_000, 0);
            spin.budget();
        }
        for _ in 0..1000 {
            spin.slept(WAKE);
            spin.record(300_000, 2);
            assert_eq!(spin.budget(), 0);
        }
    }

    #[test]
    fn who_works_for_long_waits_for_long_and_no_longer_than_that_helps() {
        let mut spin = Spin::new(1_000_000);
        assert_eq!(spin.limit(), SLEEPS * WAKE);
        for _ in 0..100 {
            spin.worked(200_000);
        }
        assert!(spin.limit() > 390_000);
        for _ in 0..100 {
            spin.worked(20_000_000);
        }
        assert_eq!(spin.limit(), MOST_SLEEPS * WAKE);
        spin.most = 100_000;
        assert_eq!(spin.limit(), 100_000, "the user's bound");
    }

    #[test]
    fn a_shared_cpu_is_slept_on_after_a_few_waits() {
        let mut crowding = Crowding::default();
        let sleeps = (0..1_000).filter(|_| {
            let sleep = crowding.must_sleep(1);
            crowding.now = !sleep;
            sleep
        });
        let sleeps: Vec<u32> = sleeps.collect();
        assert_eq!(sleeps[..3], [8, 25, 58], "after 8 waits, 16, 32");
        let [.., last_but_one, last] = sleeps[..] else {
            unreachable!()
        };
        assert_eq!(last - last_but_one, 129, "and in the end after 128");
        crowding.now = true;
        crowding.must_sleep(1);
        crowding.now = false;
        assert!(!crowding.must_sleep(1));
        assert_eq!((crowding.waits, crowding.in_vain), (0, 0));
    }

    #[test]
    fn beside_who_computes_waits_are_slept_through_twice_as_long_each_time() {
        let (mut crowding, mut now) = (Crowding::default(), 1_000_000_000);
        assert_eq!(
            crowding.yielded(now, now + TURN + 1),
            Offer::Taken,
            "once is chance"
        );
        now += SOON;
        for length in [2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000] {
            assert!(!crowding.must_sleep(now));
            assert_eq!(crowding.yielded(now, now + TURN + 1), Offer::Regretted);
            now += TURN + 1;
            assert!(crowding.must_sleep(now + length * 1_000_000 - 1));
            now += length * 1_000_000;
        }
        assert!(!crowding.must_sleep(now));
        assert_eq!(crowding.yielded(now, now + TURN), Offer::Taken);
        // After a quiet time it begins anew.
        now += LONGEST;
        assert_eq!(crowding.yielded(now, now + TURN + 1), Offer::Taken);
        let end = now + SOON + TURN + 1;
        assert_eq!(crowding.yielded(now + SOON, end), Offer::Regretted);
        assert_eq!(crowding.length, SHORTEST);
    }

    #[test]
    fn a_limit_of_zero_never_spins() {
        assert_eq!(Spin::new(0).budget(), 0);
    }
}
