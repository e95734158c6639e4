//! Completion: items that were handed out and not reported as processed.

use super::layout::{DONE, OUTSTANDING, SLOTS};
use super::{ByteMemory, Queue, Wakeups, slot_of};
use crate::shared_heap::access::WriteWords;
use crate::shared_heap::{HeapError, Members};

impl<W: ByteMemory, M: Members> Queue<W, M> {
    /// Return true if all items that were put have been processed; dead letters count as processed.
    pub fn is_all_done(&self, deadline: u64) -> Result<bool, HeapError> {
        let journal = self.allocator.undo_log();
        journal.read(deadline, |t| Ok(self.unfinished(t)? == 0))
    }

    /// Report `count` items that were handed to this member as processed. Return None, and change nothing, if it has
    /// fewer unprocessed ones.
    pub fn task_done(&self, count: u64, deadline: u64) -> Result<Option<Wakeups>, HeapError> {
        self.allocator.undo_log().transact(deadline, |t| {
            let slot = self.outstanding_offset(self.slot());
            let outstanding = self.get(t, slot)?;
            if outstanding < count {
                return Ok(None);
            }
            self.set(t, slot, outstanding - count)?;
            Ok(Some(Wakeups {
                done: self.complete(t, count)?,
                ..Wakeups::default()
            }))
        })
    }

    /// Count items as processed, but at most those that are unprocessed. Return true if no unprocessed item is left.
    pub(super) fn complete(&self, t: &mut impl WriteWords, count: u64) -> Result<bool, HeapError> {
        let left = self.unfinished(t)?;
        let done = self.get(t, DONE)?;
        self.set(t, DONE, done.wrapping_add(count.min(left)))?;
        Ok(left <= count)
    }

    /// Return the offset in the queue of the word that counts the unprocessed items of the member with this slot.
    pub(super) fn outstanding_offset(&self, slot: u64) -> u64 {
        OUTSTANDING + 8 * (slot % SLOTS)
    }

    /// Return the slot of this member, which must not have left.
    pub(super) fn slot(&self) -> u64 {
        slot_of(self.self_id())
    }

    /// Count items as handed to this member and not processed, for [`task_done`](Self::task_done).
    pub(super) fn add_outstanding(
        &self,
        t: &mut impl WriteWords,
        count: u64,
    ) -> Result<(), HeapError> {
        let at = self.outstanding_offset(self.slot());
        let outstanding = self.get(t, at)?;
        self.set(t, at, outstanding.wrapping_add(count))
    }
}
