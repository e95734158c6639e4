//! A store that one member changes, its owner, and that all others can only read.
//!
//! Its contents lie in a [sealed](crate::memory::sealed) file of the owner's, which the others map for reading. What they tell
//! the owner lies elsewhere: see [`readers`](super::readers). Nobody waits for them: what is taken out of the store while they
//! look at it is freed later, and whoever watches is told after the commit.
//!
//! Beside what each store begins with:
//!
//! ```text
//!     32  mark   u64   the number of these contents; 0 while they are made
//!         owner  u64   the number of the member
//!         name   u64   what the name of the memory ends with
//! ```

use super::pins::DOOMED;
use super::readers::Readers;
use super::tree::Hand;
use super::value::Place;
use super::{Buffer, Head, Store, StoreError, Tidings, heap_at};
use crate::crash;
use crate::shared_heap::backing_file::{BackingFile, PAGE};
use crate::shared_heap::heap::Heap;
use crate::shared_heap::redo_log::{self, RedoLog};
use crate::shared_heap::{Members, Words};
use crate::sync::{Ordering, fence};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

const AT_MARK: u64 = 32;
const AT_OWNER: u64 = 40;
const AT_NAME: u64 = 48;
/// In the number of a watch: it is one of a reader.
const OF_READER: u64 = 1 << 32;
/// How often a reader looks again for a buffer that the owner replaces.
const TRIES: usize = 64;

/// Who owns contents, and which they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Title {
    /// Their number; 0 while they are made.
    pub mark: u64,
    /// The number of the member that changes them.
    pub owner: u64,
    /// What the name of the memory ends with.
    pub name: u64,
}

/// Where the title lies, in bytes from the beginning of a store.
pub const TITLE: [u64; 3] = [AT_MARK, AT_OWNER, AT_NAME];

impl<W: Words, M: Members> Store<W, M> {
    /// A store with an owner, which begins `start` bytes into `words`, as one has it who only reads; `readers_at`: where readers
    /// say what they look at.
    ///
    /// # Panics
    /// If it does not begin with a page.
    pub fn of_reader(
        words: W,
        file: &Arc<OwnedFd>,
        start: u64,
        max_memory: u64,
        members: M,
        readers_at: u64,
    ) -> io::Result<Self> {
        let store = Store::sealed(words, file, start, max_memory, members)?;
        Ok(Store {
            readers_at: Some(readers_at),
            ..store
        })
    }

    /// New contents of a store with an owner, in a file that nobody else knows so far: to be filled, and then published.
    pub fn of_owner(
        words: W,
        file: &Arc<OwnedFd>,
        start: u64,
        max_memory: u64,
        members: M,
    ) -> io::Result<Self> {
        let store = Store::sealed(words, file, start, max_memory, members)?;
        store.own()?;
        Ok(store)
    }

    fn sealed(
        words: W,
        file: &Arc<OwnedFd>,
        start: u64,
        max_memory: u64,
        members: M,
    ) -> io::Result<Self> {
        let size = words.size() as u64;
        let backing_file = BackingFile::new(file);
        let log_at = size.saturating_sub(redo_log::SIZE) / PAGE * PAGE;
        Ok(Store {
            log: RedoLog::of_reader(words, backing_file, log_at, members)?,
            heap: Heap::sealed(file, heap_at(start), log_at, max_memory),
            start,
            bound: super::Bound::of(size),
            held: super::Held::default(),
            readers_at: None,
            dooms: AtomicBool::new(true),
            changes: AtomicBool::new(false),
            messages: AtomicU32::new(0),
        })
    }

    /// This process changes it from now on: what is mapped is its own.
    pub fn own(&self) -> io::Result<()> {
        self.log.keep_beginning()?;
        self.heap.keep_books(heap_at(self.start))?;
        self.log.is_moved();
        self.heap.is_moved();
        self.log.exclusive().only_read(false);
        Ok(())
    }

    /// Whether this process only reads it.
    #[inline]
    pub fn is_reading(&self) -> bool {
        self.log.exclusive().is_reading()
    }

    /// Ends what a dead owner had committed in memory that this process alone sees.
    pub fn mend(&self) -> Result<(), StoreError> {
        Ok(self.log.mend()?)
    }

    /// Whether a commit is under way.
    pub fn is_committing(&self) -> bool {
        self.log.is_committing()
    }

    pub(super) fn me(&self) -> u64 {
        self.log.exclusive().members().me()
    }

    /// Whose contents these are.
    pub fn title(&self) -> Title {
        let words = TITLE.map(|at| {
            let word = self.words().word(self.start + at);
            // Acquire: pairs with the release of the mark.
            word.map_or(0, |word| word.load(Ordering::Acquire))
        });
        Title {
            mark: words[0],
            owner: words[1],
            name: words[2],
        }
    }

    /// Says whose contents these are, of which nobody knows so far.
    pub fn entitle(&self, title: Title) {
        for (at, value) in TITLE
            .into_iter()
            .zip([title.mark, title.owner, title.name])
            .rev()
        {
            if let Some(word) = self.words().word(self.start + at) {
                // Release: the mark comes last, and with it all that was made.
                word.store(value, Ordering::Release);
            }
        }
    }

    #[inline]
    pub(super) fn readers(&self) -> Option<Readers<'_, W>> {
        let at = self.readers_at?;
        Some(Readers::new(self.words(), at))
    }

    // --- what the owner does for readers ---

    #[inline]
    pub(super) fn has_watching_readers(&self) -> bool {
        self.readers().is_some_and(|readers| readers.has_watches())
    }

    #[inline]
    pub(super) fn begun_by_readers(&self) -> u64 {
        self.readers().map_or(0, |readers| readers.begun())
    }

    /// After a commit: tells those readers who watch what it has changed.
    #[inline]
    pub(super) fn tell_readers(&self, tidings: &Tidings) {
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
    pub(super) fn tell_of_word(&self, begun: u64) {
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

    pub(super) fn free_orphans(
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

    /// Says to the owner that the member of a slot has mapped the contents of this number; 0: none so far.
    pub fn follow(&self, slot: u32, mark: u64) {
        if let Some(readers) = self.readers() {
            readers.follow(slot, mark);
        }
    }

    /// Says to it that the member leaves, and will map nothing more.
    pub fn stop_following(&self, slot: u32) {
        if let Some(readers) = self.readers() {
            readers.stop_following(slot);
        }
    }

    /// Whether the member of a slot has mapped the contents of this number, or leaves.
    pub fn has_followed(&self, slot: u32, mark: u64) -> bool {
        self.readers()
            .is_none_or(|readers| readers.has_followed(slot, mark))
    }

    /// Gives back what all but this member looked at and waited for when they were owners.
    pub fn disinherit(&self, us: u64, deadline: u64) -> Result<(), StoreError> {
        self.recover_contents(&|member| member != us && member != DOOMED, deadline)
    }

    // --- what a reader does ---

    pub(super) fn forget_readers(&self, is_gone: &dyn Fn(u64) -> bool) {
        if let Some(readers) = self.readers() {
            readers.clear(is_gone);
        }
    }

    pub(super) fn pin_as_reader(&self, deadline: u64, place: Place) -> Result<Buffer, StoreError> {
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
        Err(crate::shared_heap::HeapError::NeverStable.into())
    }

    fn committed_buffer(&self, deadline: u64, place: Place) -> Result<Buffer, StoreError> {
        self.log.read(deadline, |t| {
            self.check_committed(t, Some(place))?;
            self.buffer(t, place)
        })
    }

    /// Whether this process looked at a block as a reader, and does not any more.
    pub(super) fn unpin_as_reader(&self, block: u64) -> bool {
        self.readers()
            .is_some_and(|readers| readers.unpin(self.me(), block))
    }

    pub(super) fn watch_as_reader(&self, deadline: u64, place: Place) -> Result<u64, StoreError> {
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
    pub(super) fn readers_of(&self, watch: u64) -> Option<(Readers<'_, W>, u64)> {
        match watch & OF_READER {
            0 => None,
            _ => Some((self.readers()?, watch & !OF_READER)),
        }
    }
}
