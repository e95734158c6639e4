//! How far each subscriber has read of each publisher, and what it has pinned.

use super::Directory;
use super::entries::{SeatState, SubscriberProgress};
use super::layout::*;
use crate::crash;
use crate::shared_heap::Words;
use crate::sync::{AtomicU64, Ordering, fence};

impl<W: Words> Directory<W> {
    #[inline]
    pub(super) fn pin(&self, seat: usize, pin: usize) -> &AtomicU64 {
        self.word(self.seat_at(seat) + 8 * pin as u64)
    }

    #[inline]
    pub(super) fn cell(&self, seat: usize, listing: usize, field: u64) -> &AtomicU64 {
        self.word(self.seat_at(seat) + CELLS + CELL * listing as u64 + field)
    }

    /// How far the subscriber of a seat has read of this publisher; None if it is not attached.
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
            // Acquire: pairs with the Release of `set_head`: what the subscriber has read it has read before.
            head: head.load(Ordering::Acquire),
            // Relaxed, both: only said to people.
            lost: lost.load(Ordering::Relaxed),
            held: held.load(Ordering::Relaxed),
        })
    }

    /// Begins to read of a publisher at this record.
    pub(in crate::topic) fn attach(&self, seat: usize, listing: usize, generation: u64, head: u64) {
        let [attached, head_word, lost, held] =
            [0, 8, 16, 24].map(|field| self.cell(seat, listing, field));
        // Relaxed, all: published with the generation. That of the last publisher is gone, which looked at it.
        attached.store(0, Ordering::Relaxed);
        head_word.store(head, Ordering::Relaxed);
        lost.store(0, Ordering::Relaxed);
        held.store(0, Ordering::Relaxed);
        // Release: whoever sees the generation sees the head.
        attached.store(generation, Ordering::Release);
        // SeqCst: the head is before the subscriber's look at the floor.
        fence(Ordering::SeqCst);
        crash::point!(Attached);
    }

    /// The subscriber has read all records below this one.
    #[inline]
    pub(in crate::topic) fn set_head(&self, seat: usize, listing: usize, head: u64) {
        // Release: its reads are before, and so are its pins.
        self.cell(seat, listing, 8).store(head, Ordering::Release);
        crash::point!(HeadMoved);
    }

    /// The subscriber has missed this many records in all.
    pub(in crate::topic) fn set_lost(&self, seat: usize, listing: usize, lost: u64) {
        // Relaxed: only said to people.
        self.cell(seat, listing, 16).store(lost, Ordering::Relaxed);
    }

    /// Counts bytes of this publisher's blocks as looked at, if all subscribers together look at no more than `most`
    /// then. Two that ask at once may both be refused.
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
        // SeqCst: what we hold is before the look at what others do. One of two sees the other.
        fence(Ordering::SeqCst);
        let held = self.occupied_seats().map(|each| {
            let [attached, held] = [0, 24].map(|field| self.cell(each.seat, listing, field));
            // Relaxed, both: ordered by the fence. Of another publisher, it is not of interest.
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

    /// They are not looked at any more.
    pub(in crate::topic) fn return_bytes(
        &self,
        seat: usize,
        (listing, generation): (usize, u64),
        bytes: u64,
    ) {
        let [attached, held] = [0, 24].map(|field| self.cell(seat, listing, field));
        // Relaxed, both: only this subscriber attaches its seat, and what others see of it late they copy.
        if attached.load(Ordering::Relaxed) == generation {
            held.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Says that the block of a record is looked at. Look whether the record is still there afterwards.
    pub(in crate::topic) fn set_pin(&self, seat: usize, pin: usize, listing: usize, seq: u64) {
        let word = (listing as u64 + 1) << 56 | seq & SEQ;
        // Release: nothing of its last use is after.
        self.pin(seat, pin).store(word, Ordering::Release);
        // SeqCst: the pin is before the look at the floor or the cut, in the order of `pinned`.
        fence(Ordering::SeqCst);
        crash::point!(RecordPinned);
    }

    /// The block is not looked at any more.
    pub(in crate::topic) fn clear_pin(&self, seat: usize, pin: usize) {
        // Release: the looks at the block are before.
        self.pin(seat, pin).store(0, Ordering::Release);
        crash::point!(PinCleared);
    }

    /// The records of a publisher that subscribers look at, each with its seat. The caller has a fence between what it
    /// has given up and this look.
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
