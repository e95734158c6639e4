//! The membership of this process in a semaphore, a lock or a memory: acquiring and releasing permits.
//!
//! Operations raise what `Membership::check` raises, and never block.

use super::abandoned::AbandonedPermits;
use super::fairness::Fairness;
use super::lock_owner::{LockOwner, Reentry};
use super::permits::Permits;
use crate::crash;
use crate::memory::mapping::SharedMapping;
use crate::memory::region::Kind;
use crate::objects::error::ObjectError;
use crate::objects::members::watcher::Watched;
use crate::objects::membership::Membership;
use crate::objects::memory::layout::{AT_FAIRNESS, AT_PERMITS, AT_SPINNER};
use crate::objects::parts::Parts;
use crate::objects::sole_spinner::has_spinner;
use crate::shared_heap::{Corruption, Field};
use crate::sync::{AtomicU64, lock};
use std::ops::Deref;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The wait set of members that wait for a permit.
pub const PERMITS: usize = 0;
/// The maximum number of times in a row that a release leaves the permit to a spinning thread while others sleep.
/// Otherwise two running processes could alternate without end.
const MAX_HANDOVERS: usize = 400;

/// The membership of this process in an object with permits.
pub struct SemaphoreMembership {
    membership: Membership,
    pub(super) permits: Permits<Arc<SharedMapping>>,
    pub(super) fairness: Fairness,
    /// The indices of the permits that this process holds, where there is more than one permit.
    held: Mutex<Vec<u32>>,
    /// The index at which the search for a free permit begins: a hint.
    next_index: AtomicUsize,
    lock_owner: LockOwner,
    pub(super) abandoned: AbandonedPermits,
    /// The number of times in a row that a release has left the permit to a spinning thread.
    handovers: AtomicUsize,
}

impl Deref for SemaphoreMembership {
    type Target = Membership;

    fn deref(&self) -> &Membership {
        &self.membership
    }
}

impl SemaphoreMembership {
    /// Makes the membership from its parts, without a permit.
    pub(super) fn new(parts: Parts, weak_self: Weak<dyn Watched>) -> Self {
        let (mapping, count) = (parts.mapping.clone(), parts.shape.permits());
        SemaphoreMembership {
            permits: Permits::new(mapping.clone(), AT_PERMITS, count),
            fairness: Fairness::new(mapping, AT_FAIRNESS),
            membership: Membership::new(parts, weak_self),
            held: Mutex::default(),
            next_index: AtomicUsize::new(0),
            lock_owner: LockOwner::default(),
            abandoned: AbandonedPermits::default(),
            handovers: AtomicUsize::new(0),
        }
    }

    // --- acquiring ---

    /// Acquires a permit. Returns false if none is free, or while permits are reserved for long waiters.
    #[inline]
    pub fn try_acquire(&self) -> Result<bool, ObjectError> {
        self.check()?;
        let acquired = self.fairness.reserved_for().is_none() && self.acquire_any();
        self.unless_cut_off(acquired)
    }

    /// Acquires a permit, also a reserved one, for a thread or task that has waited for long, and ends the reservation.
    /// Returns false if none is free, and requests a reservation.
    pub fn try_acquire_reserved(&self) -> Result<bool, ObjectError> {
        self.check()?;
        let acquired = self.acquire_any();
        match acquired {
            true => self.fairness.clear(),
            false => self.fairness.request(),
        }
        self.unless_cut_off(acquired)
    }

    /// Returns the time for which permits are still reserved for long waiters; None if they are not.
    pub fn reserved_for(&self) -> Option<Duration> {
        self.fairness.reserved_for()
    }

    /// Acquires the permit of a lock for the task or thread of this number, which is not 0. Returns false if the permit
    /// is not free. If the owner holds the lock already, `reentry` decides: one more level, false, or `NotHeld`. With
    /// `is_long`, acquires as [`try_acquire_reserved`](Self::try_acquire_reserved) does.
    pub fn try_lock(
        &self,
        owner: u64,
        reentry: Reentry,
        is_long: bool,
    ) -> Result<bool, ObjectError> {
        if self.lock_owner.is_held_by(owner) {
            self.check()?;
            return match reentry {
                Reentry::Nest => {
                    self.lock_owner.nest();
                    Ok(true)
                }
                Reentry::Wait => Ok(false),
                Reentry::Refuse => Err(self.reentry_error()),
            };
        }
        let acquired = match is_long {
            true => self.try_acquire_reserved()?,
            false => self.try_acquire()?,
        };
        if acquired {
            self.set_lock_owner(owner);
        }
        Ok(acquired)
    }

    /// Makes the error for an owner that acquires a lock again.
    #[cold]
    fn reentry_error(&self) -> ObjectError {
        ObjectError::NotHeld(match self.shape().kind {
            Kind::Lock => {
                "this task or thread holds it already, and would wait for itself; open it with reentrant=True"
            }
            _ => {
                "this task or thread holds its lock already, and would wait for itself; release it before, or use \
                 a shmrpc.Lock with reentrant=True"
            }
        })
    }

    /// Notes that the permit of the lock was acquired for this task or thread, which holds it once. The caller has
    /// acquired the permit.
    #[inline]
    pub fn set_lock_owner(&self, owner: u64) {
        self.lock_owner.set(owner);
    }

    /// Acquires any permit, also a reserved one. Returns false if none is free.
    #[inline]
    fn acquire_any(&self) -> bool {
        if self.has_one_permit() {
            return self.acquire(0);
        }
        self.acquire_any_of_many()
    }

    /// Acquires any of several permits, and notes its index. Returns false if none is free.
    fn acquire_any_of_many(&self) -> bool {
        let count = self.permits.count();
        // Relaxed: a hint.
        let first = self.next_index.load(Relaxed);
        let mut indices = (0..count).map(|step| (first + step) % count);
        let Some(index) = indices.find(|&index| self.acquire(index)) else {
            return false;
        };
        self.next_index.store((index + 1) % count, Relaxed);
        lock(&self.held).push(index as u32);
        true
    }

    /// Acquires the permit at this index. Returns false if the permit is not free, or if this process has left.
    #[inline]
    fn acquire(&self, index: usize) -> bool {
        let acquired = self.permits.try_acquire(index, self.members().self_id());
        if acquired {
            crash::point!(PermitTaken);
            // Relaxed: seen by the exchange, see `Permits::release_all`.
            if self.has_left() {
                return self.undo_acquire(index);
            }
        }
        acquired
    }

    /// Releases a permit that this thread has acquired after another thread has left the object, and returns false.
    /// Otherwise the permit would stay with a member that has left.
    #[cold]
    fn undo_acquire(&self, index: usize) -> bool {
        let _ = self.permits.release(index, self.members().self_id());
        self.wake_one(PERMITS);
        false
    }

    // --- releasing ---

    /// Releases a lock once, for the task or thread of this number; the last release wakes the next waiter. Raises
    /// `NotHeld` if that task or thread does not hold the lock.
    pub fn unlock(&self, owner: u64) -> Result<(), ObjectError> {
        self.check()?;
        if !self.lock_owner.is_held_by(owner) {
            let text = "this task or thread does not hold it, and cannot release it";
            return Err(ObjectError::NotHeld(text));
        }
        match self.lock_owner.unnest() {
            true => self.release_index(0),
            false => Ok(()),
        }
    }

    /// Releases a permit, whichever task or thread has acquired it, and wakes the next sleeper that waits for one.
    /// Raises `NotHeld` if this process has no permit. A lock with owners is released with `unlock`.
    #[inline]
    pub fn release(&self) -> Result<(), ObjectError> {
        self.check()?;
        let index = if self.has_one_permit() {
            let is_held = self.permits.is_held(0, self.members().self_id());
            self.unless_cut_off(is_held)?.then_some(0)
        } else {
            lock(&self.held).pop()
        };
        let Some(index) = index else {
            return Err(ObjectError::NotHeld(
                "this process has no permit to release",
            ));
        };
        self.release_index(index as usize)
    }

    /// Releases the permit at this index, and wakes the next sleeper or leaves the permit to a spinning thread.
    #[inline]
    fn release_index(&self, index: usize) -> Result<(), ObjectError> {
        let is_reserved = self.fairness.reserve();
        self.free(index)?;
        if self.abandoned.exist() {
            self.abandoned.limit(|| self.count_held_here());
        }
        // Relaxed: a hint.
        self.next_index.store(index, Relaxed);
        crash::point!(PermitFreed);
        match self.has_one_permit() && !is_reserved {
            true => self.hand_over_or_wake(),
            false => drop(self.wake_next(PERMITS)),
        }
        Ok(())
    }

    /// Marks the permit at this index as free. Poisons the object if this process does not hold the permit.
    #[inline]
    fn free(&self, index: usize) -> Result<(), ObjectError> {
        let freed = self.permits.release(index, self.members().self_id());
        freed.map_err(|found| {
            self.poison(Corruption {
                field: Field::Permit,
                at: self.permits.offset(index),
                found,
            })
        })
    }

    /// Leaves the only permit, which is free, to a spinning thread, or wakes the next sleeper.
    #[inline]
    fn hand_over_or_wake(&self) {
        // Relaxed, all: hints.
        let handovers = self.handovers.load(Relaxed);
        let mut is_left = false;
        self.wake_next_unless(PERMITS, || {
            is_left = handovers < MAX_HANDOVERS && has_spinner(self.spinner());
            is_left
        });
        self.handovers
            .store(if is_left { handovers + 1 } else { 0 }, Relaxed);
    }

    // --- abandoned permits ---

    /// Keeps the object open for a permit whose handle is gone, and which the task or thread of this number still
    /// holds. Does nothing if all permits of this process are abandoned already.
    pub fn abandon_permit(&self, owner: u64) {
        self.abandoned.add(owner, || self.count_held_here());
    }

    /// Gives an abandoned permit back to its task or thread, which would wait for itself otherwise. Returns true if
    /// this owner has abandoned one: the caller then holds it without acquiring it.
    pub fn reclaim_permit(&self, owner: u64) -> bool {
        self.abandoned.reclaim(owner)
    }

    /// Returns true if permits are abandoned.
    #[inline]
    pub fn has_abandoned_permits(&self) -> bool {
        self.abandoned.exist()
    }

    /// Forgets an abandoned permit, preferably of this task or thread, because another handle is about to release it.
    /// The owner can no longer reclaim the permit.
    pub fn forget_abandoned_permit(&self, owner: u64) {
        self.abandoned.forget_one(owner);
    }

    // --- counts ---

    /// Returns the number of free permits, reserved ones included.
    pub fn free_permits(&self) -> Result<usize, ObjectError> {
        self.check()?;
        self.unless_cut_off(self.permits.count_free())
    }

    /// Returns the number of permits that this process holds.
    pub(super) fn count_held_here(&self) -> usize {
        match self.has_one_permit() {
            true => self.permits.is_held(0, self.members().self_id()).into(),
            false => lock(&self.held).len(),
        }
    }

    /// Returns true if there is only one permit.
    #[inline]
    pub(super) fn has_one_permit(&self) -> bool {
        self.permits.count() == 1
    }

    /// Returns the word of the right to spin for the only permit.
    #[inline]
    pub(super) fn spinner(&self) -> &AtomicU64 {
        self.mapping().u64_at(AT_SPINNER)
    }
}
