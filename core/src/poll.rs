//! Many channels and one waiter: the receiving side of a server.
//!
//! A channel is *hot* while frames come often enough to be worth looking for, and
//! *cold* otherwise. Hot channels are looked at in turn, starting after the one
//! that was served last, so that none starves. Cold ones have announced that they
//! sleep: a frame on one rings its bell in the loop. While a poller is awake for
//! its hot channels it also glances at the cold ones now and then, so that they
//! need not wait until the loop turns.
//!
//! The loop must turn all the same: after [`SLICE`] the poller says so.

use crate::channel::{Channel, LOOKS_PER_CLOCK};
use crate::clock;
use crate::ring::Violation;
use crate::spin::Spin;
use std::hint::spin_loop;
use std::sync::Arc;

/// The longest a poller keeps the loop from turning, in nanoseconds.
pub const SLICE: u64 = 1_000_000;
/// How often an awake poller glances at its cold channels, in nanoseconds.
const GLANCE: u64 = 10_000;

struct Entry<K> {
    channel: Arc<Channel>,
    key: K,
    spin: Spin,
    /// When the last frame came, in nanoseconds.
    last: u64,
    hot: bool,
}

/// What a poller found.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// A whole frame on this channel.
    Frame(usize),
    /// This channel's peer broke the rules.
    Broken(usize, Violation),
    /// Nothing for longer than it pays to look, or the slice is over.
    Nothing,
}

/// Channels by number, each with a key of the caller's.
pub struct Poller<K> {
    entries: Vec<Option<Entry<K>>>,
    hot: Vec<usize>,
    /// Where in `hot` to look first.
    turn: usize,
    /// When this slice began; 0 between slices.
    slice: u64,
    slice_over: bool,
    glanced: u64,
    limit: u64,
    /// Whether to look for more than what is there.
    pub spinning: bool,
}

impl<K> Poller<K> {
    /// A poller that looks for up to `limit` nanoseconds in vain before it rests.
    pub fn new(limit: u64) -> Self {
        Poller {
            entries: Vec::new(),
            hot: Vec::new(),
            turn: 0,
            slice: 0,
            slice_over: false,
            glanced: 0,
            limit,
            spinning: true,
        }
    }

    /// Adds a channel, hot at first. Its number is the lowest one free.
    pub fn add(&mut self, channel: Arc<Channel>, key: K) -> usize {
        let entry = Entry {
            channel,
            key,
            spin: Spin::new(self.limit),
            last: clock::now(),
            hot: true,
        };
        let index = match self.entries.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                self.entries.push(None);
                self.entries.len() - 1
            }
        };
        self.entries[index] = Some(entry);
        self.hot.push(index);
        index
    }

    /// Forgets a channel; its key goes back to the caller.
    pub fn remove(&mut self, index: usize) -> Option<K> {
        let entry = self.entries.get_mut(index)?.take()?;
        self.hot.retain(|&hot| hot != index);
        Some(entry.key)
    }

    /// The key of a channel.
    pub fn key(&self, index: usize) -> Option<&K> {
        self.entries.get(index)?.as_ref().map(|entry| &entry.key)
    }

    /// The channel of this number.
    pub fn channel(&self, index: usize) -> Option<&Arc<Channel>> {
        self.entries
            .get(index)?
            .as_ref()
            .map(|entry| &entry.channel)
    }

    /// A channel's bell rang: looks at it from now on.
    pub fn wake(&mut self, index: usize) {
        if let Some(Some(entry)) = self.entries.get_mut(index) {
            entry.channel.silence();
            if !entry.hot {
                entry.channel.unpark();
                entry.hot = true;
                self.hot.push(index);
            }
        }
    }

    /// Looks for the next frame on any channel, for as long as it pays.
    pub fn next(&mut self) -> Found {
        let start = clock::now();
        if self.slice == 0 {
            self.slice = start;
        }
        let mut now = start;
        let mut looks = 0u32;
        let mut budget = None;
        loop {
            match self.look(now) {
                Found::Nothing => {}
                found => return found,
            }
            if now - self.slice > SLICE {
                self.slice_over = true;
                return Found::Nothing;
            }
            let budget = *budget.get_or_insert_with(|| self.budget());
            if now - start >= budget {
                return Found::Nothing;
            }
            looks += 1;
            if looks % LOOKS_PER_CLOCK == 0 {
                now = clock::now();
            }
            spin_loop();
        }
    }

    /// How long it pays to look in vain: the best of the hot channels' judgements.
    fn budget(&self) -> u64 {
        if !self.spinning {
            return 0;
        }
        let hot = self
            .hot
            .iter()
            .filter_map(|&index| self.entries[index].as_ref());
        hot.map(|entry| entry.spin.budget()).max().unwrap_or(0)
    }

    /// One look at every hot channel, and sometimes at the cold ones.
    #[inline]
    fn look(&mut self, now: u64) -> Found {
        if now - self.glanced > GLANCE {
            self.glanced = now;
            self.glance(now);
        }
        let count = self.hot.len();
        for step in 0..count {
            let mut place = self.turn + step;
            if place >= count {
                place -= count;
            }
            let index = self.hot[place];
            let Some(entry) = &mut self.entries[index] else {
                continue;
            };
            if let Some(violation) = entry.channel.fault() {
                return Found::Broken(index, violation);
            }
            // A peer that does not read its answers is not asked for more questions.
            if entry.channel.is_stalled() {
                match entry.channel.flush() {
                    Ok(true) => {}
                    Ok(false) => continue,
                    Err(violation) => return Found::Broken(index, violation),
                }
            }
            let mut receiver = entry.channel.receiver();
            match receiver.peek() {
                Ok(Some(_)) => {
                    drop(receiver);
                    entry.spin.record(now.saturating_sub(entry.last));
                    entry.last = now;
                    self.turn = if place + 1 >= count { 0 } else { place + 1 };
                    return Found::Frame(index);
                }
                Ok(None) => entry.channel.release(&receiver),
                Err(violation) => return Found::Broken(index, violation),
            }
        }
        Found::Nothing
    }

    /// Wakes cold channels that have something, and lays silent hot ones to rest.
    fn glance(&mut self, now: u64) {
        for index in 0..self.entries.len() {
            let Some(entry) = &mut self.entries[index] else {
                continue;
            };
            if entry.hot {
                let silent = now.saturating_sub(entry.last) > self.limit;
                if silent && self.hot.len() > 1 && rests(&entry.channel) {
                    entry.hot = false;
                    self.hot.retain(|&hot| hot != index);
                    self.turn = 0;
                }
            } else if !matches!(entry.channel.receiver().peek(), Ok(None)) {
                entry.channel.unpark();
                entry.hot = true;
                self.hot.push(index);
            }
        }
    }

    /// Before the loop goes on: true if every channel sleeps and a bell will ring, false if
    /// the loop is to call again on its next turn.
    pub fn rest(&mut self) -> bool {
        self.slice = 0;
        if std::mem::take(&mut self.slice_over) {
            return false;
        }
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
    channel.park(!channel.is_stalled()).unwrap_or(false)
}
