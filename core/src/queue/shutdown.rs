//! The end of a queue: nothing more is put.

use super::layout::{AT_ONCE, HELD, SHUT};
use super::{ByteMemory, ClaimEnd, ClaimOutcome, Queue, Source};
use crate::shared_heap::access::ReadWords;
use crate::shared_heap::{HeapError, Members};

impl<W: ByteMemory, M: Members> Queue<W, M> {
    /// Lets nothing more be put. With `immediate` what waits is dropped, and what would come back.
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

    /// Whether nothing more is put.
    pub fn is_shut_down(&self) -> bool {
        self.hint(SHUT) != 0
    }

    /// Whether there is nothing, and nothing will ever come: a hint.
    pub fn may_be_finished(&self) -> bool {
        match self.hint(SHUT) {
            0 => false,
            AT_ONCE => true,
            _ => self.hint(HELD) == 0,
        }
    }

    /// Whether nothing will ever come: no item waits, none is claimed that may come back, and none is put any more.
    pub(super) fn is_finished(&self, t: &impl ReadWords) -> Result<bool, HeapError> {
        let may_come_back = match self.get(t, SHUT)? {
            0 => return Ok(false),
            AT_ONCE => false,
            _ => self.get(t, HELD)? > 0,
        };
        Ok(!may_come_back && self.depth(t)? == 0)
    }
}
