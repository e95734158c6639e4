//! Hot and cold channels.

use super::Poller;
use crate::clock;
use crate::connection::channel::Channel;
use crate::crash;

impl<K> Poller<K> {
    /// A channel's bell rang: looks at it from now on. False if its peer has ended the bell.
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

    /// Looks at this channel no more; the turn stays with the one that has it.
    pub(super) fn cool(&mut self, index: usize) {
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

    /// Wakes cold channels that have something, and lays silent hot ones to rest.
    pub(super) fn glance(&mut self, now: u64) {
        let limit = self.spin.limit();
        for index in 0..self.entries.len() {
            let Some(entry) = &mut self.entries[index] else {
                continue;
            };
            if entry.hot {
                let silent = now.saturating_sub(entry.last) > limit;
                if silent && self.hot.len() > 1 && rests(&entry.channel) {
                    entry.hot = false;
                    self.cool(index);
                }
            } else if !matches!(entry.channel.receiver().peek(), Ok(None)) {
                entry.channel.unpark();
                entry.hot = true;
                self.hot.push(index);
            }
        }
    }

    /// Before the loop goes on: true if every channel sleeps and a bell will ring, false if the loop is to call again
    /// on its next turn.
    pub fn rest(&mut self) -> bool {
        self.slice = 0;
        self.served = None;
        if std::mem::take(&mut self.slice_over) {
            return false;
        }
        self.idle_since = 0;
        let entries = &mut self.entries;
        self.hot.retain(|&index| match &mut entries[index] {
            Some(entry) => {
                entry.hot = !rests(&entry.channel);
                entry.hot
            }
            None => false,
        });
        self.turn = 0;
        self.hot.is_empty()
    }
}

/// Whether the channel could be parked. A broken one could not: the next look says why.
fn rests(channel: &Channel) -> bool {
    channel.park(!channel.is_behind(), false).unwrap_or(false)
}
