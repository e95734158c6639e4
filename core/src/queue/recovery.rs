//! Recovery of what members leave: members that died, and this member when it leaves.

use super::claim_table::{self, ClaimState};
use super::{ByteMemory, Queue, Wakeups, WritersToWake, slot_of};
use crate::crash;
use crate::shared_heap::access::ReadWords;
use crate::shared_heap::undo_log::Transaction;
use crate::shared_heap::{Field, HeapError, Members, corrupt};

impl<W: ByteMemory, M: Members> Queue<W, M> {
    /// Return all items and memory that dead members with this slot have held, and count the items that were handed to
    /// them as processed. The current owner of the slot may be this member. After an error a part is returned, and the
    /// caller calls again.
    pub fn recover(&self, slot: u32, deadline: u64) -> Result<Wakeups, HeapError> {
        let (slot, self_id) = (u64::from(slot), self.self_id());
        self.return_all(
            slot,
            |owner| slot_of(owner) == slot && owner != self_id,
            deadline,
        )
    }

    /// Stop changes by other threads of this process, and wait until the running ones have ended, but not beyond
    /// `deadline`. The calling thread may still change the queue.
    pub fn close(&self, deadline: u64) {
        self.allocator.undo_log().close(deadline);
    }

    /// Return all items and memory that this member holds, before it leaves. Called after [`close`](Self::close); the
    /// member must not change the queue afterwards. After an error the recovery by another member returns the rest.
    pub fn abandon(&self, deadline: u64) -> Result<Wakeups, HeapError> {
        self.deferred.clear();
        self.allocator.abandon(deadline)?;
        let self_id = self.self_id();
        self.return_all(slot_of(self_id), |owner| owner == self_id, deadline)
    }

    /// End the claims of all members for which `is_gone` returns true, and count the unprocessed items of the slot as
    /// processed, and free the reserved chunks.
    fn return_all(
        &self,
        slot: u64,
        is_gone: impl Fn(u64) -> bool,
        deadline: u64,
    ) -> Result<Wakeups, HeapError> {
        let journal = self.allocator.undo_log();
        let mut wakeups = Wakeups::default();
        let mut from = 0;
        loop {
            let step = journal.transact(deadline, |t| {
                for index in from..self.claims.high(t)? {
                    let owner = t.get(self.claims.at(index) + claim_table::OWNER)?;
                    if owner != 0 && is_gone(owner) {
                        return Ok(Some((index, self.return_claim(t, index)?)));
                    }
                }
                Ok(None)
            })?;
            let Some((index, some)) = step else {
                break;
            };
            crash::point!(ClaimRecovered);
            wakeups = wakeups.and(some);
            from = index + 1;
        }
        let done = journal.transact(deadline, |t| {
            let at = self.outstanding_offset(slot);
            let outstanding = self.get(t, at)?;
            if outstanding == 0 {
                return Ok(false);
            }
            self.set(t, at, 0)?;
            self.complete(t, outstanding)
        })?;
        self.allocator.recover(is_gone, deadline)?;
        self.note_freed_memory(deadline);
        Ok(wakeups.and(Wakeups {
            room: WritersToWake::All,
            done,
            freed: true,
            ..Wakeups::default()
        }))
    }

    /// End the held or acknowledged claim `index` of a member that is gone. Fails with a corruption if no member can
    /// hold a claim in its state.
    fn return_claim(
        &self,
        t: &mut Transaction<'_, W, M>,
        index: u64,
    ) -> Result<Wakeups, HeapError> {
        match self.claims.state(t, index)?.0 {
            ClaimState::Active | ClaimState::Examined => self.return_item(t, index),
            ClaimState::Acknowledged => {
                let freed = self.remove_claim(t, index)?;
                Ok(Wakeups {
                    room: self.writers_to_wake(t, freed)?,
                    ..Wakeups::default()
                })
            }
            state => Err(corrupt(Field::Claim, self.claims.at(index), state as u64)),
        }
    }
}
