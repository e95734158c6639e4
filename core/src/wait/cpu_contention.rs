//! Detection of contention for the CPU on which a waiter spins.

use crate::clock;

/// Spinning time, in nanoseconds, after which the peer is probably not running and may need this CPU.
const SPIN_BEFORE_YIELD: u64 = 4_000;
/// A yield that takes longer than this, in nanoseconds, let another thread run.
const SHORT_YIELD: u64 = 1_000;
/// Number of consecutive waits on a shared CPU after which one wait sleeps; doubled each time the sleep did not help.
const SHARED_WAITS: u32 = 8;
/// Maximum number of these doublings.
const MAX_DOUBLINGS: u32 = 4;
/// A yield that takes longer than this, in nanoseconds, let another thread compute for a whole time slice.
const TIME_SLICE: u64 = 2_500_000;
/// Two such yields within this time, in nanoseconds, are no coincidence.
const SOON: u64 = 20_000_000;
/// Minimum and maximum time for which all waits sleep after such yields, in nanoseconds: each time twice as long.
const MIN_SLEEP_PHASE: u64 = 2_000_000;
const MAX_SLEEP_PHASE: u64 = 1_000_000_000;

/// The result of yielding the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YieldResult {
    /// No other thread ran.
    NotTaken,
    /// Another thread ran.
    Yielded,
    /// Another thread computed for a whole time slice, and not for the first time: the caller should sleep now.
    Costly,
}

/// The contention for the CPU on which a waiter spins, as the waiter observes it.
///
/// On a busy host a spinning waiter yields its CPU. But two sides that share one CPU while another is idle would yield
/// to each other forever, because the scheduler places a task when it wakes, and these tasks never sleep. So after a
/// few such waits, one wait must sleep. If sleeping changes nothing, for example because no CPU is idle, it is tried
/// less and less often.
///
/// Beside a process that computes, a yield costs a whole time slice of milliseconds, while a task that wakes from a
/// sleep is scheduled first. So every wait sleeps for a while, and for twice as long if the next yield is as expensive.
#[derive(Debug, Default)]
pub struct CpuContention {
    /// Number of consecutive waits during which another thread ran on this CPU.
    waits: u32,
    /// True if another thread ran on this CPU during the current wait.
    is_shared: bool,
    /// True if the last wait slept because of shared waits.
    slept: bool,
    /// Number of consecutive sleeps that did not help.
    misses: u32,
    /// Time until which waits sleep, and the length of that phase, both in nanoseconds.
    until: u64,
    length: u64,
}

impl CpuContention {
    /// Begin a wait at `now`, in nanoseconds: called once for each. Return true if it should sleep instead of spin.
    #[inline]
    pub fn must_sleep(&mut self, now: u64) -> bool {
        if self.is_costly(now) {
            return true;
        }
        if std::mem::take(&mut self.is_shared) {
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

    /// Yield the CPU if the caller has spun for more than 4 µs, given the time `spun` in nanoseconds. Return true if
    /// the caller should sleep now, because yields are costly.
    #[inline]
    pub fn yield_after(&mut self, spun: u64) -> bool {
        spun > SPIN_BEFORE_YIELD && self.yield_cpu() == YieldResult::Costly
    }

    /// Return true if another thread, perhaps the awaited one, ran on this CPU during the previous waits.
    #[inline]
    pub fn shared_cpu(&self) -> bool {
        self.waits > 0
    }

    /// Yield the CPU to another thread, and return what the yield has cost.
    #[inline]
    pub fn yield_cpu(&mut self) -> YieldResult {
        let before = clock::now();
        std::thread::yield_now();
        self.record_yield(before, clock::now())
    }

    /// Return true if recent yields were so expensive that waits sleep at `now`, in nanoseconds. Changes nothing.
    #[inline]
    pub fn is_costly(&self, now: u64) -> bool {
        now < self.until
    }

    /// Record a yield from `before` to `after`, in nanoseconds, and return what it has cost.
    #[inline]
    fn record_yield(&mut self, before: u64, after: u64) -> YieldResult {
        let took = after - before;
        if took <= SHORT_YIELD {
            return YieldResult::NotTaken;
        }
        if took <= TIME_SLICE {
            self.is_shared = true;
            return YieldResult::Yielded;
        }
        (self.waits, self.is_shared) = (0, false);
        // If nothing happened for as long as the last phase lasted, the host has become quieter.
        let again = before.saturating_sub(self.until) < self.length.max(SOON);
        self.length = if again {
            (self.length * 2).clamp(MIN_SLEEP_PHASE, MAX_SLEEP_PHASE)
        } else {
            0
        };
        self.until = after + self.length;
        match again {
            true => YieldResult::Costly,
            false => YieldResult::Yielded,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn after_a_few_waits_on_a_shared_cpu_a_wait_sleeps() {
        let mut contention = CpuContention::default();
        let sleeps = (0..1_000).filter(|_| {
            let sleep = contention.must_sleep(1);
            contention.is_shared = !sleep;
            sleep
        });
        let sleeps: Vec<u32> = sleeps.collect();
        assert_eq!(sleeps[..3], [8, 25, 58], "after 8 waits, 16, 32");
        let [.., last_but_one, last] = sleeps[..] else {
            unreachable!()
        };
        assert_eq!(last - last_but_one, 129, "and in the end after 128");
        contention.is_shared = true;
        contention.must_sleep(1);
        contention.is_shared = false;
        assert!(!contention.must_sleep(1));
        assert_eq!((contention.waits, contention.misses), (0, 0));
    }

    #[test]
    fn beside_a_computing_process_the_sleep_phases_double() {
        let (mut contention, mut now) = (CpuContention::default(), 1_000_000_000);
        assert_eq!(
            contention.record_yield(now, now + TIME_SLICE + 1),
            YieldResult::Yielded,
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
            YieldResult::Yielded
        );
        // After a quiet time the phases start again with the shortest.
        now += MAX_SLEEP_PHASE;
        assert_eq!(
            contention.record_yield(now, now + TIME_SLICE + 1),
            YieldResult::Yielded
        );
        let end = now + SOON + TIME_SLICE + 1;
        assert_eq!(
            contention.record_yield(now + SOON, end),
            YieldResult::Costly
        );
        assert_eq!(contention.length, MIN_SLEEP_PHASE);
    }
}
