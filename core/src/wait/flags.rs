//! When a sleeper must be woken, without a system call while nobody sleeps.
//!
//! A side that is about to sleep says so in a flag, and *then* looks once more.
//! A side that has changed something looks at the flag *after* the change. Each
//! puts a sequentially consistent fence between its store and its load, so at
//! least one of the two sees the other: no wake-up is lost.
//!
//! ```text
//!   sleeper                          waker
//!   flag = how         (announce)    index = …      (publish, release)
//!   fence(SeqCst)                    fence(SeqCst)
//!   look at the index                look at the flag   (claim)
//!   nothing? sleep                   set? take it, ring that bell
//! ```
//!
//! Whoever wakes, takes the flag in one step, so a sleep is ended by one ring. A
//! flag is a hint: a peer that lies about it can make us ring a bell in vain, or
//! sleep past its own message, and nothing else.

use crate::crash;
use crate::sync::{AtomicU32, Ordering, fence};

/// Nobody sleeps.
pub const AWAKE: u32 = 0;
/// The sleeper waits for its bell (an event loop).
pub const ON_SOCKET: u32 = 1;
/// The sleeper waits on its direction's named semaphore (a blocked thread).
pub const ON_SEMAPHORE: u32 = 2;
/// The sleeper waits for its bell, but for no item of a stream: for those it looks when it wants them.
pub const PATIENT: u32 = 3;

/// Says how we are about to sleep. Look once more before doing so.
#[inline]
pub fn announce(flag: &AtomicU32, how: u32) {
    // Relaxed: the fence orders it.
    flag.store(how, Ordering::Relaxed);
    // SeqCst: our store of the flag is before our next look at the index, in the
    // one order that all such fences share. See the table above.
    fence(Ordering::SeqCst);
    crash::point!(SleepAnnounced);
}

/// Takes the announcement back: we are awake.
#[inline]
pub fn withdraw(flag: &AtomicU32) {
    // Relaxed: seen late, it costs the peer one ring in vain.
    flag.store(AWAKE, Ordering::Relaxed);
    crash::point!(SleepWithdrawn);
}

/// After a change: how the sleeper waits, and the duty to ring it; [`AWAKE`] if nobody sleeps.
#[inline]
pub fn take_wake_token(flag: &AtomicU32) -> u32 {
    // SeqCst: our store of the index is before this look at the flag.
    fence(Ordering::SeqCst);
    take_seen_wake_token(flag)
}

/// [`claim`] after a change that adds an item to a stream.
#[inline]
pub fn take_wake_token_for_item(flag: &AtomicU32) -> u32 {
    // SeqCst: as in `claim`.
    fence(Ordering::SeqCst);
    // Relaxed: as in `claim_seen`.
    match flag.load(Ordering::Relaxed) {
        PATIENT => AWAKE,
        how => try_take(flag, how),
    }
}

/// [`claim`] without the fence, for a side that keeps looking: what it misses now it finds later.
#[inline]
pub fn take_seen_wake_token(flag: &AtomicU32) -> u32 {
    // Relaxed: the fence, or the next look, orders it.
    try_take(flag, flag.load(Ordering::Relaxed))
}

/// Takes the flag that was seen.
#[inline]
fn try_take(flag: &AtomicU32, how: u32) -> u32 {
    if how == AWAKE {
        return AWAKE;
    }
    // Relaxed, both: this only decides who rings; the bell itself orders the rest. It fails if the
    // sleeper has taken the flag back meanwhile, and then it looks again before it sleeps.
    // A swap would do, but for loom, which may take its zero for later than the next announcement.
    match flag.compare_exchange(how, AWAKE, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(PATIENT) => ON_SOCKET,
        Ok(how) => how,
        Err(_) => AWAKE,
    }
}
