//! Sharing the CPU with peers that run on the same one.

use super::{Entry, LAG, Poller};
use crate::clock;
use crate::wait::cpu_contention::YieldResult;

impl<K> Poller<K> {
    /// Yield the CPU to peers that need it, if one of them has had too little. Return the time afterwards, or `now` if
    /// no peer needed it.
    ///
    /// A peer on another CPU has its next frame ready before the poller has polled all channels, so the poller never
    /// waits. A peer on this CPU would run only when the kernel preempts the poller.
    #[inline]
    pub(super) fn yield_to_peers(&mut self, now: u64) -> u64 {
        let is_early = self.found - self.checked_at < self.hot.len() as u64;
        if is_early || !self.spinning || self.yield_contention.is_costly(now) {
            return now;
        }
        self.checked_at = self.found;
        let (mut count, mut behind) = (0, 0);
        for entry in self.peers_on_this_cpu() {
            count += 1;
            behind = behind.max(self.found.saturating_sub(entry.satisfied_until));
        }
        // Peers that have sent something instead are not finished. And if all peers wait for this CPU, they get it as
        // soon as the poller has nothing to do.
        if count == 0 || count == self.hot.len() {
            return now;
        }
        self.is_yielding = behind > if self.is_yielding { 0 } else { LAG };
        if !self.is_yielding {
            return now;
        }
        if self.yield_contention.yield_cpu() != YieldResult::Yielded {
            self.clear_debts();
        }
        clock::now()
    }

    /// Cancel the debts to all peers, because none has taken the CPU, or another process computes on it.
    #[cold]
    fn clear_debts(&mut self) {
        self.is_yielding = false;
        for &index in &self.hot {
            if let Some(entry) = &mut self.entries[index] {
                entry.satisfied_until = entry.satisfied_until.max(self.found);
            }
        }
    }

    /// Return the entries of the hot channels whose peers need this CPU to read their replies.
    pub(super) fn peers_on_this_cpu(&self) -> impl Iterator<Item = &Entry<K>> {
        let hot = self
            .hot
            .iter()
            .filter_map(|&index| self.entries[index].as_ref());
        hot.filter(|entry| entry.channel.needs_our_cpu())
    }
}
