//! Waits of a thread: it spins for a moment, then sleeps in a wait set.

use super::error::ObjectError;
use super::lifecycle::prepare_to_sleep;
use super::object::Object;
use super::sole_spinner::{LONGEST_SPIN, SoleSpinner};
use crate::clock;
use crate::sync::{Ordering, fence};
use crate::wait::cpu_contention::YieldResult;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// A wait of this length is long: the waiter gets a reserved permit.
const LONG_WAIT: Duration = Duration::from_millis(20);

/// The longest spin before a sleep, in nanoseconds.
const SPIN: u64 = 10_000;
/// The longest spin, in nanoseconds, after this process has woken another one, which answers once it is awake. A sleep
/// would take as long again.
const SPIN_AFTER_WAKING: u64 = LONGEST_SPIN;
/// After this many failed spins in a row, a thread spins only once in `RETRY_INTERVAL` waits.
const MAX_FAILED_SPINS: usize = 4;
const RETRY_INTERVAL: usize = 16;
/// The longest sleep of a wait without a deadline; the thread sleeps again afterwards.
const LONGEST_SLEEP: Duration = Duration::from_secs(1 << 20);

/// The first nap of a thread that runs signal handlers: a signal that arrives while the thread spins, or between its
/// last check for signals and the sleep, does not wake the thread. Each of the next naps is longer by this factor;
/// after the last nap the thread sleeps until another thread wakes it.
const FIRST_NAP: Duration = Duration::from_micros(200);
const NAP_FACTOR: u32 = 10;
const NAPS: u32 = 3;

/// The shortest sleep until an object's [`next_change`](Object::next_change).
const TICK: Duration = Duration::from_millis(1);

/// The outcome of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// The thread has taken the target of the wait.
    Succeeded,
    /// The deadline has passed.
    TimedOut,
    /// The waits were stopped.
    Stopped,
}

/// Error raised when a wait fails.
#[derive(Debug)]
pub enum WaitError<E> {
    /// The object cannot be used.
    Object(ObjectError),
    /// The caller's check after a wake-up has raised an error.
    Caller(E),
}

impl<E> From<ObjectError> for WaitError<E> {
    fn from(error: ObjectError) -> Self {
        WaitError::Object(error)
    }
}

/// Returns true in the main thread of the process, in which Python runs signal handlers.
fn runs_signal_handlers() -> bool {
    // SAFETY: no memory is involved.
    unsafe { libc::gettid() == libc::getpid() }
}

/// Blocks this thread until `take` returns true because it has taken the target of the wait, until `deadline`, or until
/// `stop` is set. The thread that sets `stop` wakes all sleepers afterwards. Returns how the wait has ended.
///
/// The thread spins, then sleeps in the wait set. The argument of `take` is true if the wait has been long.
/// `check_interrupt` runs after each wake-up; its error ends the wait, as `WaitError::Caller`. Raises the error of
/// `take`, those of `Membership::check` and `prepare_to_sleep`, and `Crowded` if the wait set is full.
pub fn wait<E>(
    object: &dyn Object,
    set: usize,
    deadline: Option<Instant>,
    stop: &AtomicBool,
    mut take: impl FnMut(bool) -> Result<bool, ObjectError>,
    check_interrupt: impl FnMut() -> Result<(), E>,
) -> Result<WaitOutcome, WaitError<E>> {
    if spin(object, Some(set), deadline, stop, &mut take)? {
        return Ok(WaitOutcome::Succeeded);
    }
    let ended = sleep(object, set, deadline, stop, take, check_interrupt);
    match ended {
        Ok(WaitOutcome::Succeeded) => {}
        _ if object.sole_spinner(set).is_some() => pass_on(object, set),
        Ok(WaitOutcome::TimedOut) => {}
        // A woken thread may end without a check of the reason for its wake-up.
        _ => drop(object.membership().wake_next(set)),
    }
    ended
}

/// Sleeps in a wait set until `take` returns true, or the wait ends otherwise: see [`wait`].
fn sleep<E>(
    object: &dyn Object,
    set: usize,
    deadline: Option<Instant>,
    stop: &AtomicBool,
    mut take: impl FnMut(bool) -> Result<bool, ObjectError>,
    mut check_interrupt: impl FnMut() -> Result<(), E>,
) -> Result<WaitOutcome, WaitError<E>> {
    prepare_to_sleep(object)?;
    let membership = object.membership();
    // Relaxed: the thread that sets it wakes the sleepers afterwards.
    let is_stopped = || stop.load(Relaxed);
    let mut slot = membership.thread_slot(set)?;
    slot.draw_ticket();
    let begun = Instant::now();
    let mut naps = match runs_signal_handlers() {
        true => 0..NAPS,
        false => 0..0,
    };
    let ended = loop {
        if is_stopped() {
            break Ok(WaitOutcome::Stopped);
        }
        let limit = deadline.map_or(LONGEST_SLEEP, |deadline| {
            deadline.saturating_duration_since(Instant::now())
        });
        if limit.is_zero() {
            // The process may have been stopped past the deadline, without a check since.
            let found = take(begun.elapsed() >= LONG_WAIT);
            break match found {
                Ok(true) => Ok(WaitOutcome::Succeeded),
                Ok(false) => Ok(WaitOutcome::TimedOut),
                Err(error) => Err(error.into()),
            };
        }
        let change = object.next_change();
        let limit = change.map_or(limit, |left| limit.min(left.max(TICK)));
        let nap = naps.next().map(|nap| FIRST_NAP * NAP_FACTOR.pow(nap));
        let limit = limit.min(nap.unwrap_or(LONGEST_SLEEP));
        // Not checked again afterwards: a taken item is ours, also if waits were stopped since.
        let mut taken = Ok(false);
        let slept = slot.sleep(limit, || {
            let is_over = is_stopped() || membership.has_left();
            if !is_over {
                taken = take(begun.elapsed() >= LONG_WAIT);
            }
            is_over || !matches!(taken, Ok(false))
        });
        match taken {
            Ok(true) => break Ok(WaitOutcome::Succeeded), // Also if the wait set has failed since.
            Ok(false) => {}
            Err(error) => break Err(error.into()),
        }
        if let Err(error) = slept {
            break Err(membership.slot_error(set, error).into());
        }
        if let Err(error) = membership.check() {
            break Err(error.into());
        }
        if let Err(error) = check_interrupt() {
            break Err(WaitError::Caller(error));
        }
    };
    membership.keep_slot(set, slot);
    ended
}

/// Wakes the next sleeper if a permit is available, which may have been left to this thread.
fn pass_on(object: &dyn Object, set: usize) {
    // SeqCst: the end of our spin is before our last look. See `sole_spinner.rs`.
    fence(Ordering::SeqCst);
    if object.is_available(set) {
        object.membership().wake_next(set);
    }
}

/// Spins for some microseconds, for an event loop that is about to sleep. Returns true if `is_ready` has returned true,
/// false if the loop must sleep.
///
/// Other tasks of the loop wait meanwhile, so most waits skip the spin, and `is_ready`, after some spins without
/// success.
pub fn spin_before_loop_sleep(
    object: &dyn Object,
    stop: &AtomicBool,
    is_ready: impl Fn() -> bool,
) -> Result<bool, ObjectError> {
    let failures = &object.membership().failed_loop_spins;
    // Relaxed, both: hints.
    let failed = failures.load(Relaxed);
    let is_found =
        is_worth_spinning(failed) && spin(object, None, None, stop, &mut |_| Ok(is_ready()))?;
    failures.store(if is_found { 0 } else { failed.wrapping_add(1) }, Relaxed);
    Ok(is_found)
}

/// Returns true if a thread should spin after this many failed spins in a row.
fn is_worth_spinning(failed: usize) -> bool {
    failed < MAX_FAILED_SPINS || failed % RETRY_INTERVAL == 0
}

/// Calls `take`, and again while this thread spins before a sleep, unless a sleep is better now. Returns true if `take`
/// has returned true, and raises its error. One thread of this process spins at a time. Without a `set`, spins beside
/// threads of other members.
fn spin(
    object: &dyn Object,
    set: Option<usize>,
    deadline: Option<Instant>,
    stop: &AtomicBool,
    take: &mut impl FnMut(bool) -> Result<bool, ObjectError>,
) -> Result<bool, ObjectError> {
    if take(false)? {
        return Ok(true);
    }
    let membership = object.membership();
    // Relaxed, all: hints.
    let after_waking = membership.has_woken.swap(false, Relaxed);
    let failed = membership.failed_spins.load(Relaxed);
    let limit = if !after_waking {
        SPIN
    } else if is_worth_spinning(failed) {
        SPIN_AFTER_WAKING
    } else {
        0
    };
    // One thread at a time: the others of this process sleep.
    let Ok(mut contention) = membership.contention.try_lock() else {
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
    let word = set.and_then(|set| object.sole_spinner(set));
    let spinner = word.map(|word| SoleSpinner::begin(word, begun, begun + limit));
    if let Some(None) = spinner {
        return Ok(false); // A thread of another member spins.
    }
    // The process that we wait for may want our CPU: because we have woken it, or it ran here before.
    let yields = after_waking || contention.shared_cpu();
    loop {
        let spun = clock::now() - begun;
        if spun >= limit || stop.load(Relaxed) {
            break;
        }
        let must_sleep = match yields {
            true => contention.yield_cpu() == YieldResult::Costly,
            false => contention.yield_after(spun),
        };
        if must_sleep {
            break;
        }
        std::hint::spin_loop();
        if take(false)? {
            membership.failed_spins.store(0, Relaxed);
            return Ok(true);
        }
    }
    if after_waking {
        membership
            .failed_spins
            .store(failed.wrapping_add(1), Relaxed);
    }
    Ok(false)
}
