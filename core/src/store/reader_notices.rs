//! What the owner of a store does for those who read it: it tells them what has changed, and frees what they have looked at.

use super::error::StoreError;
use super::format::mutator::Hand;
use super::format::pins::DOOMED;
use super::handle::Store;
use super::notices::Tidings;
use super::readers::Readers;
use crate::crash;
use crate::shared_heap::{Members, Words};
use std::sync::atomic::Ordering::Relaxed;

impl<W: Words, M: Members> Store<W, M> {
    #[inline]
    pub(in crate::store) fn has_watching_readers(&self) -> bool {
        self.readers().is_some_and(|readers| readers.has_watches())
    }

    #[inline]
    pub(in crate::store) fn begun_by_readers(&self) -> u64 {
        self.readers().map_or(0, |readers| readers.begun())
    }

    /// After a commit: tells those readers who watch what it has changed.
    #[inline]
    pub(in crate::store) fn tell_readers(&self, tidings: &Tidings) {
        if let Some(readers) = self.readers() {
            let is_late = readers.begun() != tidings.begun;
            if is_late || !tidings.touched.is_empty() {
                crash::point!(ChangeUntold);
                // One that has begun to watch meanwhile may watch any of it.
                let ids = (!is_late).then_some(&tidings.touched[..]);
                if readers.note(ids) {
                    self.changes.store(true, Relaxed);
                }
            }
            if self.dooms.load(Relaxed) {
                // If that is not to be had now, at the next commit.
                let _ = self.sweep(0);
            }
        }
    }

    /// The same, after a commit of one word that nobody watched before.
    #[inline]
    pub(in crate::store) fn tell_of_word(&self, begun: u64) {
        if let Some(readers) = self.readers()
            && readers.begun() != begun
            && readers.note(None)
        {
            self.changes.store(true, Relaxed);
        }
    }

    /// Says to all readers that something has changed, as far as anybody knows: the owner has gone.
    pub fn tell_all_readers(&self) {
        if let Some(readers) = self.readers() {
            readers.note(None);
        }
    }

    pub(in crate::store) fn free_orphans(
        &self,
        hand: &mut Hand<'_, '_, W, M>,
        orphans: Vec<u64>,
    ) -> Result<(), StoreError> {
        let readers = self.readers();
        for orphan in orphans {
            let is_pinned = |readers: &Readers<'_, W>| readers.is_pinned(orphan);
            match readers.as_ref().is_some_and(is_pinned) {
                true if hand.pins.doom(hand.t, orphan)? => {}
                true => return Err(StoreError::TooLong),
                false => hand.free(orphan),
            }
        }
        Ok(())
    }

    /// Frees what was taken out of the store, and no reader looks at any more.
    pub fn sweep(&self, deadline: u64) -> Result<(), StoreError> {
        if self.readers_at.is_none() {
            return Ok(());
        }
        // Relaxed: a hint.
        self.dooms.store(false, Relaxed);
        self.operate(None, deadline, |hand, _| {
            let Some(readers) = self.readers() else {
                return Ok(());
            };
            let is_over = |member, block| member == DOOMED && !readers.is_pinned(block);
            for orphan in hand.pins.remove(hand.t, is_over)? {
                hand.free(orphan);
            }
            Ok(())
        })
        .inspect_err(|_| self.dooms.store(true, Relaxed))
    }
}
