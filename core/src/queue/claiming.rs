//! Claiming items, and the ways in which a claim ends.

use super::claim::{held_state, list_for};
use super::claim_table::{self, ClaimState, DEAD_LETTERS, RETURNED_CLAIMS};
use super::layout::{AT_ONCE, EXPIRY, HELD, SHUT};
use super::{
    ByteMemory, Claim, ClaimEnd, ClaimOutcome, MAX_CLAIMS_PER_TRANSACTION, Queue, Source, Wakeups,
};

use crate::clock;
use crate::crash;
use crate::shared_heap::access::{ReadWords, WriteWords};
use crate::shared_heap::undo_log::Transaction;
use crate::shared_heap::{Field, HeapError, Members, corrupt};

impl<W: ByteMemory, M: Members> Queue<W, M> {
    /// Claim the next item of any size, without a time limit or for `limit` nanoseconds if that is not 0. Never waits
    /// for an item. Items of expired claims are returned by [`expire`](Self::expire), not here. The holder ends the
    /// claim by [`acknowledge`](Self::acknowledge), [`give_back`](Self::give_back) or
    /// [`defer_claim`](Self::defer_claim): a drop does not.
    pub fn claim(
        &self,
        source: Source,
        limit: u64,
        deadline: u64,
    ) -> Result<(ClaimOutcome, Wakeups), HeapError> {
        let now = clock::now();
        let claimed = self.allocator.undo_log().transact(deadline, |t| {
            let index = match self.claims.pop(t, list_for(source))? {
                Some(index) => index,
                None if source == Source::Queue && self.items_in_list(t)? > 0 => {
                    let Some(index) = self.claims.add(t)? else {
                        return Ok((ClaimOutcome::TableFull, Wakeups::default()));
                    };
                    self.pin_head(t, index)?;
                    index
                }
                None => {
                    let is_finished = source == Source::Queue && self.is_finished(t)?;
                    let found = if is_finished {
                        ClaimOutcome::Finished
                    } else {
                        ClaimOutcome::Empty
                    };
                    return Ok((found, Wakeups::default()));
                }
            };
            let claim = self.begin_claim(t, index, source, limit, now)?;
            let wakeups = Wakeups {
                items: match source {
                    Source::Queue => self.depth(t)? > 0 || limit != 0,
                    Source::DeadLetters => false,
                },
                room: self.writers_to_wake(t, false)?,
                ..Wakeups::default()
            };
            Ok((ClaimOutcome::Item(claim), wakeups))
        });
        crash::point!(ItemClaimed);
        claimed
    }

    /// Mark the claim `index`, which is in no list, as held by this member from `now` on, and return it. Counts the
    /// delivery, unless the item is a dead letter.
    fn begin_claim(
        &self,
        t: &mut Transaction<'_, W, M>,
        index: u64,
        source: Source,
        limit: u64,
        now: u64,
    ) -> Result<Claim, HeapError> {
        let at = self.claims.at(index);
        let mut deliveries = self.claims.state(t, index)?.1;
        if source == Source::Queue {
            deliveries = deliveries.wrapping_add(1) & (u64::MAX >> 8);
        }
        self.claims
            .set_state(t, index, held_state(source), deliveries)?;
        t.set(at + claim_table::OWNER, self.self_id())?;
        t.set(at + claim_table::SINCE, now)?;
        let ends = if limit == 0 {
            0
        } else {
            now.saturating_add(limit)
        };
        t.set(at + claim_table::ENDS, ends)?;
        if ends != 0 {
            let expiry = self.get(t, EXPIRY)?;
            if expiry == 0 || ends < expiry {
                self.set(t, EXPIRY, ends)?;
            }
        }
        if source == Source::Queue {
            let held = self.get(t, HELD)?;
            self.set(t, HELD, held.wrapping_add(1))?;
        }
        let (at_item, head) = self.claimed_item(t, index)?;
        let form = head
            .form()
            .ok_or_else(|| corrupt(Field::Item, at_item, head.0))?;
        Ok(Claim {
            index,
            source,
            number: t.get(at + claim_table::NUMBER)?,
            deliveries,
            form,
            at: head.payload(at_item),
            len: head.size(),
        })
    }

    /// Return true if this member still holds the claim in this state, with the same number of deliveries.
    fn is_held(
        &self,
        t: &impl ReadWords,
        claim: &Claim,
        state: ClaimState,
    ) -> Result<bool, HeapError> {
        let at = self.claims.at(claim.index);
        Ok(t.get(at + claim_table::OWNER)? == self.self_id()
            && t.get(at + claim_table::NUMBER)? == claim.number
            && self.claims.state(t, claim.index)? == (state, claim.deliveries))
    }

    /// End a claim whose item was processed, or was handed to this member, which then calls
    /// [`task_done`](Self::task_done); for a dead letter `end` does not matter. With `keeps` the item's memory stays
    /// until [`release_memory`](Self::release_memory). Return None, and change nothing, if the claim has ended before,
    /// also because it has expired.
    pub fn acknowledge(
        &self,
        claim: &Claim,
        end: ClaimEnd,
        keeps: bool,
        deadline: u64,
    ) -> Result<Option<Wakeups>, HeapError> {
        let ended = self.allocator.undo_log().transact(deadline, |t| {
            if !self.is_held(t, claim, held_state(claim.source))? {
                return Ok(None);
            }
            if claim.source == Source::Queue {
                self.subtract_held(t)?;
            }
            let mut freed = false;
            if keeps {
                let (index, deliveries) = (claim.index, claim.deliveries);
                self.claims
                    .set_state(t, index, ClaimState::Acknowledged, deliveries)?;
            } else {
                freed = self.remove_claim(t, claim.index)?;
            }
            let done = match (claim.source, end) {
                (Source::DeadLetters, _) => false, // A dead letter was counted as processed when it died.
                (Source::Queue, ClaimEnd::Done) => self.complete(t, 1)?,
                (Source::Queue, ClaimEnd::HandedOver) => {
                    self.add_outstanding(t, 1)?;
                    false
                }
            };
            let room = self.writers_to_wake(t, freed)?;
            Ok(Some(Wakeups {
                items: false,
                room,
                done,
                freed,
                over: self.is_finished(t)?,
            }))
        });
        crash::point!(ClaimEnded);
        ended
    }

    /// Release the memory of an acknowledged item, which its holder no longer reads. Does nothing if the claim is no
    /// longer in that state. The caller does the wake-ups that are returned.
    pub fn release_memory(&self, claim: &Claim, deadline: u64) -> Result<Wakeups, HeapError> {
        self.allocator.undo_log().transact(deadline, |t| {
            let mut wakeups = Wakeups::default();
            if self.is_held(t, claim, ClaimState::Acknowledged)? {
                wakeups.freed = self.remove_claim(t, claim.index)?;
                wakeups.room = self.writers_to_wake(t, wakeups.freed)?;
            }
            Ok(wakeups)
        })
    }

    /// End a claim and return its item to the front of the queue, or make it a dead letter after the last delivery. A
    /// dead letter stays one. After an immediate shutdown the item is dropped. Return None, and change nothing, if the
    /// claim has ended before.
    pub fn give_back(&self, claim: &Claim, deadline: u64) -> Result<Option<Wakeups>, HeapError> {
        let ended = self.allocator.undo_log().transact(deadline, |t| {
            if !self.is_held(t, claim, held_state(claim.source))? {
                return Ok(None);
            }
            self.return_item(t, claim.index).map(Some)
        });
        crash::point!(ClaimEnded);
        ended
    }

    /// End the claim `index`, which a member holds, as [`give_back`](Self::give_back) does, regardless of the member.
    pub(super) fn return_item(
        &self,
        t: &mut Transaction<'_, W, M>,
        index: u64,
    ) -> Result<Wakeups, HeapError> {
        let (state, deliveries) = self.claims.state(t, index)?;
        let most = self.limits.deliveries;
        let was_dead = state == ClaimState::Examined;
        if !was_dead && self.get(t, SHUT)? == AT_ONCE {
            self.subtract_held(t)?;
            let freed = self.remove_claim(t, index)?;
            return Ok(Wakeups {
                room: self.writers_to_wake(t, freed)?,
                done: self.complete(t, 1)?,
                freed,
                over: self.is_finished(t)?,
                ..Wakeups::default()
            });
        }
        let is_dead = was_dead || most != 0 && deliveries >= most;
        let list = if is_dead {
            DEAD_LETTERS
        } else {
            RETURNED_CLAIMS
        };
        self.claims.insert(t, list, index, deliveries)?;
        if !was_dead {
            self.subtract_held(t)?;
        }
        Ok(Wakeups {
            items: !is_dead,
            done: is_dead && !was_dead && self.complete(t, 1)?,
            over: self.is_finished(t)?,
            ..Wakeups::default()
        })
    }

    /// Subtract one from the number of claims that have not ended, but not below 0.
    fn subtract_held(&self, t: &mut impl WriteWords) -> Result<(), HeapError> {
        let held = self.get(t, HELD)?;
        self.set(t, HELD, held.saturating_sub(1))
    }

    /// Return the items of expired claims to the queue, as [`give_back`](Self::give_back) does, and add their wake-ups
    /// to `wakeups`, which the caller does even after an error: this takes several transactions, and some items have
    /// returned then. Return the time of the next expiry, in nanoseconds of CLOCK_MONOTONIC; None if no claim expires.
    pub fn expire(&self, deadline: u64, wakeups: &mut Wakeups) -> Result<Option<u64>, HeapError> {
        loop {
            let (next, some, more) = self.allocator.undo_log().transact(deadline, |t| {
                let expiry = self.get(t, EXPIRY)?;
                let now = clock::now();
                if expiry == 0 || now < expiry {
                    return Ok((expiry, Wakeups::default(), false));
                }
                let (mut next, mut some, mut ended) = (0, Wakeups::default(), 0);
                for index in 0..self.claims.high(t)? {
                    if self.claims.state(t, index)?.0 != ClaimState::Active {
                        continue;
                    }
                    let ends = t.get(self.claims.at(index) + claim_table::ENDS)?;
                    if ends != 0 && ends <= now && ended < MAX_CLAIMS_PER_TRANSACTION {
                        some = some.and(self.return_item(t, index)?);
                        ended += 1;
                    } else if ends != 0 && (next == 0 || ends < next) {
                        next = ends;
                    }
                }
                self.set(t, EXPIRY, next)?;
                Ok((next, some, next != 0 && next <= now))
            })?;
            *wakeups = wakeups.and(some);
            if !more {
                return Ok((next != 0).then_some(next));
            }
        }
    }

    /// Return the time of the next expiry, in nanoseconds of CLOCK_MONOTONIC, which may have passed; None if no claim
    /// expires. A hint: no claim expires before.
    pub fn expiry(&self) -> Option<u64> {
        let found = self.hint(EXPIRY);
        (found != 0).then_some(found)
    }
}
