//! Permits: words, each of which holds the id of the member that has the permit, or 0.
//!
//! Acquiring a permit and releasing it is one exchange each, and so is releasing what a dead member held.

use crate::crash;
use crate::objects::members::MemberId;
use crate::shared_heap::Words;
use crate::sync::{AtomicU64, Ordering};

/// The permits of an object.
pub struct Permits<W> {
    words: W,
    start: usize,
    count: usize,
}

impl<W: Words> Permits<W> {
    /// Wraps `count` permits, from byte `start` of the memory on.
    pub fn new(words: W, start: usize, count: usize) -> Self {
        Permits {
            words,
            start,
            count,
        }
    }

    /// Returns the number of permits, held or free.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the offset of a permit's word, in bytes from the beginning of the memory.
    pub fn offset(&self, index: usize) -> u64 {
        (self.start + 8 * index) as u64
    }

    /// Acquires this permit. Returns false if a member holds it.
    #[inline]
    pub fn try_acquire(&self, index: usize, self_id: MemberId) -> bool {
        let permit = self.word(index);
        // Relaxed, both: nothing follows from a failure.
        // Acquire: pairs with the Release of `release`: what the last holder did is before what we do; and with that of
        // `release_all`: a thread that acquires it afterwards sees that we leave.
        // Release: a process that finds our id finds our entry, see `find_orphan`.
        permit.load(Ordering::Relaxed) == 0
            && permit
                .compare_exchange(0, self_id.0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// Releases a permit of this member. Returns the word as the error if another member, or none, holds the permit.
    #[inline]
    pub fn release(&self, index: usize, self_id: MemberId) -> Result<(), u64> {
        // Release: pairs with the Acquire of `try_acquire`.
        // Acquire, of a failure: a thread that has acquired it from us while we leave has said before that we do.
        self.word(index)
            .compare_exchange(self_id.0, 0, Ordering::Release, Ordering::Acquire)
            .map(drop)
    }

    /// Returns true if this member holds the permit.
    #[inline]
    pub fn is_held(&self, index: usize, self_id: MemberId) -> bool {
        // Relaxed: no other member changes what we hold.
        self.word(index).load(Ordering::Relaxed) == self_id.0
    }

    /// Releases all permits of this member, which leaves. A thread of this process that acquires a permit later finds
    /// that the process has left, and releases the permit itself.
    pub fn release_all(&self, self_id: MemberId) {
        for index in 0..self.count {
            // Release: pairs with the Acquire of `try_acquire`, which comes after this change of the word, or is seen
            // by it.
            let found = self.word(index).fetch_add(0, Ordering::AcqRel);
            if found == self_id.0 {
                let _ = self.release(index, self_id);
            }
        }
    }

    /// Returns the number of free permits.
    pub fn count_free(&self) -> usize {
        self.count_held_by(MemberId(0))
    }

    /// Returns the number of permits that a member holds.
    pub fn count_held_by(&self, member: MemberId) -> usize {
        // Relaxed: the count is out of date as soon as it is made.
        let is_held = |&index: &usize| self.word(index).load(Ordering::Relaxed) == member.0;
        (0..self.count).filter(is_held).count()
    }

    /// Releases the permits of the dead members of a slot. The caller holds the lock of the slot.
    pub fn recover(&self, slot: u32) {
        for index in 0..self.count {
            let permit = self.word(index);
            // Relaxed: the kernel orders what the dead member did before it reported the death.
            let found = permit.load(Ordering::Relaxed);
            if MemberId(found).slot() == Some(slot) {
                // Release: what the dead member did is seen before it died; what we did is before what the next holder
                // does. Relaxed: another process has written over the word.
                let _ = permit.compare_exchange(found, 0, Ordering::Release, Ordering::Relaxed);
                crash::point!(PermitRecovered);
            }
        }
    }

    /// Returns the index of a permit whose holder is no member, and the holder's id. `is_member` returns true for
    /// members.
    pub fn find_orphan(&self, is_member: impl Fn(MemberId) -> bool) -> Option<(usize, u64)> {
        (0..self.count).find_map(|index| {
            let permit = self.word(index);
            // Acquire, and that of a member's entry: the entry exists before the id is in a permit, and until the id is
            // out of all of them.
            let found = permit.load(Ordering::Acquire);
            let is_orphan = found != 0
                && !is_member(MemberId(found))
                && permit.load(Ordering::Acquire) == found;
            is_orphan.then_some((index, found))
        })
    }

    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        let word = self.words.word(self.offset(index));
        word.expect("the layout has this many permits")
    }
}
