//! The table of claims: items that were taken from the list of chunks and still occupy memory.
//!
//! ```text
//!      0  owner   u64   the member that holds it, or 0
//!      8  state   u64   low byte: its state; above: number of deliveries of its item
//!     16  item    u64   offset of its item
//!     24  chunk   u64   offset of the chunk of its item
//!     32  number  u64   number of its item in the order in which all items were put
//!     40  since   u64   time of the claim, in nanoseconds of CLOCK_MONOTONIC
//!     48  expiry  u64   time at which it expires, in nanoseconds of CLOCK_MONOTONIC; 0: never
//!     56  next    u64   index of the next claim of its list, plus one
//! ```
//!
//! A claim is *free*, or *held* by a member. Without a holder, its item has *returned* to the queue or is a *dead*
//! letter. A dead letter that a member holds is *examined*. A claim is *acknowledged* when its item was processed and
//! its holder still reads the item's memory.

use super::layout::*;
use crate::shared_heap::access::{ReadWords, WriteWords};
use crate::shared_heap::{Field, HeapError, corrupt};

pub(super) const OWNER: u64 = 0;
pub(super) const STATE: u64 = 8;
pub(super) const ITEM: u64 = 16;
pub(super) const CHUNK: u64 = 24;
pub(super) const NUMBER: u64 = 32;
pub(super) const SINCE: u64 = 40;
pub(super) const ENDS: u64 = 48;
pub(super) const LINK: u64 = 56;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum ClaimState {
    Free = 0,
    Active = 1,
    Returned = 2,
    Dead = 3,
    Acknowledged = 4,
    Examined = 5,
}

/// A list of claims: offsets of the words with its first claim and with its length.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClaimList {
    pub(super) first: u64,
    pub(super) count: u64,
    pub(super) state: ClaimState,
}

pub(super) const RETURNED_CLAIMS: ClaimList = ClaimList {
    first: FIRST_RETURNED,
    count: RETURNED,
    state: ClaimState::Returned,
};
pub(super) const DEAD_LETTERS: ClaimList = ClaimList {
    first: FIRST_DEAD,
    count: DEAD,
    state: ClaimState::Dead,
};

/// The table of claims of a queue that begins at `start`.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClaimTable {
    pub(super) start: u64,
}

impl ClaimTable {
    /// Return the offset of a claim in the memory. `index`, here and below, is less than [`MAX_CLAIMS`].
    pub(super) fn at(self, index: u64) -> u64 {
        self.start + CLAIMS + index * CLAIM
    }

    /// Return the state of a claim, and the number of deliveries of its item. Fails with a corruption if the state is
    /// none of [`ClaimState`].
    pub(super) fn state(
        self,
        t: &impl ReadWords,
        index: u64,
    ) -> Result<(ClaimState, u64), HeapError> {
        let at = self.at(index) + STATE;
        let found = t.get(at)?;
        let state = match found & 0xff {
            0 => ClaimState::Free,
            1 => ClaimState::Active,
            2 => ClaimState::Returned,
            3 => ClaimState::Dead,
            4 => ClaimState::Acknowledged,
            5 => ClaimState::Examined,
            _ => return Err(corrupt(Field::Claim, at, found)),
        };
        Ok((state, found >> 8))
    }

    /// Store the state of a claim, and the number of deliveries of its item. Neither its lists nor its holder change.
    pub(super) fn set_state(
        self,
        t: &mut impl WriteWords,
        index: u64,
        state: ClaimState,
        deliveries: u64,
    ) -> Result<(), HeapError> {
        t.set(self.at(index) + STATE, state as u64 | deliveries << 8)
    }

    /// Return the number of claims that were ever used: the first ones. Fails with a corruption if it is over
    /// [`MAX_CLAIMS`].
    pub(super) fn high(self, t: &impl ReadWords) -> Result<u64, HeapError> {
        self.read_count(t, HIGH)
    }

    /// Read a number of claims from the word `at` of the queue, and check that it is at most [`MAX_CLAIMS`].
    fn read_count(self, t: &impl ReadWords, at: u64) -> Result<u64, HeapError> {
        let at = self.start + at;
        let found = t.get(at)?;
        if found > MAX_CLAIMS {
            return Err(corrupt(Field::Claim, at, found));
        }
        Ok(found)
    }

    /// Read the index of a claim from the word at `at`, which holds the index plus one. Return None for 0. Fails with a
    /// corruption if no claim with this index was ever used.
    fn link(self, t: &impl ReadWords, at: u64) -> Result<Option<u64>, HeapError> {
        let found = t.get(at)?;
        if found > self.high(t)? {
            return Err(corrupt(Field::Claim, at, found));
        }
        Ok(found.checked_sub(1))
    }

    /// Take a free claim, for the caller to fill, which sets its state too. Return its index; None if the table is
    /// full.
    pub(super) fn add(self, t: &mut impl WriteWords) -> Result<Option<u64>, HeapError> {
        if let Some(index) = self.link(t, self.start + FREE)? {
            if self.state(t, index)?.0 != ClaimState::Free {
                return Err(corrupt(Field::Claim, self.at(index), index));
            }
            let next = t.get(self.at(index) + LINK)?;
            t.set(self.start + FREE, next)?;
            return Ok(Some(index));
        }
        let high = self.high(t)?;
        if high == MAX_CLAIMS {
            return Ok(None);
        }
        t.set(self.start + HIGH, high + 1)?;
        Ok(Some(high))
    }

    /// Free a claim that is in no list, whatever its state. Its chunk stays pinned: see `Queue::remove_claim`.
    pub(super) fn remove(self, t: &mut impl WriteWords, index: u64) -> Result<(), HeapError> {
        let first = t.get(self.start + FREE)?;
        self.set_state(t, index, ClaimState::Free, 0)?;
        t.set(self.at(index) + OWNER, 0)?;
        t.set(self.at(index) + LINK, first)?;
        t.set(self.start + FREE, index + 1)
    }

    /// Return the index of the first claim of a list, which stays there; None if the list is empty. Fails with a
    /// corruption if its count or the state of the claim does not fit.
    pub(super) fn first(
        self,
        t: &impl ReadWords,
        list: ClaimList,
    ) -> Result<Option<u64>, HeapError> {
        let first = self.link(t, self.start + list.first)?;
        // A reader that trusted a wrong count would look for missing items without end.
        let count = t.get(self.start + list.count)?;
        if first.is_none() != (count == 0) {
            return Err(corrupt(Field::Queue, self.start + list.count, count));
        }
        let Some(index) = first else {
            return Ok(None);
        };
        if self.state(t, index)?.0 != list.state {
            return Err(corrupt(Field::Claim, self.start + list.first, index + 1));
        }
        Ok(Some(index))
    }

    /// Return the index of the claim behind another one in its list; None at the end.
    pub(super) fn next_in_list(
        self,
        t: &impl ReadWords,
        index: u64,
    ) -> Result<Option<u64>, HeapError> {
        self.link(t, self.at(index) + LINK)
    }

    /// Remove the first claim of a list and return its index; None if the list is empty. The caller sets its state.
    pub(super) fn pop(
        self,
        t: &mut impl WriteWords,
        list: ClaimList,
    ) -> Result<Option<u64>, HeapError> {
        let Some(index) = self.first(t, list)? else {
            return Ok(None);
        };
        let next = t.get(self.at(index) + LINK)?;
        t.set(self.start + list.first, next)?;
        let count = t.get(self.start + list.count)?;
        t.set(self.start + list.count, count.saturating_sub(1))?;
        Ok(Some(index))
    }

    /// Insert a claim that is in no list into a list, in the order of the items. The claim then has no holder, and the
    /// state of the list. Fails with a corruption if the list is a circle.
    pub(super) fn insert(
        self,
        t: &mut impl WriteWords,
        list: ClaimList,
        index: u64,
        deliveries: u64,
    ) -> Result<(), HeapError> {
        let number = t.get(self.at(index) + NUMBER)?;
        let mut place = self.start + list.first;
        // The bound holds for every valid list; corrupt links may form a circle.
        for _ in 0..=MAX_CLAIMS {
            let next = self.link(t, place)?;
            if let Some(next) = next
                && t.get(self.at(next) + NUMBER)? < number
            {
                place = self.at(next) + LINK;
                continue;
            }
            t.set(self.at(index) + LINK, next.map_or(0, |next| next + 1))?;
            t.set(place, index + 1)?;
            t.set(self.at(index) + OWNER, 0)?;
            self.set_state(t, index, list.state, deliveries)?;
            let count = t.get(self.start + list.count)?;
            return t.set(self.start + list.count, count.saturating_add(1));
        }
        Err(corrupt(Field::Claim, place, index))
    }
}
