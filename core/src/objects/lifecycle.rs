//! The life of a membership: joining, recovery of dead members, leaving.

use super::error::ObjectError;
use super::members::lock_file::{LockFile, ObjectMembers};
use super::members::watcher::{Chore, Watch, Watched};
use super::membership::Membership;
use super::memory::layout::AT_MEMBERS;
use super::memory::{ObjectAddress, ObjectMemory};
use super::object::{Kinds, Object};
use super::parts::Parts;
use crate::crash;
use crate::sync::lock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Makes this process a member of an object. The caller holds the entry lock, and keeps it. `is_writable` is true if
/// the caller wants to write to a single-writer store. Notifies the watchers of other members, and recovers the last
/// member of its slot and all dead members, which may wait for an owner lock; wakes all sleepers if there were any.
///
/// Raises `Full` if the object has the maximum number of members, EBUSY if the recovery of a dead member must be
/// repeated later, and what `Object::join` of the kind raises. After an error the caller drops the lock file, which
/// ends the membership; other members recover the slot.
pub(super) fn join(
    kinds: &dyn Kinds,
    address: &ObjectAddress,
    memory: ObjectMemory,
    lock_file: &Arc<LockFile>,
    is_writable: bool,
) -> Result<Arc<dyn Object>, ObjectError> {
    let attached = ObjectMembers::attach(memory.mapping.clone(), AT_MEMBERS, lock_file.clone());
    let attached = attached.map_err(ObjectError::os("its lock file cannot be locked"))?;
    let (members, has_remains) = attached.ok_or(ObjectError::Full("256 members"))?;
    crash::point!(MemberLocked);
    let object = kinds.build(Parts::new(address, memory, lock_file.clone(), members)?)?;
    let (membership, slot) = (object.membership(), object.membership().members().slot());
    if has_remains {
        recover_slot(&*object, slot);
    }
    object.prepare_slot();
    membership.members().register();
    crash::point!(MemberEntered);
    object.join(is_writable)?;
    // Only a member can take the owner lock.
    if has_remains {
        if !object.recover_contents(slot) {
            let what = "what a dead member has left in it cannot be recovered";
            return Err(ObjectError::from_errno(what, libc::EBUSY));
        }
        // The watchers of other members no longer find the dead member, and wake no sleeper.
        wake_after_recovery(membership);
    }
    membership.notify_watchers();
    recover_dead(&*object);
    Ok(object)
}

/// Opens an object for inspection, without making this process a member: its slot is `SLOTS`. Takes no lock, and raises
/// the errors of the kind's `build`.
pub(super) fn inspect(
    kinds: &dyn Kinds,
    address: &ObjectAddress,
    memory: ObjectMemory,
    lock_file: LockFile,
) -> Result<Arc<dyn Object>, ObjectError> {
    let lock_file = Arc::new(lock_file);
    let members = ObjectMembers::inspect(memory.mapping.clone(), AT_MEMBERS, lock_file.clone());
    kinds.build(Parts::new(address, memory, lock_file, members)?)
}

/// Recovers the slots of dead members, one thread at a time, and wakes all sleepers if there were any. Leaves what
/// cannot be recovered now to the watcher (`must_retry_recovery`). Blocks while another thread of this process
/// recovers, and for each dead member whose contents need an owner lock that is not free: for `RECOVERY_TIMEOUT`, or
/// longer while a store moves to a copy.
pub(super) fn recover_dead(object: &dyn Object) {
    let membership = object.membership();
    let members = membership.members();
    let is_dead = |&slot: &u32| !members.is_alive(slot);
    // One thread at a time: the kernel gives each thread of a process the same lock, and a late thread would take from
    // the next member of the slot.
    let _alone = lock(&membership.recovering);
    let mut any = false;
    membership.must_retry_recovery.store(false, Relaxed);
    for slot in members.used_slots().filter(is_dead) {
        // If another process recovers the slot, or the system refuses, the watcher notices the end again.
        if let Ok(true) = members.begin_recovery(slot) {
            crash::point!(RecoveryBegun);
            recover_slot(object, slot);
            let is_complete = object.recover_contents(slot);
            crash::point!(Recovered);
            if is_complete {
                let _ = members.end_recovery(slot);
            } else {
                // The watcher tries it again.
                membership.must_retry_recovery.store(true, Relaxed);
                let _ = members.postpone_recovery(slot);
            }
            any = true;
        }
    }
    if any {
        wake_after_recovery(membership);
    }
}

/// Wakes all sleepers after the recovery of a dead member, which may have freed what they wait for, or may have died
/// before it woke them.
fn wake_after_recovery(membership: &Membership) {
    for set in membership.sets() {
        set.rewake();
    }
    membership.wake_all_sets();
}

/// Recovers what the last member of a slot held, as far as that needs no owner lock, and frees its wait slots. This
/// process has the lock of the slot; the caller recovers the contents and frees the slot.
fn recover_slot(object: &dyn Object, slot: u32) {
    object.recover_slot(slot);
    for set in object.membership().sets() {
        set.sweep(|member| member != slot);
    }
}

/// Prepares a sleep: makes the watcher recover dead members from now on, and audits the object, which it may poison.
/// Raises the errors of `audit`, and `Os` if the watcher cannot be started.
pub fn prepare_to_sleep(object: &dyn Object) -> Result<(), ObjectError> {
    object.membership().watch()?;
    audit(object)
}

/// Poisons the object, and raises the error, if the entry of this process was overwritten or if the memory holds a
/// value that would block members for ever. Raises the errors of `Membership::check`, too. May sleep for some
/// milliseconds to check an orphaned permit again.
pub fn audit(object: &dyn Object) -> Result<(), ObjectError> {
    let membership = object.membership();
    membership.check()?;
    if let Some(corruption) = membership.members().find_corruption() {
        return Err(membership.poison(corruption));
    }
    object.audit()
}

/// Leaves an object, and releases all that this process holds of it. Calls `remove`, with the entry lock held, if no
/// other process is a member. Waits for the entry lock for at most `timeout`; without the lock, other members recover
/// the slot. The release of a queue or a store also waits for the owner lock, within `RECOVERY_TIMEOUT` each time. The
/// memory stays mapped until `Membership::release_memory`.
///
/// Errors are ignored. In a forked process only marks the membership as left.
pub(super) fn leave(object: &dyn Object, remove: &dyn Fn(&LockFile), timeout: Duration) {
    let membership = object.membership();
    let lock_file = membership.lock_file();
    membership.mark_left();
    if !membership.is_here() {
        return;
    }
    lock(&membership.watch).end();
    // No thread moves to a copy of a store meanwhile: that would leave the entry lock held.
    let _guard = object.release_held();
    crash::point!(LeaveBegun);
    membership.wake_all_sets(); // The waits of this process end; others check for the permits that it has released.
    membership.drop_spare_slots();
    if let Ok(Ok(())) = lock_file.lock_entry(timeout) {
        let _ = membership.members().leave();
        crash::point!(MemberLeft);
        if let Ok(false) = lock_file.has_other_members() {
            remove(lock_file);
        }
    }
    membership.members().detach(); // Also without the entry lock.
    lock_file.close();
    membership.close_file();
    object.close_files();
    for set in membership.sets() {
        set.backing().forget_ringer();
    }
}

impl<O: Object> Watched for O {
    fn watch_state(&self) -> &Mutex<Watch> {
        &self.membership().watch
    }

    fn members(&self) -> &ObjectMembers {
        self.membership().members()
    }

    fn has_left(&self) -> bool {
        self.membership().has_left()
    }

    fn mark_watched(&self) {
        self.membership().mark_watched();
    }

    fn must_retry_recovery(&self) -> bool {
        // Relaxed: stored by the watcher's thread, or seen by it later.
        self.membership().must_retry_recovery.load(Relaxed)
    }

    fn recover_dead(&self) {
        recover_dead(self);
    }

    fn react_to_members(&self) {
        self.before_recovery();
        recover_dead(self);
        self.after_recovery();
    }

    /// Returns true if the recheck, or a chore of the kind, is requested.
    fn is_requested(&self, chore: Chore) -> bool {
        match chore {
            Chore::Recheck => self.membership().is_recheck_requested(),
            other => Object::is_requested(self, other),
        }
    }

    /// Does the recheck, or a chore of the kind.
    fn perform(&self, chore: Chore) {
        match chore {
            Chore::Recheck => recheck(self),
            other => Object::perform(self, other),
        }
    }
}

/// Ends the requested recheck, and wakes the next sleeper of each wait set for which a reason to wake exists
/// (`Object::is_available`).
fn recheck(object: &dyn Object) {
    let membership = object.membership();
    membership.begin_recheck();
    for set in 0..membership.sets().len() {
        if object.is_available(set) {
            membership.wake_next(set);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::region::Kind;
    use crate::objects::kinds;
    use crate::objects::members::{MEMBER_SIZE, MemberLocks};
    use crate::objects::memory::layout::AT_PERMITS;
    use crate::objects::memory::shape::Shape;
    use crate::objects::semaphore::PERMITS;
    use crate::objects::semaphore::permits::Permits;
    use crate::testing::fork;
    use crate::wait::wait_set::WakeMethod;

    #[test]
    fn a_member_that_joins_in_the_slot_of_a_dead_one_wakes_the_sleepers() {
        let name = format!("lifecycle-{}", std::process::id());
        let lock_file = std::env::temp_dir().join(format!("{name}@shared.lock"));
        let address = ObjectAddress { name, lock_file };
        let open = || kinds::open(&address, Shape::new(Kind::Lock, 1)).unwrap();
        let handle = open().expect("it is created");
        let membership = handle.object().membership();
        // All other slots are in use: the first by a dead member, the others by living ones.
        let (own, mut dead) = (membership.members().slot(), None);
        for slot in (0..256).filter(|&slot| slot != own) {
            let entry = AT_MEMBERS + slot as usize * MEMBER_SIZE;
            membership
                .mapping()
                .u64_at(entry)
                .store(1 << 32 | 1, Relaxed);
            match dead {
                None => dead = Some(slot),
                Some(_) => assert!(membership.lock_file().try_lock_slot(slot).unwrap()),
            }
        }
        let dead = membership.members().id_at(dead.expect("a slot"));
        let permits = Permits::new(membership.mapping().clone(), AT_PERMITS, 1);
        assert!(permits.try_acquire(0, dead));
        let mut sleeper = membership.thread_slot(PERMITS).unwrap();
        sleeper.draw_ticket();
        sleeper.announce(WakeMethod::Futex).unwrap();
        let joined = fork(|| std::mem::forget(open().expect("it exists")));
        assert_eq!(joined.wait(), 0);
        assert!(!permits.is_held(0, dead));
        assert!(sleeper.withdraw().unwrap(), "the sleeper was not woken");
    }
}
