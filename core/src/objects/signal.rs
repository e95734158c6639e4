//! Signals: a counter of pending signals, each of which ends one wait.
//!
//! Operations raise what `Membership::check` raises, and never block.

use super::error::ObjectError;
use super::members::watcher::Watched;
use super::membership::Membership;
use super::memory::layout::{AT_SIGNALS, SLEEPERS};
use super::object::Object;
use super::parts::Parts;
use crate::crash;
use crate::shared_heap::{Corruption, Field};
use crate::sync::{AtomicU64, Ordering};
use std::ops::Deref;
use std::sync::{Arc, Weak};

/// The wait set of a signal.
pub const WAITERS: usize = 0;
/// The maximum number of pending signals.
const MAX_SIGNALS: u64 = 1 << 62;

/// The membership of this process in a signal.
pub struct SignalMembership {
    membership: Membership,
}

impl Deref for SignalMembership {
    type Target = Membership;

    fn deref(&self) -> &Membership {
        &self.membership
    }
}

impl Object for SignalMembership {
    fn membership(&self) -> &Membership {
        self
    }

    fn is_available(&self, set: usize) -> bool {
        // Relaxed: a hint.
        set == WAITERS && self.signals().load(Ordering::Relaxed) > 0
    }
}

impl SignalMembership {
    /// Builds the membership from its parts.
    pub fn build(parts: Parts) -> Arc<Self> {
        Arc::new_cyclic(|weak: &Weak<Self>| {
            let weak: Weak<dyn Watched> = weak.clone();
            let membership = Membership::new(parts, weak);
            SignalMembership { membership }
        })
    }

    /// Adds signals, and wakes as many sleepers that wait for one. Raises `TooLarge`, and adds none, if more than
    /// `MAX_SIGNALS` would be pending.
    pub fn signal(&self, count: u64) -> Result<(), ObjectError> {
        self.check()?;
        // Release: what is before the signal is seen by the thread that takes it. Relaxed: nothing follows.
        let add = |now: u64| now.checked_add(count).filter(|&sum| sum <= MAX_SIGNALS);
        let signals = self.signals();
        if let Err(found) = signals.fetch_update(Ordering::Release, Ordering::Relaxed, add) {
            if found > MAX_SIGNALS {
                return Err(self.poison_signals(found));
            }
            return Err(ObjectError::TooLarge(format!(
                "cannot add {count} signals to {found} pending ones: the maximum is {MAX_SIGNALS}; take some with wait() \
                 or drain()"
            )));
        }
        crash::point!(Signalled);
        // No more than can sleep: a thread that sleeps again has found no signal.
        for _ in 0..count.min(SLEEPERS as u64) {
            if !self.wake_next(WAITERS) {
                break;
            }
        }
        self.unless_cut_off(())
    }

    /// Takes a pending signal. Returns false if no signal is pending.
    #[inline]
    pub fn try_take_signal(&self) -> Result<bool, ObjectError> {
        self.check()?;
        let less = |now: u64| now.checked_sub(1).filter(|_| now <= MAX_SIGNALS);
        // Acquire: pairs with the Release of `signal`. Relaxed: there is none.
        let taken = match self
            .signals()
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, less)
        {
            Ok(_) => {
                crash::point!(SignalTaken);
                true
            }
            Err(0) => false,
            Err(found) => return Err(self.poison_signals(found)),
        };
        self.unless_cut_off(taken)
    }

    /// Discards all pending signals, and returns how many. Wakes no waiter.
    pub fn drain(&self) -> Result<u64, ObjectError> {
        self.check()?;
        // Acquire: as in `try_take_signal`.
        match self.signals().swap(0, Ordering::Acquire) {
            found @ 0..=MAX_SIGNALS => self.unless_cut_off(found),
            found => Err(self.poison_signals(found)),
        }
    }

    /// Returns the counter of pending signals.
    fn signals(&self) -> &AtomicU64 {
        self.mapping().u64_at(AT_SIGNALS)
    }

    /// Poisons the object because of an impossible counter, and returns the error.
    #[cold]
    fn poison_signals(&self, found: u64) -> ObjectError {
        self.poison(Corruption {
            field: Field::Signals,
            at: AT_SIGNALS as u64,
            found,
        })
    }
}
