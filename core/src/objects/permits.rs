//! Permits: words, each of which holds the number of the member that has it, or 0.
//!
//! So taking one and giving it back is one exchange each, and so is giving back what a dead member had.

use super::members::Number;
use crate::crash;
use crate::shared_heap::Words;
use crate::sync::{AtomicU64, Ordering};

/// The permits of a name.
pub struct Permits<W> {
    words: W,
    start: usize,
    count: usize,
}

impl<W: Words> Permits<W> {
    /// This many, from byte `start` of the memory on.
    pub fn new(words: W, start: usize, count: usize) -> Self {
        Permits {
            words,
            start,
            count,
        }
    }

    /// How many there are, held or free.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Where the word of one is, in bytes from the beginning of the memory.
    pub fn offset(&self, place: usize) -> u64 {
        (self.start + 8 * place) as u64
    }

    /// Takes this one. False if somebody has it.
    #[inline]
    pub fn take(&self, place: usize, us: Number) -> bool {
        let permit = self.word(place);
        // Relaxed, both: nothing follows from a failure.
        // Acquire: pairs with the Release of `give_back`: what the last holder did is before what we do; and with that of
        // `give_back_at_last`: whoever takes it afterwards sees that we leave.
        // Release: whoever finds our number finds our entry, see `stranger`.
        permit.load(Ordering::Relaxed) == 0
            && permit
                .compare_exchange(0, us.0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// Gives one of ours back. What it holds if it is not ours.
    #[inline]
    pub fn give_back(&self, place: usize, us: Number) -> Result<(), u64> {
        // Release: pairs with the Acquire of `take`.
        // Acquire, of a failure: whoever has taken it from us while we leave has said before that we do.
        self.word(place)
            .compare_exchange(us.0, 0, Ordering::Release, Ordering::Acquire)
            .map(drop)
    }

    /// Whether we have this one.
    #[inline]
    pub fn is_held(&self, place: usize, us: Number) -> bool {
        // Relaxed: what we have nobody else changes.
        self.word(place).load(Ordering::Relaxed) == us.0
    }

    /// Gives all of ours back, as we leave. A thread of ours that takes one later sees that we have left, and gives that
    /// back itself.
    pub fn give_back_at_last(&self, us: Number) {
        for place in 0..self.count {
            // Release: pairs with the Acquire of `take`, which comes after this change of the word, or is seen by it.
            let found = self.word(place).fetch_add(0, Ordering::AcqRel);
            if found == us.0 {
                let _ = self.give_back(place, us);
            }
        }
    }

    /// How many nobody has.
    pub fn free(&self) -> usize {
        self.held_by(Number(0))
    }

    /// How many a member has.
    pub fn held_by(&self, number: Number) -> usize {
        // Relaxed: a count of no moment.
        let has = |&place: &usize| self.word(place).load(Ordering::Relaxed) == number.0;
        (0..self.count).filter(has).count()
    }

    /// Gives back what the dead members of a slot had. To be called by whoever has its byte.
    pub fn recover(&self, slot: u32) {
        for place in 0..self.count {
            let permit = self.word(place);
            // Relaxed: the kernel orders what the dead one did before it said so.
            let found = permit.load(Ordering::Relaxed);
            if Number(found).slot() == Some(slot) {
                // Release: what the dead one did is seen before it died; what we did is before what the next holder does.
                // Relaxed: somebody has written over it.
                let _ = permit.compare_exchange(found, 0, Ordering::Release, Ordering::Relaxed);
                crash::point!(PermitRecovered);
            }
        }
    }

    /// A permit whose holder is no member, as `is_member` says, and that number.
    pub fn stranger(&self, is_member: impl Fn(Number) -> bool) -> Option<(usize, u64)> {
        (0..self.count).find_map(|place| {
            let permit = self.word(place);
            // Acquire, and the one of a member's entry: that is there before the number is in a permit, and until it is
            // out of all of them.
            let found = permit.load(Ordering::Acquire);
            let is_strange =
                found != 0 && !is_member(Number(found)) && permit.load(Ordering::Acquire) == found;
            is_strange.then_some((place, found))
        })
    }

    #[inline]
    fn word(&self, place: usize) -> &AtomicU64 {
        let word = self.words.word(self.offset(place));
        word.expect("the layout has this many permits")
    }
}
