//! What dead members leave in the directory.

use super::Directory;
use super::layout::OWNER;
use crate::shared_heap::Words;
use crate::sync::{AtomicU64, Ordering};

impl<W: Words> Directory<W> {
    /// Gives back what members have left who are dead: those of whose numbers this is true. Whether there was anything; then
    /// wake everybody.
    pub fn recover(&self, is_gone: impl Fn(u64) -> bool) -> bool {
        let mut any = false;
        // Acquire: what the dead have stored. Their bytes order it too.
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
