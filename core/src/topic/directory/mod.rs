//! Who publishes, who subscribes, and how far each subscriber has read: what all members of a topic write.
//!
//! ```text
//!      0  version    u64   how often the listings have changed
//!      8  joined     u64   how often a subscriber has come
//!     64  listings   96 of 64 bytes: the publishers
//!         claims     u64 for each seat: the generation in the high half; the policy in the second byte; the state in the
//!                    first: 0 free, 1 joining, 2 active, 3 leaving
//!         owners     u64 for each seat: the member that has it, or 0
//!         lags       u64 for each seat: the number of its policy
//!         seats      from the next multiple of 4096 on, one page for each
//! ```
//!
//! A listing:
//!
//! ```text
//!      0  owner       u64   the member that publishes, or 0
//!      8  generation  u64   how many publishers have had this listing
//!     16  descriptor  u64   of its log, plus one, in its process; 0: not open
//!     24  token       u64   the same as in its log
//!     32  waits       u64   the seat for which it sleeps, plus one; 2^32 - 1: for any; 0: it does not
//!     40  target      u64   the record that the head of that seat is to reach
//! ```
//!
//! A seat is written by its subscriber alone, and by whoever recovers what is left of a dead one:
//!
//! ```text
//!      0  pins       32 u64   the listing plus one in the high byte, and the number of a record whose block is looked at; or 0
//!    256  cells      32 bytes for each listing: the generation of the publisher to which it is attached, or 0; its head, which
//!                    is the record that it reads next, or 2^64 - 1 if it reads nothing of it; how many it has missed; and
//!                    the bytes of its blocks that are looked at
//! ```
//!
//! Seats have memory once they were taken for the first time, so a name with few subscribers is small.

use super::Policy;
use crate::crash;
use crate::shared_heap::Words;
use crate::sync::{AtomicU64, Ordering, fence};
use std::io;

/// Publishers that a topic may have.
pub const LISTINGS: usize = 96;
/// Subscribers that a topic may have.
pub const SEATS: usize = 128;
/// Records that a subscriber may look at in place at a time.
pub const PINS: usize = 32;

const JOINED: u64 = 8;
const LISTING: u64 = 64;
const FIRST_LISTING: u64 = 64;
const OWNER: u64 = 0;
const GENERATION: u64 = 8;
const DESCRIPTOR: u64 = 16;
const TOKEN: u64 = 24;
const WAITS: u64 = 32;
const TARGET: u64 = 40;

/// Bytes of a seat.
pub const SEAT: u64 = 4096;
const CELLS: u64 = 8 * PINS as u64;
const CELL: u64 = 32;

/// In `waits`: for any subscriber.
const ANYBODY: u64 = u32::MAX as u64;

/// The head of a subscriber that does not read of a publisher: it cannot, or was cut off.
pub(super) const READS_NOTHING: u64 = u64::MAX;

/// How many there may be of each: fewer in models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Publishers.
    pub listings: usize,
    /// Subscribers.
    pub seats: usize,
    /// Records that each of them may look at in place at a time.
    pub pins: usize,
}

impl Capacity {
    /// That of a topic.
    pub const OF_A_TOPIC: Self = Capacity {
        listings: LISTINGS,
        seats: SEATS,
        pins: PINS,
    };

    fn claims(self) -> u64 {
        FIRST_LISTING + LISTING * self.listings as u64
    }

    /// Where the seats begin: what is before needs memory from the beginning.
    pub fn seats_at(self) -> u64 {
        (self.claims() + 24 * self.seats as u64).next_multiple_of(SEAT)
    }

    /// Bytes of a directory.
    pub fn size(self) -> u64 {
        self.seats_at() + SEAT * self.seats as u64
    }
}

/// A publisher, as its listing has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Which listing.
    pub listing: usize,
    /// Whose turn in it.
    pub generation: u64,
    /// The member that publishes.
    pub owner: u64,
    /// The descriptor of its log in its process.
    pub descriptor: i32,
    /// What its log has too.
    pub token: u64,
}

/// What a seat is used for, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim(pub u64);

/// What a seat's subscriber does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// There is none.
    Free = 0,
    /// It attaches itself to the publishers that are there.
    Joining = 1,
    /// It reads.
    Active = 2,
    /// It reads no more, and looks at what it has pinned.
    Leaving = 3,
}

impl Claim {
    fn new(generation: u32, policy: Policy, state: State) -> Self {
        Claim(u64::from(generation) << 32 | (policy as u64) << 8 | state as u64)
    }

    /// Which use of the seat it is.
    pub fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// What it does; free, if that is none of them.
    pub fn state(self) -> State {
        match self.0 as u8 {
            1 => State::Joining,
            2 => State::Active,
            3 => State::Leaving,
            _ => State::Free,
        }
    }

    /// What it costs if it is slow; None if that is none of them: it is not waited for.
    pub fn policy(self) -> Option<Policy> {
        Policy::of((self.0 >> 8) as u8)
    }
}

/// A subscriber's seat, as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seated {
    /// Which seat.
    pub seat: usize,
    /// The member that has it.
    pub owner: u64,
    /// What it is used for.
    pub claim: Claim,
    /// The number of its policy.
    pub lag: u64,
}

/// How far a subscriber has read of a publisher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The record that it reads next.
    pub head: u64,
    /// Records that it has missed.
    pub lost: u64,
    /// Bytes of blocks that it looks at.
    pub held: u64,
}

/// The directory of a topic.
#[derive(Clone, Debug)]
pub struct Directory<W> {
    words: W,
    start: u64,
    capacity: Capacity,
}

impl<W: Words> Directory<W> {
    /// That which begins at `start`, a multiple of [`SEAT`], in these words, which are large enough for it.
    pub fn new(words: W, start: u64, capacity: Capacity) -> Self {
        assert!(start % SEAT == 0 && words.size() as u64 >= start + capacity.size());
        assert!(capacity.seats <= super::log::MOST_SEATS);
        assert!(capacity.listings <= LISTINGS && capacity.pins <= PINS);
        Directory {
            words,
            start,
            capacity,
        }
    }

    /// How many it has room for.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    #[inline]
    fn word(&self, at: u64) -> &AtomicU64 {
        let word = self.words.word(self.start + at);
        word.expect("the directory is within the memory")
    }

    // --- publishers ---

    #[inline]
    fn listing(&self, listing: usize, field: u64) -> &AtomicU64 {
        self.word(FIRST_LISTING + LISTING * listing as u64 + field)
    }

    /// How often the listings have changed.
    #[inline]
    pub fn version(&self) -> u64 {
        // Acquire: pairs with the Release of `changed`.
        self.word(0).load(Ordering::Acquire)
    }

    fn changed(&self) {
        // Release: whoever sees it sees the change.
        self.word(0).fetch_add(1, Ordering::Release);
    }

    /// Returns the number of subscribers that have ever come.
    #[inline]
    pub(super) fn joined(&self) -> u64 {
        // Acquire: pairs with the Release of `activate`: a process that sees the count sees the claim.
        self.word(JOINED).load(Ordering::Acquire)
    }

    /// Takes a listing for this member: its number and generation. None if all are taken.
    pub fn list(&self, me: u64) -> Option<(usize, u64)> {
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
    pub fn open(&self, listing: usize, token: u64, descriptor: i32) {
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
    pub fn unlist(&self, listing: usize) {
        // Release: who finds it closed finds all that was published.
        self.listing(listing, DESCRIPTOR)
            .store(0, Ordering::Release);
        crash::point!(ListingClosed);
        // Release: pairs with the Acquire of `list`.
        self.listing(listing, OWNER).store(0, Ordering::Release);
        self.changed();
    }

    /// The publisher of a listing, if there is one whose log can be opened. Any values may come.
    pub fn listed(&self, listing: usize) -> Option<Listed> {
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
        (generation == generation_now).then_some(Listed {
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
    pub(super) fn wait_for(&self, listing: usize, seat: Option<usize>, target: u64) {
        let waits = seat.map_or(ANYBODY, |seat| seat as u64 + 1);
        // Relaxed, both: the fence orders them. A subscriber that sees one without the other is before the next look.
        self.listing(listing, TARGET)
            .store(target, Ordering::Relaxed);
        self.listing(listing, WAITS).store(waits, Ordering::Relaxed);
        // SeqCst: the words are before the next look at the heads, in the order of `is_waited_for`.
        fence(Ordering::SeqCst);
    }

    /// A publisher sleeps no more.
    pub(super) fn wait_for_nobody(&self, listing: usize) {
        // Relaxed: whoever sees it late wakes in vain.
        self.listing(listing, WAITS).store(0, Ordering::Relaxed);
    }

    /// After a change of a seat: whether the publisher may sleep until its head is where it is now, or until any has changed.
    #[inline]
    pub(super) fn is_waited_for(&self, listing: usize, seat: usize, head: u64) -> bool {
        // SeqCst: the change is before this look, in the order of `wait_for`.
        fence(Ordering::SeqCst);
        // Relaxed, both: ordered by the fence.
        match self.listing(listing, WAITS).load(Ordering::Relaxed) {
            0 => false,
            ANYBODY => true,
            waits => {
                let target = self.listing(listing, TARGET).load(Ordering::Relaxed);
                waits == seat as u64 + 1 && head >= target
            }
        }
    }

    // --- subscribers ---

    #[inline]
    fn claim_word(&self, seat: usize) -> &AtomicU64 {
        self.word(self.capacity.claims() + 8 * seat as u64)
    }

    fn owner_word(&self, seat: usize) -> &AtomicU64 {
        let seats = self.capacity.seats as u64;
        self.word(self.capacity.claims() + 8 * (seats + seat as u64))
    }

    fn lag_word(&self, seat: usize) -> &AtomicU64 {
        let seats = self.capacity.seats as u64;
        self.word(self.capacity.claims() + 8 * (2 * seats + seat as u64))
    }

    fn seat_at(&self, seat: usize) -> u64 {
        self.capacity.seats_at() + SEAT * seat as u64
    }

    #[inline]
    fn pin(&self, seat: usize, pin: usize) -> &AtomicU64 {
        self.word(self.seat_at(seat) + 8 * pin as u64)
    }

    #[inline]
    fn cell(&self, seat: usize, listing: usize, field: u64) -> &AtomicU64 {
        self.word(self.seat_at(seat) + CELLS + CELL * listing as u64 + field)
    }

    /// Takes a seat for this member: its claim, as one that joins. `prepare` sets this much memory aside from a
    /// place of the words on. None if all are taken.
    pub(super) fn sit(
        &self,
        me: u64,
        policy: Policy,
        lag: u64,
        prepare: impl FnOnce(u64, u64) -> io::Result<()>,
    ) -> io::Result<Option<(usize, Claim)>> {
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
        let last = Claim(self.claim_word(seat).load(Ordering::Relaxed)).generation();
        self.lag_word(seat).store(lag, Ordering::Relaxed);
        let claim = Claim::new(last.wrapping_add(1), policy, State::Joining);
        self.set_claim(seat, claim);
        crash::point!(SeatJoining);
        Ok(Some((seat, claim)))
    }

    fn clear(&self, seat: usize) {
        // Relaxed, all: published with the next claim.
        for pin in 0..self.capacity.pins {
            self.pin(seat, pin).store(0, Ordering::Relaxed);
        }
        for listing in 0..self.capacity.listings {
            self.cell(seat, listing, 0).store(0, Ordering::Relaxed);
        }
    }

    fn set_claim(&self, seat: usize, claim: Claim) {
        // Release: whoever sees the claim sees the cells.
        self.claim_word(seat).store(claim.0, Ordering::Release);
    }

    /// The subscriber of a seat that has joined reads from now on.
    pub(super) fn activate(&self, seat: usize, claim: Claim) -> Claim {
        let claim = Claim(claim.0 & !0xff | State::Active as u64);
        self.set_claim(seat, claim);
        crash::point!(SeatActive);
        // Release: a process that sees the count sees the claim. A subscriber that dies before costs its publishers nothing.
        self.word(JOINED).fetch_add(1, Ordering::Release);
        claim
    }

    /// The subscriber of a seat reads no more. Wake the publishers: nobody waits for it.
    pub(super) fn begin_to_leave(&self, seat: usize, claim: Claim) {
        self.set_claim(seat, Claim(claim.0 & !0xff | State::Leaving as u64));
    }

    /// Frees a seat. Wake the publishers: what it has pinned is free.
    pub(super) fn stand_up(&self, seat: usize) {
        let claim = Claim(self.claim(seat).0 & !0xff);
        // Release: the looks at what was pinned are before.
        self.claim_word(seat).store(claim.0, Ordering::Release);
        // Release: pairs with the Acquire of `sit`.
        self.owner_word(seat).store(0, Ordering::Release);
    }

    /// What a seat is used for.
    #[inline]
    pub(super) fn claim(&self, seat: usize) -> Claim {
        // Acquire: pairs with the Release of `set_claim`.
        Claim(self.claim_word(seat).load(Ordering::Acquire))
    }

    /// The seats that are taken.
    pub fn seated(&self) -> impl Iterator<Item = Seated> {
        let seated = |seat| Seated {
            seat,
            claim: self.claim(seat),
            owner: self.owner(seat),
            lag: self.lag(seat),
        };
        let is_taken = |seated: &Seated| seated.claim.state() != State::Free;
        (0..self.capacity.seats).map(seated).filter(is_taken)
    }

    /// The member that has a seat.
    pub(super) fn owner(&self, seat: usize) -> u64 {
        // Relaxed: only said to people.
        self.owner_word(seat).load(Ordering::Relaxed)
    }

    /// The number of a seat's policy.
    pub(super) fn lag(&self, seat: usize) -> u64 {
        // Relaxed: covered by the claim.
        self.lag_word(seat).load(Ordering::Relaxed)
    }

    /// How far the subscriber of a seat has read of this publisher; None if it is not attached.
    #[inline]
    pub fn progress(&self, seat: usize, listing: usize, generation: u64) -> Option<Progress> {
        let [attached, head, lost, held] =
            [0, 8, 16, 24].map(|field| self.cell(seat, listing, field));
        // Acquire: pairs with the Release of `attach`: the head is of this generation, or a later one.
        if attached.load(Ordering::Acquire) != generation {
            return None;
        }
        Some(Progress {
            // Acquire: pairs with the Release of `set_head`: what the subscriber has read it has read before.
            head: head.load(Ordering::Acquire),
            // Relaxed, both: only said to people.
            lost: lost.load(Ordering::Relaxed),
            held: held.load(Ordering::Relaxed),
        })
    }

    /// Begins to read of a publisher at this record.
    pub(super) fn attach(&self, seat: usize, listing: usize, generation: u64, head: u64) {
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
    pub(super) fn set_head(&self, seat: usize, listing: usize, head: u64) {
        // Release: its reads are before, and so are its pins.
        self.cell(seat, listing, 8).store(head, Ordering::Release);
        crash::point!(HeadMoved);
    }

    /// The subscriber has missed this many records in all.
    pub(super) fn set_lost(&self, seat: usize, listing: usize, lost: u64) {
        // Relaxed: only said to people.
        self.cell(seat, listing, 16).store(lost, Ordering::Relaxed);
    }

    /// Counts bytes of this publisher's blocks as looked at, if all subscribers together look at no more than `most`
    /// then. Two that ask at once may both be refused.
    pub(super) fn hold(
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
        let held = self.seated().map(|each| {
            let [attached, held] = [0, 24].map(|field| self.cell(each.seat, listing, field));
            // Relaxed, both: ordered by the fence. Of another publisher, it is not of interest.
            match attached.load(Ordering::Relaxed) == generation {
                true => held.load(Ordering::Relaxed),
                false => 0,
            }
        });
        let is_granted = held.fold(0, u64::saturating_add) <= most;
        if !is_granted {
            self.let_go(seat, (listing, generation), bytes);
        }
        is_granted
    }

    /// They are not looked at any more.
    pub(super) fn let_go(&self, seat: usize, (listing, generation): (usize, u64), bytes: u64) {
        let [attached, held] = [0, 24].map(|field| self.cell(seat, listing, field));
        // Relaxed, both: only this subscriber attaches its seat, and what others see of it late they copy.
        if attached.load(Ordering::Relaxed) == generation {
            held.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Says that the block of a record is looked at. Look whether the record is still there afterwards.
    pub(super) fn set_pin(&self, seat: usize, pin: usize, listing: usize, seq: u64) {
        let word = (listing as u64 + 1) << 56 | seq & SEQ;
        // Release: nothing of its last use is after.
        self.pin(seat, pin).store(word, Ordering::Release);
        // SeqCst: the pin is before the look at the floor or the cut, in the order of `pinned`.
        fence(Ordering::SeqCst);
        crash::point!(RecordPinned);
    }

    /// The block is not looked at any more.
    pub(super) fn clear_pin(&self, seat: usize, pin: usize) {
        // Release: the looks at the block are before.
        self.pin(seat, pin).store(0, Ordering::Release);
        crash::point!(PinCleared);
    }

    /// The records of a publisher that subscribers look at, each with its seat. The caller has a fence between what it
    /// has given up and this look.
    pub(super) fn pinned(&self, listing: usize) -> Vec<(u64, usize)> {
        let mut found = Vec::new();
        let seats = 0..self.capacity.seats;
        for seat in seats.filter(|&seat| self.claim(seat).state() != State::Free) {
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
                self.unlist(listing);
                any = true;
            }
        }
        for seat in 0..self.capacity.seats {
            if left(self.owner_word(seat)) {
                self.stand_up(seat);
                any = true;
            }
        }
        any
    }
}

/// In a pin: the number of a record.
pub(super) const SEQ: u64 = (1 << 56) - 1;
