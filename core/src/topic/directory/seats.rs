//! The seats of subscribers.

use super::Directory;
use super::entries::{SeatInfo, SeatState, SeatWord};
use super::layout::*;
use crate::crash;
use crate::shared_heap::Words;
use crate::sync::{AtomicU64, Ordering};
use crate::topic::policy::Policy;
use std::io;

impl<W: Words> Directory<W> {
    #[inline]
    pub(super) fn seat_word_at(&self, seat: usize) -> &AtomicU64 {
        self.word(self.capacity.seat_words_at() + 8 * seat as u64)
    }

    pub(super) fn owner_word(&self, seat: usize) -> &AtomicU64 {
        let seats = self.capacity.seats as u64;
        self.word(self.capacity.seat_words_at() + 8 * (seats + seat as u64))
    }

    pub(super) fn lag_word(&self, seat: usize) -> &AtomicU64 {
        let seats = self.capacity.seats as u64;
        self.word(self.capacity.seat_words_at() + 8 * (2 * seats + seat as u64))
    }

    pub(super) fn seat_at(&self, seat: usize) -> u64 {
        self.capacity.seats_at() + SEAT * seat as u64
    }

    /// Takes a seat for this member: its claim, as one that joins. `prepare` sets this much memory aside from a
    /// place of the words on. None if all are taken.
    pub(in crate::topic) fn acquire_seat(
        &self,
        me: u64,
        policy: Policy,
        lag: u64,
        prepare: impl FnOnce(u64, u64) -> io::Result<()>,
    ) -> io::Result<Option<(usize, SeatWord)>> {
        let take = |&seat: &usize| {
            let owner = self.owner_word(seat);
            // Acquire, Relaxed: as in `list`.
            let taken = owner.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed);
            taken.is_ok()
        };
        let Some(seat) = (0..self.capacity.seats).find(take) else {
            return Ok(None);
        };
        crash::point!(SeatTaken);
        if let Err(error) = prepare(self.start + self.seat_at(seat), SEAT) {
            // Release: pairs with the Acquire above.
            self.owner_word(seat).store(0, Ordering::Release);
            return Err(error);
        }
        self.clear(seat);
        // Relaxed, both: nobody else writes it meanwhile, and the claim publishes the rest.
        let last = SeatWord(self.seat_word_at(seat).load(Ordering::Relaxed)).generation();
        self.lag_word(seat).store(lag, Ordering::Relaxed);
        let claim = SeatWord::new(last.wrapping_add(1), policy, SeatState::Joining);
        self.set_seat_word(seat, claim);
        crash::point!(SeatJoining);
        Ok(Some((seat, claim)))
    }

    pub(super) fn clear(&self, seat: usize) {
        // Relaxed, all: published with the next claim.
        for pin in 0..self.capacity.pins {
            self.pin(seat, pin).store(0, Ordering::Relaxed);
        }
        for listing in 0..self.capacity.listings {
            self.cell(seat, listing, 0).store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn set_seat_word(&self, seat: usize, claim: SeatWord) {
        // Release: whoever sees the claim sees the cells.
        self.seat_word_at(seat).store(claim.0, Ordering::Release);
    }

    /// The subscriber of a seat that has joined reads from now on.
    pub(in crate::topic) fn activate(&self, seat: usize, claim: SeatWord) -> SeatWord {
        let claim = SeatWord(claim.0 & !0xff | SeatState::Active as u64);
        self.set_seat_word(seat, claim);
        crash::point!(SeatActive);
        // Release: a process that sees the count sees the claim. A subscriber that dies before costs its publishers nothing.
        self.word(JOINED).fetch_add(1, Ordering::Release);
        claim
    }

    /// The subscriber of a seat reads no more. Wake the publishers: nobody waits for it.
    pub(in crate::topic) fn mark_leaving(&self, seat: usize, claim: SeatWord) {
        self.set_seat_word(seat, SeatWord(claim.0 & !0xff | SeatState::Leaving as u64));
    }

    /// Frees a seat. Wake the publishers: what it has pinned is free.
    pub(in crate::topic) fn release_seat(&self, seat: usize) {
        let claim = SeatWord(self.seat_word(seat).0 & !0xff);
        // Release: the looks at what was pinned are before.
        self.seat_word_at(seat).store(claim.0, Ordering::Release);
        // Release: pairs with the Acquire of `sit`.
        self.owner_word(seat).store(0, Ordering::Release);
    }

    /// What a seat is used for.
    #[inline]
    pub(in crate::topic) fn seat_word(&self, seat: usize) -> SeatWord {
        // Acquire: pairs with the Release of `set_claim`.
        SeatWord(self.seat_word_at(seat).load(Ordering::Acquire))
    }

    /// The seats that are taken.
    pub fn occupied_seats(&self) -> impl Iterator<Item = SeatInfo> {
        let seated = |seat| SeatInfo {
            seat,
            claim: self.seat_word(seat),
            owner: self.owner(seat),
            lag: self.lag(seat),
        };
        let is_taken = |seated: &SeatInfo| seated.claim.state() != SeatState::Free;
        (0..self.capacity.seats).map(seated).filter(is_taken)
    }

    /// The member that has a seat.
    pub(in crate::topic) fn owner(&self, seat: usize) -> u64 {
        // Relaxed: only said to people.
        self.owner_word(seat).load(Ordering::Relaxed)
    }

    /// The number of a seat's policy.
    pub(in crate::topic) fn lag(&self, seat: usize) -> u64 {
        // Relaxed: covered by the claim.
        self.lag_word(seat).load(Ordering::Relaxed)
    }
}
