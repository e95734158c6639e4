//! Shutting a queue down.

use super::claim_table::RETURNED_CLAIMS;
use super::layout::{AT_ONCE, HELD, SHUT, TAKEN};
use super::{ByteMemory, Queue};
use crate::shared_heap::access::ReadWords;
use crate::shared_heap::undo_log::Transaction;
use crate::shared_heap::{HeapError, Members};

impl<W: ByteMemory, M: Members> Queue<W, M> {
    /// Accept no more items. With `immediate`, drop the waiting items, which count as processed, and later those that
    /// would return; dead letters stay. The caller wakes all waiters, because none of the wake-ups is returned: also
    /// after an error, because the queue may be shut down then, and a part of the items dropped. Idempotent.
    pub fn shut_down(&self, immediate: bool, deadline: u64) -> Result<(), HeapError> {
        let journal = self.allocator.undo_log();
        journal.transact(deadline, |t| {
            let how = if immediate { AT_ONCE } else { 1 };
            let before = self.get(t, SHUT)?;
            self.set(t, SHUT, before.max(how))
        })?;
        if !immediate {
            return Ok(());
        }
        while journal.transact(deadline, |t| self.drop_next(t))? {}
        Ok(())
    }

    /// Drop the next waiting item, which counts as processed. Needs no claim, because the table of claims may be full.
    /// Return false if no item waits.
    fn drop_next(&self, t: &mut Transaction<'_, W, M>) -> Result<bool, HeapError> {
        if let Some(index) = self.claims.pop(t, RETURNED_CLAIMS)? {
            self.remove_claim(t, index)?;
        } else {
            let listed = self.items_in_list(t)?;
            if listed == 0 {
                return Ok(false);
            }
            let mut cursor = self.head(t)?;
            while cursor.is_at_end() {
                self.advance_chunk(t, &mut cursor)?;
            }
            self.next_item(t, &mut cursor)?;
            let taken = self.get(t, TAKEN)?;
            self.set(t, TAKEN, taken.wrapping_add(1))?;
            self.move_head(t, cursor, listed == 1)?;
        }
        self.complete(t, 1)?;
        Ok(true)
    }

    /// Return true if the queue accepts no more items. A hint.
    pub fn is_shut_down(&self) -> bool {
        self.hint(SHUT) != 0
    }

    /// Return true if the queue was shut down and no claimed item may return, whether items wait or not. A hint.
    pub fn may_be_finished(&self) -> bool {
        match self.hint(SHUT) {
            0 => false,
            AT_ONCE => true,
            _ => self.hint(HELD) == 0,
        }
    }

    /// Return true if the queue is empty and stays so: it is shut down, no item waits, and no claimed item may return.
    pub(super) fn is_finished(&self, t: &impl ReadWords) -> Result<bool, HeapError> {
        let may_come_back = match self.get(t, SHUT)? {
            0 => return Ok(false),
            AT_ONCE => false,
            _ => self.get(t, HELD)? > 0,
        };
        Ok(!may_come_back && self.depth(t)? == 0)
    }
}
