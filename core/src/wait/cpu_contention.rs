//! Competition for the CPU that a waiter spins on.

use crate::clock;

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
}
