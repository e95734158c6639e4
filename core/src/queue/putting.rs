//! Putting items: small ones behind the last item, large ones into a chunk of their own.

use super::layout::{CHUNK_HEAD, PUT, SHUT, TAIL_AT};
use super::{ByteMemory, Chunk, PutOutcome, Queue, SMALL};
use crate::crash;
use crate::memory::bytes::copy;
use crate::shared_heap::access::WriteWords;
use crate::shared_heap::backing_file::PAGE;
use crate::shared_heap::undo_log::Transaction;
use crate::shared_heap::{HeapError, Members};

impl<W: ByteMemory, M: Members> Queue<W, M> {
    /// Put `count` items, all or none, and never wait for room. Each has a [`Head`] and a payload padded to the next
    /// multiple of 8; none is a parcel. At [`PutOutcome::Stored`] the caller wakes a reader; at [`PutOutcome::Full`] a
    /// wake-up was requested. Fails with [`HeapError::Limit`] if the items can never fit. The caller asks
    /// [`must_wake_writers`](Self::must_wake_writers) afterwards.
    pub fn put(&self, items: &[u8], count: u64, deadline: u64) -> Result<PutOutcome, HeapError> {
        let len = items.len() as u64;
        if len > SMALL {
            return self.put_large(len, count, deadline, |to, _| {
                // SAFETY: the reserved chunk has room for the items, and no other thread writes it.
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
                // SAFETY: the bytes are within the mapping. No well-behaved process reads them before the tail moves; a
                // hostile one reads bytes, which may be anything.
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

    /// Reserve a chunk that items share, with room for `len` bytes. Return None if there is no room now.
    fn reserve_shared_chunk(&self, len: u64, deadline: u64) -> Result<Option<Chunk>, HeapError> {
        let least = (CHUNK_HEAD + len).next_multiple_of(PAGE);
        let wanted = self.chunk_size(deadline)?.max(least);
        match self.reserve_chunk(wanted, deadline)? {
            // A small chunk may fit where a large one does not.
            None if wanted > least => self.reserve_chunk(least, deadline),
            found => Ok(found),
        }
    }

    /// Put items of `len` bytes, heads and padding included, which `fill` writes into a chunk of their own. `fill` gets
    /// the address and the offset of the items, and returns the number of bytes that it has written, at most `len`. It
    /// runs without the owner lock, and not at all if the queue is full or shut down. Outcomes, errors and duties of
    /// the caller are those of [`put`](Self::put).
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

    /// Reserve a chunk for `len` bytes of items, heads included, which the caller fills and then links or frees. Return
    /// None if there is no room now; no wake-up is requested. Fails with [`HeapError::Limit`] if there never is room.
    /// The limit of items and a shutdown are not checked.
    pub fn reserve(&self, len: u64, deadline: u64) -> Result<Option<Chunk>, HeapError> {
        self.reserve_chunk(CHUNK_HEAD + len, deadline)
    }

    /// Reserve a chunk as [`reserve`](Self::reserve) does. If there is no room, request a wake-up and return None.
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

    /// Put `count` items, which take the first `used` bytes of the items of a reserved chunk. If the outcome is not
    /// [`PutOutcome::Stored`], the chunk remains in `chunk`, and the caller frees it. After an error the chunk may be
    /// gone, and stays reserved. Without a chunk nothing is put, although the outcome may be `Stored`.
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

    /// Return the reason why no `count` items can be put now, regardless of free memory: `ShutDown` or `Full`; None if
    /// they can. At the limit of items, also request a wake-up for room.
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

    /// Count `count` items as put. The caller has stored TAIL_AT.
    fn add_put(&self, t: &mut impl WriteWords, count: u64) -> Result<(), HeapError> {
        let put = self.get(t, PUT)?;
        self.set(t, PUT, put.wrapping_add(count))
    }
}
