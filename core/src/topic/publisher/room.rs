//! Room for records in the ring and the index.

use super::Publisher;
use super::error::{Cause, Refused, Slowest};
use super::subscriber_state::Head;
use super::waiting::{Patience, Waiting};
use crate::shared_heap::Words;
use crate::topic::log_memory::Space;
use crate::topic::policy::Policy;

impl<L: Space, D: Words> Publisher<L, D> {
    /// Makes room for one record of this many bytes in the ring.
    #[cold]
    pub(super) fn make_room(
        &mut self,
        len: u64,
        alignment: u64,
        patience: Patience,
    ) -> Result<(), Refused> {
        let Patience::Waits(waiter) = patience else {
            let found = self.look_for_room(len, alignment, 0);
            return found.map_err(|(_, slowest)| Refused::Full(slowest));
        };
        loop {
            let waits = self.waits_for(waiter);
            // One that waits goes on at low water, not at the first record that was read.
            let target = waits.map_or(0, |_| self.low_water(len, alignment));
            let Err((seat, slowest)) = self.look_for_room(len, alignment, target) else {
                self.forget(waiter);
                return Ok(());
            };
            let seen = Waiting {
                seat: Some(seat),
                target: self.low_water(len, alignment),
            };
            if waits == Some(seen) {
                return Err(Refused::Full(slowest));
            }
            self.announce(waiter, seen);
        }
    }

    /// How far the slowest has to read before a publisher goes on that waits.
    fn low_water(&self, len: u64, alignment: u64) -> u64 {
        let (_, end) = self.place(len, alignment);
        // As long as half of the ring is free, and no more than `low` are outstanding.
        let by_bytes = self.first_kept((end + self.shape.ring / 2).min(self.end + self.shape.ring));
        by_bytes.max(self.next.saturating_sub(self.limits.low))
    }

    /// Looks at all heads. The slowest and its seat, if there is no room before it has read, or if it is waited for and has
    /// not reached `target`.
    fn look_for_room(
        &mut self,
        len: u64,
        alignment: u64,
        target: u64,
    ) -> Result<(), (usize, Slowest)> {
        let (_, end) = self.place(len, alignment);
        let needed = self.first_kept(end);
        // Before the look at the heads: one that comes later is seen the next time.
        self.joined = self.directory.joined();
        let mut heads = self.heads();
        self.cut_slow(&mut heads, needed);
        self.limit = self.limit_for(&heads);
        let is_behind = |head: &Head| {
            let is_waited_for = head.claim.policy() == Some(Policy::Block);
            head.at < needed || is_waited_for && head.at < target
        };
        if self.next >= self.limit || heads.iter().any(is_behind) {
            let slowest = heads.iter().min_by_key(|head| head.at);
            let slowest = slowest.expect("without heads there is room");
            return Err((slowest.seat, self.behind(slowest, Cause::Records)));
        }
        if needed > self.kept {
            // A stride at once: each is a fence, and a look at all claims.
            let stride = end + self.shape.ring / 8;
            let by_bytes = self.first_kept(stride.min(self.end + self.shape.ring));
            let by_index = (self.next + self.shape.entries / 8).saturating_sub(self.shape.entries);
            let most = heads.iter().map(|head| head.at).min();
            let to = by_bytes.max(by_index).max(needed);
            self.give_up(to.min(most.unwrap_or(self.next)).min(self.next));
            if self.kept < needed {
                // One has joined meanwhile.
                return self.look_for_room(len, alignment, target);
            }
        }
        Ok(())
    }
}
