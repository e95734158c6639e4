//! Backpressure: writers that wait for room request a wake-up, and the operation that makes room wakes them.

use super::layout::{FEWEST_SHIFT, FULL, WAITS_FOR_ITEMS, WAITS_FOR_MEMORY, WAITS_FOR_SEVERAL};
use super::{ByteMemory, Queue, WritersToWake};
use crate::shared_heap::access::WriteWords;
use crate::shared_heap::{HeapError, Members};

impl<W: ByteMemory, M: Members> Queue<W, M> {
    /// Return true if a writer has requested a wake-up because `count` items, or their memory, find no room. A hint: it
    /// stays true until the process that makes room wakes a writer.
    pub fn is_known_full(&self, count: u64) -> bool {
        let full = self.hint(FULL);
        let items = self.limits.items;
        full & WAITS_FOR_MEMORY != 0
            || full & WAITS_FOR_ITEMS != 0 && items != 0 && self.len().saturating_add(count) > items
    }

    /// Free the last chunk if the list has no items, and request a wake-up for when memory is freed, because no chunk
    /// could be reserved. Return true after the request, with `has_requested` set: the caller must try again, because a
    /// chunk may have become free before it. Return false, and do nothing, if `has_requested` was set.
    pub(super) fn request_memory_wakeup(
        &self,
        has_requested: &mut bool,
        deadline: u64,
    ) -> Result<bool, HeapError> {
        if std::mem::replace(has_requested, true) {
            return Ok(false);
        }
        self.allocator.undo_log().transact(deadline, |t| {
            self.free_empty_tail(t)?;
            let full = self.get(t, FULL)?;
            if full & WAITS_FOR_MEMORY == 0 {
                self.set(t, FULL, full | WAITS_FOR_MEMORY)?;
            }
            Ok(())
        })?;
        Ok(true)
    }

    /// Request a wake-up once there is room for `count` items, or for as few as another waiting writer needs.
    pub(super) fn request_room_wakeup(
        &self,
        t: &mut impl WriteWords,
        count: u64,
    ) -> Result<(), HeapError> {
        let full = self.get(t, FULL)?;
        let mut fewest = count.min(u64::MAX >> FEWEST_SHIFT);
        let mut flags =
            full & (WAITS_FOR_ITEMS | WAITS_FOR_MEMORY | WAITS_FOR_SEVERAL) | WAITS_FOR_ITEMS;
        if full & WAITS_FOR_ITEMS != 0 {
            fewest = fewest.min(full >> FEWEST_SHIFT);
        }
        if count > 1 {
            flags |= WAITS_FOR_SEVERAL;
        }
        let asked = flags | fewest << FEWEST_SHIFT;
        if asked != full {
            self.set(t, FULL, asked)?;
        }
        Ok(())
    }

    /// If there is room for the fewest items that a writer waits for, or if a writer waits for memory and some was
    /// freed or the queue is empty, withdraw all requests and return the writers to wake: one if all wait for room for
    /// one item, else all. The caller wakes them after the transaction. A writer that finds too little room requests
    /// again. None waits for more room than it needs, because a reader may take one item and then wait for that writer.
    pub(super) fn writers_to_wake(
        &self,
        t: &mut impl WriteWords,
        has_freed: bool,
    ) -> Result<WritersToWake, HeapError> {
        let full = self.get(t, FULL)?;
        if full == 0 {
            return Ok(WritersToWake::None);
        }
        let depth = self.depth(t)?;
        let needed = depth.saturating_add((full >> FEWEST_SHIFT).max(1));
        let has_items = full & WAITS_FOR_ITEMS != 0 && needed <= self.limits.items;
        let has_memory = full & WAITS_FOR_MEMORY != 0 && (has_freed || depth == 0);
        if !has_items && !has_memory {
            return Ok(WritersToWake::None);
        }
        self.set(t, FULL, 0)?;
        // Writers need different amounts of room: one that cannot use this room would keep it from those behind it.
        let is_for_all = full & (WAITS_FOR_MEMORY | WAITS_FOR_SEVERAL) != 0;
        Ok(if is_for_all {
            WritersToWake::All
        } else {
            WritersToWake::One
        })
    }

    /// If writers wait for memory, withdraw their requests, because another operation than a pop has freed memory; the
    /// next caller of [`must_wake_writers`](Self::must_wake_writers) wakes them. Errors are ignored, `Busy` too: the
    /// writers are woken nevertheless. Not called within a transaction, because it runs one.
    pub(super) fn note_freed_memory(&self, deadline: u64) {
        if self.hint(FULL) & WAITS_FOR_MEMORY == 0 {
            return;
        }
        self.deferred.request_wakeup();
        // An error is ignored: the next operation reads the same words and reports it.
        let _ = self.allocator.undo_log().transact(deadline, |t| {
            let full = self.get(t, FULL)?;
            self.set(t, FULL, full & !WAITS_FOR_MEMORY)
        });
    }
}
