//! A wait set: many sleepers, of many processes, wait for a change in shared memory.
//!
//! Each sleeper, a thread or an event loop, has a *slot* of the set. A process that has made a change wakes one
//! sleeper, or all. While there are no sleepers, that costs a fence and a load of a few words.
//!
//! ```text
//!   sleeper                                  waker
//!   bit = 1, slot = how      (announce)      change
//!   fence(SeqCst)                            fence(SeqCst)
//!   check for the change                     load the bits   (wake_one, wake_all)
//!   no change? sleep                         set? slot = WOKEN, wake
//!   bit = 0, slot = AWAKE    (withdraw)
//! ```
//!
//! As in [`super::flags`], one of the two fences is first, so at least one side sees the other's store: no wake-up is
//! lost.
//!
//! # A slot
//!
//! One word has the whole state of a slot: its owner, its state, and a generation, which changes with the owner. So
//! every change is one compare-and-exchange, a death leaves no partial change, and a process that has seen the word of
//! a previous owner cannot change that of the next one. The bits are an index of the slots to check. Only the owner of
//! a slot changes its bit, so the slot of a dead process is first taken over and then cleared.
//!
//! # Wake-ups that might be lost with a sleeper
//!
//! A change that wakes *one* sleeper must not be lost with it:
//!
//! * A sleeper that gives up, or has found its condition true without the wake-up, passes a wake-up that came meanwhile
//!   on to another sleeper ([`Slot::cancel`], also by its drop). A sleeper that was woken and then checks has used the
//!   wake-up.
//! * A sleeper that the wake-up does not reach and whose process is dead loses its slot, and the waker tries the next
//!   one.
//! * A sleeper that dies after the wake-up leaves a slot in the state woken. The process that takes the slot over
//!   passes the wake-up on.
//! * A waker that dies between its change and the wake-up leaves sleepers without a wake-up: the process that learns of
//!   a death wakes all.
//! * What remains, a stopped process and memory that a process has overwritten, lasts until the end of the sleep, after
//!   which every sleeper checks again.
//!
//! # Fairness
//!
//! Each sleeper draws a ticket when it begins to wait, and keeps it until its condition is true. The lowest ticket is
//! woken first. A ticket is a hint: a process that overwrites it costs a sleeper its position.
//!
//! Whatever the memory contains, each step is bounded: a corrupt word costs extra checks, needless wake-ups, a slot, or
//! a sleep until its end.

mod announced;
mod backing;
mod entry;
mod error;
mod heap;
mod layout;
#[cfg(not(loom))]
pub mod mapped;
#[cfg(all(test, not(loom)))]
mod tests;

pub use backing::{WaitSetMemory, WakeMethod};
pub use error::WaitSetError;
pub use heap::{DEAD_MEMBER, HeapWaitSet};
pub use layout::{MAX_MEMBER, MAX_SLOTS};

use crate::crash;
use crate::sync::{Ordering, fence};
use announced::{AnnouncedSlots, bit};
use entry::{SlotState, SlotWord};
use layout::{BITS, WORDS};
use std::sync::Arc;

use std::sync::atomic::Ordering::Relaxed;

/// A wait set, as one process has it open.
pub struct WaitSet<B> {
    backing: B,
    /// Number by which other processes find out whether this process is alive.
    member: u32,
}

impl<B: WaitSetMemory> WaitSet<B> {
    /// Open the set in `backing`, for the member of this number.
    ///
    /// # Panics
    /// If the number is over [`MAX_MEMBER`], or there are no slots or too many.
    pub fn new(backing: B, member: u32) -> Arc<Self> {
        assert!(member <= MAX_MEMBER);
        assert!((1..=MAX_SLOTS).contains(&backing.slots()));
        Arc::new(WaitSet { backing, member })
    }

    /// Return the memory of the set.
    pub fn backing(&self) -> &B {
        &self.backing
    }

    /// Acquire a slot for a thread or a loop: a free one, or else one of a dead process, whose wake-up is passed on.
    /// Fails with [`WaitSetError::Full`] if there is none.
    pub fn acquire_slot(self: &Arc<Self>) -> Result<Slot<B>, WaitSetError> {
        for index in 0..self.backing.slots() {
            let found = self.load(index);
            if found.is(SlotState::Free)
                && let Some(entry) = self.try_acquire(index, found)
            {
                return Ok(self.new_slot(index, entry));
            }
        }
        for index in 0..self.backing.slots() {
            if let Some((entry, woken)) =
                self.take_over(index, |member| self.backing.is_alive(member))
            {
                if woken {
                    self.wake_one();
                }
                return Ok(self.new_slot(index, entry));
            }
        }
        let slots = self.backing.slots();
        Err(WaitSetError::Full { slots })
    }

    /// Free the slots of members that are not alive, and pass their wake-ups on. Return the number of freed slots.
    ///
    /// Called after a death, and before the number of a dead member is used again.
    pub fn sweep(self: &Arc<Self>, is_alive: impl Fn(u32) -> bool) -> usize {
        let (mut freed, mut woken) = (0, 0);
        for index in 0..self.backing.slots() {
            if let Some((entry, was_woken)) = self.take_over(index, &is_alive) {
                drop(self.new_slot(index, entry));
                freed += 1;
                woken += usize::from(was_woken);
            }
        }
        for _ in 0..woken {
            self.wake_one();
        }
        freed
    }

    /// Wake the sleeper with the lowest ticket, after a change. Return false if there is none.
    #[inline]
    pub fn wake_one(&self) -> bool {
        self.wake_one_unless(|| false)
    }

    /// Wake the sleeper with the lowest ticket, after a change, unless `is_left` returns true because the change
    /// belongs to a thread that is awake. Return true if a sleeper was woken.
    #[inline]
    pub fn wake_one_unless(&self, is_left: impl FnOnce() -> bool) -> bool {
        let announced = self.announced();
        !announced.is_empty() && !is_left() && self.wake_next(announced)
    }

    /// Wake all sleepers, after a change. Return the number of those that this call has woken.
    #[inline]
    pub fn wake_all(&self) -> usize {
        let announced = self.announced();
        if announced.is_empty() {
            return 0;
        }
        announced
            .slots()
            .filter(|&index| self.wake_slot(index))
            .count()
    }

    /// Wake the owners of all slots in the state woken again, because their waker may have died before it woke them.
    pub fn rewake(&self) {
        for index in 0..self.backing.slots() {
            if self.load(index).is(SlotState::Woken) {
                // The way in which they sleep is no longer known. One that is awake by now gets a needless wake-up.
                self.backing.wake(index, WakeMethod::Futex);
                self.backing.wake(index, WakeMethod::Doorbell);
            }
        }
    }

    /// Return the number of sleepers, including those about to sleep and those just woken. A hint.
    pub fn sleepers(&self) -> usize {
        self.announced().slots().count()
    }

    /// Return the slots whose holders may sleep, after a change.
    #[inline]
    fn announced(&self) -> AnnouncedSlots {
        // SeqCst: the change is before this load of the bits and the slots, in the one order that all such fences
        // share. See the table above.
        fence(Ordering::SeqCst);
        let mut words = [0; WORDS];
        let used = &mut words[..self.backing.slots().div_ceil(BITS)];
        for (word, bits) in used.iter_mut().enumerate() {
            // Relaxed: ordered by the fence.
            *bits = self.backing.bits(word).load(Ordering::Relaxed);
        }
        AnnouncedSlots {
            words,
            slots: self.backing.slots(),
        }
    }

    /// Wake the sleeper with the lowest ticket among the announced slots. Return false if none of them can be woken.
    #[cold]
    fn wake_next(&self, mut announced: AnnouncedSlots) -> bool {
        loop {
            // Relaxed: ordered by the fence of `announced`, and a hint.
            let turn = |index: usize| (self.backing.ticket(index).load(Relaxed), index);
            let wake_method = |index: &usize| self.load(*index).wake_method().is_some();
            let Some((_, next)) = announced.slots().filter(wake_method).map(turn).min() else {
                return false;
            };
            if self.wake_slot(next) {
                return true;
            }
            // Each slot is tried once, even if its ticket changes.
            announced.words[next / BITS] &= !bit(next);
        }
    }

    /// Wake the sleeper of this slot. Return false if none sleeps there, or it is dead: its slot is then freed.
    fn wake_slot(&self, index: usize) -> bool {
        let found = self.load(index);
        let Some(how) = found.wake_method() else {
            return false;
        };
        let woken = found.with_state(SlotState::Woken);
        // Release: pairs with the Acquire of `withdraw`, so that what is before the wake-up is visible after the sleep.
        // The fence of `announced` is a release too, which ThreadSanitizer does not see. Relaxed: on failure the
        // sleeper is awake, and checks again after a fence of its own, or another waker has it.
        let slot = self.backing.slot(index);
        if slot
            .compare_exchange(found.0, woken.0, Ordering::Release, Ordering::Relaxed)
            .is_err()
        {
            return false;
        }
        crash::point!(SlotWoken);
        if self.backing.wake(index, how) || self.backing.is_alive(found.member()) {
            return true;
        }
        if let Some((entry, _)) = self.take_over(index, |member| member != found.member()) {
            self.free(index, entry);
        }
        false
    }

    /// Take over a slot whose owner is not alive. Return its word, and true if the dead owner had been woken: the
    /// caller passes that wake-up on. Return None if the owner is alive, the slot is free, or another process was
    /// quicker.
    fn take_over(&self, index: usize, is_alive: impl Fn(u32) -> bool) -> Option<(SlotWord, bool)> {
        // Acquire: pairs with the Release of `try_acquire`. The owner was alive before it took the slot, so this
        // process sees it alive, unless it has died since.
        let found = SlotWord(self.backing.slot(index).load(Ordering::Acquire));
        if found.is(SlotState::Free) || is_alive(found.member()) {
            return None;
        }
        let entry = self.try_acquire(index, found)?;
        self.clear_bit(index);
        Some((entry, found.is(SlotState::Woken)))
    }

    /// Acquire a slot that contained `found`. Return its new word; None if another process was quicker.
    fn try_acquire(&self, index: usize, found: SlotWord) -> Option<SlotWord> {
        let entry = found.next_owner(self.member);
        // Acquire: pairs with the Release of `free`: the previous owner has cleared its bit before this one sets it.
        // All that a dead owner did is before the kernel reports its death. Release: pairs with the Acquire of
        // `take_over`. Relaxed: a failure has no consequence.
        let slot = self.backing.slot(index);
        slot.compare_exchange(found.0, entry.0, Ordering::AcqRel, Ordering::Relaxed)
            .ok()?;
        Some(entry)
    }

    /// Free a slot that contains `entry` and whose bit is cleared. Does nothing if the slot belongs to another process.
    fn free(&self, index: usize, entry: SlotWord) {
        let free = entry.with_state(SlotState::Free);
        // Release: pairs with the Acquire of `try_acquire`. Relaxed: on failure the slot belongs to another process.
        let _ = self.backing.slot(index).compare_exchange(
            entry.0,
            free.0,
            Ordering::Release,
            Ordering::Relaxed,
        );
    }

    /// Create the object for a slot that this process has acquired.
    fn new_slot(self: &Arc<Self>, index: usize, entry: SlotWord) -> Slot<B> {
        let set = Arc::clone(self);
        Slot { set, index, entry }
    }

    /// Clear the bit of a slot.
    fn clear_bit(&self, index: usize) {
        // Relaxed: seen late, it costs a waker a load of the slot.
        self.backing
            .bits(index / BITS)
            .fetch_and(!bit(index), Ordering::Relaxed);
    }

    /// Return the current word of a slot.
    fn load(&self, index: usize) -> SlotWord {
        // Relaxed: ordered by the fence of `announced`, or only compared by the next exchange.
        SlotWord(self.backing.slot(index).load(Ordering::Relaxed))
    }
}

/// A slot of this process. Its drop frees it and passes on a wake-up that came meanwhile.
pub struct Slot<B: WaitSetMemory> {
    set: Arc<WaitSet<B>>,
    index: usize,
    /// Word that this process has stored: awake, or asleep in one way.
    entry: SlotWord,
}

impl<B: WaitSetMemory> Slot<B> {
    /// Return the index of the slot.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Return the set of the slot.
    pub fn set(&self) -> &Arc<WaitSet<B>> {
        &self.set
    }

    /// Draw a ticket at the end of the order. The caller calls this when a wait begins.
    pub fn draw_ticket(&mut self) {
        // Relaxed, both: the fence of `announce` orders them, and a ticket is a hint.
        let ticket = self.set.backing.tickets().fetch_add(1, Relaxed);
        let ours = self.set.backing.ticket(self.index);
        ours.store(ticket, Relaxed);
    }

    /// Announce a sleep. The caller checks once more before it sleeps, and then withdraws or cancels. Fails if the slot
    /// no longer belongs to this process.
    pub fn announce(&mut self, how: WakeMethod) -> Result<(), WaitSetError> {
        let state = match how {
            WakeMethod::Futex => SlotState::OnFutex,
            WakeMethod::Doorbell => SlotState::OnDoorbell,
        };
        // Relaxed, both: the fence orders them.
        self.set
            .backing
            .bits(self.index / BITS)
            .fetch_or(bit(self.index), Ordering::Relaxed);
        self.set_state(state, Ordering::Relaxed)?;
        // SeqCst: the bit and the slot are before the next check for the change.
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Withdraw the announcement; the caller then checks again. Return true if a wake-up came for this slot. A caller
    /// that does not check calls [`Slot::cancel`] instead. Fails if the slot no longer belongs to this process.
    pub fn withdraw(&mut self) -> Result<bool, WaitSetError> {
        self.set.clear_bit(self.index);
        // Relaxed: without a wake-up there is nothing to see.
        match self.set_state(SlotState::Awake, Ordering::Relaxed) {
            Ok(()) => Ok(false),
            Err(error) => {
                self.entry = self.entry.with_state(SlotState::Woken);
                // Acquire: pairs with the Release of `wake_slot`.
                self.set_state(SlotState::Awake, Ordering::Acquire)
                    .map_err(|_| error)?;
                Ok(true)
            }
        }
    }

    /// Withdraw the announcement without another check, because the caller gives up or has found its condition true
    /// before it slept. A wake-up that came for this slot goes to another sleeper. Fails as `withdraw` does.
    pub fn cancel(&mut self) -> Result<(), WaitSetError> {
        if self.withdraw()? {
            self.set.wake_one();
        }
        Ok(())
    }

    /// Change the state of the slot. Fails if it no longer contains this process's word.
    fn set_state(&mut self, state: SlotState, success: Ordering) -> Result<(), WaitSetError> {
        let next = self.entry.with_state(state);
        // Relaxed: the word that a failure finds is only reported.
        match self.set.backing.slot(self.index).compare_exchange(
            self.entry.0,
            next.0,
            success,
            Ordering::Relaxed,
        ) {
            Ok(_) => {
                self.entry = next;
                Ok(())
            }
            Err(found) => Err(WaitSetError::Overwritten {
                index: self.index,
                found,
                expected: self.entry.0,
            }),
        }
    }
}

impl<B: WaitSetMemory> Drop for Slot<B> {
    fn drop(&mut self) {
        if self.entry.is(SlotState::Awake) || self.cancel().is_ok() {
            self.set.free(self.index, self.entry);
        }
    }
}
