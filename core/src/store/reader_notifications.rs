//! Duties of the owner of a store towards its readers: it notifies them of changes, and frees blocks that they have
//! pinned.

use super::error::StoreError;
use super::format::mutator::Mutator;
use super::format::pins::DEFERRED_FREE;
use super::handle::Store;
use super::notifications::PendingNotifications;
use super::reader_table::ReaderTable;
use crate::crash;
use crate::shared_heap::{Members, Words};
use std::sync::atomic::Ordering::Relaxed;

impl<W: Words, M: Members> Store<W, M> {
    /// Returns true if a reader may watch a container.
    #[inline]
    pub(in crate::store) fn has_watching_readers(&self) -> bool {
        self.reader_table()
            .is_some_and(|readers| readers.has_watches())
    }

    /// Returns the number of watches that readers ever began.
    #[inline]
    pub(in crate::store) fn reader_watch_count(&self) -> u64 {
        self.reader_table()
            .map_or(0, |readers| readers.watch_count())
    }

    /// Marks the watches of readers upon changed containers, for [`take_notice`](Self::take_notice), and frees deferred
    /// blocks. Called after a commit. Waits for no lock.
    #[inline]
    pub(in crate::store) fn notify_readers(&self, notifications: &PendingNotifications) {
        if let Some(readers) = self.reader_table() {
            let is_late = readers.watch_count() != notifications.begun;
            if is_late || !notifications.touched.is_empty() {
                crash::point!(OwnerChangeCommitted);
                // A reader that has begun a watch meanwhile may watch any of the changed containers.
                let ids = (!is_late).then_some(&notifications.touched[..]);
                if readers.mark_changed(ids) {
                    self.pending_changes.store(true, Relaxed);
                }
            }
            if self.has_deferred_frees.load(Relaxed) {
                // If the lock is not available now, the next commit frees them.
                let _ = self.free_deferred(0);
            }
        }
    }

    /// Notifies all readers after a commit of one word if any watch has begun since their number was `begun`, because
    /// it may watch the container. Before, there were no watches.
    #[inline]
    pub(in crate::store) fn notify_of_word(&self, begun: u64) {
        if let Some(readers) = self.reader_table()
            && readers.watch_count() != begun
            && readers.mark_changed(None)
        {
            self.pending_changes.store(true, Relaxed);
        }
    }

    /// Marks all watches of readers as changed, because the owner has gone and unknown changes are possible. The caller
    /// wakes the readers.
    pub fn notify_all_readers(&self) {
        if let Some(readers) = self.reader_table() {
            readers.mark_changed(None);
        }
    }

    /// Frees blocks that no member has pinned in the store. Defers the free of a block that a reader has pinned; fails
    /// with [`StoreError::CapacityExceeded`] if no more frees can be deferred.
    pub(in crate::store) fn free_unpinned(
        &self,
        mutator: &mut Mutator<'_, '_, W, M>,
        unpinned: Vec<u64>,
    ) -> Result<(), StoreError> {
        let readers = self.reader_table();
        for block in unpinned {
            let is_pinned = |readers: &ReaderTable<'_, W>| readers.is_pinned(block);
            match readers.as_ref().is_some_and(is_pinned) {
                true if mutator.pins.defer_free(mutator.t, block)? => {}
                true => return Err(StoreError::CapacityExceeded),
                false => mutator.free(block),
            }
        }
        Ok(())
    }

    /// Frees the removed blocks that no reader has pinned, in a transaction of its own, whose wait for the lock
    /// `deadline` bounds. Does nothing without a reader table. After an error the next commit tries again.
    pub fn free_deferred(&self, deadline: u64) -> Result<(), StoreError> {
        if self.readers_at.is_none() {
            return Ok(());
        }
        // Relaxed: a hint.
        self.has_deferred_frees.store(false, Relaxed);
        self.operate(None, deadline, |mutator, _| {
            let Some(readers) = self.reader_table() else {
                return Ok(());
            };
            let is_over = |member, block| member == DEFERRED_FREE && !readers.is_pinned(block);
            for block in mutator.pins.remove(mutator.t, is_over)? {
                mutator.free(block);
            }
            Ok(())
        })
        .inspect_err(|_| self.has_deferred_frees.store(true, Relaxed))
    }
}
