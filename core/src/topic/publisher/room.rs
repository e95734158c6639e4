//! Room for records in the ring and the index.

use super::Publisher;
use super::error::{NoRoom, NoRoomCause, PublishError};
use super::subscriber_state::SubscriberHead;
use super::waiting::{OnFull, WakeCondition};
use crate::shared_heap::Words;
use crate::topic::log_memory::LogMemory;
use crate::topic::policy::Policy;

impl<L: LogMemory, D: Words> Publisher<L, D> {
    /// Make room for one record in the index, and for `len` bytes of payload in the ring: reclaim read records and cut
    /// off slow subscribers. Fails with `Full` if there is none; a caller that waits is then announced in the listing.
    #[cold]
    pub(super) fn make_room(
        &mut self,
        len: u64,
        alignment: u64,
        on_full: OnFull,
    ) -> Result<(), PublishError> {
        let OnFull::Wait(waiter) = on_full else {
            let found = self.try_make_room(len, alignment, 0);
            return found.map_err(|(_, slowest)| PublishError::Full(slowest));
        };
        loop {
            let waits = self.condition_of(waiter);
            // A waiter continues at the low watermark, not at the first record that is read.
            let target = waits.map_or(0, |_| self.low_watermark(len, alignment));
            let Err((seat, slowest)) = self.try_make_room(len, alignment, target) else {
                self.cancel_wait(waiter);
                return Ok(());
            };
            let seen = WakeCondition {
                seat: Some(seat),
                target: self.low_watermark(len, alignment),
            };
            if waits == Some(seen) {
                return Err(PublishError::Full(slowest));
            }
            self.announce(waiter, seen);
        }
    }

    /// Return the record that the slowest subscriber must reach before a waiting publisher continues.
    fn low_watermark(&self, len: u64, alignment: u64) -> u64 {
        let (_, end) = self.next_range(len, alignment);
        // Half of the ring is free, and at most `low` records are outstanding.
        let by_bytes = self.first_kept((end + self.shape.ring / 2).min(self.end + self.shape.ring));
        by_bytes.max(self.next.saturating_sub(self.limits.low))
    }

    /// Load all heads, cut off slow subscribers, and reclaim records until there is room. Return the seat of the
    /// slowest subscriber and the error details if there is no room before it has read, or if the publisher waits for
    /// it to reach `target`.
    fn try_make_room(
        &mut self,
        len: u64,
        alignment: u64,
        target: u64,
    ) -> Result<(), (usize, NoRoom)> {
        let (_, end) = self.next_range(len, alignment);
        let needed = self.first_kept(end);
        // Before the load of the heads: a subscriber that joins later is seen at the next call.
        self.joined = self.directory.joined();
        let mut heads = self.respected_heads();
        self.cut_off_slow(&mut heads, needed);
        self.limit = self.write_limit(&heads);
        let is_behind = |head: &SubscriberHead| {
            let is_waited_for = head.word.policy() == Some(Policy::Block);
            head.at < needed || is_waited_for && head.at < target
        };
        if self.next >= self.limit || heads.iter().any(is_behind) {
            let slowest = heads.iter().min_by_key(|head| head.at);
            let slowest = slowest.expect("without heads there is room");
            return Err((
                slowest.seat,
                self.no_room_behind(slowest, NoRoomCause::Records),
            ));
        }
        if needed > self.kept {
            // Reclaim a stride at once, because each time costs a fence and a load of all seat words.
            let stride = end + self.shape.ring / 8;
            let by_bytes = self.first_kept(stride.min(self.end + self.shape.ring));
            let by_index = (self.next + self.shape.entries / 8).saturating_sub(self.shape.entries);
            let most = heads.iter().map(|head| head.at).min();
            let to = by_bytes.max(by_index).max(needed);
            self.reclaim_up_to(to.min(most.unwrap_or(self.next)).min(self.next));
            if self.kept < needed {
                // A subscriber has joined meanwhile.
                return self.try_make_room(len, alignment, target);
            }
        }
        Ok(())
    }
}
