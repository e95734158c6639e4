//! A queue as an object: the implementation of `Object`.

use super::dropped::note_dropped;
use super::membership::{ITEMS, ObjectQueue, QueueMembership, ROOM};
use crate::clock;
use crate::objects::deadline::RECOVERY_TIMEOUT;
use crate::objects::members::MemberId;
use crate::objects::members::watcher::Chore;
use crate::objects::membership::Membership;
use crate::objects::memory::ObjectMemory;
use crate::objects::object::Object;
use crate::sync::lock;
use std::io;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

impl QueueMembership {
    /// Returns the number of waiting items as a hint, without a check that the queue can be used.
    pub fn depth(&self) -> u64 {
        self.unchecked_queue().len()
    }

    /// Returns the number of items in a queue whose members were all killed.
    pub(in crate::objects) fn count_lost(memory: &ObjectMemory) -> u64 {
        let word = |at| {
            let at = memory.shape.contents_at() + at as usize;
            memory.mapping.u64_at(at).load(Relaxed)
        };
        ObjectQueue::count_items_in(word)
    }

    /// Releases memory that has been free for a while, and requests another check if more may be released later. Waits
    /// for the owner lock for at most `RECOVERY_TIMEOUT`.
    fn reclaim_memory(&self) {
        let mut state = lock(&self.trim_state);
        let queue = self.unchecked_queue();
        let next = queue.trim(*state, clock::now() + RECOVERY_TIMEOUT);
        *state = next.unwrap_or_default();
        self.set_reclaim_requested(next.is_some());
    }
}

impl Object for QueueMembership {
    fn membership(&self) -> &Membership {
        self
    }

    /// Notes the number for `take_lost_items`.
    fn note_lost_items(&self, items: u64) {
        self.lost_items.store(items, Relaxed);
    }

    /// Waits until other threads of this process change nothing, and returns what this process has claimed and
    /// reserved, within `RECOVERY_TIMEOUT` each. Returns None, because no guard is needed.
    fn release_held(&self) -> Option<MutexGuard<'_, ()>> {
        // Other threads of ours first: an owner lock of a process that is no member would be taken over.
        let queue = self.unchecked_queue();
        queue.close(clock::now() + RECOVERY_TIMEOUT);
        let _ = queue.abandon(clock::now() + RECOVERY_TIMEOUT);
        None
    }

    /// Notes the queue for `take_dropped` if it has items.
    fn memory_removed(&self) {
        note_dropped(self.name(), self.depth());
    }

    /// Returns what the dead member of a slot has claimed and reserved. Waits for the owner lock for at most
    /// `RECOVERY_TIMEOUT`; false then, and after other errors.
    fn recover_contents(&self, slot: u32) -> bool {
        let deadline = clock::now() + RECOVERY_TIMEOUT;
        self.unchecked_queue().recover(slot, deadline).is_ok()
    }

    /// Returns true if there is an item, or may be room for one; false for the wait set `DONE`.
    fn is_available(&self, set: usize) -> bool {
        match set {
            ITEMS => !self.unchecked_queue().is_empty(),
            ROOM => self.may_put(1),
            _ => false,
        }
    }

    /// Returns the time until the next claim expires.
    fn next_change(&self) -> Option<Duration> {
        self.next_expiry()
    }

    fn is_requested(&self, chore: Chore) -> bool {
        match chore {
            Chore::ReclaimMemory => self.is_reclaim_requested(),
            Chore::FinishDeferred => self.unchecked_queue().has_deferred(),
            Chore::Recheck => false,
        }
    }

    fn perform(&self, chore: Chore) {
        match chore {
            Chore::ReclaimMemory => self.reclaim_memory(),
            Chore::FinishDeferred => self.finish_deferred(),
            Chore::Recheck => {}
        }
    }

    /// Returns the number of items that a member has claimed.
    fn count_held(&self, member: MemberId) -> usize {
        self.unchecked_queue().claims_held_by(member.0)
    }

    /// Returns the bytes of pages that the file of the memory has.
    fn allocated(&self) -> io::Result<u64> {
        self.unchecked_queue().allocated()
    }
}
