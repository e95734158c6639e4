//! Many channels and one waiter: the receiving side of a server.
//!
//! A channel is *hot* while frames come often enough to be worth looking for, and *cold* otherwise. Hot channels are
//! looked at in turn, starting after the one that was served last, so that none starves. Cold ones have announced that
//! they sleep: a frame on one rings its bell in the loop. Turns are fair by time: a channel that has taken much of it
//! is looked at after those that have taken less. While a poller is awake for its hot channels it also glances at the
//! cold ones now and then, so that they need not wait until the loop turns.
//!
//! The loop must turn all the same: after [`SLICE`] the poller says so.

mod cpu_sharing;
mod parking;

use crate::clock;
use crate::connection::channel::{Channel, LOOKS_PER_CLOCK, SLICE};
use crate::crash;
use crate::packet;
use crate::violation::Violation;
use crate::wait::cpu_contention::{CpuContention, YieldResult};
use crate::wait::spin::SpinBudget;
use std::hint::spin_loop;
use std::os::fd::RawFd;
use std::sync::Arc;

/// How much more of the time than another one a channel may have taken before it waits for that one, in nanoseconds.
const AHEAD: u64 = 100_000;
/// The most that a channel which took little may have saved up, in nanoseconds.
const SAVED: u64 = 1_000_000;
/// A peer on our CPU is due one frame of so many for each hot channel: a third of an equal share.
const SHARE: u64 = 3;
/// How far behind that it may be, in frames of all channels, before it is given our CPU. By then the kernel has mostly moved
/// it to another one, which is better for all; it moves none that has run a moment ago.
const LAG: u64 = 2_000;
/// The most frames of all for which it may be owed its share.
const OWED: u64 = 20_000;
/// How often an awake poller glances at its cold channels, in nanoseconds.
const GLANCE: u64 = 10_000;

struct Entry<K> {
    channel: Arc<Channel>,
    key: K,
    /// When the last frame came, in nanoseconds.
    last: u64,
    hot: bool,
    /// How much of the caller's time its frames have taken, in nanoseconds; it counts on from where others are.
    taken: u64,
    /// The number of frames, of all that were found, up to which it has had its share.
    content: u64,
}

/// What is about to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// A frame, on any channel.
    Frame,
    /// A packet, out of this socket, for somebody else to take. One that is closed by now has none.
    Packet(RawFd),
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
    /// The rhythm of all channels together: one waiter waits for them all.
    spin: SpinBudget,
    contention: CpuContention,
    /// What came of giving way, which says nothing about waits.
    ways: CpuContention,
    /// When we began to wait for the next frame, in nanoseconds; 0 while the last one is worked on.
    since: u64,
    /// Whose frame the caller works on, and since when.
    served: Option<(usize, u64)>,
    /// How many frames were found, and how many it had been when we last looked who needs our CPU.
    found: u64,
    looked: u64,
    /// Whether we let others run until nobody is behind.
    gives_way: bool,
    /// How much time the one that was served last had taken before.
    reached: u64,
    /// Since when nothing has moved, in nanoseconds; 0 if the next look is the first one of a wait.
    idle_since: u64,
    /// Sleeps that the wait includes, ours and that of the peer whom we have answered.
    sleeps: u64,
    /// Whether part of a large frame has moved since we last asked.
    moved: bool,
    /// What is about to come, whatever the rhythm was.
    expects: Option<Expected>,
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
            spin: SpinBudget::new(limit),
            contention: CpuContention::default(),
            ways: CpuContention::default(),
            since: 0,
            served: None,
            found: 0,
            looked: 0,
            gives_way: false,
            reached: 0,
            idle_since: 0,
            sleeps: 0,
            moved: false,
            expects: None,
            spinning: true,
        }
    }

    /// Adds a channel, hot at first. Its number is the lowest one free.
    pub fn add(&mut self, channel: Arc<Channel>, key: K) -> usize {
        let entry = Entry {
            channel,
            key,
            last: clock::now(),
            hot: true,
            taken: self.reached,
            content: self.found,
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
        crash::point!(ChannelAdded);
        index
    }

    /// Forgets a channel; its key goes back to the caller.
    pub fn remove(&mut self, index: usize) -> Option<K> {
        let entry = self.entries.get_mut(index)?.take()?;
        self.cool(index);
        crash::point!(ChannelRemoved);
        Some(entry.key)
    }

    /// The keys of all channels.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.entries.iter().flatten().map(|entry| &entry.key)
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

    /// The peer that was answered last had to be woken for that.
    pub fn rang(&mut self) {
        self.sleeps += 1;
    }

    /// Something is about to come: the next look goes on for as long as a sleep would cost, if it goes on at all.
    pub fn expect(&mut self, expected: Expected) {
        self.expects = Some(expected);
    }

    /// Looks for the next frame on any channel, for as long as it pays.
    pub fn find(&mut self) -> Found {
        let start = clock::now();
        if let Some((index, began)) = self.served.take()
            && let Some(Some(entry)) = self.entries.get_mut(index)
        {
            let worked = start.saturating_sub(began);
            entry.taken += worked;
            self.spin.record_work(worked);
        }
        if self.slice == 0 {
            self.slice = start;
        }
        // What others had of our CPU was no waiting.
        let mut now = self.give_way(start);
        if self.since == 0 {
            self.since = now;
        }
        if self.idle_since == 0 {
            self.idle_since = now;
        }
        let mut looks = 0u32;
        let mut offers = true;
        let expected = self.expects.take();
        let socket = match expected {
            Some(Expected::Packet(socket)) => Some(socket),
            _ => None,
        };
        let none_come = self.hot.is_empty() && socket.is_none();
        let fruitless = !self.spinning || none_come || self.contention.must_sleep(now);
        let mut budget = match (fruitless, expected) {
            (true, _) => 0,
            (false, Some(_)) => self.spin.limit(),
            (false, None) => self.spin.budget(),
        };
        loop {
            // First, since there may always be a frame.
            if now - self.slice > SLICE {
                self.slice_over = true;
                return Found::Nothing;
            }
            match self.look(now) {
                Found::Nothing => {}
                found => return found,
            }
            if std::mem::take(&mut self.moved) {
                self.idle_since = now;
                budget = self.spin.limit();
            }
            if now.saturating_sub(self.idle_since) >= budget {
                return Found::Nothing;
            }
            if offers && self.waiting_here().count() == self.hot.len() {
                let offer = self.contention.yield_cpu();
                offers = offer == YieldResult::Yielded;
                if offer == YieldResult::Costly {
                    budget = 0; // One more look.
                }
                now = clock::now();
                continue;
            }
            offers = false;
            looks += 1;
            if looks % LOOKS_PER_CLOCK == 0 {
                now = clock::now();
                if self.contention.yield_after(now - self.idle_since) {
                    budget = 0; // One more look.
                }
                if socket.is_some_and(packet::is_there) {
                    return Found::Nothing;
                }
            }
            spin_loop();
        }
    }

    /// One look at every hot channel, and sometimes at the cold ones.
    #[inline]
    fn look(&mut self, now: u64) -> Found {
        if now - self.glanced > GLANCE {
            self.glanced = now;
            self.glance(now);
        }
        let count = self.hot.len();
        let entries = &self.entries;
        let taken = |&index: &usize| {
            entries[index]
                .as_ref()
                .map_or(u64::MAX, |entry| entry.taken)
        };
        let least = self.hot.iter().map(taken).min().unwrap_or(0);
        // The one that has taken the least of those that are ahead of others: its place, index and time.
        let mut ahead: Option<(usize, usize, u64)> = None;
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
            // A peer that leaves many answers unread is not asked for more questions.
            if entry.channel.is_stalled() {
                match entry.channel.flush() {
                    Ok(moved) => self.moved |= moved,
                    Err(violation) => return Found::Broken(index, violation),
                }
                if entry.channel.is_behind() {
                    continue;
                }
            }
            let mut receiver = entry.channel.receiver();
            let came = receiver.received_bytes();
            match receiver.peek() {
                Ok(Some(_)) => {
                    drop(receiver);
                    if entry.taken <= least + AHEAD {
                        return self.serve(place, index, now);
                    }
                    if ahead.is_none_or(|(_, _, taken)| entry.taken < taken) {
                        ahead = Some((place, index, entry.taken));
                    }
                }
                Ok(None) => {
                    self.moved |= receiver.received_bytes() != came;
                    entry.channel.release(&receiver);
                }
                Err(violation) => return Found::Broken(index, violation),
            }
        }
        match ahead {
            Some((place, index, _)) => self.serve(place, index, now),
            None => Found::Nothing,
        }
    }

    /// It is this channel's turn.
    #[inline]
    fn serve(&mut self, place: usize, index: usize, now: u64) -> Found {
        if let Some(entry) = &mut self.entries[index] {
            entry.last = now;
            entry.taken = entry.taken.max(self.reached.saturating_sub(SAVED));
            self.reached = entry.taken;
            self.found += 1;
            let share = SHARE * self.hot.len() as u64;
            let content = entry.content.max(self.found.saturating_sub(OWED)) + share;
            entry.content = content.min(self.found + LAG);
        }
        let sleeps = std::mem::take(&mut self.sleeps).min(2);
        self.spin.record(now.saturating_sub(self.since), sleeps);
        (self.since, self.idle_since) = (0, 0);
        self.turn = if place + 1 >= self.hot.len() {
            0
        } else {
            place + 1
        };
        self.served = Some((index, now));
        crash::point!(ChannelFound);
        Found::Frame(index)
    }
}
