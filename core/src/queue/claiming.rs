//! Claiming: items that stay until their holder ends that, and how it may end.

use super::claim::{held_from, list_of};
use super::claim_table::{self, BACK, DEAD_LETTERS, State};
use super::layout::{AT_ONCE, EXPIRY, HELD, SHUT};
use super::{Bytes, CLAIMS_AT_ONCE, Claim, Claimed, End, News, Queue, Source};

use crate::clock;
use crate::crash;
use crate::shared_heap::undo_log::{Change, See, Transaction};
use crate::shared_heap::{Field, HeapError, Members, corrupt};

impl<W: Bytes, M: Members> Queue<W, M> {
    /// Claims the next item, for as long as it takes, or for `limit` nanoseconds if that is not 0.
    pub fn claim(
        &self,
        source: Source,
        limit: u64,
        deadline: u64,
    ) -> Result<(Claimed, News), HeapError> {
        let now = clock::now();
        let claimed = self.allocator.journal().transact(deadline, |t| {
            let index = match self.claims.pop(t, list_of(source))? {
                Some(index) => index,
                None if source == Source::Queue && self.chained(t)? > 0 => {
                    let Some(index) = self.claims.add(t)? else {
                        return Ok((Claimed::Crowded, News::default()));
                    };
                    self.pin_head(t, index)?;
                    index
                }
                None => {
                    let is_over = source == Source::Queue && self.is_over(t)?;
                    let found = if is_over {
                        Claimed::Shut
                    } else {
                        Claimed::Empty
                    };
                    return Ok((found, News::default()));
                }
            };
            let claim = self.hold(t, index, source, limit, now)?;
            let news = News {
                items: match source {
                    Source::Queue => self.depth(t)? > 0 || limit != 0,
                    Source::DeadLetters => false,
                },
                room: self.has_made_room(t, false)?,
                ..News::default()
            };
            Ok((Claimed::Item(claim), news))
        });
        crash::point!(ItemClaimed);
        claimed
    }

    fn hold(
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
            .set_state(t, index, held_from(source), deliveries)?;
        t.set(at + claim_table::OWNER, self.me())?;
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
        let (at_item, head) = self.item_of(t, index)?;
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

    /// Whether this claim is this member's still.
    fn holds(&self, t: &impl See, claim: &Claim, state: State) -> Result<bool, HeapError> {
        let at = self.claims.at(claim.index);
        Ok(t.get(at + claim_table::OWNER)? == self.me()
            && t.get(at + claim_table::NUMBER)? == claim.number
            && self.claims.state(t, claim.index)? == (state, claim.deliveries))
    }

    /// Ends a claim whose item was dealt with, or is this member's now, who says so by [`task_done`](Self::task_done). With
    /// `keeps` its memory stays until [`let_go`](Self::let_go). None if the claim has ended before.
    pub fn acknowledge(
        &self,
        claim: &Claim,
        end: End,
        keeps: bool,
        deadline: u64,
    ) -> Result<Option<News>, HeapError> {
        let ended = self.allocator.journal().transact(deadline, |t| {
            if !self.holds(t, claim, held_from(claim.source))? {
                return Ok(None);
            }
            if claim.source == Source::Queue {
                self.count_out(t)?;
            }
            let mut freed = false;
            if keeps {
                let (index, deliveries) = (claim.index, claim.deliveries);
                self.claims.set_state(t, index, State::Over, deliveries)?;
            } else {
                freed = self.forget(t, claim.index)?;
            }
            let done = match (claim.source, end) {
                (Source::DeadLetters, _) => false, // It was done with when it died.
                (Source::Queue, End::Done) => self.finish(t, 1)?,
                (Source::Queue, End::Gotten) => {
                    self.count_gotten(t, 1)?;
                    false
                }
            };
            let room = self.has_made_room(t, freed)?;
            Ok(Some(News {
                items: false,
                room,
                done,
                freed,
                over: self.is_over(t)?,
            }))
        });
        crash::point!(ClaimEnded);
        ended
    }

    /// The memory of an item that was acknowledged is not looked at any more.
    pub fn let_go(&self, claim: &Claim, deadline: u64) -> Result<News, HeapError> {
        self.allocator.journal().transact(deadline, |t| {
            let mut news = News::default();
            if self.holds(t, claim, State::Over)? {
                news.freed = self.forget(t, claim.index)?;
                news.room = self.has_made_room(t, news.freed)?;
            }
            Ok(news)
        })
    }

    /// Ends a claim: its item is the first again, or a dead letter if it was delivered often enough. None if the claim
    /// has ended before.
    pub fn give_back(&self, claim: &Claim, deadline: u64) -> Result<Option<News>, HeapError> {
        let ended = self.allocator.journal().transact(deadline, |t| {
            if !self.holds(t, claim, held_from(claim.source))? {
                return Ok(None);
            }
            self.put_back(t, claim.index).map(Some)
        });
        crash::point!(ClaimEnded);
        ended
    }

    pub(super) fn put_back(
        &self,
        t: &mut Transaction<'_, W, M>,
        index: u64,
    ) -> Result<News, HeapError> {
        let (state, deliveries) = self.claims.state(t, index)?;
        let most = self.limits.deliveries;
        let was_dead = state == State::Examined;
        if !was_dead && self.get(t, SHUT)? == AT_ONCE {
            self.count_out(t)?;
            let freed = self.forget(t, index)?;
            return Ok(News {
                room: self.has_made_room(t, freed)?,
                done: self.finish(t, 1)?,
                freed,
                over: self.is_over(t)?,
                ..News::default()
            });
        }
        let is_dead = was_dead || most != 0 && deliveries >= most;
        let list = if is_dead { DEAD_LETTERS } else { BACK };
        self.claims.insert(t, list, index, deliveries)?;
        if !was_dead {
            self.count_out(t)?;
        }
        Ok(News {
            items: !is_dead,
            done: is_dead && !was_dead && self.finish(t, 1)?,
            over: self.is_over(t)?,
            ..News::default()
        })
    }

    fn count_out(&self, t: &mut impl Change) -> Result<(), HeapError> {
        let held = self.get(t, HELD)?;
        self.set(t, HELD, held.saturating_sub(1))
    }

    /// Gives back what is held longer than it was claimed for. When the next claim ends by itself, if one does.
    pub fn expire(&self, deadline: u64) -> Result<(Option<u64>, News), HeapError> {
        let mut news = News::default();
        loop {
            let (next, some, more) = self.allocator.journal().transact(deadline, |t| {
                let expiry = self.get(t, EXPIRY)?;
                let now = clock::now();
                if expiry == 0 || now < expiry {
                    return Ok((expiry, News::default(), false));
                }
                let (mut next, mut some, mut ended) = (0, News::default(), 0);
                for index in 0..self.claims.high(t)? {
                    if self.claims.state(t, index)?.0 != State::Held {
                        continue;
                    }
                    let ends = t.get(self.claims.at(index) + claim_table::ENDS)?;
                    if ends != 0 && ends <= now && ended < CLAIMS_AT_ONCE {
                        some = some.and(self.put_back(t, index)?);
                        ended += 1;
                    } else if ends != 0 && (next == 0 || ends < next) {
                        next = ends;
                    }
                }
                self.set(t, EXPIRY, next)?;
                Ok((next, some, next != 0 && next <= now))
            })?;
            news = news.and(some);
            if !more {
                return Ok(((next != 0).then_some(next), news));
            }
        }
    }

    /// When the next claim ends by itself: a hint.
    pub fn expiry(&self) -> Option<u64> {
        let found = self.hint(EXPIRY);
        (found != 0).then_some(found)
    }
}
