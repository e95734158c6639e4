//! A wait set in shared memory, and the sleep of its threads and event loops.
//!
//! Offsets in bytes, from the beginning of the set:
//!
//! ```text
//!       0  bits          8 u64    bit i of word w: the holder of slot 64 w + i sleeps, or is about to
//!      64  tickets       u64      number of drawn tickets
//!     128  slots         u64 each
//!          the tickets   u64 each, in the order of the slots
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

/// Return the bytes of a set of `slots` slots.
pub const fn size_for(slots: usize) -> usize {
    AT_SLOTS + 2 * slots * WORD
}

/// The memory of a set, and the means to wake its sleepers. Zeros are a set without sleepers.
pub struct MappedWaitSet<M, L> {
    mapping: M,
    start: usize,
    slots: usize,
    /// Path of the doorbells of its event loops, without the dot and the number of the slot.
    stem: PathBuf,
    /// Sender of doorbell messages, created for the first one.
    ringer: Mutex<Option<Arc<Ringer>>>,
    is_alive: L,
}

impl<M: AsRef<SharedMapping>, L: Fn(u32) -> bool> MappedWaitSet<M, L> {
    /// Open the set of `slots` slots that begins `start` bytes into `mapping`, without access to it. `stem` is the path
    /// of its doorbells, without their numbers; `is_alive` returns true if the process of a member is alive.
    ///
    /// # Panics
    /// If the set is not within the mapping, not aligned to a cache line, or has no slots or too many.
    pub fn new(mapping: M, start: usize, slots: usize, stem: PathBuf, is_alive: L) -> Self {
        assert!((1..=MAX_SLOTS).contains(&slots) && start % 64 == 0);
        assert!(start + size_for(slots) <= mapping.as_ref().size());
        MappedWaitSet {
            mapping,
            start,
            slots,
            stem,
            ringer: Mutex::default(),
            is_alive,
        }
    }

    /// Close the sender of doorbell messages. The next message creates another one.
    pub fn forget_ringer(&self) {
        *lock(&self.ringer) = None;
    }

    /// Return the sender of doorbell messages, after creating it if there is none; None if that fails.
    fn ringer(&self) -> Option<Arc<Ringer>> {
        let mut ringer = lock(&self.ringer);
        if ringer.is_none() {
            *ringer = Some(Arc::new(Ringer::new().ok()?));
        }
        ringer.clone()
    }

    /// Return the path of the doorbell of a slot.
    fn doorbell(&self, index: usize) -> PathBuf {
        numbered(&self.stem, index)
    }

    /// Return the offset of a slot in the mapping, in bytes.
    pub fn offset(&self, index: usize) -> u64 {
        (self.start + AT_SLOTS + index * WORD) as u64
    }

    /// Return the futex of a slot.
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
        (self.is_alive)(member)
    }
}

impl<M: AsRef<SharedMapping>, L: Fn(u32) -> bool> Slot<MappedWaitSet<M, L>> {
    /// Block this thread until a wake-up or a signal comes or `limit` has passed, unless `is_there` returns true
    /// before. Return the result of `is_there` at the end. If it is false, the caller handles signals and its deadline,
    /// and calls again or leaves. Fails if the slot no longer belongs to this process.
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

    /// Turn the slot of a thread into the slot of an event loop, by binding its doorbell. Fails as [`Doorbell::new`]
    /// does; the slot is then freed.
    pub fn into_loop(self) -> io::Result<LoopSlot<M, L>> {
        let doorbell = Doorbell::new(&self.set.backing.doorbell(self.index))?;
        let slot = self;
        Ok(LoopSlot { doorbell, slot })
    }
}

/// The slot of an event loop, which sleeps until its descriptor is readable.
pub struct LoopSlot<M: AsRef<SharedMapping>, L: Fn(u32) -> bool> {
    // Before the slot, because its file must go while the slot still belongs to this process.
    doorbell: Doorbell,
    slot: Slot<MappedWaitSet<M, L>>,
}

impl<M: AsRef<SharedMapping>, L: Fn(u32) -> bool> LoopSlot<M, L> {
    /// Draw a ticket at the end of the order. The caller calls this when the first of its tasks begins to wait.
    pub fn draw_ticket(&mut self) {
        self.slot.draw_ticket();
    }

    /// Announce that the loop is about to sleep. The caller checks once more before the loop sleeps, and then withdraws
    /// or cancels. Fails if the slot no longer belongs to this process.
    pub fn announce(&mut self) -> Result<(), WaitSetError> {
        self.slot.announce(WakeMethod::Doorbell)
    }

    /// Withdraw the announcement after the loop woke, and drain the doorbell. The caller checks its condition, and
    /// announces again if it is false. Fails as [`announce`](Self::announce) does.
    pub fn withdraw(&mut self) -> Result<(), WaitSetError> {
        self.doorbell.drain();
        self.slot.withdraw().map(drop)
    }

    /// Make the descriptor readable, as a waker does. The state of the slot does not change, and errors are ignored.
    pub fn ring(&self) {
        self.slot
            .set
            .backing
            .wake(self.slot.index, WakeMethod::Doorbell);
    }

    /// Stop waiting, because the loop gave up or found its condition true before it slept: see [`Slot::cancel`].
    pub fn cancel(&mut self) -> Result<(), WaitSetError> {
        self.slot.cancel()
    }
}

impl<M: AsRef<SharedMapping>, L: Fn(u32) -> bool> AsFd for LoopSlot<M, L> {
    /// Return the descriptor, which is readable after a wake-up.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}
