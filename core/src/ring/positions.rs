//! Positions of bytes in a ring, and the check of a peer's index.

use super::memory::WORD;
use crate::violation::Violation;

/// Return the index that a peer has stored, after a check: `Misaligned` if it is no multiple of a word, `OutOfRange` if
/// it is not from `low` to `high`, both included.
#[inline]
pub(super) fn check_index(index: u64, low: u64, high: u64) -> Result<u64, Violation> {
    if index % WORD as u64 != 0 {
        return Err(Violation::Misaligned { index, unit: WORD });
    }
    if index < low || index > high {
        return Err(Violation::OutOfRange { index, low, high });
    }
    Ok(index)
}

/// The mapping from byte indices to positions in the ring.
pub(super) struct RingPositions {
    /// Words in use, a power of two, minus 1.
    mask: usize,
    /// Offset added to a byte's index.
    shift: usize,
}

impl RingPositions {
    /// Create the mapping of a ring that uses `used` bytes, a power of two.
    pub(super) fn new(used: usize) -> Self {
        RingPositions {
            mask: used / WORD - 1,
            shift: 0,
        }
    }

    /// Return the bytes in use.
    pub(super) fn used(&self) -> usize {
        (self.mask + 1) * WORD
    }

    /// Return the number of the word, in the memory in use, that contains the byte `offset` bytes beyond `index`.
    #[inline]
    pub(super) fn word(&self, index: u64, offset: usize) -> usize {
        let at = (index as usize)
            .wrapping_add(self.shift)
            .wrapping_add(offset);
        (at / WORD) & self.mask
    }

    /// Use `to` bytes of the memory from now on. The byte `index`, the first one not in use, comes right behind the
    /// bytes used so far.
    pub(super) fn grow(&mut self, index: u64, to: usize) {
        self.shift = self.used().wrapping_sub(index as usize);
        self.mask = to / WORD - 1;
    }
}
