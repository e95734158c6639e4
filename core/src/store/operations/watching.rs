//! Watches: they report if a container has changed since they began.
//!
//! The meaning of `open` and `deadline`, and the errors that all operations have in common: see `operations/mod.rs`.

use crate::crash;
use crate::shared_heap::access::{ReadWords, WriteWords};
use crate::shared_heap::{Members, Words};
use crate::store::error::StoreError;
use crate::store::format::header::Header;
use crate::store::format::value::ContainerRef;
use crate::store::handle::Store;
use crate::store::reader_table::ReaderTable;
use crate::sync::{Ordering, fence};

/// The bit in the number of a watch that tells that it is in the reader table.
const OF_READER: u64 = 1 << 32;

impl<W: Words, M: Members> Store<W, M> {
    /// Begins to watch a container. Returns the number of the watch, which the caller ends once by
    /// [`unwatch`](Self::unwatch), or [`StoreError::CapacityExceeded`].
    pub fn watch(&self, deadline: u64, container: ContainerRef) -> Result<u64, StoreError> {
        if self.is_read_only() {
            return self.watch_as_reader(deadline, container);
        }
        let watch = self.operate(None, deadline, |mutator, _| {
            Header::of(mutator.t, container)?;
            let number = self.versions().add(mutator.t, container.id)?;
            number.ok_or(StoreError::CapacityExceeded)
        });
        crash::point!(WatchBegun);
        watch
    }

    /// Returns true if the container was changed since the watch began, or was deleted; stays true until the watch
    /// ends. Does not wait for a change.
    pub fn has_changed(
        &self,
        deadline: u64,
        container: ContainerRef,
        watch: u64,
    ) -> Result<bool, StoreError> {
        self.log.read(deadline, |t| {
            let is_gone = t.get(container.at)? != container.id;
            Ok(is_gone
                || match self.readers_of(watch) {
                    Some((readers, number)) => readers.has_changed(number),
                    None => self.versions().has_changed(t, watch)?,
                })
        })
    }

    /// Ends a watch of this member. Does nothing if it has ended; a later watch may have the same number.
    pub fn unwatch(&self, deadline: u64, watch: u64) -> Result<(), StoreError> {
        if let Some((readers, number)) = self.readers_of(watch) {
            readers.unwatch(self.self_id(), number);
            return Ok(());
        }
        let ended = self.operate(None, deadline, |mutator, _| {
            let self_id = mutator.t.self_id();
            self.versions().remove(mutator.t, |member, number| {
                member == self_id && number == watch
            })
        });
        crash::point!(WatchEnded);
        ended
    }

    /// Begins to watch a committed container in the reader table, for a process that only reads the store.
    pub(in crate::store) fn watch_as_reader(
        &self,
        deadline: u64,
        container: ContainerRef,
    ) -> Result<u64, StoreError> {
        let readers = self.reader_table().ok_or(StoreError::ContainerDeleted)?;
        self.log.read(deadline, |t| {
            self.check_committed(t, Some(container))?;
            Header::of(t, container).map(drop)
        })?;
        let number = readers.watch(self.self_id(), container.id);
        crash::point!(ReaderWatches);
        // SeqCst: the watch is stored before the program reads the container.
        fence(Ordering::SeqCst);
        number
            .map(|number| number | OF_READER)
            .ok_or(StoreError::CapacityExceeded)
    }

    /// Returns the reader table and the number of the watch in it; None if the watch is in the store itself.
    pub(in crate::store) fn readers_of(&self, watch: u64) -> Option<(ReaderTable<'_, W>, u64)> {
        match watch & OF_READER {
            0 => None,
            _ => Some((self.reader_table()?, watch & !OF_READER)),
        }
    }
}
