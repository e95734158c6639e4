//! Putting: small items behind the last ones, large ones in a chunk of their own.

use super::layout::{CHUNK_HEAD, PUT, SHUT, TAIL_AT};
use super::{ByteMemory, Chunk, PutOutcome, Queue, SMALL};
use crate::crash;
use crate::memory::bytes::copy;
use crate::shared_heap::access::WriteWords;
use crate::shared_heap::backing_file::PAGE;
use crate::shared_heap::undo_log::Transaction;
use crate::shared_heap::{HeapError, Members};

impl<W: ByteMemory, M: Members> Queue<W, M> {
    /// Puts `count` items, each a [`Head`] and a payload up to the next multiple of 8, and no parcels among them: all of
    /// them, or none.
    pub fn put(&self, items: &[u8], count: u64, deadline: u64) -> Result<PutOutcome, HeapError> {
        let len = items.len() as u64;
        if len > SMALL {
            return self.put_large(len, count, deadline, |to, _| {
                // SAFETY: the chunk has room for them, and is nobody else's.
                unsafe { copy(to, items.as_ptr(), items.len()) };
                len
            });
        }
        let (mut spare, mut has_requested): (Option<Chunk>, bool) = (None, false);
        loop {
            let put = self.allocator.undo_log().transact(deadline, |t| {
                if let Some(why) = self.refusal(t, count)? {
                    return Ok(Some(why));
                }
                let Some(at) = self.find_room(t, len, &mut spare)? else {
                    return Ok(None);
                };
                let to = self.bytes(at, len)?;
                // SAFETY: it is within the mapping; nobody reads it before the tail has moved but one who breaks the
                // rules, and then it is bytes.
                unsafe { copy(to, items.as_ptr(), items.len()) };
                crash::point!(ItemsWritten);
                self.set(t, TAIL_AT, at + len)?;
                self.add_put(t, count)?;
                Ok(Some(PutOutcome::Stored))
            });
            let needs_chunk = matches!(put, Ok(None));
            if let Some(unused) = spare.take() {
                self.free_chunk(unused, deadline);
            }
            if !needs_chunk {
                crash::point!(ItemsPut);
                return put.map(|put| put.unwrap_or(PutOutcome::Full));
            }
            spare = self.reserve_shared_chunk(len, deadline)?;
            if spare.is_none() && !self.request_memory_wakeup(&mut has_requested, deadline)? {
                return Ok(PutOutcome::Full);
            }
        }
    }

    /// A chunk for items to share, with room for `len` bytes; None if there is none.
    fn reserve_shared_chunk(&self, len: u64, deadline: u64) -> Result<Option<Chunk>, HeapError> {
        let least = (CHUNK_HEAD + len).next_multiple_of(PAGE);
        let wanted = self.chunk_size(deadline)?.max(least);
        match self.chunk(wanted, deadline)? {
            // A small one may fit where a large one does not.
            None if wanted > least => self.chunk(least, deadline),
            found => Ok(found),
        }
    }

    /// Puts items of `len` bytes together, with all heads and gaps, which `fill` writes into a chunk of their own. It
    /// gets where they go, in our memory and in the queue's, and says where they end.
    pub fn put_large(
        &self,
        len: u64,
        count: u64,
        deadline: u64,
        fill: impl FnOnce(*mut u8, u64) -> u64,
    ) -> Result<PutOutcome, HeapError> {
        let refusal = self
            .allocator
            .undo_log()
            .transact(deadline, |t| self.refusal(t, count))?;
        if let Some(why) = refusal {
            return Ok(why);
        }
        let Some(chunk) = self.reserve_or_request_wakeup(len, deadline)? else {
            return Ok(PutOutcome::Full);
        };
        let used = fill(self.bytes(chunk.items(), len)?, chunk.items());
        let mut chunk = Some(chunk);
        let linked = self.link(&mut chunk, used, count, deadline);
        if let Some(unused) = chunk {
            self.free_chunk(unused, deadline);
        }
        linked
    }

    /// A chunk for `len` bytes of items, to be filled; None if there is no room now, of which nobody is told.
    pub fn reserve(&self, len: u64, deadline: u64) -> Result<Option<Chunk>, HeapError> {
        self.chunk(CHUNK_HEAD + len, deadline)
    }

    /// As [`reserve`](Self::reserve); where there is no room, whoever makes some is told that somebody waits for it.
    pub fn reserve_or_request_wakeup(
        &self,
        len: u64,
        deadline: u64,
    ) -> Result<Option<Chunk>, HeapError> {
        let mut has_requested = false;
        loop {
            let chunk = self.reserve(len, deadline)?;
            if chunk.is_some() || !self.request_memory_wakeup(&mut has_requested, deadline)? {
                return Ok(chunk);
            }
        }
    }

    /// Puts the items of a chunk that was reserved: `used` bytes of it. It is there still if they were not put.
    pub fn link(
        &self,
        chunk: &mut Option<Chunk>,
        used: u64,
        count: u64,
        deadline: u64,
    ) -> Result<PutOutcome, HeapError> {
        let linked = self.allocator.undo_log().transact(deadline, |t| {
            if let Some(why) = self.refusal(t, count)? {
                return Ok(why);
            }
            if let Some(chunk) = chunk.take() {
                let at = chunk.items() + used;
                self.append_chunk(t, chunk)?;
                self.set(t, TAIL_AT, at)?;
                self.add_put(t, count)?;
            }
            Ok(PutOutcome::Stored)
        });
        crash::point!(ItemsPut);
        linked
    }

    /// Whether nothing can be put now, whatever room there is in chunks.
    fn refusal(
        &self,
        t: &mut Transaction<'_, W, M>,
        count: u64,
    ) -> Result<Option<PutOutcome>, HeapError> {
        if self.get(t, SHUT)? != 0 {
            return Ok(Some(PutOutcome::ShutDown));
        }
        let items = self.limits.items;
        if items != 0 && self.depth(t)?.saturating_add(count) > items {
            self.request_room_wakeup(t, count)?;
            return Ok(Some(PutOutcome::Full));
        }
        Ok(None)
    }

    fn add_put(&self, t: &mut impl WriteWords, count: u64) -> Result<(), HeapError> {
        let put = self.get(t, PUT)?;
        self.set(t, PUT, put.wrapping_add(count))
    }
}
