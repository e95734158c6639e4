//! How a thread waits for what a name has.

use super::fairness::LONG as LONG_WAIT;
use super::looking::{self, Looking};
use super::membership::{Membership, NameError};
use crate::clock;
use crate::wait::cpu_contention::YieldResult;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Nanoseconds for which a thread looks again before it sleeps.
const SPIN: u64 = 10_000;
/// The same where this process has just woken somebody, whose answer takes as long as that one needs to wake. To sleep in
/// that time would cost as much again.
const SPIN_AFTER_WAKING: u64 = looking::LONGEST;
/// After this many tries in vain it is not done any more, except once in as many.
const IN_VAIN: usize = 4;
const TRIES: usize = 16;
/// Sleeps without a deadline end after this, and begin again.
const LONG: Duration = Duration::from_secs(1 << 20);

/// The first sleep of a thread that runs the handlers of signals: a signal that comes while it looks again and again, or
/// between its last look for signals and the sleep, does not wake it. Each of the next naps is longer by this factor; after
/// some of them it sleeps until it is woken, since one that waits does nothing.
const FIRST_NAP: Duration = Duration::from_micros(200);
const FACTOR: u32 = 10;
const NAPS: u32 = 3;

/// The shortest sleep until a claim of a queue ends by itself.
const TICK: Duration = Duration::from_millis(1);

/// How a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// It has what it waited for.
    Taken,
    /// Its time is over.
    TimedOut,
    /// It was told to stop.
    Stopped,
}

/// Why a wait was given up.
#[derive(Debug)]
pub enum Interrupted<E> {
    /// The name cannot be used.
    Name(NameError),
    /// What the caller's look after a signal has raised.
    Caller(E),
}

impl<E> From<NameError> for Interrupted<E> {
    fn from(error: NameError) -> Self {
        Interrupted::Name(error)
    }
}

/// Returns true in the thread in which Python runs signal handlers: the first one of its process.
fn hears_signals() -> bool {
    // SAFETY: no memory is involved.
    unsafe { libc::gettid() == libc::getpid() }
}

impl Membership {
    /// Blocks this thread until `take` is true, which has taken what is waited for then, or `deadline` has passed, or
    /// `stop` is true: whoever sets that wakes everybody. It sleeps in this wait set. `take` is told whether it has waited
    /// for long. `interrupted` is asked after each wake-up whether to go on.
    pub fn wait<E>(
        self: &Arc<Self>,
        set: usize,
        deadline: Option<Instant>,
        stop: &AtomicBool,
        mut take: impl FnMut(bool) -> Result<bool, NameError>,
        interrupted: impl FnMut() -> Result<(), E>,
    ) -> Result<Waited, Interrupted<E>> {
        let is_only = set == 0 && self.has_one_permit();
        if self.spin(is_only, deadline, stop, &mut take)? {
            return Ok(Waited::Taken);
        }
        let ended = self.sleep(set, deadline, stop, take, interrupted);
        match ended {
            Ok(Waited::Taken) => {}
            _ if is_only => self.hand_on(),
            Ok(Waited::TimedOut) => {}
            // Woken, it may not have looked for what it was woken for.
            _ => drop(self.wake_next(set)),
        }
        ended
    }

    fn sleep<E>(
        self: &Arc<Self>,
        set: usize,
        deadline: Option<Instant>,
        stop: &AtomicBool,
        mut take: impl FnMut(bool) -> Result<bool, NameError>,
        mut interrupted: impl FnMut() -> Result<(), E>,
    ) -> Result<Waited, Interrupted<E>> {
        self.prepare_to_sleep()?;
        // Relaxed: whoever sets it wakes the sleepers afterwards.
        let is_stopped = || stop.load(Relaxed);
        let mut sleeper = self.sleeper(set)?;
        sleeper.draw_ticket();
        let begun = Instant::now();
        let mut naps = match hears_signals() {
            true => 0..NAPS,
            false => 0..0,
        };
        let ended = loop {
            if is_stopped() {
                break Ok(Waited::Stopped);
            }
            let limit = deadline.map_or(LONG, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            if limit.is_zero() {
                // It may have been stopped for longer than its time, and not have looked since.
                let found = take(begun.elapsed() >= LONG_WAIT);
                break match found {
                    Ok(true) => Ok(Waited::Taken),
                    Ok(false) => Ok(Waited::TimedOut),
                    Err(error) => Err(error.into()),
                };
            }
            let soon = self.next_expiry().into_iter().chain(self.kept_for());
            let nap = soon.fold(limit, |nap, left| nap.min(left.max(TICK)));
            let look = naps.next().map(|nap| FIRST_NAP * FACTOR.pow(nap));
            let nap = nap.min(look.unwrap_or(LONG));
            // Not asked again afterwards: what was taken is ours, also if waits were stopped since.
            let mut is_taken = false;
            let slept = sleeper.sleep(nap, || {
                let is_over = is_stopped() || self.has_left();
                // What is wrong is found after the sleep.
                is_taken = !is_over && take(begun.elapsed() >= LONG_WAIT).unwrap_or(false);
                is_over || is_taken
            });
            match slept {
                Ok(_) if is_taken => break Ok(Waited::Taken),
                Ok(_) => {}
                Err(error) => break Err(self.no_place(set, error).into()),
            }
            if let Err(error) = self.check() {
                break Err(error.into());
            }
            if let Err(error) = interrupted() {
                break Err(Interrupted::Caller(error));
            }
        };
        self.keep(set, sleeper);
        ended
    }

    /// What every wait does before it sleeps: sees to it that what the dead have is given back, from now on, and that
    /// nobody else has what is waited for.
    pub fn prepare_to_sleep(self: &Arc<Self>) -> Result<(), NameError> {
        self.watch()?;
        self.audit()
    }

    /// Looks for a moment whether `is_there`, for an event loop that is about to sleep: whether it was. What other tasks of
    /// the loop do waits meanwhile; so after some looks in vain most waits do without.
    pub fn glance(
        &self,
        stop: &AtomicBool,
        is_there: impl Fn() -> bool,
    ) -> Result<bool, NameError> {
        // Relaxed, both: hints.
        let in_vain = self.looked_in_vain.load(Relaxed);
        let is_tried = in_vain < IN_VAIN || in_vain % TRIES == 0;
        let is_found = is_tried && self.spin(false, None, stop, &mut |_| Ok(is_there()))?;
        let in_vain = if is_found { 0 } else { in_vain.wrapping_add(1) };
        self.looked_in_vain.store(in_vain, Relaxed);
        Ok(is_found)
    }

    /// Looks for a while before a sleep. `is_only`: for the only permit.
    fn spin(
        &self,
        is_only: bool,
        deadline: Option<Instant>,
        stop: &AtomicBool,
        take: &mut impl FnMut(bool) -> Result<bool, NameError>,
    ) -> Result<bool, NameError> {
        if take(false)? {
            return Ok(true);
        }
        // Relaxed, all: hints.
        let after_waking = self.has_woken.swap(false, Relaxed);
        let in_vain = self.spun_in_vain.load(Relaxed);
        let limit = if !after_waking {
            SPIN
        } else if in_vain < IN_VAIN || in_vain % TRIES == 0 {
            SPIN_AFTER_WAKING
        } else {
            0
        };
        // One thread at a time: the others of this process sleep.
        let Ok(mut contention) = self.contention.try_lock() else {
            return Ok(false);
        };
        let begun = clock::now();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.map_or(u64::MAX, |left| {
            left.as_nanos().try_into().unwrap_or(u64::MAX)
        });
        let limit = limit.min(left);
        if limit == 0 || contention.must_sleep(begun) {
            return Ok(false);
        }
        let looking = is_only.then(|| Looking::begin(self.looking(), begun, begun + limit));
        if let Some(None) = looking {
            return Ok(false); // Another thread looks.
        }
        // Whoever we wait for may want our CPU: because we have woken it, or it ran here before.
        let offers = after_waking || contention.shared_cpu();
        loop {
            let spun = clock::now() - begun;
            if spun >= limit || stop.load(Relaxed) {
                break;
            }
            let is_enough = match offers {
                true => contention.yield_cpu() == YieldResult::Costly,
                false => contention.yield_after(spun),
            };
            if is_enough {
                break;
            }
            std::hint::spin_loop();
            if take(false)? {
                self.spun_in_vain.store(0, Relaxed);
                return Ok(true);
            }
        }
        if after_waking {
            self.spun_in_vain.store(in_vain.wrapping_add(1), Relaxed);
        }
        Ok(false)
    }
}
