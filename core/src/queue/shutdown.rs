//! Shutting a queue down.

use super::layout::{AT_ONCE, HELD, SHUT};
use super::{ByteMemory, ClaimEnd, ClaimOutcome, Queue, Source};
use crate::shared_heap::access::ReadWords;
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
        while let (ClaimOutcome::Item(claim), _) = self.claim(Source::Queue, 0, deadline)? {
            let _ = self.acknowledge(&claim, ClaimEnd::Done, false, deadline)?;
        }
        Ok(())
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
