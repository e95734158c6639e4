//! Competition for the CPU that a waiter spins on.

use crate::clock;

/// After this much spinning, in nanoseconds, the peer is probably not running: our CPU may be
/// what it wants.
const SPIN_BEFORE_YIELD: u64 = 4_000;
/// A yield that takes longer than this, in nanoseconds, let somebody else run.
const SHORT_YIELD: u64 = 1_000;
/// After this many waits in a row in which somebody else ran on our CPU, one is slept through; if that was in vain, after
/// twice as many, and so on.
const SHARED_WAITS: u32 = 8;
/// How often that is doubled at most.
const MAX_DOUBLINGS: u32 = 4;
/// A yield that takes longer than this, in nanoseconds, let somebody compute for a whole turn of the scheduler's.
const TIME_SLICE: u64 = 2_500_000;
/// Two of them within this time, in nanoseconds, are no chance.
const SOON: u64 = 20_000_000;
/// How long waits are slept through after those, in nanoseconds: each time twice as long, within these.
const MIN_SLEEP_PHASE: u64 = 2_000_000;
const MAX_SLEEP_PHASE: u64 = 1_000_000_000;

/// What became of an offer of our CPU to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YieldResult {
    /// Nobody wanted it.
    NotTaken,
    /// Somebody ran.
    Taken,
    /// Somebody computed for a whole turn of the scheduler's, not for the first time: it is better to sleep now.
    Costly,
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
pub struct CpuContention {
    waits: u32,
    now: bool,
    /// Whether the last wait was slept through after such ones.
    slept: bool,
    /// How many such sleeps there were in a row.
    misses: u32,
    /// Until when waits are slept through, and for how long the last time, in nanoseconds.
    until: u64,
    length: u64,
}

impl CpuContention {
    /// A wait begins at `now`; whether it is one to sleep through.
    #[inline]
    pub fn must_sleep(&mut self, now: u64) -> bool {
        if self.is_costly(now) {
            return true;
        }
        if std::mem::take(&mut self.now) {
            self.waits += 1;
        } else if !self.slept {
            (self.waits, self.misses) = (0, 0);
        }
        self.slept = self.waits >= SHARED_WAITS << self.misses;
        if self.slept {
            self.waits = 0;
            self.misses = (self.misses + 1).min(MAX_DOUBLINGS);
        }
        self.slept
    }

    /// To be called now and then after spinning for `spun` nanoseconds: lets another thread run. True if it is
    /// better to sleep now.
    #[inline]
    pub fn yield_after(&mut self, spun: u64) -> bool {
        spun > SPIN_BEFORE_YIELD && self.yield_cpu() == YieldResult::Costly
    }

    /// Whether somebody else ran on our CPU in the waits before this one, maybe whoever we wait for.
    #[inline]
    pub fn shared_cpu(&self) -> bool {
        self.waits > 0
    }

    /// Lets another thread run at once.
    #[inline]
    pub fn yield_cpu(&mut self) -> YieldResult {
        let before = clock::now();
        std::thread::yield_now();
        self.record_yield(before, clock::now())
    }

    /// Whether offers have turned out so dear lately that waits are slept through at `now`.
    #[inline]
    pub fn is_costly(&self, now: u64) -> bool {
        now < self.until
    }

    /// Takes note of a yield.
    #[inline]
    fn record_yield(&mut self, before: u64, after: u64) -> YieldResult {
        let took = after - before;
        if took <= SHORT_YIELD {
            return YieldResult::NotTaken;
        }
        if took <= TIME_SLICE {
            self.now = true;
            return YieldResult::Taken;
        }
        (self.waits, self.now) = (0, false);
        // Undisturbed for as long as it had slept before, the waiter has found a quieter time.
        let again = before.saturating_sub(self.until) < self.length.max(SOON);
        self.length = if again {
            (self.length * 2).clamp(MIN_SLEEP_PHASE, MAX_SLEEP_PHASE)
        } else {
            0
        };
        self.until = after + self.length;
        match again {
            true => YieldResult::Costly,
            false => YieldResult::Taken,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_shared_cpu_is_slept_on_after_a_few_waits() {
        let mut contention = CpuContention::default();
        let sleeps = (0..1_000).filter(|_| {
            let sleep = contention.must_sleep(1);
            contention.now = !sleep;
            sleep
        });
        let sleeps: Vec<u32> = sleeps.collect();
        assert_eq!(sleeps[..3], [8, 25, 58], "after 8 waits, 16, 32");
        let [.., last_but_one, last] = sleeps[..] else {
            unreachable!()
        };
        assert_eq!(last - last_but_one, 129, "and in the end after 128");
        contention.now = true;
        contention.must_sleep(1);
        contention.now = false;
        assert!(!contention.must_sleep(1));
        assert_eq!((contention.waits, contention.misses), (0, 0));
    }

    #[test]
    fn beside_who_computes_waits_are_slept_through_twice_as_long_each_time() {
        let (mut contention, mut now) = (CpuContention::default(), 1_000_000_000);
        assert_eq!(
            contention.record_yield(now, now + TIME_SLICE + 1),
            YieldResult::Taken,
            "once is chance"
        );
        now += SOON;
        for length in [2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000] {
            assert!(!contention.must_sleep(now));
            assert_eq!(
                contention.record_yield(now, now + TIME_SLICE + 1),
                YieldResult::Costly
            );
            now += TIME_SLICE + 1;
            assert!(contention.must_sleep(now + length * 1_000_000 - 1));
            now += length * 1_000_000;
        }
        assert!(!contention.must_sleep(now));
        assert_eq!(
            contention.record_yield(now, now + TIME_SLICE),
            YieldResult::Taken
        );
        // After a quiet time it begins anew.
        now += MAX_SLEEP_PHASE;
        assert_eq!(
            contention.record_yield(now, now + TIME_SLICE + 1),
            YieldResult::Taken
        );
        let end = now + SOON + TIME_SLICE + 1;
        assert_eq!(
            contention.record_yield(now + SOON, end),
            YieldResult::Costly
        );
        assert_eq!(contention.length, MIN_SLEEP_PHASE);
    }
}
