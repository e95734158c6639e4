//! A wait set in shared memory: its layout there, and how its sleepers sleep.
//!
//! Offsets in bytes, from where the set begins:
//!
//! ```text
//!      0  bits          8 u64    bit i of word w: the holder of slot 64 w + i sleeps, or is about to
//!     64  tickets       u64      how many were drawn
//!    128  slots         u64 each
//!         the tickets   u64 each, in the order of the slots
//! ```

use super::{MAX_SLOTS, Slot, WaitSetError, WaitSetMemory, WakeMethod};
use crate::memory::mapping::SharedMapping;
use crate::sync::{AtomicU64, lock};
use crate::wait::doorbell::{Doorbell, Ringer, numbered};
use crate::wait::futex::{self, Reach};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const AT_TICKETS: usize = 64;
const AT_SLOTS: usize = 128;
const WORD: usize = 8;

/// Bytes of a set of `slots` slots.
pub const fn size_for(slots: usize) -> usize {
    AT_SLOTS + 2 * slots * WORD
}

/// The memory of a set, and what its wakers need. Zeros are a set in which nobody sleeps.
pub struct MappedWaitSet<M, L> {
    mapping: M,
    start: usize,
    slots: usize,
    /// Where the doorbells of its loops hang: followed by a dot and the number of the slot.
    stem: PathBuf,
    /// Made when the first bell is rung.
    ringer: Mutex<Option<Arc<Ringer>>>,
    lives: L,
}

impl<M: AsRef<SharedMapping>, L: Fn(u32) -> bool> MappedWaitSet<M, L> {
    /// The set of `slots` slots that begins `start` bytes into `mapping`. `stem`: the path of its doorbells, without
    /// their numbers. `lives` says whether the process of a member lives.
    ///
    /// # Panics
    /// If it is not within the mapping, not aligned to a cache line, or has no slots or too many.
    pub fn new(mapping: M, start: usize, slots: usize, stem: PathBuf, lives: L) -> Self {
        assert!((1..=MAX_SLOTS).contains(&slots) && start % 64 == 0);
        assert!(start + size_for(slots) <= mapping.as_ref().size());
        MappedWaitSet {
            mapping,
            start,
            slots,
            stem,
            ringer: Mutex::default(),
            lives,
        }
    }

    /// Closes what rings the doorbells, until the next one is rung.
    pub fn forget_ringer(&self) {
        *lock(&self.ringer) = None;
    }

    fn ringer(&self) -> Option<Arc<Ringer>> {
        let mut ringer = lock(&self.ringer);
        if ringer.is_none() {
            *ringer = Some(Arc::new(Ringer::new().ok()?));
        }
        ringer.clone()
    }

    fn doorbell(&self, index: usize) -> PathBuf {
        numbered(&self.stem, index)
    }

    /// Where a slot is, in bytes from the beginning of the mapping.
    pub fn offset(&self, index: usize) -> u64 {
        (self.start + AT_SLOTS + index * WORD) as u64
    }

    /// What the kernel looks at for a slot.
    fn futex(&self, index: usize) -> *const u32 {
        futex::low_half(self.slot(index).as_ptr())
    }
}

impl<M: AsRef<SharedMapping>, L: Fn(u32) -> bool> WaitSetMemory for MappedWaitSet<M, L> {
    fn slots(&self) -> usize {
        self.slots
    }

    #[inline]
    fn bits(&self, word: usize) -> &AtomicU64 {
        self.mapping.as_ref().u64_at(self.start + word * WORD)
    }

    #[inline]
    fn slot(&self, index: usize) -> &AtomicU64 {
        self.mapping.as_ref().u64_at(self.offset(index) as usize)
    }

    fn tickets(&self) -> &AtomicU64 {
        self.mapping.as_ref().u64_at(self.start + AT_TICKETS)
    }

    fn ticket(&self, index: usize) -> &AtomicU64 {
        let at = self.start + AT_SLOTS + (self.slots + index) * WORD;
        self.mapping.as_ref().u64_at(at)
    }

    fn wake(&self, index: usize, how: WakeMethod) -> bool {
        match how {
            WakeMethod::Futex => futex::wake(self.futex(index), Reach::Host),
            WakeMethod::Doorbell => {
                let ringer = self.ringer();
                ringer.is_some_and(|ringer| ringer.ring(&self.doorbell(index)))
            }
        }
    }

    fn is_alive(&self, member: u32) -> bool {
        (self.lives)(member)
    }
}

impl<M: AsRef<SharedMapping>, L: Fn(u32) -> bool> Slot<MappedWaitSet<M, L>> {
    /// Blocks this thread until it is woken, a signal comes, or `limit` has passed; not at all if `is_there` finds what
    /// is waited for. Whether that found it. If not: handle signals, look at the time, and call again, or leave.
    pub fn sleep(
        &mut self,
        limit: Duration,
        mut is_there: impl FnMut() -> bool,
    ) -> Result<bool, WaitSetError> {
        self.announce(WakeMethod::Futex)?;
        if is_there() {
            self.cancel()?;
            return Ok(true);
        }
        let word = self.set.backing.futex(self.index);
        futex::wait(word, self.entry.0 as u32, limit, Reach::Host);
        self.withdraw()?;
        Ok(is_there())
    }

    /// For an event loop in the place of a thread.
    pub fn into_loop(self) -> io::Result<LoopSlot<M, L>> {
        let doorbell = Doorbell::new(&self.set.backing.doorbell(self.index))?;
        let slot = self;
        Ok(LoopSlot { doorbell, slot })
    }
}

/// The slot of an event loop, which sleeps until its descriptor is readable.
pub struct LoopSlot<M: AsRef<SharedMapping>, L: Fn(u32) -> bool> {
    // Before the slot: its name goes while that is still ours.
    doorbell: Doorbell,
    slot: Slot<MappedWaitSet<M, L>>,
}

impl<M: AsRef<SharedMapping>, L: Fn(u32) -> bool> LoopSlot<M, L> {
    /// Takes a place at the end of the line. To be called when the first of its tasks begins to wait.
    pub fn draw_ticket(&mut self) {
        self.slot.draw_ticket();
    }

    /// Says that the loop is about to sleep. Look once more before it does.
    pub fn announce(&mut self) -> Result<(), WaitSetError> {
        self.slot.announce(WakeMethod::Doorbell)
    }

    /// The loop is awake: look for what it waits for, and announce again if it is not there.
    pub fn withdraw(&mut self) -> Result<(), WaitSetError> {
        self.doorbell.drain();
        self.slot.withdraw().map(drop)
    }

    /// Makes the descriptor readable, as whoever wakes the loop does.
    pub fn ring(&self) {
        self.slot
            .set
            .backing
            .wake(self.slot.index, WakeMethod::Doorbell);
    }

    /// The loop waits no longer, or has found what it waited for before it slept: see [`Slot::cancel`].
    pub fn cancel(&mut self) -> Result<(), WaitSetError> {
        self.slot.cancel()
    }
}

impl<M: AsRef<SharedMapping>, L: Fn(u32) -> bool> AsFd for LoopSlot<M, L> {
    /// Readable once it was woken.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}
