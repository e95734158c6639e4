//! Events: a flag that members set, clear and wait for.
//!
//! The word counts how often the event was set, times two, plus one while it is set.
//!
//! Operations raise what `Membership::check` raises, and never block.

use super::error::ObjectError;
use super::members::watcher::Watched;
use super::membership::Membership;
use super::memory::layout::AT_EVENT;
use super::object::Object;
use super::parts::Parts;
use crate::crash;
use crate::sync::{AtomicU64, Ordering};
use std::ops::Deref;
use std::sync::{Arc, Weak};

/// The wait set of an event.
pub const WAITERS: usize = 0;

/// The membership of this process in an event.
pub struct EventMembership {
    membership: Membership,
}

impl Deref for EventMembership {
    type Target = Membership;

    fn deref(&self) -> &Membership {
        &self.membership
    }
}

impl Object for EventMembership {
    fn membership(&self) -> &Membership {
        self
    }
}

impl EventMembership {
    /// Builds the membership from its parts.
    pub fn build(parts: Parts) -> Arc<Self> {
        Arc::new_cyclic(|weak: &Weak<Self>| {
            let weak: Weak<dyn Watched> = weak.clone();
            let membership = Membership::new(parts, weak);
            EventMembership { membership }
        })
    }

    /// Sets the event, and wakes all its waiters. Does nothing if the event is set.
    pub fn set(&self) -> Result<(), ObjectError> {
        self.check()?;
        let set = |now: u64| (now & 1 == 0).then(|| now.wrapping_add(3));
        // Release: what is before it is seen by the woken threads. Relaxed: the event is set already.
        if self
            .event()
            .fetch_update(Ordering::Release, Ordering::Relaxed, set)
            .is_ok()
        {
            crash::point!(EventSet);
            self.wake_all(WAITERS);
        }
        self.unless_cut_off(())
    }

    /// Clears the event; its waiters sleep on. Does nothing if the event is clear.
    pub fn clear(&self) -> Result<(), ObjectError> {
        self.check()?;
        // Relaxed: nothing is handed over.
        self.event().fetch_and(!1, Ordering::Relaxed);
        self.unless_cut_off(())
    }

    /// Returns the word of the event, for a later `was_set_since`: odd while the event is set.
    pub fn word(&self) -> Result<u64, ObjectError> {
        self.check()?;
        // Acquire: pairs with the Release of `set`.
        self.unless_cut_off(self.event().load(Ordering::Acquire))
    }

    /// Returns true if the event is set now, or was set at least once since `word` returned `since`, also if it was
    /// cleared afterwards.
    pub fn was_set_since(&self, since: u64) -> Result<bool, ObjectError> {
        let now = self.word()?;
        Ok(now & 1 == 1 || now >> 1 != since >> 1)
    }

    /// Returns the word of the event.
    fn event(&self) -> &AtomicU64 {
        self.mapping().u64_at(AT_EVENT)
    }
}
