//! Waiting until a container has changed.

use crate::crash;
use crate::shared_heap::undo_log::{Change, See};
use crate::shared_heap::{Members, Words};
use crate::store::error::StoreError;
use crate::store::format::head::Head;
use crate::store::format::value::Place;
use crate::store::handle::Store;
use crate::store::readers::Readers;
use crate::sync::{Ordering, fence};

/// In the number of a watch: it is one of a reader.
const OF_READER: u64 = 1 << 32;

impl<W: Words, M: Members> Store<W, M> {
    /// Begins to watch a container, for this process: the number of the watch, to be ended by [`unwatch`](Self::unwatch).
    pub fn watch(&self, deadline: u64, place: Place) -> Result<u64, StoreError> {
        if self.is_reading() {
            return self.watch_as_reader(deadline, place);
        }
        let watch = self.operate(None, deadline, |hand, _| {
            Head::of(hand.t, place)?;
            let number = self.watches().add(hand.t, place.id)?;
            number.ok_or(StoreError::TooLong)
        });
        crash::point!(WatchBegun);
        watch
    }

    /// Whether the container was changed since, or is gone.
    pub fn has_changed(&self, deadline: u64, place: Place, watch: u64) -> Result<bool, StoreError> {
        self.log.read(deadline, |t| {
            let is_gone = t.get(place.at)? != place.id;
            Ok(is_gone
                || match self.readers_of(watch) {
                    Some((readers, number)) => readers.has_changed(number),
                    None => self.watches().has_changed(t, watch)?,
                })
        })
    }

    /// Ends a watch.
    pub fn unwatch(&self, deadline: u64, watch: u64) -> Result<(), StoreError> {
        if let Some((readers, number)) = self.readers_of(watch) {
            readers.unwatch(self.me(), number);
            return Ok(());
        }
        let ended = self.operate(None, deadline, |hand, _| {
            let me = hand.t.me();
            self.watches()
                .remove(hand.t, |member, number| member == me && number == watch)
        });
        crash::point!(WatchEnded);
        ended
    }

    pub(in crate::store) fn watch_as_reader(
        &self,
        deadline: u64,
        place: Place,
    ) -> Result<u64, StoreError> {
        let readers = self.readers().ok_or(StoreError::Gone)?;
        self.log.read(deadline, |t| {
            self.check_committed(t, Some(place))?;
            Head::of(t, place).map(drop)
        })?;
        let number = readers.watch(self.me(), place.id);
        crash::point!(ReaderWatches);
        // SeqCst: the watch is before whatever the program looks at next.
        fence(Ordering::SeqCst);
        number
            .map(|number| number | OF_READER)
            .ok_or(StoreError::TooLong)
    }

    /// The number of a watch in the table of readers, if it is there.
    pub(in crate::store) fn readers_of(&self, watch: u64) -> Option<(Readers<'_, W>, u64)> {
        match watch & OF_READER {
            0 => None,
            _ => Some((self.readers()?, watch & !OF_READER)),
        }
    }
}
