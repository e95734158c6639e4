//! A poller: many channels and one waiter, the receiving side of a server.
//!
//! A channel is *hot* while its frames come often enough to poll for them, and *cold* otherwise. Hot channels are
//! polled in turn, starting after the one that was served last, so that none starves. Cold channels have announced a
//! sleep: a frame wakes the event loop. The order is fair by time: a channel that has used much time is served after
//! those that have used less. While a poller polls its hot channels, it also checks the cold ones now and then, so that
//! they need not wait for the next iteration of the loop.
//!
//! The loop must run nevertheless: after [`SLICE`] the poller returns.

mod cpu_sharing;
mod parking;

use crate::clock;
use crate::connection::channel::{Channel, POLLS_PER_CLOCK, SLICE};
use crate::crash;
use crate::packet;
use crate::violation::Violation;
use crate::wait::cpu_contention::{CpuContention, YieldResult};
use crate::wait::spin::SpinBudget;
use std::hint::spin_loop;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Advance in used time, in nanoseconds, from which on a channel waits for the others.
const MAX_LEAD: u64 = 100_000;
/// Maximum credit of a channel that has used little time, in nanoseconds.
const MAX_CREDIT: u64 = 1_000_000;
/// A peer on this CPU is entitled to one frame out of this many for each hot channel: a third of an equal share.
const SHARE: u64 = 3;
/// Shortfall, in frames of all channels, from which on a peer on this CPU gets it. By then the kernel has usually moved
/// it to another CPU, which is better for all; it does not move a task that has just run.
const LAG: u64 = 2_000;
/// Maximum number of frames for which a peer may claim its share.
const MAX_DEBT: u64 = 20_000;
/// Interval between checks of the cold channels, in nanoseconds.
const COLD_CHECK_INTERVAL: u64 = 10_000;

struct Entry<K> {
    channel: Arc<Channel>,
    key: K,
    /// Time of the last frame, in nanoseconds.
    last: u64,
    hot: bool,
    /// Time that the caller has spent on its frames, in nanoseconds, plus the offset at which the channel was added.
    taken: u64,
    /// Value of [`Poller::found`] up to which the peer has had its share.
    satisfied_until: u64,
}

/// An event that the caller of the poller expects soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// A frame, on any channel.
    Frame,
    /// A packet from this socket, for another reader. If the descriptor is closed, the wait ends soon.
    Packet(RawFd),
}

/// The result of a call to poll.
#[derive(Debug, PartialEq, Eq)]
pub enum PollResult {
    /// A whole frame on this channel.
    Frame(usize),
    /// A violation by this channel's peer.
    Broken(usize, Violation),
    /// Nothing within the spin budget, or the slice is over.
    Nothing,
}

/// Channels by number, each with a key of the caller's.
pub struct Poller<K> {
    entries: Vec<Option<Entry<K>>>,
    hot: Vec<usize>,
    /// Position in `hot` to poll first.
    turn: usize,
    /// Beginning of the slice, in nanoseconds; 0 between slices.
    slice: u64,
    slice_over: bool,
    cold_checked_at: u64,
    /// Spin budget of all channels together, because one waiter waits for all.
    spin: SpinBudget,
    contention: CpuContention,
    /// Contention that was observed while yielding to peers, which says nothing about waits.
    yield_contention: CpuContention,
    /// Beginning of the wait for the next frame, in nanoseconds; 0 while the last frame is processed.
    since: u64,
    /// Channel whose frame the caller processes, and the time since when.
    served: Option<(usize, u64)>,
    /// Number of frames found.
    found: u64,
    /// Value of `found` at the last check for peers that need this CPU.
    checked_at: u64,
    /// True while the poller yields until no peer falls short.
    is_yielding: bool,
    /// Used time of the channel that was served last, before its frame.
    reached: u64,
    /// Time since when nothing has moved, in nanoseconds; 0 before the first poll of a wait.
    idle_since: u64,
    /// Number of sleeps in the wait: of this side, and of the peer that was replied to.
    sleeps: u64,
    /// True if a part of a large frame has moved since the last check.
    moved: bool,
    /// Event that is expected soon, for which the next poll spins regardless of the spin budget.
    expects: Option<Expected>,
    /// True if the poller may spin for frames that are not there.
    pub spinning: bool,
}

impl<K> Poller<K> {
    /// Create a poller without channels, which spins for up to `limit` nanoseconds in one wait; 0: never.
    pub fn new(limit: u64) -> Self {
        Poller {
            entries: Vec::new(),
            hot: Vec::new(),
            turn: 0,
            slice: 0,
            slice_over: false,
            cold_checked_at: 0,
            spin: SpinBudget::new(limit),
            contention: CpuContention::default(),
            yield_contention: CpuContention::default(),
            since: 0,
            served: None,
            found: 0,
            checked_at: 0,
            is_yielding: false,
            reached: 0,
            idle_since: 0,
            sleeps: 0,
            moved: false,
            expects: None,
            spinning: true,
        }
    }

    /// Add a channel, which is hot at first. Return its number, the lowest free one.
    pub fn add(&mut self, channel: Arc<Channel>, key: K) -> usize {
        let entry = Entry {
            channel,
            key,
            last: clock::now(),
            hot: true,
            taken: self.reached,
            satisfied_until: self.found,
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

    /// Remove a channel, and return its key; None if there is no such channel. The channel is not closed, and its
    /// number is used again.
    pub fn remove(&mut self, index: usize) -> Option<K> {
        let entry = self.entries.get_mut(index)?.take()?;
        self.remove_hot(index);
        crash::point!(ChannelRemoved);
        Some(entry.key)
    }

    /// Return the keys of all channels.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.entries.iter().flatten().map(|entry| &entry.key)
    }

    /// Return the key of a channel; None if there is no such channel.
    pub fn key(&self, index: usize) -> Option<&K> {
        self.entries.get(index)?.as_ref().map(|entry| &entry.key)
    }

    /// Return the channel of this number; None if there is none.
    pub fn channel(&self, index: usize) -> Option<&Arc<Channel>> {
        self.entries
            .get(index)?
            .as_ref()
            .map(|entry| &entry.channel)
    }

    /// Record that the peer that was replied to last had to be woken: the next gap then contains the cost of a sleep.
    pub fn record_peer_woken(&mut self) {
        self.sleeps += 1;
    }

    /// Expect an event: the next call to poll, and no further one, spins for as long as spinning pays at most, if it
    /// spins at all.
    pub fn expect(&mut self, expected: Expected) {
        self.expects = Some(expected);
    }

    /// Find the next frame on any channel, and spin for as long as it pays, but not beyond the end of the slice. The
    /// frame stays in its channel, and the caller takes it before the next call. After `Nothing` the caller calls
    /// [`park_all`](Self::park_all) before it lets the loop sleep; after `Broken` it removes the channel. The time
    /// until the next call counts as used by the channel whose frame was returned.
    pub fn poll(&mut self) -> PollResult {
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
        // The time that peers have had the CPU is no wait.
        let mut now = self.yield_to_peers(start);
        if self.since == 0 {
            self.since = now;
        }
        if self.idle_since == 0 {
            self.idle_since = now;
        }
        let mut polls = 0u32;
        let mut may_yield = true;
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
            // First, because there may always be a frame.
            if now - self.slice > SLICE {
                self.slice_over = true;
                return PollResult::Nothing;
            }
            match self.poll_hot(now) {
                PollResult::Nothing => {}
                found => return found,
            }
            if std::mem::take(&mut self.moved) {
                self.idle_since = now;
                budget = self.spin.limit();
            }
            if now.saturating_sub(self.idle_since) >= budget {
                return PollResult::Nothing;
            }
            if may_yield && self.peers_on_this_cpu().count() == self.hot.len() {
                let result = self.contention.yield_cpu();
                may_yield = result == YieldResult::Yielded;
                if result == YieldResult::Costly {
                    budget = 0; // One more poll.
                }
                now = clock::now();
                continue;
            }
            may_yield = false;
            polls += 1;
            if polls % POLLS_PER_CLOCK == 0 {
                now = clock::now();
                if self.contention.yield_after(now - self.idle_since) {
                    budget = 0; // One more poll.
                }
                if socket.is_some_and(packet::has_packet) {
                    return PollResult::Nothing;
                }
            }
            spin_loop();
        }
    }

    /// Poll hot channels once each, until one has a frame or a violation, and sometimes the cold ones. Flush queued
    /// frames; a channel whose peer is behind is not read.
    #[inline]
    fn poll_hot(&mut self, now: u64) -> PollResult {
        if now - self.cold_checked_at > COLD_CHECK_INTERVAL {
            self.cold_checked_at = now;
            self.check_cold(now);
        }
        let count = self.hot.len();
        let entries = &self.entries;
        let taken = |&index: &usize| {
            entries[index]
                .as_ref()
                .map_or(u64::MAX, |entry| entry.taken)
        };
        let least = self.hot.iter().map(taken).min().unwrap_or(0);
        // Channel with the least used time of those that are ahead of others: its position, number and time.
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
                return PollResult::Broken(index, violation);
            }
            // A peer that leaves many replies unread gets no more requests served.
            if entry.channel.is_stalled() {
                match entry.channel.flush() {
                    Ok(moved) => self.moved |= moved,
                    Err(violation) => return PollResult::Broken(index, violation),
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
                    if entry.taken <= least + MAX_LEAD {
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
                Err(violation) => return PollResult::Broken(index, violation),
            }
        }
        match ahead {
            Some((place, index, _)) => self.serve(place, index, now),
            None => PollResult::Nothing,
        }
    }

    /// Record a frame of the channel `index`, which has this place among the hot ones, advance the turn, and return the
    /// frame.
    #[inline]
    fn serve(&mut self, place: usize, index: usize, now: u64) -> PollResult {
        if let Some(entry) = &mut self.entries[index] {
            entry.last = now;
            entry.taken = entry.taken.max(self.reached.saturating_sub(MAX_CREDIT));
            self.reached = entry.taken;
            self.found += 1;
            let share = SHARE * self.hot.len() as u64;
            let satisfied_until = entry
                .satisfied_until
                .max(self.found.saturating_sub(MAX_DEBT))
                + share;
            entry.satisfied_until = satisfied_until.min(self.found + LAG);
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
        PollResult::Frame(index)
    }
}
