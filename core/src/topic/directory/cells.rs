//! Cells and pins: how far each subscriber has read of each publisher, and the records that it reads in place.

use super::Directory;
use super::entries::{SeatState, SubscriberProgress};
use super::layout::*;
use crate::crash;
use crate::shared_heap::Words;
use crate::sync::{AtomicU64, Ordering, fence};

impl<W: Words> Directory<W> {
    /// Return the word of pin number `pin` of a seat.
    #[inline]
    pub(super) fn pin(&self, seat: usize, pin: usize) -> &AtomicU64 {
        self.word(self.seat_at(seat) + 8 * pin as u64)
    }

    /// Return the word at the offset `field` of the cell of a seat for a listing.
    #[inline]
    pub(super) fn cell(&self, seat: usize, listing: usize, field: u64) -> &AtomicU64 {
        self.word(self.seat_at(seat) + CELLS + CELL * listing as u64 + field)
    }

    /// Return the progress of the subscriber of a seat in the log of a publisher; None if the subscriber is not
    /// attached to the publisher of this generation.
    #[inline]
    pub fn progress(
        &self,
        seat: usize,
        listing: usize,
        generation: u64,
    ) -> Option<SubscriberProgress> {
        let [attached, head, lost, held] =
            [0, 8, 16, 24].map(|field| self.cell(seat, listing, field));
        // Acquire: pairs with the Release of `attach`: the head is of this generation, or a later one.
        if attached.load(Ordering::Acquire) != generation {
            return None;
        }
        Some(SubscriberProgress {
            // Acquire: pairs with the Release of `set_head`: the subscriber's reads are before.
            head: head.load(Ordering::Acquire),
            // Relaxed, both: only for statistics.
            lost: lost.load(Ordering::Relaxed),
            held: held.load(Ordering::Relaxed),
        })
    }

    /// Attach the subscriber of a seat to a publisher, from the record `head` on, or `READS_NOTHING`. Set the numbers
    /// of missed records and of bytes read in place to 0. Called by the subscriber, which then loads the floor.
    pub(in crate::topic) fn attach(&self, seat: usize, listing: usize, generation: u64, head: u64) {
        let [attached, head_word, lost, held] =
            [0, 8, 16, 24].map(|field| self.cell(seat, listing, field));
        // Relaxed, all: published with the generation. The previous publisher, which read this cell, is gone.
        attached.store(0, Ordering::Relaxed);
        head_word.store(head, Ordering::Relaxed);
        lost.store(0, Ordering::Relaxed);
        held.store(0, Ordering::Relaxed);
        // Release: a reader of the generation sees the head.
        attached.store(generation, Ordering::Release);
        // SeqCst: the head is before the subscriber's load of the floor.
        fence(Ordering::SeqCst);
        crash::point!(Attached);
    }

    /// Store that the subscriber has read all records below `head`. The caller then asks
    /// [`is_awaited`](Self::is_awaited) if it must wake the publisher.
    #[inline]
    pub(in crate::topic) fn set_head(&self, seat: usize, listing: usize, head: u64) {
        // Release: its reads and its pins are before.
        self.cell(seat, listing, 8).store(head, Ordering::Release);
        crash::point!(HeadMoved);
    }

    /// Store the total number of records of a publisher that the subscriber has missed.
    pub(in crate::topic) fn set_lost(&self, seat: usize, listing: usize, lost: u64) {
        // Relaxed: only for statistics.
        self.cell(seat, listing, 16).store(lost, Ordering::Relaxed);
    }

    /// Count `bytes` of this publisher's blocks as read in place. Return false, and count nothing, if all subscribers
    /// together would exceed `most`. If two subscribers call this at once, both may be refused.
    pub(in crate::topic) fn borrow_bytes(
        &self,
        seat: usize,
        (listing, generation): (usize, u64),
        bytes: u64,
        most: u64,
    ) -> bool {
        // Relaxed: the fence orders it.
        self.cell(seat, listing, 24)
            .fetch_add(bytes, Ordering::Relaxed);
        // SeqCst: the store of our bytes is before the load of the others'. Of two subscribers, one sees the other.
        fence(Ordering::SeqCst);
        let held = self.occupied_seats().map(|each| {
            let [attached, held] = [0, 24].map(|field| self.cell(each.seat, listing, field));
            // Relaxed, both: ordered by the fence. Bytes of another publisher do not count.
            match attached.load(Ordering::Relaxed) == generation {
                true => held.load(Ordering::Relaxed),
                false => 0,
            }
        });
        let is_granted = held.fold(0, u64::saturating_add) <= most;
        if !is_granted {
            self.return_bytes(seat, (listing, generation), bytes);
        }
        is_granted
    }

    /// Count `bytes` as no longer read in place. Does nothing if the seat is not attached to the publisher of this
    /// generation.
    pub(in crate::topic) fn return_bytes(
        &self,
        seat: usize,
        (listing, generation): (usize, u64),
        bytes: u64,
    ) {
        let [attached, held] = [0, 24].map(|field| self.cell(seat, listing, field));
        // Relaxed, both: only this subscriber attaches its seat, and others that see it late copy instead.
        if attached.load(Ordering::Relaxed) == generation {
            held.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Pin the block of a record. The caller then checks that the record is still there.
    pub(in crate::topic) fn set_pin(&self, seat: usize, pin: usize, listing: usize, seq: u64) {
        let word = (listing as u64 + 1) << 56 | seq & SEQ;
        // Release: accesses through the previous pin are before.
        self.pin(seat, pin).store(word, Ordering::Release);
        // SeqCst: the pin is before the load of the floor or the cut, in the order of `pinned`.
        fence(Ordering::SeqCst);
        crash::point!(RecordPinned);
    }

    /// Remove a pin, after the last read of its block. The publisher is not woken.
    pub(in crate::topic) fn clear_pin(&self, seat: usize, pin: usize) {
        // Release: the reads of the block are before.
        self.pin(seat, pin).store(0, Ordering::Release);
        crash::point!(PinCleared);
    }

    /// Return the pinned records of the publisher of a listing, each with its seat: the low bits of their numbers, as
    /// `SEQ` selects them. The caller has a fence between its reclaiming store and this call.
    pub(in crate::topic) fn pinned(&self, listing: usize) -> Vec<(u64, usize)> {
        let mut found = Vec::new();
        let seats = 0..self.capacity.seats;
        for seat in seats.filter(|&seat| self.seat_word(seat).state() != SeatState::Free) {
            for pin in 0..self.capacity.pins {
                // Acquire: pairs with the Release of `clear_pin`.
                let word = self.pin(seat, pin).load(Ordering::Acquire);
                if word >> 56 == listing as u64 + 1 {
                    found.push((word & SEQ, seat));
                }
            }
        }
        found
    }
}
