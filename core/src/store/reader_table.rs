//! The table by which readers of a store with an owner tell the owner which buffers they have pinned, which containers
//! they watch, and which contents they have mapped. It lies before the contents, in memory that all members write.
//!
//! ```text
//!    0  begun    u64   the number of watches ever begun
//!    8  pinned   u64   entries of pins that were ever used
//!   16  watched  u64   entries of watches that were ever used
//!   64  pins     2 u64 each: a member's number, or 0; its block
//!       watches  3 u64 each: a member's number, or 0; the id of a container; 1 once it was changed
//!       mapped   256 u64, by the slots of members: the mark of the contents that the member has mapped; 2^64 - 1 once
//!                it leaves
//! ```
//!
//! A reader takes an entry by one exchange, without a lock, so the owner never waits for a reader. A reader that
//! overwrites the entries of others can cost them a wake-up, or invalidate the bytes of a view; it cannot change the
//! store.
//!
//! A reader pins a block, and then checks that the block is still in the store. The owner removes a block from the
//! store, and frees it in a later transaction once it finds no pin. A reader begins a watch, and then reads the
//! container. The owner changes the container, and then checks if watches were begun since its transaction began.

use crate::shared_heap::Words;
use crate::sync::{AtomicU64, Ordering};

/// The most pins, counted once for each process and buffer, and the most watches of readers.
const MAX_PINS: u64 = 4096;
const MAX_WATCHES: u64 = 1024;
const AT_BEGUN: u64 = 0;
const AT_PINNED: u64 = 8;
const AT_WATCHED: u64 = 16;
const AT_PINS: u64 = 64;
const AT_WATCHES: u64 = AT_PINS + 16 * MAX_PINS;
const AT_MAPPED: u64 = AT_WATCHES + 24 * MAX_WATCHES;
/// The most members that can report what they have mapped.
const MAX_SLOTS: u64 = 256;
/// The mark of a member that leaves.
const LEAVING: u64 = u64::MAX;
/// Bytes of the table.
pub const SIZE: u64 = AT_MAPPED + 8 * MAX_SLOTS;

/// A part of the table: its used count, its first entry, and the size and the number of its entries.
#[derive(Clone, Copy)]
struct Entries {
    high: u64,
    first: u64,
    size: u64,
    most: u64,
}

/// The reader table at an offset.
pub(super) struct ReaderTable<'w, W> {
    words: &'w W,
    start: u64,
}

impl<'w, W: Words> ReaderTable<'w, W> {
    /// Opens the table at an offset.
    pub(super) fn new(words: &'w W, start: u64) -> Self {
        ReaderTable { words, start }
    }

    /// Returns the part with the pins.
    fn pins(&self) -> Entries {
        Entries {
            high: AT_PINNED,
            first: AT_PINS,
            size: 16,
            most: MAX_PINS,
        }
    }

    /// Returns the part with the watches.
    fn watches(&self) -> Entries {
        Entries {
            high: AT_WATCHED,
            first: AT_WATCHES,
            size: 24,
            most: MAX_WATCHES,
        }
    }

    /// Returns the word at this offset in the table.
    fn word(&self, at: u64) -> &AtomicU64 {
        let word = self.words.word(self.start + at);
        word.expect("the layout contains the reader table")
    }

    /// Returns the offsets of the entries that may be in use.
    fn used_entries(&self, table: Entries) -> impl Iterator<Item = u64> + use<W> {
        // SeqCst, here and in all that follows: an entry is stored before its reader reads the store, and a change of
        // the store before the owner reads the entries.
        let high = self.word(table.high).load(Ordering::SeqCst).min(table.most);
        (0..high).map(move |number| table.first + table.size * number)
    }

    /// Takes a free entry for a member, stores its second word, and clears the others. Returns its number; None if all
    /// are taken.
    fn take_entry(&self, table: Entries, member: u64, second_word: u64) -> Option<u64> {
        for number in 0..table.most {
            let at = table.first + table.size * number;
            let entry = self.word(at);
            let taken = entry.compare_exchange(0, member, Ordering::SeqCst, Ordering::SeqCst);
            if taken.is_ok() {
                for more in (16..table.size).step_by(8) {
                    self.word(at + more).store(0, Ordering::SeqCst);
                }
                self.word(at + 8).store(second_word, Ordering::SeqCst);
                self.word(table.high)
                    .fetch_max(number + 1, Ordering::SeqCst);
                return Some(number);
            }
        }
        None
    }

    /// Frees the entry at this offset. Returns false if it is no entry of the member.
    fn free_entry(&self, at: u64, member: u64) -> bool {
        let entry = self.word(at);
        let ended = entry.compare_exchange(member, 0, Ordering::SeqCst, Ordering::SeqCst);
        ended.is_ok()
    }

    /// Pins a block; the caller then checks that it is still in the store, and unpins it otherwise. Returns false if
    /// there are too many pins.
    pub(super) fn pin(&self, member: u64, block: u64) -> bool {
        self.take_entry(self.pins(), member, block).is_some()
    }

    /// Removes one pin of a member. Returns false if it has none.
    pub(super) fn unpin(&self, member: u64, block: u64) -> bool {
        let mut pins = self.used_entries(self.pins());
        pins.any(|at| {
            self.word(at + 8).load(Ordering::SeqCst) == block && self.free_entry(at, member)
        })
    }

    /// Returns true if a reader has pinned this block, which was removed from the store.
    pub(super) fn is_pinned(&self, block: u64) -> bool {
        self.used_entries(self.pins()).any(|at| {
            self.word(at).load(Ordering::SeqCst) != 0
                && self.word(at + 8).load(Ordering::SeqCst) == block
        })
    }

    /// Begins to watch a container; the caller then reads it. Returns the number of the watch; None if there are too
    /// many.
    pub(super) fn watch(&self, member: u64, id: u64) -> Option<u64> {
        let number = self.take_entry(self.watches(), member, id)?;
        self.word(AT_BEGUN).fetch_add(1, Ordering::SeqCst);
        // Repeated because of `reset_watch_count`.
        self.word(AT_WATCHED)
            .fetch_max(number + 1, Ordering::SeqCst);
        Some(number)
    }

    /// Returns the offset of a watch; that of the last one for a number that is too large.
    fn watch_at(&self, number: u64) -> u64 {
        AT_WATCHES + 24 * number.min(MAX_WATCHES - 1)
    }

    /// Returns true if the container was changed since its watch began.
    pub(super) fn has_changed(&self, number: u64) -> bool {
        let at = self.watch_at(number);
        self.word(at + 16).load(Ordering::SeqCst) != 0
    }

    /// Ends a watch. Does nothing if it is none of the member.
    pub(super) fn unwatch(&self, member: u64, number: u64) {
        self.free_entry(self.watch_at(number), member);
    }

    /// Returns the number of watches ever begun.
    pub(super) fn watch_count(&self) -> u64 {
        self.word(AT_BEGUN).load(Ordering::SeqCst)
    }

    /// Returns true if a reader may watch a container.
    pub(super) fn has_watches(&self) -> bool {
        self.word(AT_WATCHED).load(Ordering::SeqCst) != 0
    }

    /// Marks the watches of these containers as changed, or all if None. Returns true if it has marked any, and the
    /// caller then wakes the readers. Resets the count of watches if it has marked none and none is left.
    pub(super) fn mark_changed(&self, ids: Option<&[u64]>) -> bool {
        let mut found = false;
        for at in self.used_entries(self.watches()) {
            let id = self.word(at + 8).load(Ordering::SeqCst);
            if self.word(at).load(Ordering::SeqCst) != 0 && ids.is_none_or(|ids| ids.contains(&id))
            {
                self.word(at + 16).store(1, Ordering::SeqCst);
                found = true;
            }
        }
        if !found {
            self.reset_watch_count();
        }
        found
    }

    /// Resets the count of used watch entries if no watch is left, so that the next check is short.
    fn reset_watch_count(&self) {
        let high = self.word(AT_WATCHED).load(Ordering::SeqCst);
        let begun = self.watch_count();
        let is_free = |at| self.word(at).load(Ordering::SeqCst) == 0;
        if high > 0 && self.used_entries(self.watches()).all(is_free) {
            let cleared =
                self.word(AT_WATCHED)
                    .compare_exchange(high, 0, Ordering::SeqCst, Ordering::SeqCst);
            // A watch that was begun meanwhile counts: it is found here, or its reader finds the 0 and raises it again.
            if cleared.is_ok() && self.watch_count() != begun {
                self.word(AT_WATCHED).fetch_max(high, Ordering::SeqCst);
            }
        }
    }

    /// Returns the word in which the member of a slot reports what it has mapped; slots beyond the table share the last
    /// one.
    fn mapped_word(&self, slot: u32) -> &AtomicU64 {
        self.word(AT_MAPPED + 8 * u64::from(slot).min(MAX_SLOTS - 1))
    }

    /// Reports that the member of a slot has mapped the contents of this mark; 0: none so far.
    pub(super) fn report_mapped(&self, slot: u32, mark: u64) {
        // SeqCst, like all: the contents are mapped before.
        self.mapped_word(slot).store(mark, Ordering::SeqCst);
    }

    /// Reports that the member leaves and will map nothing more.
    pub(super) fn report_leaving(&self, slot: u32) {
        self.report_mapped(slot, LEAVING);
    }

    /// Returns true if the member of a slot has mapped the contents of this mark, or leaves.
    pub(super) fn has_mapped_or_left(&self, slot: u32, mark: u64) -> bool {
        [mark, LEAVING].contains(&self.mapped_word(slot).load(Ordering::SeqCst))
    }

    /// Frees all entries of members for which `is_gone` returns true.
    pub(super) fn clear(&self, is_gone: &dyn Fn(u64) -> bool) {
        for table in [self.pins(), self.watches()] {
            for at in self.used_entries(table) {
                let member = self.word(at).load(Ordering::SeqCst);
                if member != 0 && is_gone(member) {
                    self.free_entry(at, member);
                }
            }
        }
    }
}
