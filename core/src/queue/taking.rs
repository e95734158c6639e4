//! Taking: items that are copied out, and looking at them.

use super::claim_table::{self, BACK};
use super::layout::{DEAD, FEWEST, FULL, GOTTEN, OF_ITEMS, OF_MEMORY, OF_SEVERAL, SLOTS, TAKEN};
use super::{
    Bytes, CLAIMS_AT_ONCE, News, Queue, Room, Source, TAKEN_AT_ONCE, Taken, Waiting, chunk_list,
    list_of, slot_of,
};
use crate::crash;
use crate::shared_heap::undo_log::{Change, See, Transaction};
use crate::shared_heap::{HeapError, Members};

impl<W: Bytes, M: Members> Queue<W, M> {
    /// Copies up to `most` items behind what is in `out`, each a [`Head`] and a payload up to the next multiple of 8, and
    /// takes them.
    pub fn take(
        &self,
        source: Source,
        most: usize,
        out: &mut Vec<u8>,
        deadline: u64,
    ) -> Result<(Taken, News), HeapError> {
        let before = out.len();
        let taken = self.allocator.journal().transact(deadline, |t| {
            let (mut got, mut freed) = (0, 0);
            let list = list_of(source);
            while got < most.min(CLAIMS_AT_ONCE) {
                let Some(index) = self.claims.first(t, list)? else {
                    break;
                };
                let item = self.item_of(t, index)?;
                if !self.copy(item, out, before)? {
                    return self.taken(t, got, freed, source);
                }
                self.claims.pop(t, list)?;
                freed += u64::from(self.forget(t, index)?);
                got += 1;
            }
            if source == Source::Queue && got < most && freed == 0 {
                let more = self.take_chained(t, most - got, out, before)?;
                (got, freed) = (got + more.0, freed + more.1);
            }
            self.taken(t, got, freed, source)
        });
        crash::point!(ItemsTaken);
        if taken.is_err() {
            out.truncate(before);
        }
        taken
    }

    /// Copies up to `most` items that are the next to be taken, and takes none. Fewer if they are many bytes.
    pub fn peek(&self, most: usize, deadline: u64) -> Result<Vec<Waiting>, HeapError> {
        // Under the lease: the memory of what others take meanwhile may be given back.
        self.allocator.journal().transact(deadline, |t| {
            let (mut found, mut left) = (Vec::new(), TAKEN_AT_ONCE);
            let mut seen = |(at, head): chunk_list::Item, number: u64, deliveries: u64| {
                let mut copy = Vec::new();
                self.copy((at, head), &mut copy, 0)?;
                left = left.saturating_sub(copy.len().max(64));
                let len = head.size();
                found.push(Waiting {
                    number,
                    deliveries,
                    len,
                    copy,
                });
                Ok::<_, HeapError>(found.len() < most && left > 0)
            };
            let mut back = self.claims.first(t, BACK)?;
            let mut is_on = most > 0;
            while is_on && let Some(index) = back {
                let number = t.get(self.claims.at(index) + claim_table::NUMBER)?;
                let deliveries = self.claims.state(t, index)?.1;
                is_on = seen(self.item_of(t, index)?, number, deliveries)?;
                back = self.claims.following(t, index)?;
            }
            let chained = self.chained(t)?;
            if is_on && chained > 0 {
                let (mut cursor, first) = (self.head(t)?, self.get(t, TAKEN)?);
                for ahead in 0..chained {
                    let item = self.next_item(t, &mut cursor)?;
                    if !seen(item, first.wrapping_add(ahead), 0)? {
                        break;
                    }
                }
            }
            Ok(found)
        })
    }

    /// Takes from the chain: how many items, and how many chunks are free thereby.
    fn take_chained(
        &self,
        t: &mut Transaction<'_, W, M>,
        most: usize,
        out: &mut Vec<u8>,
        before: usize,
    ) -> Result<(usize, u64), HeapError> {
        let chained = self.chained(t)?;
        let most = most.min(usize::try_from(chained).unwrap_or(usize::MAX));
        let (mut got, mut freed) = (0, 0);
        if most == 0 {
            return Ok((0, 0));
        }
        let mut cursor = self.head(t)?;
        while got < most {
            if cursor.is_at_end() {
                // The items of one chunk after those of another: in few steps, for the journal's sake.
                if got > 0 && freed >= 2 {
                    break;
                }
                freed += u64::from(self.pass(t, &mut cursor)?);
                continue;
            }
            let (count, is_all) = self.copy_run(&mut cursor, most - got, out, before)?;
            got += count;
            if !is_all {
                break;
            }
        }
        if got > 0 {
            let taken = self.get(t, TAKEN)?;
            self.set(t, TAKEN, taken.wrapping_add(got as u64))?;
            freed += u64::from(self.move_head(t, cursor, got as u64 == chained)?);
        }
        Ok((got, freed))
    }

    fn taken(
        &self,
        t: &mut Transaction<'_, W, M>,
        got: usize,
        freed: u64,
        source: Source,
    ) -> Result<(Taken, News), HeapError> {
        if got > 0 && source == Source::Queue {
            self.count_gotten(t, got as u64)?;
        }
        let left = match source {
            Source::Queue => self.depth(t)?,
            Source::DeadLetters => self.get(t, DEAD)?,
        };
        let taken = match got {
            0 if left > 0 => Taken::Large,
            0 if source == Source::Queue && self.is_over(t)? => Taken::Shut,
            0 => Taken::Empty,
            got => Taken::Items(got),
        };
        let news = News {
            items: left > 0,
            room: self.has_made_room(t, freed > 0)?,
            freed: freed > 0,
            ..News::default()
        };
        Ok((taken, news))
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
