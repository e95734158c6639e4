//! The state of one operation that changes a store.

use super::budget::Budget;
use super::cell::Type;
use super::header::{self, Header, Parent};
use super::pins::Pins;
use super::value::StoredValue;
use crate::crash;
use crate::shared_heap::access::{ReadWords, WriteWords};
use crate::shared_heap::heap::Heap;
use crate::shared_heap::redo_log::Writer;
use crate::shared_heap::{Members, Words};
use crate::store::error::StoreError;
use crate::store::proxies::Proxies;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The id of a container, and its contents when it was removed.
pub(in crate::store) type RemovedContainer = (u64, Arc<StoredValue>);

/// One operation that changes a store.
pub(in crate::store) struct Mutator<'t, 'w, W, M> {
    pub(in crate::store) heap: &'t Heap,
    pub(in crate::store) t: &'t mut Writer<'w, W, M>,
    /// The offsets of the number of the last created container, and of the last committed one.
    pub(in crate::store) last_id: u64,
    pub(in crate::store) committed_id: u64,
    /// The containers that this process has proxies of.
    pub(in crate::store) proxies: &'t Proxies,
    /// The contents of the containers that the operation has removed.
    pub(in crate::store) removed: Vec<RemovedContainer>,
    pub(in crate::store) pins: Pins,
    /// Of a store with an owner: set if a removed block waits to be freed because a reader may have pinned it.
    pub(in crate::store) has_deferred_frees: Option<&'t AtomicBool>,
    pub(in crate::store) budget: Budget,
}

impl<W: Words, M: Members> Mutator<'_, '_, W, M> {
    /// Allocates a block of `len` bytes in the transaction, with undefined contents. Returns its offset. Fails with
    /// `HeapError::Limit` or `HeapError::System` if there is no memory.
    pub(in crate::store) fn allocate(&mut self, len: u64) -> Result<u64, StoreError> {
        Ok(self.heap.allocate(self.t, len)?)
    }

    /// Frees a block at the end of the transaction. The offset is checked only then: a wrong one is a corruption.
    pub(in crate::store) fn free(&mut self, block: u64) {
        self.heap.free(self.t, block);
    }

    /// Returns the number of blocks to free at the end of the transaction.
    pub(in crate::store) fn pending_frees(&self) -> usize {
        self.heap.pending_frees(self.t)
    }

    /// Creates the header of a container with the next number, which is used up even if the transaction is rolled back.
    /// The container has no payload. If it is a record, the header has space for `len` fields, which the caller writes.
    /// Fails with [`StoreError::CapacityExceeded`] if `len` is too large.
    pub(in crate::store) fn make_header(
        &mut self,
        kind: Type,
        class: u32,
        len: u64,
        parent: Parent,
    ) -> Result<Header, StoreError> {
        if len > header::MAX_ITEMS {
            return Err(StoreError::CapacityExceeded);
        }
        let fields = if kind == Type::Record { len } else { 0 };
        let at = self.allocate(header::SIZE + 8 * fields)?;
        // The number is used up even if the transaction is rolled back: no other container ever gets it.
        let number = self.t.get(self.last_id)?.wrapping_add(1);
        self.t.init(self.last_id, number)?;
        crash::point!(NumberTaken);
        self.t.set(self.committed_id, number)?;
        self.t.note_created(at);
        let header = Header {
            at,
            kind,
            class,
            len,
        };
        self.t.init(at, header::id(number))?;
        let (at_form, form) = header.form();
        self.t.init(at_form, form)?;
        self.t.init(header.parent_at(), parent.word())?;
        self.t.init(header.payload_at(), 0)?;
        Ok(header)
    }
}
