//! Popping items, and peeking at them.

use super::chunk::Item;
use super::claim::list_for;
use super::claim_table::{self, RETURNED_CLAIMS};
use super::layout::{DEAD, TAKEN};
use super::{
    ByteMemory, MAX_CLAIMS_PER_TRANSACTION, MAX_POP_BYTES, PopOutcome, Queue, Source, WaitingItem,
    Wakeups,
};
use crate::crash;
use crate::shared_heap::access::ReadWords;
use crate::shared_heap::undo_log::Transaction;
use crate::shared_heap::{HeapError, Members};

impl<W: ByteMemory, M: Members> Queue<W, M> {
    /// Pop up to `most` items and append them to `out`, each as a [`Head`] and a payload padded to the next multiple of
    /// 8. One call pops few returned items and a bounded number of bytes, so it may return fewer items although more
    /// wait. Never waits for an item. Popped items of the queue count as handed to this member, which then calls
    /// [`task_done`](Self::task_done). Nothing is appended after an error.
    pub fn pop(
        &self,
        source: Source,
        most: usize,
        out: &mut Vec<u8>,
        deadline: u64,
    ) -> Result<(PopOutcome, Wakeups), HeapError> {
        let before = out.len();
        let taken = self.allocator.undo_log().transact(deadline, |t| {
            let (mut got, mut freed) = (0, 0);
            let list = list_for(source);
            while got < most.min(MAX_CLAIMS_PER_TRANSACTION) {
                let Some(index) = self.claims.first(t, list)? else {
                    break;
                };
                let item = self.claimed_item(t, index)?;
                if !self.copy_item(item, out, before)? {
                    return self.pop_outcome(t, got, freed, source);
                }
                self.claims.pop(t, list)?;
                freed += u64::from(self.remove_claim(t, index)?);
                got += 1;
            }
            if source == Source::Queue && got < most && freed == 0 {
                let more = self.pop_from_list(t, most - got, out, before)?;
                (got, freed) = (got + more.0, freed + more.1);
            }
            self.pop_outcome(t, got, freed, source)
        });
        crash::point!(ItemsTaken);
        if taken.is_err() {
            out.truncate(before);
        }
        taken
    }

    /// Return copies of up to `most` waiting items in their order, fewer if they have many bytes, without popping them.
    /// The copy of a large item is empty. Held items and dead letters are not among them.
    pub fn peek(&self, most: usize, deadline: u64) -> Result<Vec<WaitingItem>, HeapError> {
        // Under the owner lock, because memory of items that others pop meanwhile may go back to the system.
        self.allocator.undo_log().transact(deadline, |t| {
            let (mut found, mut left) = (Vec::new(), MAX_POP_BYTES);
            let mut seen = |(at, head): Item, number: u64, deliveries: u64| {
                let mut copy = Vec::new();
                self.copy_item((at, head), &mut copy, 0)?;
                left = left.saturating_sub(copy.len().max(64));
                let len = head.size();
                found.push(WaitingItem {
                    number,
                    deliveries,
                    len,
                    copy,
                });
                Ok::<_, HeapError>(found.len() < most && left > 0)
            };
            let mut back = self.claims.first(t, RETURNED_CLAIMS)?;
            let mut is_on = most > 0;
            while is_on && let Some(index) = back {
                let number = t.get(self.claims.at(index) + claim_table::NUMBER)?;
                let deliveries = self.claims.state(t, index)?.1;
                is_on = seen(self.claimed_item(t, index)?, number, deliveries)?;
                back = self.claims.next_in_list(t, index)?;
            }
            let listed = self.items_in_list(t)?;
            if is_on && listed > 0 {
                let (mut cursor, first) = (self.head(t)?, self.get(t, TAKEN)?);
                for ahead in 0..listed {
                    let item = self.next_item(t, &mut cursor)?;
                    if !seen(item, first.wrapping_add(ahead), 0)? {
                        break;
                    }
                }
            }
            Ok(found)
        })
    }

    /// Pop up to `most` items from the list of chunks, up to the first large one, and append them to `out`, which had
    /// `before` bytes at the beginning of the pop. Return the number of items and of freed chunks.
    fn pop_from_list(
        &self,
        t: &mut Transaction<'_, W, M>,
        most: usize,
        out: &mut Vec<u8>,
        before: usize,
    ) -> Result<(usize, u64), HeapError> {
        let listed = self.items_in_list(t)?;
        let most = most.min(usize::try_from(listed).unwrap_or(usize::MAX));
        let (mut got, mut freed) = (0, 0);
        if most == 0 {
            return Ok((0, 0));
        }
        let mut cursor = self.head(t)?;
        while got < most {
            if cursor.is_at_end() {
                // A transaction frees few chunks, because its log has room for few changes.
                if got > 0 && freed >= 2 {
                    break;
                }
                freed += u64::from(self.advance_chunk(t, &mut cursor)?);
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
            freed += u64::from(self.move_head(t, cursor, got as u64 == listed)?);
        }
        Ok((got, freed))
    }

    /// Count `got` items as handed to this member. Return the outcome of a pop, and the wake-ups.
    fn pop_outcome(
        &self,
        t: &mut Transaction<'_, W, M>,
        got: usize,
        freed: u64,
        source: Source,
    ) -> Result<(PopOutcome, Wakeups), HeapError> {
        if got > 0 && source == Source::Queue {
            self.add_outstanding(t, got as u64)?;
        }
        let left = match source {
            Source::Queue => self.depth(t)?,
            Source::DeadLetters => self.get(t, DEAD)?,
        };
        let taken = match got {
            0 if left > 0 => PopOutcome::Large,
            0 if source == Source::Queue && self.is_finished(t)? => PopOutcome::Finished,
            0 => PopOutcome::Empty,
            got => PopOutcome::Items(got),
        };
        let wakeups = Wakeups {
            items: left > 0,
            room: self.writers_to_wake(t, freed > 0)?,
            freed: freed > 0,
            ..Wakeups::default()
        };
        Ok((taken, wakeups))
    }
}
