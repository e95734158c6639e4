//! A wait set: many sleepers, of many processes, that wait for a change of something in shared memory.
//!
//! Each sleeper, a thread or an event loop, has a *slot* of the set. Whoever has made a change wakes one sleeper, or
//! all. It pays a fence and a look at a few words while nobody sleeps.
//!
//! ```text
//!   sleeper                                 waker
//!   bit = 1, slot = how      (announce)     change
//!   fence(SeqCst)                           fence(SeqCst)
//!   look for the change                     look at the bits   (wake_one, wake_all)
//!   nothing? sleep                          set? slot = WOKEN, ring
//!   bit = 0, slot = AWAKE    (withdraw)
//! ```
//!
//! As in [`super::flags`], of the two fences one is first, so one of the two sides sees the other: no wake-up is lost.
//!
//! # A slot
//!
//! One word says all of a slot: whose it is, what state it is in, and a generation, which changes with its holder. So
//! every change is one compare-and-exchange, no death leaves half of one, and whoever has seen a word of the last
//! holder changes nothing of the next one's. Bits say which slots to look at. A bit is changed by the holder of its
//! slot alone, so the slot of a dead process is first taken over and then cleared.
//!
//! # Wake-ups that would be swallowed
//!
//! A change that wakes *one* sleeper must not be lost with it:
//!
//! * A sleeper that gives up, or has found something by its own look, hands a wake-up on that came meanwhile
//!   ([`Slot::cancel`], also by dropping it). One that was woken and looks afterwards has used it.
//! * A sleeper that does not hear the ring and whose process is dead loses its slot, and the waker goes on to the next.
//! * A sleeper that dies after the ring leaves a slot that says so. Whoever takes it over hands the wake-up on.
//! * A waker that dies between its change and the ring leaves sleepers that nobody told: whoever learns of a death wakes
//!   all.
//! * What is left, a process that is stopped, and memory that somebody has scribbled over, lasts until the end of the
//!   sleep, after which everybody looks again.
//!
//! # Whose turn it is
//!
//! Each sleeper takes a ticket when it begins to wait, and keeps it until it has what it waits for. The lowest ticket is
//! woken first. A ticket is a hint: what somebody else writes there costs a sleeper its turn.
//!
//! Whatever stands in the memory, each step is bounded: a lie costs looks, rings in vain, a slot, or a sleep until its
//! end.

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

/// A set, as one process has it.
pub struct WaitSet<B> {
    backing: B,
    /// The number by which others find out whether this process lives.
    member: u32,
}

impl<B: WaitSetMemory> WaitSet<B> {
    /// The set that lies in `backing`, for the member of this number.
    ///
    /// # Panics
    /// If the number is over [`MAX_MEMBER`], or there are no slots or too many.
    pub fn new(backing: B, member: u32) -> Arc<Self> {
        assert!(member <= MAX_MEMBER);
        assert!((1..=MAX_SLOTS).contains(&backing.slots()));
        Arc::new(WaitSet { backing, member })
    }

    /// Where it lies.
    pub fn backing(&self) -> &B {
        &self.backing
    }

    /// A slot for a thread or a loop that waits now and then. If all are in use, one of a dead process.
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

    /// Frees the slots of members that do not live, and hands their wake-ups on. How many there were.
    ///
    /// For whoever knows of a death; also before the number of a dead member is given out again.
    pub fn sweep(self: &Arc<Self>, lives: impl Fn(u32) -> bool) -> usize {
        let (mut freed, mut woken) = (0, 0);
        for index in 0..self.backing.slots() {
            if let Some((entry, was_woken)) = self.take_over(index, &lives) {
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

    /// After a change: wakes the sleeper whose turn it is, if any sleeps. False if none was woken.
    #[inline]
    pub fn wake_one(&self) -> bool {
        self.wake_one_unless(|| false)
    }

    /// As `wake_one`, but if somebody sleeps and `is_left`, the change is for another one, who is awake.
    #[inline]
    pub fn wake_one_unless(&self, is_left: impl FnOnce() -> bool) -> bool {
        let announced = self.announced();
        !announced.is_empty() && !is_left() && self.wake_next(announced)
    }

    /// After a change: wakes all that sleep; how many.
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

    /// Rings for all whose slots say that they were woken: whoever has written that may have died before it rang.
    pub fn rewake(&self) {
        for index in 0..self.backing.slots() {
            if self.load(index).is(SlotState::Woken) {
                // How it sleeps is not known any more. One that is awake by now is rung in vain.
                self.backing.wake(index, WakeMethod::Futex);
                self.backing.wake(index, WakeMethod::Doorbell);
            }
        }
    }

    /// How many sleep, or are about to.
    pub fn sleepers(&self) -> usize {
        self.announced().slots().count()
    }

    /// After a change: the slots whose holders may sleep.
    #[inline]
    fn announced(&self) -> AnnouncedSlots {
        // SeqCst: the change is before this look at the bits and the slots, in the one order that all such fences
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
            // Each is tried once, whatever becomes of its ticket.
            announced.words[next / BITS] &= !bit(next);
        }
    }

    /// Wakes the sleeper of this slot; false if none sleeps there, or it is dead.
    fn wake_slot(&self, index: usize) -> bool {
        let found = self.load(index);
        let Some(how) = found.wake_method() else {
            return false;
        };
        let woken = found.with_state(SlotState::Woken);
        // Release: pairs with the Acquire of `withdraw`, so that what is before the wake-up is seen after the sleep. The
        // fence of `announced` is one too, which ThreadSanitizer does not see.
        // Relaxed: if it fails, the sleeper is awake, and looks again after a fence of its own, or another waker has it.
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

    /// Makes a slot ours whose holder does not live; its word now, and whether the dead was woken before.
    fn take_over(&self, index: usize, lives: impl Fn(u32) -> bool) -> Option<(SlotWord, bool)> {
        // Acquire: pairs with the Release of `take`. The holder was alive before it took the slot, and so for us, unless
        // it has died since.
        let found = SlotWord(self.backing.slot(index).load(Ordering::Acquire));
        if found.is(SlotState::Free) || lives(found.member()) {
            return None;
        }
        let entry = self.try_acquire(index, found)?;
        self.clear(index);
        Some((entry, found.is(SlotState::Woken)))
    }

    /// Makes a slot ours in which `found` was seen. None if another one was quicker.
    fn try_acquire(&self, index: usize, found: SlotWord) -> Option<SlotWord> {
        let entry = found.next_owner(self.member);
        // Acquire: pairs with the Release of `free`: the last holder has cleared its bit before we set ours. Of one that
        // has died the kernel orders all that it did before it says so.
        // Release: pairs with the Acquire of `take_over`.
        // Relaxed: nothing follows from a failure.
        let slot = self.backing.slot(index);
        slot.compare_exchange(found.0, entry.0, Ordering::AcqRel, Ordering::Relaxed)
            .ok()?;
        Some(entry)
    }

    /// Gives a slot of ours back, in which `entry` stands and whose bit is cleared.
    fn free(&self, index: usize, entry: SlotWord) {
        let free = entry.with_state(SlotState::Free);
        // Release: pairs with the Acquire of `take`. Relaxed: if it fails, the slot is not ours.
        let _ = self.backing.slot(index).compare_exchange(
            entry.0,
            free.0,
            Ordering::Release,
            Ordering::Relaxed,
        );
    }

    fn new_slot(self: &Arc<Self>, index: usize, entry: SlotWord) -> Slot<B> {
        let set = Arc::clone(self);
        Slot { set, index, entry }
    }

    fn clear(&self, index: usize) {
        // Relaxed: seen late, it costs a waker a look at the slot.
        self.backing
            .bits(index / BITS)
            .fetch_and(!bit(index), Ordering::Relaxed);
    }

    fn load(&self, index: usize) -> SlotWord {
        // Relaxed: ordered by the fence of `announced`, or else only what the next exchange compares with.
        SlotWord(self.backing.slot(index).load(Ordering::Relaxed))
    }
}

/// A slot of ours. Dropped, it is given back, and a wake-up that came meanwhile is handed on.
pub struct Slot<B: WaitSetMemory> {
    set: Arc<WaitSet<B>>,
    index: usize,
    /// What we have left in the slot: awake, or asleep in one way.
    entry: SlotWord,
}

impl<B: WaitSetMemory> Slot<B> {
    /// Its number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The set that it is of.
    pub fn set(&self) -> &Arc<WaitSet<B>> {
        &self.set
    }

    /// Takes a place at the end of the line. To be called when a wait begins.
    pub fn draw_ticket(&mut self) {
        // Relaxed, both: the fence of `announce` orders them, and a ticket is a hint.
        let ticket = self.set.backing.tickets().fetch_add(1, Relaxed);
        let ours = self.set.backing.ticket(self.index);
        ours.store(ticket, Relaxed);
    }

    /// Says how we are about to sleep. Look once more before doing so.
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
        // SeqCst: our bit and our slot are before our next look for the change.
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Takes the announcement back: we are awake, and about to look again. Whether a wake-up was meant for us; one that
    /// will not look calls [`Slot::cancel`].
    pub fn withdraw(&mut self) -> Result<bool, WaitSetError> {
        self.set.clear(self.index);
        // Relaxed: not woken, there is nothing to see.
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

    /// Takes the announcement back without another look, since we give up, or have found something before we slept. A
    /// wake-up that was meant for us is somebody else's then.
    pub fn cancel(&mut self) -> Result<(), WaitSetError> {
        if self.withdraw()? {
            self.set.wake_one();
        }
        Ok(())
    }

    /// Changes the slot's state, if it still holds what we have left there.
    fn set_state(&mut self, state: SlotState, success: Ordering) -> Result<(), WaitSetError> {
        let next = self.entry.with_state(state);
        // Relaxed: what a failure finds is only reported.
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
