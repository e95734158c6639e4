//! A semaphore, lock or memory as an object: the implementation of `Object`.

use super::membership::{PERMITS, SemaphoreMembership};
use crate::objects::error::ObjectError;
use crate::objects::members::MemberId;
use crate::objects::members::watcher::Watched;
use crate::objects::membership::Membership;
use crate::objects::object::Object;
use crate::objects::parts::Parts;
use crate::shared_heap::{Corruption, Field};
use crate::sync::AtomicU64;
use std::sync::{Arc, MutexGuard, Weak};
use std::thread;
use std::time::Duration;

/// The number of further checks of a permit whose holder is no member, and the pause before each.
const ORPHAN_CHECKS: usize = 10;
const CHECK_PAUSE: Duration = Duration::from_millis(2);

impl SemaphoreMembership {
    /// Builds the membership from its parts.
    pub fn build(parts: Parts) -> Arc<Self> {
        Arc::new_cyclic(|weak: &Weak<Self>| {
            let weak: Weak<dyn Watched> = weak.clone();
            SemaphoreMembership::new(parts, weak)
        })
    }

    /// Returns the index of a permit whose holder is no member, and the id of the holder; None if there is no such
    /// permit.
    fn find_orphan(&self) -> Option<(usize, u64)> {
        self.permits.find_orphan(|id| self.members().is_member(id))
    }
}

impl Object for SemaphoreMembership {
    fn membership(&self) -> &Membership {
        self
    }

    /// Returns true if tasks or threads of this process hold permits whose handles are gone.
    fn must_stay_open(&self) -> bool {
        self.abandoned.exist() && self.count_held_here() > 0
    }

    /// Releases all permits of this process. Returns None, because no guard is needed.
    fn release_held(&self) -> Option<MutexGuard<'_, ()>> {
        self.permits.release_all(self.members().self_id());
        None
    }

    /// Frees the permits of the dead members of a slot.
    fn recover_slot(&self, slot: u32) {
        self.permits.recover(slot);
    }

    /// Poisons the object, and returns the error, if the holder of a permit is no member: the permit would never be
    /// released. Checks the permit again after each of `ORPHAN_CHECKS` pauses, and returns Ok once the permit is no
    /// longer found.
    fn audit(&self) -> Result<(), ObjectError> {
        let Some(orphan) = self.find_orphan() else {
            return Ok(());
        };
        // A member that leaves may have acquired it meanwhile, and releases it at once.
        for _ in 0..ORPHAN_CHECKS {
            thread::sleep(CHECK_PAUSE);
            if self.find_orphan() != Some(orphan) {
                return Ok(());
            }
        }
        let (index, found) = orphan;
        Err(self.poison(Corruption {
            field: Field::OrphanedPermit,
            at: self.permits.offset(index),
            found,
        }))
    }

    /// Returns true if a permit is free, also a reserved one.
    fn is_available(&self, set: usize) -> bool {
        set == PERMITS && self.permits.count_free() > 0
    }

    /// Returns the time for which permits are still reserved for long waiters; None if they are not.
    fn next_change(&self) -> Option<Duration> {
        self.reserved_for()
    }

    /// Returns the word of the sole spinner of the set of permits if there is only one permit, otherwise None.
    fn sole_spinner(&self, set: usize) -> Option<&AtomicU64> {
        (set == PERMITS && self.has_one_permit()).then(|| self.spinner())
    }

    /// Returns the number of permits that a member holds.
    fn count_held(&self, member: MemberId) -> usize {
        self.permits.count_held_by(member)
    }
}
