//! Writers that wait for room: what they ask for, and when they are woken.

use super::layout::{FEWEST, FULL, OF_ITEMS, OF_MEMORY, OF_SEVERAL};
use super::{Bytes, Queue, Room};
use crate::shared_heap::undo_log::Change;
use crate::shared_heap::{HeapError, Members};

impl<W: Bytes, M: Members> Queue<W, M> {
    /// Whether there is no room for these items, or no memory, and somebody was told so: a hint that is true until whoever
    /// makes room wakes a writer.
    pub fn is_known_full(&self, count: u64) -> bool {
        let full = self.hint(FULL);
        let items = self.limits.items;
        full & OF_MEMORY != 0
            || full & OF_ITEMS != 0 && items != 0 && self.len().saturating_add(count) > items
    }

    /// No chunk was to be had: tells whoever frees one. False if that was done before; else it is to be tried again,
    /// since one may have become free before we told.
    pub(super) fn waits_for_memory(
        &self,
        has_told: &mut bool,
        deadline: u64,
    ) -> Result<bool, HeapError> {
        if std::mem::replace(has_told, true) {
            return Ok(false);
        }
        self.allocator.journal().transact(deadline, |t| {
            self.free_empty(t)?;
            let full = self.get(t, FULL)?;
            if full & OF_MEMORY == 0 {
                self.set(t, FULL, full | OF_MEMORY)?;
            }
            Ok(())
        })?;
        Ok(true)
    }

    /// Asks for a wake-up once there is room for `count` items.
    pub(super) fn ask_for_room(&self, t: &mut impl Change, count: u64) -> Result<(), HeapError> {
        let full = self.get(t, FULL)?;
        let mut fewest = count.min(u64::MAX >> FEWEST);
        let mut flags = full & (OF_ITEMS | OF_MEMORY | OF_SEVERAL) | OF_ITEMS;
        if full & OF_ITEMS != 0 {
            fewest = fewest.min(full >> FEWEST);
        }
        if count > 1 {
            flags |= OF_SEVERAL;
        }
        let asked = flags | fewest << FEWEST;
        if asked != full {
            self.set(t, FULL, asked)?;
        }
        Ok(())
    }

    /// Decides which writers that sleep are to look again: there is room for the items of one of them, or a chunk is free.
    /// A writer that finds too little asks again. None waits for more room than it needs, because a reader may take one
    /// item and then wait for that writer.
    pub(super) fn has_made_room(
        &self,
        t: &mut impl Change,
        has_freed: bool,
    ) -> Result<Room, HeapError> {
        let full = self.get(t, FULL)?;
        if full == 0 {
            return Ok(Room::No);
        }
        let depth = self.depth(t)?;
        let needed = depth.saturating_add((full >> FEWEST).max(1));
        let has_items = full & OF_ITEMS != 0 && needed <= self.limits.items;
        let has_memory = full & OF_MEMORY != 0 && (has_freed || depth == 0);
        if !has_items && !has_memory {
            return Ok(Room::No);
        }
        self.set(t, FULL, 0)?;
        // One that cannot use the room would keep it from those behind it: they need different amounts of it.
        let is_for_all = full & (OF_MEMORY | OF_SEVERAL) != 0;
        Ok(if is_for_all { Room::All } else { Room::One })
    }

    /// Notes that memory was freed otherwise than by taking items. The next caller of
    /// [`must_wake_writers`](Self::must_wake_writers) wakes the writers that wait for memory.
    pub(super) fn has_freed_memory(&self, deadline: u64) {
        if self.hint(FULL) & OF_MEMORY == 0 {
            return;
        }
        self.leftovers.wake_writers();
        // What is wrong, whoever comes next reads too.
        let _ = self.allocator.journal().transact(deadline, |t| {
            let full = self.get(t, FULL)?;
            self.set(t, FULL, full & !OF_MEMORY)
        });
    }
}
