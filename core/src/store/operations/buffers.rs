//! Buffers, and who looks at them.

use crate::crash;
use crate::shared_heap::HeapError;
use crate::shared_heap::undo_log::{Change, See};
use crate::shared_heap::{Members, Words};
use crate::store::error::{StoreError, no_container};
use crate::store::format::blob;
use crate::store::format::cell::Type;
use crate::store::format::head::Head;
use crate::store::format::value::Place;
use crate::store::handle::Store;
use crate::sync::{Ordering, fence};

/// Where the bytes of a buffer lie, how many, and what a program says of them.
pub type Buffer = (u64, u64, Vec<u8>);

/// How often a reader looks again for a buffer that the owner replaces.
const TRIES: usize = 64;

impl<W: Words, M: Members> Store<W, M> {
    /// Where the bytes of a buffer lie, how many, and what a program says of them; for this process to look at until
    /// [`unpin`](Self::unpin).
    pub fn pin(&self, deadline: u64, place: Place) -> Result<Buffer, StoreError> {
        if self.is_reading() {
            return self.pin_as_reader(deadline, place);
        }
        let pinned = self.operate(None, deadline, |hand, _| {
            let found = self.buffer(hand.t, place)?;
            match self.pins().add(hand.t, found.0)? {
                true => Ok(found),
                false => Err(StoreError::TooLong),
            }
        });
        crash::point!(BufferPinned);
        pinned
    }

    pub(in crate::store) fn buffer(
        &self,
        t: &impl See,
        place: Place,
    ) -> Result<Buffer, StoreError> {
        let head = Head::of(t, place)?.is(Type::Buffer)?;
        let block = head.payload(t)?;
        let len = t.get(block)?;
        let mut meta = Vec::new();
        blob::bytes(t, Type::Bytes, t.get(block + 8)?, &mut meta)?;
        let end = block.checked_add(64).and_then(|at| at.checked_add(len));
        match end.is_some_and(|end| end <= self.words().size() as u64) {
            true => Ok((block, len, meta)),
            false => Err(no_container(block, len)),
        }
    }

    /// Ends what [`pin`](Self::pin) began, for a block.
    pub fn unpin(&self, deadline: u64, block: u64) -> Result<(), StoreError> {
        if self.unpin_as_reader(block) {
            return Ok(());
        }
        let unpinned = self.operate(None, deadline, |hand, _| {
            let (me, ended) = (hand.t.me(), std::cell::Cell::new(false));
            let is_it = |member, at| member == me && at == block && !ended.replace(true);
            let orphans = self.pins().remove(hand.t, is_it)?;
            self.free_orphans(hand, orphans)
        });
        crash::point!(BufferUnpinned);
        unpinned
    }

    pub(in crate::store) fn pin_as_reader(
        &self,
        deadline: u64,
        place: Place,
    ) -> Result<Buffer, StoreError> {
        let readers = self.readers().ok_or(StoreError::Gone)?;
        for _ in 0..TRIES {
            let found = self.committed_buffer(deadline, place)?;
            if !readers.pin(self.me(), found.0) {
                return Err(StoreError::TooLong);
            }
            crash::point!(ReaderPinned);
            // SeqCst: the pin is before this look, and the end of the buffer before the owner's look at the pins.
            fence(Ordering::SeqCst);
            match self.committed_buffer(deadline, place) {
                Ok(again) if again == found => return Ok(found),
                other => {
                    readers.unpin(self.me(), found.0);
                    other?;
                }
            }
        }
        Err(HeapError::NeverStable.into())
    }

    pub(in crate::store) fn committed_buffer(
        &self,
        deadline: u64,
        place: Place,
    ) -> Result<Buffer, StoreError> {
        self.log.read(deadline, |t| {
            self.check_committed(t, Some(place))?;
            self.buffer(t, place)
        })
    }

    /// Whether this process looked at a block as a reader, and does not any more.
    pub(in crate::store) fn unpin_as_reader(&self, block: u64) -> bool {
        self.readers()
            .is_some_and(|readers| readers.unpin(self.me(), block))
    }
}
