//! Failover: the members of a store continue without one that holds it and has stopped.

use super::copies::{MOVE_ATTEMPTS, replaced_too_often};
use super::error::StoreRefused;
use super::membership::StoreMembership;
use crate::objects::deadline::deadline_after;
use crate::objects::error::ObjectError;
use crate::objects::members::Holder;
use crate::objects::members::MemberId;
use crate::shared_heap::HeapError;
use crate::store::StoreError;

impl StoreMembership {
    /// Moves all members to a copy of the store if a member holds the owner lock for longer than `timeout` nanoseconds:
    /// that member is fenced off, and its uncommitted changes are lost. Returns its process; None, and changes nothing,
    /// if no member holds the lock for so long. Wakes all sleepers after the move.
    ///
    /// Raises `NotHeld` if a task or thread of this process holds the lock, `Busy` if a process holds the entry lock
    /// for too long, `Fenced` if this process is fenced off, and EBUSY if the store is replaced again and again.
    pub fn fail_over(&self, timeout: u64) -> Result<Option<Holder>, StoreRefused> {
        for _ in 0..MOVE_ATTEMPTS {
            let found =
                self.in_current_contents(|store| match store.begin(deadline_after(timeout)) {
                    Ok(open) => {
                        store.abandon(open);
                        Ok(None)
                    }
                    Err(StoreError::Heap(HeapError::Busy { holder })) => Ok(Some(holder)),
                    Err(error) => Err(self.map_error(error)),
                });
            let Some(holder) = found?.map(MemberId) else {
                return Ok(None);
            };
            if holder == self.members().self_id() {
                let text =
                    "a task or thread of this process is within a transaction: end that instead";
                return Err(ObjectError::NotHeld(text).into());
            }
            // A dead member is no reason for a copy: the next attempt takes over from it.
            let Some(process) = self.members().holder_of(holder) else {
                continue;
            };
            if self.replace_without(holder)? {
                self.wake_all_sets();
                return Ok(Some(process));
            }
        }
        Err(replaced_too_often().into())
    }
}
