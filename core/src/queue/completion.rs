//! Items that were taken and are not dealt with so far.

use super::layout::{DONE, GOTTEN, SLOTS};
use super::{Bytes, News, Queue, slot_of};
use crate::shared_heap::undo_log::Change;
use crate::shared_heap::{HeapError, Members};

impl<W: Bytes, M: Members> Queue<W, M> {
    /// Whether all items that were put were dealt with.
    pub fn is_done(&self, deadline: u64) -> Result<bool, HeapError> {
        let journal = self.allocator.journal();
        journal.read(deadline, |t| Ok(self.unfinished(t)? == 0))
    }

    /// Says of `count` items that this member has got that they were dealt with. None if it has not got that many.
    pub fn task_done(&self, count: u64, deadline: u64) -> Result<Option<News>, HeapError> {
        self.allocator.journal().transact(deadline, |t| {
            let slot = self.gotten(self.slot());
            let gotten = self.get(t, slot)?;
            if gotten < count {
                return Ok(None);
            }
            self.set(t, slot, gotten - count)?;
            Ok(Some(News {
                done: self.finish(t, count)?,
                ..News::default()
            }))
        })
    }

    /// This many items were dealt with: whether that were all.
    pub(super) fn finish(&self, t: &mut impl Change, count: u64) -> Result<bool, HeapError> {
        let left = self.unfinished(t)?;
        let done = self.get(t, DONE)?;
        self.set(t, DONE, done.wrapping_add(count.min(left)))?;
        Ok(left <= count)
    }

    /// Where it says how many items a member has got.
    pub(super) fn gotten(&self, slot: u64) -> u64 {
        GOTTEN + 8 * (slot % SLOTS)
    }

    pub(super) fn slot(&self) -> u64 {
        slot_of(self.me())
    }

    pub(super) fn count_gotten(&self, t: &mut impl Change, count: u64) -> Result<(), HeapError> {
        let at = self.gotten(self.slot());
        let gotten = self.get(t, at)?;
        self.set(t, at, gotten.wrapping_add(count))
    }
}
