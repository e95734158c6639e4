//! The listings of publishers.

use super::Directory;
use super::entries::ListingInfo;
use super::layout::*;
use crate::crash;
use crate::shared_heap::Words;
use crate::sync::{AtomicU64, Ordering, fence};

impl<W: Words> Directory<W> {
    #[inline]
    pub(super) fn listing(&self, listing: usize, field: u64) -> &AtomicU64 {
        self.word(FIRST_LISTING + LISTING * listing as u64 + field)
    }

    /// How often the listings have changed.
    #[inline]
    pub fn version(&self) -> u64 {
        // Acquire: pairs with the Release of `changed`.
        self.word(0).load(Ordering::Acquire)
    }

    pub(super) fn changed(&self) {
        // Release: whoever sees it sees the change.
        self.word(0).fetch_add(1, Ordering::Release);
    }

    /// Returns the number of subscribers that have ever come.
    #[inline]
    pub(in crate::topic) fn joined(&self) -> u64 {
        // Acquire: pairs with the Release of `activate`: a process that sees the count sees the claim.
        self.word(JOINED).load(Ordering::Acquire)
    }

    /// Takes a listing for this member: its number and generation. None if all are taken.
    pub fn acquire_listing(&self, me: u64) -> Option<(usize, u64)> {
        let take = |&listing: &usize| {
            let owner = self.listing(listing, OWNER);
            // Acquire: what the last one did with it is before. Relaxed: a failure tells nothing.
            let taken = owner.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed);
            taken.is_ok()
        };
        let listing = (0..self.capacity.listings).find(take)?;
        let word = self.listing(listing, GENERATION);
        // Relaxed: only whoever has the listing changes it. None is 0, which is that of a cell without one.
        let generation = word.load(Ordering::Relaxed).wrapping_add(1).max(1);
        // Release: whoever sees it sees that the last one is closed.
        word.store(generation, Ordering::Release);
        // Relaxed: nobody looks at it before the descriptor is there.
        self.listing(listing, WAITS).store(0, Ordering::Relaxed);
        crash::point!(ListingTaken);
        Some((listing, generation))
    }

    /// Says where the log of a listing is that was taken, which subscribers attach themselves to from now on.
    pub fn open_listing(&self, listing: usize, token: u64, descriptor: i32) {
        // Relaxed: published with the descriptor.
        self.listing(listing, TOKEN).store(token, Ordering::Relaxed);
        let descriptor = descriptor as u64 + 1;
        // Release: whoever sees it sees the rest, and the log.
        self.listing(listing, DESCRIPTOR)
            .store(descriptor, Ordering::Release);
        crash::point!(ListingOpened);
        self.changed();
    }

    /// Frees a listing. What was published can be read on by those that are attached.
    pub fn release_listing(&self, listing: usize) {
        // Release: who finds it closed finds all that was published.
        self.listing(listing, DESCRIPTOR)
            .store(0, Ordering::Release);
        crash::point!(ListingClosed);
        // Release: pairs with the Acquire of `list`.
        self.listing(listing, OWNER).store(0, Ordering::Release);
        self.changed();
    }

    /// The publisher of a listing, if there is one whose log can be opened. Any values may come.
    pub fn listing_info(&self, listing: usize) -> Option<ListingInfo> {
        // Acquire: pairs with the Release of `list`. A descriptor that is seen then is of this generation, or a later one.
        let generation = self.listing(listing, GENERATION).load(Ordering::Acquire);
        // Acquire: pairs with the Release of `open`.
        let descriptor = self.listing(listing, DESCRIPTOR).load(Ordering::Acquire);
        // Relaxed, both: covered by the descriptor.
        let owner = self.listing(listing, OWNER).load(Ordering::Relaxed);
        let token = self.listing(listing, TOKEN).load(Ordering::Relaxed);
        // Acquire: if one of these is of a later generation, that is seen now.
        fence(Ordering::Acquire);
        let generation_now = self.listing(listing, GENERATION).load(Ordering::Relaxed);
        let descriptor = i32::try_from(descriptor.checked_sub(1)?).ok()?;
        (generation == generation_now).then_some(ListingInfo {
            listing,
            generation,
            owner,
            descriptor,
            token,
        })
    }

    /// Whether the publisher of this generation is still there.
    pub fn is_listed(&self, listing: usize, generation: u64) -> bool {
        // Acquire: whoever finds it gone sees all that it has published.
        let generation_now = self.listing(listing, GENERATION).load(Ordering::Acquire);
        let descriptor = self.listing(listing, DESCRIPTOR).load(Ordering::Acquire);
        generation_now == generation && descriptor != 0
    }

    /// Says for whom a publisher is about to sleep: until the head of this seat is at `target`, or for any seat. It looks
    /// at the heads once more before it does.
    pub(in crate::topic) fn announce_wait(&self, listing: usize, seat: Option<usize>, target: u64) {
        let waits = seat.map_or(ANY_SEAT, |seat| seat as u64 + 1);
        // Relaxed, both: the fence orders them. A subscriber that sees one without the other is before the next look.
        self.listing(listing, TARGET)
            .store(target, Ordering::Relaxed);
        self.listing(listing, WAITS).store(waits, Ordering::Relaxed);
        // SeqCst: the words are before the next look at the heads, in the order of `is_waited_for`.
        fence(Ordering::SeqCst);
    }

    /// A publisher sleeps no more.
    pub(in crate::topic) fn withdraw_wait(&self, listing: usize) {
        // Relaxed: whoever sees it late wakes in vain.
        self.listing(listing, WAITS).store(0, Ordering::Relaxed);
    }

    /// After a change of a seat: whether the publisher may sleep until its head is where it is now, or until any has changed.
    #[inline]
    pub(in crate::topic) fn is_awaited(&self, listing: usize, seat: usize, head: u64) -> bool {
        // SeqCst: the change is before this look, in the order of `wait_for`.
        fence(Ordering::SeqCst);
        // Relaxed, both: ordered by the fence.
        match self.listing(listing, WAITS).load(Ordering::Relaxed) {
            0 => false,
            ANY_SEAT => true,
            waits => {
                let target = self.listing(listing, TARGET).load(Ordering::Relaxed);
                waits == seat as u64 + 1 && head >= target
            }
        }
    }
}
