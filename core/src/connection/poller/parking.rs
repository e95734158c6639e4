//! Parking: turning hot channels cold, and waking cold ones.

use super::Poller;
use crate::clock;
use crate::connection::channel::Channel;
use crate::crash;

impl<K> Poller<K> {
    /// Make a channel hot after its loop waker became readable, and drain that. Return false if its peer has closed the
    /// loop waker, so that no further wake-up comes; true if there is no such channel. Locks the receiving end.
    pub fn wake(&mut self, index: usize) -> bool {
        let Some(Some(entry)) = self.entries.get_mut(index) else {
            return true;
        };
        let rings = entry.channel.drain_wakeups();
        if !entry.hot {
            let now = clock::now();
            let late = entry.channel.woken_ago(&entry.channel.receiver(), now);
            if let Some(late) = late {
                self.spin.record_sleep(late);
                self.sleeps += 1;
            }
            entry.channel.unpark();
            entry.hot = true;
            self.hot.push(index);
            crash::point!(ChannelWoken);
        }
        rings
    }

    /// Remove a channel from the hot ones, if it is one; the next turn stays the same. The channel is not parked, and
    /// its entry not changed.
    pub(super) fn remove_hot(&mut self, index: usize) {
        let Some(place) = self.hot.iter().position(|&hot| hot == index) else {
            return;
        };
        self.hot.remove(place);
        if place < self.turn {
            self.turn -= 1;
        }
        if self.turn >= self.hot.len() {
            self.turn = 0;
        }
    }

    /// Make cold channels with frames or violations hot, and park hot ones that were silent for longer than the limit
    /// of the spin, unless only one is hot.
    pub(super) fn check_cold(&mut self, now: u64) {
        let limit = self.spin.limit();
        for index in 0..self.entries.len() {
            let Some(entry) = &mut self.entries[index] else {
                continue;
            };
            if entry.hot {
                let silent = now.saturating_sub(entry.last) > limit;
                if silent && self.hot.len() > 1 && try_park(&entry.channel) {
                    entry.hot = false;
                    self.remove_hot(index);
                }
            } else if !matches!(entry.channel.receiver().peek(), Ok(None)) {
                entry.channel.unpark();
                entry.hot = true;
                self.hot.push(index);
            }
        }
    }

    /// Park all channels before the loop continues, and end the slice. Return true if each will wake the loop, false if
    /// the loop must call the poller again in its next iteration, because the slice was over or a channel has something
    /// to do.
    pub fn park_all(&mut self) -> bool {
        self.slice = 0;
        self.served = None;
        if std::mem::take(&mut self.slice_over) {
            return false;
        }
        self.idle_since = 0;
        let entries = &mut self.entries;
        self.hot.retain(|&index| match &mut entries[index] {
            Some(entry) => {
                entry.hot = !try_park(&entry.channel);
                entry.hot
            }
            None => false,
        });
        self.turn = 0;
        self.hot.is_empty()
    }
}

/// Park a channel. Return false if there is something to do first, or after a violation, which the next poll reports.
fn try_park(channel: &Channel) -> bool {
    channel.park(!channel.is_behind(), false).unwrap_or(false)
}
