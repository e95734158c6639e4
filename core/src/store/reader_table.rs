//! What those tell the owner of a store who can only read its contents: which buffers they look at, and which containers they
//! wait for; and whose contents they read. It lies before the contents, where all write.
//!
//! ```text
//!    0  begun    u64   how many watches were ever begun
//!    8  pinned   u64   entries of pins that were ever used
//!   16  watched  u64   entries of watches that were ever used
//!   64  pins     2 u64 each: a member's number, or 0; its block
//!       watches  3 u64 each: a member's number, or 0; the number of a container; how often that was changed since
//!       follows  256 u64, by the slots of members: the number of the contents that it has mapped; 2^64 - 1 once it leaves
//! ```
//!
//! An entry is taken by one exchange, by whoever reads, and nobody takes a lease for it. So the owner waits for no reader; one
//! that writes over what others have said may cost them a wake-up, or what a view of theirs shows, and cannot change the store.
//!
//! A reader pins a block, and then looks whether it is still in the store. The owner takes a block out of the store, and
//! frees it in a later transaction, once it finds no pin. A reader begins a watch, and then looks at the container. The owner
//! changes it, and then looks whether watches were begun since its transaction began.

use crate::shared_heap::Words;
use crate::sync::{AtomicU64, Ordering};

/// Buffers that readers may look at, each counted once for a process, and waits of theirs.
const PINS: u64 = 4096;
const WATCHES: u64 = 1024;
const AT_BEGUN: u64 = 0;
const AT_PINNED: u64 = 8;
const AT_WATCHED: u64 = 16;
const AT_PINS: u64 = 64;
const AT_WATCHES: u64 = AT_PINS + 16 * PINS;
const AT_MAPPED: u64 = AT_WATCHES + 24 * WATCHES;
/// Members that may say what they have mapped.
const SLOTS: u64 = 256;
/// What a member says that leaves.
const LEAVING: u64 = u64::MAX;
/// Bytes of all of it.
pub const SIZE: u64 = AT_MAPPED + 8 * SLOTS;

/// A table of entries.
#[derive(Clone, Copy)]
struct Entries {
    high: u64,
    first: u64,
    size: u64,
    most: u64,
}

/// Where it lies.
pub(super) struct ReaderTable<'w, W> {
    words: &'w W,
    start: u64,
}

impl<'w, W: Words> ReaderTable<'w, W> {
    pub(super) fn new(words: &'w W, start: u64) -> Self {
        ReaderTable { words, start }
    }

    fn pins(&self) -> Entries {
        Entries {
            high: AT_PINNED,
            first: AT_PINS,
            size: 16,
            most: PINS,
        }
    }

    fn watches(&self) -> Entries {
        Entries {
            high: AT_WATCHED,
            first: AT_WATCHES,
            size: 24,
            most: WATCHES,
        }
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        let word = self.words.word(self.start + at);
        word.expect("the layout has room for what readers say")
    }

    /// The entries that may be in use.
    fn used(&self, table: Entries) -> impl Iterator<Item = u64> + use<W> {
        // SeqCst, here and in all that follows: an entry is before its maker's look at the store, and a change of the store
        // before its maker's look at the entries.
        let high = self.word(table.high).load(Ordering::SeqCst).min(table.most);
        (0..high).map(move |number| table.first + table.size * number)
    }

    /// Takes an entry for a member, which says this in its second word; None if there is none.
    fn enter(&self, table: Entries, me: u64, said: u64) -> Option<u64> {
        for number in 0..table.most {
            let at = table.first + table.size * number;
            let entry = self.word(at);
            let taken = entry.compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst);
            if taken.is_ok() {
                for more in (16..table.size).step_by(8) {
                    self.word(at + more).store(0, Ordering::SeqCst);
                }
                self.word(at + 8).store(said, Ordering::SeqCst);
                self.word(table.high)
                    .fetch_max(number + 1, Ordering::SeqCst);
                return Some(number);
            }
        }
        None
    }

    /// Ends an entry of a member.
    fn end(&self, at: u64, member: u64) -> bool {
        let entry = self.word(at);
        let ended = entry.compare_exchange(member, 0, Ordering::SeqCst, Ordering::SeqCst);
        ended.is_ok()
    }

    /// Says that a member looks at a block: look afterwards whether it is there. False if so many are looked at already.
    pub(super) fn pin(&self, me: u64, block: u64) -> bool {
        self.enter(self.pins(), me, block).is_some()
    }

    /// Takes that back, once. Whether it was said.
    pub(super) fn unpin(&self, me: u64, block: u64) -> bool {
        let mut pins = self.used(self.pins());
        pins.any(|at| self.word(at + 8).load(Ordering::SeqCst) == block && self.end(at, me))
    }

    /// Whether a reader looks at a block that is not in the store any more.
    pub(super) fn is_pinned(&self, block: u64) -> bool {
        self.used(self.pins()).any(|at| {
            self.word(at).load(Ordering::SeqCst) != 0
                && self.word(at + 8).load(Ordering::SeqCst) == block
        })
    }

    /// Begins to watch a container: the number of the watch; None if there are too many.
    pub(super) fn watch(&self, me: u64, id: u64) -> Option<u64> {
        let number = self.enter(self.watches(), me, id)?;
        self.word(AT_BEGUN).fetch_add(1, Ordering::SeqCst);
        // Once more: see `forget_watches`.
        self.word(AT_WATCHED)
            .fetch_max(number + 1, Ordering::SeqCst);
        Some(number)
    }

    fn watch_at(&self, number: u64) -> u64 {
        AT_WATCHES + 24 * number.min(WATCHES - 1)
    }

    /// Whether the container was changed since it is watched.
    pub(super) fn has_changed(&self, number: u64) -> bool {
        let at = self.watch_at(number);
        self.word(at + 16).load(Ordering::SeqCst) != 0
    }

    /// Ends a watch.
    pub(super) fn unwatch(&self, me: u64, number: u64) {
        self.end(self.watch_at(number), me);
    }

    /// How many watches were begun so far.
    pub(super) fn begun(&self) -> u64 {
        self.word(AT_BEGUN).load(Ordering::SeqCst)
    }

    /// Whether somebody may watch something.
    pub(super) fn has_watches(&self) -> bool {
        self.word(AT_WATCHED).load(Ordering::SeqCst) != 0
    }

    /// Says that these containers were changed, or all if None. Whether somebody watches one.
    pub(super) fn mark_changed(&self, ids: Option<&[u64]>) -> bool {
        let mut found = false;
        for at in self.used(self.watches()) {
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

    /// If nobody watches anything any more, the next look at that is short.
    fn reset_watch_count(&self) {
        let high = self.word(AT_WATCHED).load(Ordering::SeqCst);
        let begun = self.begun();
        let is_free = |at| self.word(at).load(Ordering::SeqCst) == 0;
        if high > 0 && self.used(self.watches()).all(is_free) {
            let cleared =
                self.word(AT_WATCHED)
                    .compare_exchange(high, 0, Ordering::SeqCst, Ordering::SeqCst);
            // One that was begun meanwhile counts: it is seen here, or finds this 0 and mends it.
            if cleared.is_ok() && self.begun() != begun {
                self.word(AT_WATCHED).fetch_max(high, Ordering::SeqCst);
            }
        }
    }

    fn mapped_word(&self, slot: u32) -> &AtomicU64 {
        self.word(AT_MAPPED + 8 * u64::from(slot).min(SLOTS - 1))
    }

    /// Says that the member of a slot has mapped the contents of this number; 0: none so far.
    pub(super) fn report_mapped(&self, slot: u32, mark: u64) {
        // SeqCst, as all: they are mapped before.
        self.mapped_word(slot).store(mark, Ordering::SeqCst);
    }

    /// Says that it leaves, and will map nothing more.
    pub(super) fn report_leaving(&self, slot: u32) {
        self.report_mapped(slot, LEAVING);
    }

    /// Whether the member of a slot has mapped the contents of this number, or leaves.
    pub(super) fn has_mapped_or_left(&self, slot: u32, mark: u64) -> bool {
        [mark, LEAVING].contains(&self.mapped_word(slot).load(Ordering::SeqCst))
    }

    /// Ends all that members have said who are gone.
    pub(super) fn clear(&self, is_gone: &dyn Fn(u64) -> bool) {
        for table in [self.pins(), self.watches()] {
            for at in self.used(table) {
                let member = self.word(at).load(Ordering::SeqCst);
                if member != 0 && is_gone(member) {
                    self.end(at, member);
                }
            }
        }
    }
}
