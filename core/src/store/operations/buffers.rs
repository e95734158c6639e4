//! Buffers, and the pins that keep their bytes while a process uses them.
//!
//! The meaning of `open` and `deadline`, and the errors that all operations have in common: see `operations/mod.rs`.

use crate::crash;
use crate::shared_heap::HeapError;
use crate::shared_heap::access::{ReadWords, WriteWords};
use crate::shared_heap::{Members, Words};
use crate::store::error::{StoreError, corrupt_container};
use crate::store::format::blob;
use crate::store::format::cell::Type;
use crate::store::format::header::Header;
use crate::store::format::value::ContainerRef;
use crate::store::handle::Store;
use crate::sync::{Ordering, fence};

/// A buffer: the offset of its block, its length in bytes, and its metadata for the program.
pub type Buffer = (u64, u64, Vec<u8>);

/// The number of attempts of a reader to pin a buffer that the owner replaces.
const TRIES: usize = 64;

impl<W: Words, M: Members> Store<W, M> {
    /// Pins a buffer, so that its bytes stay valid until [`unpin`](Self::unpin), which the caller calls once for each
    /// pin. Returns its location and metadata. Fails with [`StoreError::CapacityExceeded`] if there are too many pins.
    pub fn pin(&self, deadline: u64, container: ContainerRef) -> Result<Buffer, StoreError> {
        if self.is_read_only() {
            return self.pin_as_reader(deadline, container);
        }
        let pinned = self.operate(None, deadline, |mutator, _| {
            let found = self.buffer(mutator.t, container)?;
            match self.pins().add(mutator.t, found.0)? {
                true => Ok(found),
                false => Err(StoreError::CapacityExceeded),
            }
        });
        crash::point!(BufferPinned);
        pinned
    }

    /// Returns the location and the metadata of a buffer, in the state that `t` reads.
    pub(in crate::store) fn buffer(
        &self,
        t: &impl ReadWords,
        container: ContainerRef,
    ) -> Result<Buffer, StoreError> {
        let header = Header::of(t, container)?.require(Type::Buffer)?;
        let block = header.payload(t)?;
        let len = t.get(block)?;
        let mut meta = Vec::new();
        blob::append_bytes(t, Type::Bytes, t.get(block + 8)?, &mut meta)?;
        let end = block.checked_add(64).and_then(|at| at.checked_add(len));
        match end.is_some_and(|end| end <= self.words().size() as u64) {
            true => Ok((block, len, meta)),
            false => Err(corrupt_container(block, len)),
        }
    }

    /// Removes one pin of this process upon a block, and frees the block if this was its last pin and it was removed
    /// from the store. Does nothing if this process has no pin upon it.
    pub fn unpin(&self, deadline: u64, block: u64) -> Result<(), StoreError> {
        if self.unpin_as_reader(block) {
            return Ok(());
        }
        let unpinned = self.operate(None, deadline, |mutator, _| {
            let (self_id, ended) = (mutator.t.self_id(), std::cell::Cell::new(false));
            let is_it = |member, at| member == self_id && at == block && !ended.replace(true);
            let unpinned = self.pins().remove(mutator.t, is_it)?;
            self.free_unpinned(mutator, unpinned)
        });
        crash::point!(BufferUnpinned);
        unpinned
    }

    /// Pins a committed buffer in the reader table, for a process that only reads the store. Fails with
    /// [`HeapError::NeverStable`] if the owner replaces the buffer during each attempt.
    pub(in crate::store) fn pin_as_reader(
        &self,
        deadline: u64,
        container: ContainerRef,
    ) -> Result<Buffer, StoreError> {
        let readers = self.reader_table().ok_or(StoreError::ContainerDeleted)?;
        for _ in 0..TRIES {
            let found = self.committed_buffer(deadline, container)?;
            if !readers.pin(self.self_id(), found.0) {
                return Err(StoreError::CapacityExceeded);
            }
            crash::point!(ReaderPinned);
            // SeqCst: the pin is stored before this read of the store, and the removal of the buffer before the owner
            // reads the pins.
            fence(Ordering::SeqCst);
            match self.committed_buffer(deadline, container) {
                Ok(again) if again == found => return Ok(found),
                other => {
                    readers.unpin(self.self_id(), found.0);
                    other?;
                }
            }
        }
        Err(HeapError::NeverStable.into())
    }

    /// Returns the location and the metadata of a committed buffer.
    pub(in crate::store) fn committed_buffer(
        &self,
        deadline: u64,
        container: ContainerRef,
    ) -> Result<Buffer, StoreError> {
        self.log.read(deadline, |t| {
            self.check_committed(t, Some(container))?;
            self.buffer(t, container)
        })
    }

    /// Removes a pin that this process has as a reader. Returns false if it has none.
    pub(in crate::store) fn unpin_as_reader(&self, block: u64) -> bool {
        self.reader_table()
            .is_some_and(|readers| readers.unpin(self.self_id(), block))
    }
}
