//! Giving the CPU to peers that run on it too.

use super::{Entry, LAG, Poller};
use crate::clock;
use crate::wait::cpu_contention::YieldResult;

impl<K> Poller<K> {
    /// Lets the peers that need our CPU run, if one of them has had too little; the time afterwards.
    ///
    /// Whoever calls from another CPU has the next frame ready before we have looked around, and keeps us from ever waiting. A
    /// peer on our CPU would run only when the kernel takes it away from us.
    #[inline]
    pub(super) fn give_way(&mut self, now: u64) -> u64 {
        let is_early = self.found - self.looked < self.hot.len() as u64;
        if is_early || !self.spinning || self.ways.is_costly(now) {
            return now;
        }
        self.looked = self.found;
        let (mut count, mut behind) = (0, 0);
        for entry in self.waiting_here() {
            count += 1;
            behind = behind.max(self.found.saturating_sub(entry.content));
        }
        // Those that have sent something instead are not done yet. And where all wait here, they have our CPU as soon as there
        // is nothing to do.
        if count == 0 || count == self.hot.len() {
            return now;
        }
        self.gives_way = behind > if self.gives_way { 0 } else { LAG };
        if !self.gives_way {
            return now;
        }
        if self.ways.yield_cpu() != YieldResult::Yielded {
            self.forgive();
        }
        clock::now()
    }

    /// Nobody has taken our CPU, or somebody who computes has: nobody is owed anything any more.
    #[cold]
    fn forgive(&mut self) {
        self.gives_way = false;
        for &index in &self.hot {
            if let Some(entry) = &mut self.entries[index] {
                entry.content = entry.content.max(self.found);
            }
        }
    }

    /// The peers that need our CPU to read what they were answered.
    pub(super) fn waiting_here(&self) -> impl Iterator<Item = &Entry<K>> {
        let hot = self
            .hot
            .iter()
            .filter_map(|&index| self.entries[index].as_ref());
        hot.filter(|entry| entry.channel.needs_our_cpu())
    }
}
