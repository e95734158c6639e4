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

use crate::crash;
use crate::sync::{AtomicU64, Ordering, fence};
use std::fmt;
use std::sync::Arc;
#[cfg(all(test, not(loom)))]
use std::time::Duration;

#[cfg(not(loom))]
pub mod mapped;
#[cfg(all(test, not(loom)))]
mod tests;

/// The most slots of a set: their bits fill one cache line.
pub const MAX_SLOTS: usize = 512;
/// The highest number of a member.
pub const MAX_MEMBER: u32 = (1 << 24) - 1;

const BITS: usize = u64::BITS as usize;
const WORDS: usize = MAX_SLOTS / BITS;

/// How a sleeper is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// A thread, by the futex of its slot.
    Futex,
    /// An event loop, by a descriptor that becomes readable.
    Bell,
}

/// The low byte of a slot's word. Any other value is a lie, which is neither free nor asleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum State {
    Free = 0,
    Awake = 1,
    OnFutex = 2,
    OnBell = 3,
    /// Its sleeper has been rung for, and has not noticed so far.
    Woken = 4,
}

/// A slot's word: the state in 8 bits, the member in 24, the generation in 32. Zeros are a free slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry(u64);

impl Entry {
    fn new(generation: u32, member: u32, state: State) -> Self {
        Entry(u64::from(generation) << 32 | u64::from(member) << 8 | state as u64)
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn member(self) -> u32 {
        self.0 as u32 >> 8
    }

    fn is(self, state: State) -> bool {
        self.0 as u8 == state as u8
    }

    /// How its sleeper is woken, if it sleeps.
    fn asleep(self) -> Option<How> {
        if self.is(State::OnFutex) {
            Some(How::Futex)
        } else if self.is(State::OnBell) {
            Some(How::Bell)
        } else {
            None
        }
    }

    /// The same slot of the same holder in another state.
    fn turned(self, state: State) -> Self {
        Entry(self.0 & !0xff | state as u64)
    }

    /// The same slot, awake, of the next holder.
    fn passed_to(self, member: u32) -> Self {
        Entry::new(self.generation().wrapping_add(1), member, State::Awake)
    }
}

/// A number that decides nothing but an order: the standard library's also under loom, which need not try what it may be.
type Hint = std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Where a set lies, and what it asks of the kernel.
pub trait Backing {
    /// How many slots there are, at most [`MAX_SLOTS`].
    fn slots(&self) -> usize;
    /// The bits of 64 slots: 1 for each whose holder is about to sleep, or sleeps.
    fn bits(&self, word: usize) -> &AtomicU64;
    /// A slot.
    fn slot(&self, index: usize) -> &AtomicU64;
    /// How many tickets were drawn.
    fn tickets(&self) -> &Hint;
    /// The ticket of a slot.
    fn ticket(&self, index: usize) -> &Hint;
    /// Wakes the sleeper of this slot. False if nobody has heard it: it is about to sleep, or dead.
    fn ring(&self, index: usize, how: How) -> bool;
    /// Whether the process of this member lives. A number that no member has is a dead one's.
    fn lives(&self, member: u32) -> bool;
}

impl<B: Backing> Backing for Arc<B> {
    fn slots(&self) -> usize {
        (**self).slots()
    }
    fn bits(&self, word: usize) -> &AtomicU64 {
        (**self).bits(word)
    }
    fn slot(&self, index: usize) -> &AtomicU64 {
        (**self).slot(index)
    }
    fn tickets(&self) -> &Hint {
        (**self).tickets()
    }
    fn ticket(&self, index: usize) -> &Hint {
        (**self).ticket(index)
    }
    fn ring(&self, index: usize, how: How) -> bool {
        (**self).ring(index, how)
    }
    fn lives(&self, member: u32) -> bool {
        (**self).lives(member)
    }
}

/// Why a slot cannot be had, or used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetError {
    /// Each slot belongs to a process that lives.
    Full {
        /// How many there are.
        slots: usize,
    },
    /// A slot of ours is not ours any more: somebody has written over it.
    Overwritten {
        /// Which one.
        index: usize,
        /// What it holds.
        found: u64,
        /// What we had left there.
        expected: u64,
    },
}

impl fmt::Display for SetError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetError::Full { slots } => {
                write!(out, "all {slots} slots of the wait set are in use")
            }
            SetError::Overwritten {
                index,
                found,
                expected,
            } => write!(
                out,
                "slot {index} of the wait set holds {found:#x} instead of {expected:#x}"
            ),
        }
    }
}

impl std::error::Error for SetError {}

/// A set, as one process has it.
pub struct WaitSet<B> {
    backing: B,
    /// The number by which others find out whether this process lives.
    member: u32,
}

impl<B: Backing> WaitSet<B> {
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
    pub fn claim(self: &Arc<Self>) -> Result<Slot<B>, SetError> {
        for index in 0..self.backing.slots() {
            let found = self.load(index);
            if found.is(State::Free)
                && let Some(entry) = self.take(index, found)
            {
                return Ok(self.held(index, entry));
            }
        }
        for index in 0..self.backing.slots() {
            if let Some((entry, woken)) = self.take_over(index, |member| self.backing.lives(member))
            {
                if woken {
                    self.wake_one();
                }
                return Ok(self.held(index, entry));
            }
        }
        let slots = self.backing.slots();
        Err(SetError::Full { slots })
    }

    /// Frees the slots of members that do not live, and hands their wake-ups on. How many there were.
    ///
    /// For whoever knows of a death; also before the number of a dead member is given out again.
    pub fn sweep(self: &Arc<Self>, lives: impl Fn(u32) -> bool) -> usize {
        let (mut freed, mut woken) = (0, 0);
        for index in 0..self.backing.slots() {
            if let Some((entry, was_woken)) = self.take_over(index, &lives) {
                drop(self.held(index, entry));
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
    pub fn ring_woken(&self) {
        for index in 0..self.backing.slots() {
            if self.load(index).is(State::Woken) {
                // How it sleeps is not known any more. One that is awake by now is rung in vain.
                self.backing.ring(index, How::Futex);
                self.backing.ring(index, How::Bell);
            }
        }
    }

    /// How many sleep, or are about to.
    pub fn sleepers(&self) -> usize {
        self.announced().slots().count()
    }

    /// After a change: the slots whose holders may sleep.
    #[inline]
    fn announced(&self) -> Announced {
        // SeqCst: the change is before this look at the bits and the slots, in the one order that all such fences
        // share. See the table above.
        fence(Ordering::SeqCst);
        let mut words = [0; WORDS];
        let used = &mut words[..self.backing.slots().div_ceil(BITS)];
        for (word, bits) in used.iter_mut().enumerate() {
            // Relaxed: ordered by the fence.
            *bits = self.backing.bits(word).load(Ordering::Relaxed);
        }
        Announced {
            words,
            slots: self.backing.slots(),
        }
    }

    #[cold]
    fn wake_next(&self, mut announced: Announced) -> bool {
        loop {
            // Relaxed: ordered by the fence of `announced`, and a hint.
            let turn = |index: usize| (self.backing.ticket(index).load(Relaxed), index);
            let asleep = |index: &usize| self.load(*index).asleep().is_some();
            let Some((_, next)) = announced.slots().filter(asleep).map(turn).min() else {
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
        let Some(how) = found.asleep() else {
            return false;
        };
        let woken = found.turned(State::Woken);
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
        if self.backing.ring(index, how) || self.backing.lives(found.member()) {
            return true;
        }
        if let Some((entry, _)) = self.take_over(index, |member| member != found.member()) {
            self.free(index, entry);
        }
        false
    }

    /// Makes a slot ours whose holder does not live; its word now, and whether the dead was woken before.
    fn take_over(&self, index: usize, lives: impl Fn(u32) -> bool) -> Option<(Entry, bool)> {
        // Acquire: pairs with the Release of `take`. The holder was alive before it took the slot, and so for us, unless
        // it has died since.
        let found = Entry(self.backing.slot(index).load(Ordering::Acquire));
        if found.is(State::Free) || lives(found.member()) {
            return None;
        }
        let entry = self.take(index, found)?;
        self.clear(index);
        Some((entry, found.is(State::Woken)))
    }

    /// Makes a slot ours in which `found` was seen. None if another one was quicker.
    fn take(&self, index: usize, found: Entry) -> Option<Entry> {
        let entry = found.passed_to(self.member);
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
    fn free(&self, index: usize, entry: Entry) {
        let free = entry.turned(State::Free);
        // Release: pairs with the Acquire of `take`. Relaxed: if it fails, the slot is not ours.
        let _ = self.backing.slot(index).compare_exchange(
            entry.0,
            free.0,
            Ordering::Release,
            Ordering::Relaxed,
        );
    }

    fn held(self: &Arc<Self>, index: usize, entry: Entry) -> Slot<B> {
        let set = Arc::clone(self);
        Slot { set, index, entry }
    }

    fn clear(&self, index: usize) {
        // Relaxed: seen late, it costs a waker a look at the slot.
        self.backing
            .bits(index / BITS)
            .fetch_and(!bit(index), Ordering::Relaxed);
    }

    fn load(&self, index: usize) -> Entry {
        // Relaxed: ordered by the fence of `announced`, or else only what the next exchange compares with.
        Entry(self.backing.slot(index).load(Ordering::Relaxed))
    }
}

/// The bits of a set, as they were at one look.
struct Announced {
    words: [u64; WORDS],
    slots: usize,
}

impl Announced {
    #[inline]
    fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// The slots whose bits are set.
    fn slots(&self) -> impl Iterator<Item = usize> {
        let of_word = |(word, mut bits): (usize, u64)| {
            std::iter::from_fn(move || {
                let next = bits.trailing_zeros() as usize;
                bits &= bits.wrapping_sub(1);
                (next < BITS).then_some(word * BITS + next)
            })
        };
        let slots = self.slots;
        let found = self.words.into_iter().enumerate().flat_map(of_word);
        found.filter(move |&index| index < slots)
    }
}

fn bit(index: usize) -> u64 {
    1 << (index % BITS)
}

/// A slot of ours. Dropped, it is given back, and a wake-up that came meanwhile is handed on.
pub struct Slot<B: Backing> {
    set: Arc<WaitSet<B>>,
    index: usize,
    /// What we have left in the slot: awake, or asleep in one way.
    entry: Entry,
}

impl<B: Backing> Slot<B> {
    /// Its number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The set that it is of.
    pub fn set(&self) -> &Arc<WaitSet<B>> {
        &self.set
    }

    /// Takes a place at the end of the line. To be called when a wait begins.
    pub fn line_up(&mut self) {
        // Relaxed, both: the fence of `announce` orders them, and a ticket is a hint.
        let ticket = self.set.backing.tickets().fetch_add(1, Relaxed);
        let ours = self.set.backing.ticket(self.index);
        ours.store(ticket, Relaxed);
    }

    /// Says how we are about to sleep. Look once more before doing so.
    pub fn announce(&mut self, how: How) -> Result<(), SetError> {
        let state = match how {
            How::Futex => State::OnFutex,
            How::Bell => State::OnBell,
        };
        // Relaxed, both: the fence orders them.
        self.set
            .backing
            .bits(self.index / BITS)
            .fetch_or(bit(self.index), Ordering::Relaxed);
        self.turn(state, Ordering::Relaxed)?;
        // SeqCst: our bit and our slot are before our next look for the change.
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Takes the announcement back: we are awake, and about to look again. Whether a wake-up was meant for us; one that
    /// will not look calls [`Slot::cancel`].
    pub fn withdraw(&mut self) -> Result<bool, SetError> {
        self.set.clear(self.index);
        // Relaxed: not woken, there is nothing to see.
        match self.turn(State::Awake, Ordering::Relaxed) {
            Ok(()) => Ok(false),
            Err(error) => {
                self.entry = self.entry.turned(State::Woken);
                // Acquire: pairs with the Release of `wake_slot`.
                self.turn(State::Awake, Ordering::Acquire)
                    .map_err(|_| error)?;
                Ok(true)
            }
        }
    }

    /// Takes the announcement back without another look, since we give up, or have found something before we slept. A
    /// wake-up that was meant for us is somebody else's then.
    pub fn cancel(&mut self) -> Result<(), SetError> {
        if self.withdraw()? {
            self.set.wake_one();
        }
        Ok(())
    }

    /// Changes the slot's state, if it still holds what we have left there.
    fn turn(&mut self, state: State, success: Ordering) -> Result<(), SetError> {
        let next = self.entry.turned(state);
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
            Err(found) => Err(SetError::Overwritten {
                index: self.index,
                found,
                expected: self.entry.0,
            }),
        }
    }
}

impl<B: Backing> Drop for Slot<B> {
    fn drop(&mut self) {
        if self.entry.is(State::Awake) || self.cancel().is_ok() {
            self.set.free(self.index, self.entry);
        }
    }
}

/// A set in private memory, for tests and for loom. A sleeper is woken by `ring`, and all members live but the dead.
pub struct HeapSet<R> {
    bits: Vec<AtomicU64>,
    slots: Vec<AtomicU64>,
    line: Vec<Hint>,
    ring: R,
}

impl<R: Fn(usize) -> bool> HeapSet<R> {
    /// A set of `slots` slots. `ring` wakes the sleeper of a slot, and says whether it was heard.
    pub fn new(slots: usize, ring: R) -> Self {
        let zeros = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        HeapSet {
            bits: zeros(slots.div_ceil(BITS)),
            slots: zeros(slots),
            line: (0..=slots).map(|_| Hint::new(0)).collect(),
            ring,
        }
    }
}

/// The number of a member of a [`HeapSet`] that does not live.
pub const DEAD: u32 = MAX_MEMBER;

impl<R: Fn(usize) -> bool> Backing for HeapSet<R> {
    fn slots(&self) -> usize {
        self.slots.len()
    }
    fn bits(&self, word: usize) -> &AtomicU64 {
        &self.bits[word]
    }
    fn slot(&self, index: usize) -> &AtomicU64 {
        &self.slots[index]
    }
    fn tickets(&self) -> &Hint {
        &self.line[self.slots.len()]
    }
    fn ticket(&self, index: usize) -> &Hint {
        &self.line[index]
    }
    fn ring(&self, index: usize, _how: How) -> bool {
        (self.ring)(index)
    }
    fn lives(&self, member: u32) -> bool {
        member != DEAD
    }
}
