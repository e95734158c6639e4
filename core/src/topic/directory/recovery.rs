//! Recovery of the listings and seats of dead members.

use super::Directory;
use super::layout::OWNER;
use crate::shared_heap::Words;
use crate::sync::{AtomicU64, Ordering};

impl<W: Words> Directory<W> {
    /// Release the listings and seats of the members for which `is_gone` returns true: those that are dead, or this one
    /// when it leaves. Return true if there were any; the caller then wakes all sleepers.
    pub fn recover(&self, is_gone: impl Fn(u64) -> bool) -> bool {
        let mut any = false;
        // Acquire: the stores of the dead are before. The release of their lock-file bytes orders them too.
        let left = |word: &AtomicU64| {
            let owner = word.load(Ordering::Acquire);
            owner != 0 && is_gone(owner)
        };
        for listing in 0..self.capacity.listings {
            if left(self.listing(listing, OWNER)) {
                self.release_listing(listing);
                any = true;
            }
        }
        for seat in 0..self.capacity.seats {
            if left(self.owner_word(seat)) {
                self.release_seat(seat);
                any = true;
            }
        }
        any
    }
}
