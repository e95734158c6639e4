//! The listings of publishers.

use super::Directory;
use super::entries::ListingInfo;
use super::layout::*;
use crate::crash;
use crate::shared_heap::Words;
use crate::sync::{AtomicU64, Ordering, fence};

impl<W: Words> Directory<W> {
    /// Return the word at the offset `field` of a listing.
    #[inline]
    pub(super) fn listing(&self, listing: usize, field: u64) -> &AtomicU64 {
        self.word(FIRST_LISTING + LISTING * listing as u64 + field)
    }

    /// Return the number of changes of the listings since the directory was created.
    #[inline]
    pub fn version(&self) -> u64 {
        // Acquire: pairs with the Release of `count_change`.
        self.word(0).load(Ordering::Acquire)
    }

    /// Count a change of the listings in their version.
    pub(super) fn count_change(&self) {
        // Release: a reader of the version sees the change.
        self.word(0).fetch_add(1, Ordering::Release);
    }

    /// Return the number of subscribers that have ever joined.
    #[inline]
    pub(in crate::topic) fn joined(&self) -> u64 {
        // Acquire: pairs with the Release of `activate`: a process that sees the count sees the seat word.
        self.word(JOINED).load(Ordering::Acquire)
    }

    /// Acquire a listing for this member, which [`open_listing`](Self::open_listing) then publishes. Return its number
    /// and generation; None if all are taken.
    pub fn acquire_listing(&self, self_id: u64) -> Option<(usize, u64)> {
        let take = |&listing: &usize| {
            let owner = self.listing(listing, OWNER);
            // Acquire: the stores of the previous owner are before. Relaxed: a failure has no consequence.
            let taken = owner.compare_exchange(0, self_id, Ordering::Acquire, Ordering::Relaxed);
            taken.is_ok()
        };
        let listing = (0..self.capacity.listings).find(take)?;
        let word = self.listing(listing, GENERATION);
        // Relaxed: only the owner of the listing changes it. No generation is 0, the value of an unattached cell.
        let generation = word.load(Ordering::Relaxed).wrapping_add(1).max(1);
        // Release: a reader of the generation sees that the previous publisher has closed.
        word.store(generation, Ordering::Release);
        // Relaxed: no process reads it before the descriptor is stored.
        self.listing(listing, WAITS).store(0, Ordering::Relaxed);
        crash::point!(ListingTaken);
        Some((listing, generation))
    }

    /// Publish the log of an acquired listing. Subscribers attach themselves to it from now on; the caller wakes them.
    pub fn open_listing(&self, listing: usize, token: u64, descriptor: i32) {
        // Relaxed: published with the descriptor.
        self.listing(listing, TOKEN).store(token, Ordering::Relaxed);
        let descriptor = descriptor as u64 + 1;
        // Release: a reader of the descriptor sees the rest, and the log.
        self.listing(listing, DESCRIPTOR)
            .store(descriptor, Ordering::Release);
        crash::point!(ListingOpened);
        self.count_change();
    }

    /// Release a listing of this member, or of a dead one, open or not. Attached subscribers can still read all
    /// published records. The caller wakes all sleepers.
    pub fn release_listing(&self, listing: usize) {
        // Release: a process that finds it closed finds all that was published.
        self.listing(listing, DESCRIPTOR)
            .store(0, Ordering::Release);
        crash::point!(ListingClosed);
        // Release: pairs with the Acquire of `acquire_listing`.
        self.listing(listing, OWNER).store(0, Ordering::Release);
        self.count_change();
    }

    /// Return the publisher of a listing; None if there is none, or if the listing changes meanwhile. All values are
    /// untrusted.
    pub fn listing_info(&self, listing: usize) -> Option<ListingInfo> {
        // Acquire: pairs with the Release of `acquire_listing`. The descriptor is then of this generation, or a later
        // one.
        let generation = self.listing(listing, GENERATION).load(Ordering::Acquire);
        // Acquire: pairs with the Release of `open_listing`.
        let descriptor = self.listing(listing, DESCRIPTOR).load(Ordering::Acquire);
        // Relaxed, both: covered by the descriptor.
        let owner = self.listing(listing, OWNER).load(Ordering::Relaxed);
        let token = self.listing(listing, TOKEN).load(Ordering::Relaxed);
        // Acquire: if one of these values is of a later generation, the next load sees that generation.
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

    /// Return true if the publisher of this generation still publishes: its listing is open.
    pub fn is_listed(&self, listing: usize, generation: u64) -> bool {
        // Acquire: a process that finds it gone sees all that it has published.
        let generation_now = self.listing(listing, GENERATION).load(Ordering::Acquire);
        let descriptor = self.listing(listing, DESCRIPTOR).load(Ordering::Acquire);
        generation_now == generation && descriptor != 0
    }

    /// Announce that a publisher is about to sleep until the head of `seat` reaches `target`, or until any seat
    /// changes. The publisher then loads the heads once more.
    pub(in crate::topic) fn announce_wait(&self, listing: usize, seat: Option<usize>, target: u64) {
        let waits = seat.map_or(ANY_SEAT, |seat| seat as u64 + 1);
        // Relaxed, both: the fence orders them. A subscriber that sees only one of them comes before the next load of
        // its head.
        self.listing(listing, TARGET)
            .store(target, Ordering::Relaxed);
        self.listing(listing, WAITS).store(waits, Ordering::Relaxed);
        // SeqCst: the words are before the next load of the heads, in the order of `is_awaited`.
        fence(Ordering::SeqCst);
    }

    /// Withdraw the announcement: the publisher is awake.
    pub(in crate::topic) fn withdraw_wait(&self, listing: usize) {
        // Relaxed: a process that sees it late wakes the publisher without need.
        self.listing(listing, WAITS).store(0, Ordering::Relaxed);
    }

    /// Return true if the publisher may sleep until the head of `seat` reaches `head`, or until any change. Called
    /// after a change of the seat.
    #[inline]
    pub(in crate::topic) fn is_awaited(&self, listing: usize, seat: usize, head: u64) -> bool {
        // SeqCst: the change is before this load, in the order of `announce_wait`.
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
