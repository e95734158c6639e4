//! Wait flags: they tell when a sleeper must be woken, without a system call while no side sleeps.
//!
//! A side that is about to sleep announces that in a flag, and *then* checks once more. A side that has changed
//! something loads the flag *after* the change. Each puts a sequentially consistent fence between its store and its
//! load, so at least one of the two sees the other's store: no wake-up is lost.
//!
//! ```text
//!   sleeper                          waker
//!   flag = how         (announce)    index = …      (publish, release)
//!   fence(SeqCst)                    fence(SeqCst)
//!   load the index                   load the flag      (take_wake_token)
//!   unchanged? sleep                 set? clear it, wake the sleeper
//! ```
//!
//! The waker clears the flag in one step, so each sleep is ended by one wake-up. A flag is a hint: a hostile peer that
//! writes it can cause needless wake-ups, or miss its own message, and nothing else.

use crate::crash;
use crate::sync::{AtomicU32, Ordering, fence};

/// The side does not sleep.
pub const AWAKE: u32 = 0;
/// The side sleeps until its socket is readable: an event loop.
pub const ON_SOCKET: u32 = 1;
/// The side sleeps on the named semaphore of its direction: a blocked thread.
pub const ON_SEMAPHORE: u32 = 2;
/// The side sleeps until its socket is readable, but not for items of a stream: it polls for them when it wants them.
pub const PATIENT: u32 = 3;

/// Announce a sleep in the way `how`, one of the constants above but [`AWAKE`]. The caller checks once more before it
/// sleeps, and withdraws the announcement if it does not, and after the sleep.
#[inline]
pub fn announce(flag: &AtomicU32, how: u32) {
    // Relaxed: the fence orders it.
    flag.store(how, Ordering::Relaxed);
    // SeqCst: the store of the flag is before the next load of the index, in the one order that all such fences share.
    // See the table above.
    fence(Ordering::SeqCst);
    crash::point!(SleepAnnounced);
}

/// Withdraw the announcement: the side is awake.
#[inline]
pub fn withdraw(flag: &AtomicU32) {
    // Relaxed: seen late, it costs the peer one needless wake-up.
    flag.store(AWAKE, Ordering::Relaxed);
    crash::point!(SleepWithdrawn);
}

/// Return the way in which to wake the side, and clear the flag: the caller must then wake it in that way. A patient
/// side is woken by its socket: [`ON_SOCKET`]. Return [`AWAKE`] if the side does not sleep. An unknown value of a
/// hostile peer is returned as it is. Called after a change.
#[inline]
pub fn take_wake_token(flag: &AtomicU32) -> u32 {
    // SeqCst: the store of the index is before this load of the flag.
    fence(Ordering::SeqCst);
    take_seen_wake_token(flag)
}

/// Take the wake token after a change that adds an item to a stream, unless the side is patient. Return as
/// [`take_wake_token`].
#[inline]
pub fn take_wake_token_for_item(flag: &AtomicU32) -> u32 {
    // SeqCst: as in `take_wake_token`.
    fence(Ordering::SeqCst);
    // Relaxed: as in `take_seen_wake_token`.
    match flag.load(Ordering::Relaxed) {
        PATIENT => AWAKE,
        how => try_take(flag, how),
    }
}

/// Take the wake token without the fence, for a waker that polls: it finds later a flag that it misses now. Return as
/// [`take_wake_token`].
#[inline]
pub fn take_seen_wake_token(flag: &AtomicU32) -> u32 {
    // Relaxed: the fence, or the next call, orders it.
    try_take(flag, flag.load(Ordering::Relaxed))
}

/// Clear the flag if it still has the value `how`. Return the way in which to wake the side, or [`AWAKE`].
#[inline]
fn try_take(flag: &AtomicU32, how: u32) -> u32 {
    if how == AWAKE {
        return AWAKE;
    }
    // Relaxed, both: this only decides which side wakes; the socket or semaphore orders the rest. It fails if the
    // sleeper has withdrawn the flag meanwhile; the sleeper then checks again before it sleeps. A swap would do, but
    // loom may order its zero after the next announcement.
    match flag.compare_exchange(how, AWAKE, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(PATIENT) => ON_SOCKET,
        Ok(how) => how,
        Err(_) => AWAKE,
    }
}
