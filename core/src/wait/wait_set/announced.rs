//! A snapshot of the slots whose holders may sleep.

use super::layout::{BITS, WORDS};

/// The bits of a set at one load.
pub(super) struct AnnouncedSlots {
    pub(super) words: [u64; WORDS],
    pub(super) slots: usize,
}

impl AnnouncedSlots {
    /// Return true if no bit is set.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// Return the slots whose bits are set, in ascending order. Bits beyond the last slot are ignored.
    pub(super) fn slots(&self) -> impl Iterator<Item = usize> {
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

/// Return the bit of a slot in its word.
pub(super) fn bit(index: usize) -> u64 {
    1 << (index % BITS)
}
