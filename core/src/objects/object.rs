//! The interface by which the code for all kinds uses an object of one kind.

use super::error::ObjectError;
use super::members::MemberId;
use super::members::watcher::Chore;
use super::membership::Membership;
use super::memory::ObjectMemory;
use super::parts::Parts;
use crate::sync::AtomicU64;
use std::any::Any;
use std::io;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

/// An object of which this process is a member. A kind overrides the default methods that it needs.
pub trait Object: Any + Send + Sync {
    /// Returns the membership.
    fn membership(&self) -> &Membership;

    // --- joining and leaving ---

    /// Prepares the slot of this process, which is recovered, before this process registers in it.
    fn prepare_slot(&self) {}

    /// Joins the contents, once this process is registered. The caller has the entry lock. `is_writable` is true if the
    /// caller wants to write to a single-writer store. After an error the caller gives up the membership.
    fn join(&self, is_writable: bool) -> Result<(), ObjectError> {
        let _ = is_writable;
        Ok(())
    }

    /// Notes the number of items of a queue that were lost because all members were killed. Other kinds ignore it.
    fn note_lost_items(&self, items: u64) {
        let _ = items;
    }

    /// Prepares another handle of an object that this process has open, if the caller has named a shape. After an error
    /// the caller makes no handle; those that exist stay.
    fn reopen(&self) -> Result<(), ObjectError> {
        Ok(())
    }

    /// Returns true if the object must stay open without a handle.
    fn must_stay_open(&self) -> bool {
        false
    }

    /// Releases all that this process holds, because it leaves: it is marked as left, and still a member. Returns a
    /// guard that the caller holds until it has left. May wait for an owner lock.
    fn release_held(&self) -> Option<MutexGuard<'_, ()>> {
        None
    }

    /// Closes the kind's files, because this process has left.
    fn close_files(&self) {}

    /// Cleans up after the memory was removed, because this process was the last member. The caller has the entry lock.
    fn memory_removed(&self) {}

    // --- other members ---

    /// Recovers what the dead member of a slot held, as far as that needs no owner lock. The caller has the lock of the
    /// slot.
    fn recover_slot(&self, slot: u32) {
        let _ = slot;
    }

    /// Recovers the contents that the dead member of a slot was changing or held, which needs the owner lock. The
    /// caller has the lock of the slot. Returns false if the caller must try again later.
    fn recover_contents(&self, slot: u32) -> bool {
        let _ = slot;
        true
    }

    /// Reacts to a change of the members or a ring of the watcher's doorbell, before dead members are recovered.
    fn before_recovery(&self) {}

    /// Reacts to a change of the members or a ring of the watcher's doorbell, after dead members were recovered.
    fn after_recovery(&self) {}

    /// Poisons the object, and raises the error, if its memory holds what would block its members for ever.
    fn audit(&self) -> Result<(), ObjectError> {
        Ok(())
    }

    // --- waiting ---

    /// Returns true if a sleeper of a wait set could proceed now: a hint. False for wait sets whose sleepers no watcher
    /// must wake again.
    fn is_available(&self, set: usize) -> bool {
        let _ = set;
        false
    }

    /// Returns the time after which sleepers must check again, though no member wakes them; None if a wake-up suffices.
    fn next_change(&self) -> Option<Duration> {
        None
    }

    /// Returns the word that grants one thread of all members the right to spin for this wait set; None if all may
    /// spin.
    fn sole_spinner(&self, set: usize) -> Option<&AtomicU64> {
        let _ = set;
        None
    }

    // --- background work ---

    /// Returns true if a chore of the kind is requested.
    fn is_requested(&self, chore: Chore) -> bool {
        let _ = chore;
        false
    }

    /// Does a chore of the kind, in the thread of the watcher. Errors are ignored.
    fn perform(&self, chore: Chore) {
        let _ = chore;
    }

    // --- reports ---

    /// Returns the number of permits or items that a member holds, living or dead; 0 for kinds that members cannot
    /// hold.
    fn count_held(&self, member: MemberId) -> usize {
        let _ = member;
        0
    }

    /// Returns the bytes of memory that the object has now.
    fn allocated(&self) -> io::Result<u64> {
        Ok(self.membership().mapping().size() as u64)
    }
}

/// Returns the object as one of a certain kind, or None if it is of another kind.
pub fn downcast<O: Object>(object: &Arc<dyn Object>) -> Option<Arc<O>> {
    let object: Arc<dyn Any + Send + Sync> = object.clone();
    object.downcast().ok()
}

/// Borrows the object as one of a certain kind, or returns None if it is of another kind.
#[inline]
pub fn downcast_ref<O: Object>(object: &dyn Object) -> Option<&O> {
    (object as &dyn Any).downcast_ref()
}

/// Memory whose members were all killed.
pub struct Leftover {
    /// The number of items in it.
    pub items: u64,
    /// The name of another file of the object, if there is one.
    pub copy: Option<String>,
}

/// The kinds of object, for the registry.
pub trait Kinds: Sync {
    /// Builds the membership of an object of any kind from its parts. Raises `Os` or `Foreign` if its memory cannot be
    /// used. Panics for a connection.
    fn build(&self, parts: Parts) -> Result<Arc<dyn Object>, ObjectError>;

    /// Inspects memory whose members were all killed.
    fn inspect_leftover(&self, memory: &ObjectMemory) -> Leftover;
}
