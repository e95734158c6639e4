//! Items that were taken and are not dealt with so far.

use super::layout::{DONE, OUTSTANDING, SLOTS};
use super::{ByteMemory, Queue, Wakeups, slot_of};
use crate::shared_heap::access::WriteWords;
use crate::shared_heap::{HeapError, Members};

impl<W: ByteMemory, M: Members> Queue<W, M> {
    /// Whether all items that were put were dealt with.
    pub fn is_all_done(&self, deadline: u64) -> Result<bool, HeapError> {
        let journal = self.allocator.undo_log();
        journal.read(deadline, |t| Ok(self.unfinished(t)? == 0))
    }

    /// Says of `count` items that this member has got that they were dealt with. None if it has not got that many.
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

    /// This many items were dealt with: whether that were all.
    pub(super) fn complete(&self, t: &mut impl WriteWords, count: u64) -> Result<bool, HeapError> {
        let left = self.unfinished(t)?;
        let done = self.get(t, DONE)?;
        self.set(t, DONE, done.wrapping_add(count.min(left)))?;
        Ok(left <= count)
    }

    /// Where it says how many items a member has got.
    pub(super) fn outstanding_offset(&self, slot: u64) -> u64 {
        OUTSTANDING + 8 * (slot % SLOTS)
    }

    pub(super) fn slot(&self) -> u64 {
        slot_of(self.self_id())
    }

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
