//! The linked list of chunks: positions of the first and the next item, and growth and removal of chunks.

use super::chunk::{Chunk, Cursor, Item};
use super::claim_table::{self, ClaimState};
use super::layout::*;
use super::{ByteMemory, CHUNK_SIZES, MAX_POP_BYTES, Queue};
use crate::memory::bytes::append_from;
use crate::shared_heap::access::{ReadWords, WriteWords};
use crate::shared_heap::backing_file::PAGE;
use crate::shared_heap::undo_log::Transaction;
use crate::shared_heap::{Field, HeapError, Members, corrupt};
use crate::sync::Ordering;

impl<W: ByteMemory, M: Members> Queue<W, M> {
    // --- the end at which items are put ---

    /// Reserve a chunk of `size` bytes, its head included, after freeing the deferred chunks. Return None if there is
    /// no room for it now; fail with [`HeapError::Limit`] if there never is. Not called within a transaction.
    pub(super) fn reserve_chunk(
        &self,
        size: u64,
        deadline: u64,
    ) -> Result<Option<Chunk>, HeapError> {
        self.free_deferred_chunks(deadline);
        match self.allocator.reserve_pages(size, deadline) {
            Ok(block) => Ok(Some(Chunk { block, size })),
            Err(HeapError::Limit { .. }) if size.div_ceil(PAGE) <= self.limits.memory / PAGE => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Return the size of the next shared chunk, in bytes: the memory in use, rounded up to a power of two, from the
    /// smaller one of CHUNK_SIZES to the larger one or an eighth of the maximum memory.
    pub(super) fn chunk_size(&self, deadline: u64) -> Result<u64, HeapError> {
        let usage = self.allocator.usage(deadline)?;
        let used = usage.backed.saturating_sub(usage.spare);
        let most = CHUNK_SIZES.1.min(self.limits.memory / 8);
        Ok(used.next_power_of_two().min(most).max(CHUNK_SIZES.0))
    }

    /// Return the offset for `len` bytes of items: behind the last item, or in the `spare` chunk, which then becomes
    /// the last one. The caller writes them and stores TAIL_AT. Return None if neither has room.
    pub(super) fn find_room(
        &self,
        t: &mut Transaction<'_, W, M>,
        len: u64,
        spare: &mut Option<Chunk>,
    ) -> Result<Option<u64>, HeapError> {
        let tail = self.load_offset(t, self.start + TAIL_CHUNK)?;
        if tail != 0 {
            let (at, end) = (self.get(t, TAIL_AT)?, self.chunk_end(t, tail)?);
            if at < tail + CHUNK_HEAD || at > end || at % 8 != 0 {
                return Err(corrupt(Field::Chunk, self.start + TAIL_AT, at));
            }
            if len <= end - at {
                return Ok(Some(at));
            }
        }
        let Some(chunk) = spare.take_if(|chunk| chunk.room() >= len) else {
            return Ok(None);
        };
        let items = chunk.items();
        self.append_chunk(t, chunk)?;
        Ok(Some(items))
    }

    /// Append a reserved chunk to the list, and commit it. The caller then stores TAIL_AT, which until then is the end
    /// of the items of the chunk before. If the transaction fails, the chunk stays reserved, and `chunk` is lost.
    pub(super) fn append_chunk(
        &self,
        t: &mut Transaction<'_, W, M>,
        chunk: Chunk,
    ) -> Result<(), HeapError> {
        let at = chunk.offset();
        t.init(at + NEXT, 0)?;
        t.init(at + CHUNK_SIZE, chunk.size)?;
        t.init(at + END, 0)?;
        t.init(at + PINS, 0)?;
        self.allocator.commit(t, &chunk.block)?;
        let tail = self.load_offset(t, self.start + TAIL_CHUNK)?;
        if tail == 0 {
            self.set(t, HEAD_CHUNK, at)?;
            self.set(t, HEAD_AT, chunk.items())?;
        } else {
            let end = self.get(t, TAIL_AT)?;
            t.set(tail + END, end)?;
            t.set(tail + NEXT, at)?;
        }
        self.set(t, TAIL_CHUNK, at)
    }

    /// Read an offset from the word at `at`, and check that it lies within the memory.
    fn load_offset(&self, t: &impl ReadWords, at: u64) -> Result<u64, HeapError> {
        let found = t.get(at)?;
        if found > self.words().size() as u64 {
            return Err(corrupt(Field::Chunk, at, found));
        }
        Ok(found)
    }

    /// Return the offset of the end of a chunk, or a corruption if the chunk does not lie within the memory.
    fn chunk_end(&self, t: &impl ReadWords, chunk: u64) -> Result<u64, HeapError> {
        let size = t.get(chunk + CHUNK_SIZE)?;
        let end = chunk.checked_add(size);
        end.filter(|&end| size >= CHUNK_HEAD && end <= self.words().size() as u64)
            .ok_or_else(|| corrupt(Field::Chunk, chunk + CHUNK_SIZE, size))
    }

    // --- the end at which items are popped ---

    /// Return the position of the head: that of the first item, which must exist, or the end of the chunk before it.
    pub(super) fn head(&self, t: &impl ReadWords) -> Result<Cursor, HeapError> {
        let chunk = self.load_offset(t, self.start + HEAD_CHUNK)?;
        let at = self.get(t, HEAD_AT)?;
        let end = self.items_end(t, chunk)?;
        if chunk == 0 || at < chunk + CHUNK_HEAD || at > end || at % 8 != 0 {
            return Err(corrupt(Field::Chunk, self.start + HEAD_AT, at));
        }
        Ok(Cursor { chunk, at, end })
    }

    /// Return the offset at which the items of a chunk end, or a corruption if that is not within the chunk.
    fn items_end(&self, t: &impl ReadWords, chunk: u64) -> Result<u64, HeapError> {
        let at = if chunk == self.get(t, TAIL_CHUNK)? {
            self.start + TAIL_AT
        } else {
            chunk + END
        };
        let end = t.get(at)?;
        if end < chunk + CHUNK_HEAD || end > self.chunk_end(t, chunk)? {
            return Err(corrupt(Field::Chunk, at, end));
        }
        Ok(end)
    }

    /// Return the position at the beginning of the next chunk, or a corruption if there is none. The head stays.
    fn cursor_at_next_chunk(
        &self,
        t: &impl ReadWords,
        cursor: Cursor,
    ) -> Result<Cursor, HeapError> {
        let chunk = cursor.chunk;
        let next = self.load_offset(t, chunk + NEXT)?;
        if next == 0 || chunk == self.get(t, TAIL_CHUNK)? {
            return Err(corrupt(Field::Chunk, chunk + NEXT, next));
        }
        let end = self.items_end(t, next)?;
        Ok(Cursor {
            chunk: next,
            at: next + CHUNK_HEAD,
            end,
        })
    }

    /// Move the cursor and the head to the next chunk, which must exist. Return true if the chunk that they leave is
    /// freed.
    pub(super) fn advance_chunk(
        &self,
        t: &mut Transaction<'_, W, M>,
        cursor: &mut Cursor,
    ) -> Result<bool, HeapError> {
        let chunk = cursor.chunk;
        *cursor = self.cursor_at_next_chunk(t, *cursor)?;
        self.set(t, HEAD_CHUNK, cursor.chunk)?;
        self.set(t, HEAD_AT, cursor.at)?;
        self.free_if_unpinned(t, chunk)
    }

    /// Free a chunk that the head has passed, unless a claim pins it. Return true if it is freed.
    fn free_if_unpinned(
        &self,
        t: &mut Transaction<'_, W, M>,
        chunk: u64,
    ) -> Result<bool, HeapError> {
        let is_free = t.get(chunk + PINS)? == 0;
        if is_free {
            self.allocator.free_within(t, chunk)?;
        }
        Ok(is_free)
    }

    /// Move the head to the cursor, which must be in the chunk of the head, because
    /// [`advance_chunk`](Self::advance_chunk) moves both. At the end of that chunk, advance to the next one. With
    /// `is_empty` the list has no items from there on, and its last chunk is reused or removed. Return true if a chunk
    /// is freed.
    pub(super) fn move_head(
        &self,
        t: &mut Transaction<'_, W, M>,
        mut cursor: Cursor,
        is_empty: bool,
    ) -> Result<bool, HeapError> {
        if !is_empty {
            if cursor.is_at_end() {
                return self.advance_chunk(t, &mut cursor);
            }
            self.set(t, HEAD_AT, cursor.at)?;
            return Ok(false);
        }
        let Cursor { chunk, at, .. } = cursor;
        if chunk != self.get(t, TAIL_CHUNK)? || at != self.get(t, TAIL_AT)? {
            return Err(corrupt(Field::Chunk, self.start + TAIL_AT, at));
        }
        if t.get(chunk + CHUNK_SIZE)? <= CHUNK_SIZES.1 {
            // Reuse the chunk from its beginning if no claim pins it, because its memory is in this CPU's caches.
            let is_pinned = t.get(chunk + PINS)? != 0;
            let next = if is_pinned { at } else { chunk + CHUNK_HEAD };
            self.set(t, HEAD_AT, next)?;
            self.set(t, TAIL_AT, next)?;
            return Ok(false);
        }
        self.set(t, HEAD_CHUNK, 0)?;
        self.set(t, TAIL_CHUNK, 0)?;
        self.free_if_unpinned(t, chunk)
    }

    /// Remove the last chunk if the list has no items, and free it unless a claim pins it.
    pub(super) fn free_empty_tail(&self, t: &mut Transaction<'_, W, M>) -> Result<(), HeapError> {
        let tail = self.load_offset(t, self.start + TAIL_CHUNK)?;
        if tail == 0 || self.items_in_list(t)? > 0 || tail != self.get(t, HEAD_CHUNK)? {
            return Ok(());
        }
        self.set(t, HEAD_CHUNK, 0)?;
        self.set(t, TAIL_CHUNK, 0)?;
        self.free_if_unpinned(t, tail).map(drop)
    }

    /// Return the item at `at`, after a check that it has a valid form and ends at `end` or before.
    fn item_at(&self, at: u64, end: u64) -> Result<Item, HeapError> {
        let word = self.words().word(at);
        // Relaxed: the owner lock orders it.
        let found = word.map_or(u64::MAX, |word| word.load(Ordering::Relaxed));
        let head = Head(found);
        if head.form().is_none() || head.after(at) > end {
            return Err(corrupt(Field::Item, at, found));
        }
        Ok((at, head))
    }

    /// Return the item at the cursor, which must exist, and advance the cursor, to the next chunk if needed. The head
    /// stays.
    pub(super) fn next_item(
        &self,
        t: &impl ReadWords,
        cursor: &mut Cursor,
    ) -> Result<Item, HeapError> {
        if cursor.is_at_end() {
            *cursor = self.cursor_at_next_chunk(t, *cursor)?;
        }
        let (at, head) = self.item_at(cursor.at, cursor.end)?;
        cursor.at = head.after(at);
        Ok((at, head))
    }

    /// Copy up to `most` items of one chunk from the cursor on, and advance the cursor; a parcel is copied alone.
    /// Return their number, and true if no item was too large, or too much in addition to the bytes copied since
    /// `before`.
    pub(super) fn copy_run(
        &self,
        cursor: &mut Cursor,
        most: usize,
        out: &mut Vec<u8>,
        before: usize,
    ) -> Result<(usize, bool), HeapError> {
        let (from, mut got) = (cursor.at, 0);
        let room = (MAX_POP_BYTES - (out.len() - before).min(MAX_POP_BYTES)) as u64;
        let mut is_all = true;
        while got < most && !cursor.is_at_end() {
            let (at, head) = self.item_at(cursor.at, cursor.end)?;
            let after = head.after(at);
            if head.form() == Some(Form::Parcel) {
                if got > 0 {
                    break; // A parcel begins behind padding, which is not copied: alone, at the next call.
                }
                let is_copied = self.copy_item((at, head), out, before)?;
                if is_copied {
                    cursor.at = after;
                }
                return Ok((usize::from(is_copied), is_copied));
            }
            if after - from > room || after - at > super::SMALL {
                is_all = false;
                break;
            }
            cursor.at = after;
            got += 1;
        }
        self.copy_bytes(from, cursor.at - from, out)?;
        Ok((got, is_all))
    }

    /// Append an item to the output. Return false if the item is large, or too much in addition to the bytes copied
    /// since `before`.
    pub(super) fn copy_item(
        &self,
        (at, head): Item,
        out: &mut Vec<u8>,
        before: usize,
    ) -> Result<bool, HeapError> {
        let (payload, after) = (head.payload(at), head.after(at));
        let (len, copied) = (after - payload, out.len() - before);
        let has_room = copied == 0 || copied + len as usize <= MAX_POP_BYTES;
        if len + 8 > super::SMALL || !has_room {
            return Ok(false);
        }
        out.extend_from_slice(&head.0.to_ne_bytes());
        self.copy_bytes(payload, len, out)?;
        Ok(true)
    }

    /// Append `len` bytes from the offset `at` to the output.
    fn copy_bytes(&self, at: u64, len: u64, out: &mut Vec<u8>) -> Result<(), HeapError> {
        let from = self.bytes(at, len)?;
        // SAFETY: `len` bytes are within the mapping, which lives as long as `self`; `out` lies outside of it.
        unsafe { append_from(out, from, len as usize) };
        Ok(())
    }

    // --- claimed items ---

    /// Move the first item of the list, which must exist, into the claim `index`, as a returned one, and pin its chunk.
    /// The claim is in no list until the caller adds it or begins it.
    pub(super) fn pin_head(
        &self,
        t: &mut Transaction<'_, W, M>,
        index: u64,
    ) -> Result<(), HeapError> {
        let listed = self.items_in_list(t)?;
        let mut cursor = self.head(t)?;
        while cursor.is_at_end() {
            self.advance_chunk(t, &mut cursor)?;
        }
        let (at, head) = self.item_at(cursor.at, cursor.end)?;
        let claim = self.claims.at(index);
        let number = self.get(t, TAKEN)?;
        t.set(claim + claim_table::ITEM, at)?;
        t.set(claim + claim_table::CHUNK, cursor.chunk)?;
        t.set(claim + claim_table::NUMBER, number)?;
        self.claims.set_state(t, index, ClaimState::Returned, 0)?;
        let pins = t.get(cursor.chunk + PINS)?;
        t.set(cursor.chunk + PINS, pins.wrapping_add(1))?;
        self.set(t, TAKEN, number.wrapping_add(1))?;
        cursor.at = head.after(at);
        self.move_head(t, cursor, listed == 1)?;
        Ok(())
    }

    /// Return the item of the claim `index`, held or not, after a check that it lies within its chunk.
    pub(super) fn claimed_item(&self, t: &impl ReadWords, index: u64) -> Result<Item, HeapError> {
        let claim = self.claims.at(index);
        let chunk = self.load_offset(t, claim + claim_table::CHUNK)?;
        let at = t.get(claim + claim_table::ITEM)?;
        let end = self.chunk_end(t, chunk)?;
        if at < chunk + CHUNK_HEAD || at >= end {
            return Err(corrupt(Field::Claim, claim + claim_table::ITEM, at));
        }
        self.item_at(at, end)
    }

    /// Remove a claim that is in no list, and unpin its chunk. Return true if the chunk is freed: no other claim pins
    /// it, and the head has passed it.
    pub(super) fn remove_claim(
        &self,
        t: &mut Transaction<'_, W, M>,
        index: u64,
    ) -> Result<bool, HeapError> {
        let chunk = self.load_offset(t, self.claims.at(index) + claim_table::CHUNK)?;
        let pins = t.get(chunk + PINS)?;
        let Some(left) = pins.checked_sub(1) else {
            return Err(corrupt(Field::Chunk, chunk + PINS, pins));
        };
        t.set(chunk + PINS, left)?;
        self.claims.remove(t, index)?;
        if chunk == self.get(t, HEAD_CHUNK)? {
            return Ok(false);
        }
        self.free_if_unpinned(t, chunk)
    }
}
