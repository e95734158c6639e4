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
    /// Return the word of a seat in the memory.
    #[inline]
    pub(super) fn seat_word_at(&self, seat: usize) -> &AtomicU64 {
        self.word(self.capacity.seat_words_at() + 8 * seat as u64)
    }

    /// Return the word with the member that has a seat.
    pub(super) fn owner_word(&self, seat: usize) -> &AtomicU64 {
        let seats = self.capacity.seats as u64;
        self.word(self.capacity.seat_words_at() + 8 * (seats + seat as u64))
    }

    /// Return the word with the parameter of a seat's policy.
    pub(super) fn lag_word(&self, seat: usize) -> &AtomicU64 {
        let seats = self.capacity.seats as u64;
        self.word(self.capacity.seat_words_at() + 8 * (2 * seats + seat as u64))
    }

    /// Return the offset of a seat in the directory.
    pub(super) fn seat_at(&self, seat: usize) -> u64 {
        self.capacity.seats_at() + SEAT * seat as u64
    }

    /// Acquire a seat for this member, in the state joining, until it is activated or released. Return its number and
    /// its word; None if all seats are taken. `prepare` allocates the memory of the seat, given its offset in the words
    /// and its number of bytes; if it fails, the seat is free again and the error is returned.
    pub(in crate::topic) fn acquire_seat(
        &self,
        self_id: u64,
        policy: Policy,
        lag: u64,
        prepare: impl FnOnce(u64, u64) -> io::Result<()>,
    ) -> io::Result<Option<(usize, SeatWord)>> {
        let take = |&seat: &usize| {
            let owner = self.owner_word(seat);
            // Acquire, Relaxed: as in `acquire_listing`.
            let taken = owner.compare_exchange(0, self_id, Ordering::Acquire, Ordering::Relaxed);
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
        self.clear_seat(seat);
        // Relaxed, both: no other process writes them meanwhile, and the seat word publishes the rest.
        let last = SeatWord(self.seat_word_at(seat).load(Ordering::Relaxed)).generation();
        self.lag_word(seat).store(lag, Ordering::Relaxed);
        let word = SeatWord::new(last.wrapping_add(1), policy, SeatState::Joining);
        self.set_seat_word(seat, word);
        crash::point!(SeatJoining);
        Ok(Some((seat, word)))
    }

    /// Clear the pins of a seat, and detach its cells.
    pub(super) fn clear_seat(&self, seat: usize) {
        // Relaxed, all: published with the next seat word.
        for pin in 0..self.capacity.pins {
            self.pin(seat, pin).store(0, Ordering::Relaxed);
        }
        for listing in 0..self.capacity.listings {
            self.cell(seat, listing, 0).store(0, Ordering::Relaxed);
        }
    }

    /// Store the word of a seat, and with it publish its cells, its pins and its lag.
    pub(super) fn set_seat_word(&self, seat: usize, word: SeatWord) {
        // Release: a reader of the seat word sees the cells.
        self.seat_word_at(seat).store(word.0, Ordering::Release);
    }

    /// Mark the subscriber of a seat as active: it has attached itself and reads from now on. Return the new word.
    pub(in crate::topic) fn activate(&self, seat: usize, word: SeatWord) -> SeatWord {
        let word = SeatWord(word.0 & !0xff | SeatState::Active as u64);
        self.set_seat_word(seat, word);
        crash::point!(SeatActive);
        // Release: a process that sees the count sees the seat word. A subscriber that dies before costs its publishers
        // nothing.
        self.word(JOINED).fetch_add(1, Ordering::Release);
        word
    }

    /// Mark the subscriber of a seat as leaving. The caller wakes the publishers, which no longer wait for it.
    pub(in crate::topic) fn mark_leaving(&self, seat: usize, word: SeatWord) {
        self.set_seat_word(seat, SeatWord(word.0 & !0xff | SeatState::Leaving as u64));
    }

    /// Release a seat. The caller wakes the publishers, because its pins are gone.
    pub(in crate::topic) fn release_seat(&self, seat: usize) {
        let word = SeatWord(self.seat_word(seat).0 & !0xff);
        // Release: the reads of pinned blocks are before.
        self.seat_word_at(seat).store(word.0, Ordering::Release);
        // Release: pairs with the Acquire of `acquire_seat`.
        self.owner_word(seat).store(0, Ordering::Release);
    }

    /// Return the word of a seat.
    #[inline]
    pub(in crate::topic) fn seat_word(&self, seat: usize) -> SeatWord {
        // Acquire: pairs with the Release of `set_seat_word`.
        SeatWord(self.seat_word_at(seat).load(Ordering::Acquire))
    }

    /// Return the seats that are taken.
    pub fn occupied_seats(&self) -> impl Iterator<Item = SeatInfo> {
        let seated = |seat| SeatInfo {
            seat,
            word: self.seat_word(seat),
            owner: self.owner(seat),
            lag: self.lag(seat),
        };
        let is_taken = |seated: &SeatInfo| seated.word.state() != SeatState::Free;
        (0..self.capacity.seats).map(seated).filter(is_taken)
    }

    /// Return the member that has a seat; 0 if none has. A hint.
    pub(in crate::topic) fn owner(&self, seat: usize) -> u64 {
        // Relaxed: only for statistics.
        self.owner_word(seat).load(Ordering::Relaxed)
    }

    /// Return the parameter of a seat's policy, in records: an untrusted value.
    pub(in crate::topic) fn lag(&self, seat: usize) -> u64 {
        // Relaxed: covered by the seat word.
        self.lag_word(seat).load(Ordering::Relaxed)
    }
}
