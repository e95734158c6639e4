//! One who publishes: the writer of a log.

use super::blocks::{Blocks, Run};
use super::directory::{Claim, Directory, READS_NOTHING, SEQ, Seated, State};
use super::log::{ALIGNMENT, Limits, Log, Record, Shape, Why};
use super::{Policy, Space};
use crate::crash;
use crate::shared_heap::Words;
use crate::sync::{Ordering, fence};
use std::collections::VecDeque;
use std::io;
use thiserror::Error;

/// Why something was not published. Nothing of it was then.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the texts say what the fields hold")]
pub enum Refused {
    /// There is no room before others have read, or let go.
    #[error("there is no room: {0:?}")]
    Full(Slowest),
    #[error(
        "a message of {asked} bytes needs memory of its own, for which max_memory={most} is too little; \
         open it with max_memory={asked} or more"
    )]
    TooLarge { asked: u64, most: u64 },
    #[error("there is no memory for it: {0}")]
    System(#[from] io::Error),
}

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slowest {
    /// The member that is waited for, if it is one.
    pub owner: Option<u64>,
    /// How many records it is behind.
    pub lag: u64,
    /// What there is no room for.
    pub cause: Cause,
}

/// What there is no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// One is behind by as many records as it may be, or by the bytes of the ring.
    Records,
    /// The blocks of large records have not been read, or are looked at.
    Memory,
    /// The blocks of large records are being filled.
    Filling,
}

/// Whether one that finds no room is about to wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// It is told so, and goes.
    No,
    /// It sleeps until it is woken. So the subscriber that it waits for is told, until `forget`.
    Waits(Waiter),
}

/// One of ours that may wait, by a number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter(pub u64);

/// A block to be filled. It is to be published or given up.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Block {
    /// Where it begins, in bytes from the beginning of the log.
    pub at: u64,
    /// Its bytes: at least those that were asked for.
    pub len: u64,
    run: Run,
}

/// What is known of the subscriber of a seat.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Its claim when it was last seen active and attached; 0: not so far.
    claim: u64,
    head: u64,
    /// The generation of a claim that was cut off.
    cut: Option<u32>,
}

/// One who must be waited for.
#[derive(Clone, Copy, Debug)]
struct Head {
    seat: usize,
    claim: Claim,
    at: u64,
}

/// How far one that waits for room has the others read before it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    seat: Option<usize>,
    target: u64,
}

impl Waiting {
    /// For a change of any seat.
    const FOR_ANYBODY: Self = Waiting {
        seat: None,
        target: 0,
    };

    /// What wakes either of two.
    fn or(self, other: Self) -> Self {
        if self.seat != other.seat {
            return Waiting::FOR_ANYBODY;
        }
        Waiting {
            seat: self.seat,
            target: self.target.min(other.target),
        }
    }
}

/// The writer of a log.
#[derive(Debug)]
pub struct Publisher<L, D> {
    log: Log<L>,
    directory: Directory<D>,
    listing: usize,
    generation: u64,
    limits: Limits,
    shape: Shape,
    /// The number of the next record; those from `published` on are seen by nobody so far.
    next: u64,
    published: u64,
    /// Bytes of the payloads of all records.
    bytes: u64,
    /// Records below this one may be written without a look at the subscribers.
    limit: u64,
    /// The number of subscribers that had ever come at the last look.
    joined: u64,
    /// As it stands in the log: subscribers are told that what is below may be gone.
    floor: u64,
    /// What is below is gone, or may be written over.
    kept: u64,
    /// Where in the ring the next payload goes at the earliest, as a position that never falls, and the same of each
    /// record, and of the first that is kept.
    end: u64,
    starts: Box<[u64]>,
    kept_from: u64,
    known: Box<[Known]>,
    blocks: Blocks,
    /// Blocks of records, the oldest first.
    placed: VecDeque<(u64, Run)>,
    /// Blocks of records that are given up, and were looked at by somebody when that was found out.
    limbo: Vec<(u64, Run)>,
    /// What those of ours wait for who were refused; the listing says what wakes any of them.
    waiting: Vec<(Waiter, Waiting)>,
}

impl<L: Space, D: Words> Publisher<L, D> {
    /// Takes a listing for member `me`, in whose process the log has this descriptor. `space` is all zeros, and has the
    /// size of the shape. None if all listings are taken.
    pub fn open(
        space: L,
        directory: Directory<D>,
        me: u64,
        limits: Limits,
        shape: Shape,
        (token, descriptor): (u64, i32),
    ) -> Option<Self> {
        let log = Log::create(space, shape, token);
        let (listing, generation) = directory.list(me)?;
        directory.open(listing, token, descriptor);
        let mut publisher = Publisher {
            known: vec![Known::default(); directory.capacity().seats].into(),
            starts: vec![0; shape.entries as usize].into(),
            blocks: Blocks::new(shape.blocks),
            log,
            directory,
            listing,
            generation,
            limits,
            shape,
            next: 0,
            published: 0,
            bytes: 0,
            limit: 0,
            joined: 0,
            floor: 0,
            kept: 0,
            end: 0,
            kept_from: 0,
            placed: VecDeque::new(),
            limbo: Vec::new(),
            waiting: Vec::new(),
        };
        publisher.joined = publisher.directory.joined();
        let heads = publisher.heads();
        publisher.limit = publisher.limit_for(&heads);
        Some(publisher)
    }

    /// Its listing, and whose turn in it this is.
    pub fn listing(&self) -> (usize, u64) {
        (self.listing, self.generation)
    }

    /// The log.
    pub fn log(&self) -> &Log<L> {
        &self.log
    }

    /// What it holds for those that are slow.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The number that the next record gets.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Bytes of blocks that are in use, and that have memory.
    pub fn memory(&self) -> (u64, u64) {
        (self.blocks.taken(), self.blocks.backed())
    }

    /// Whether a payload of this many bytes needs a block.
    pub fn is_large(&self, len: u64) -> bool {
        len > self.shape.small()
    }

    /// Whether all that subscribe have attached themselves. If not, and that is waited for, the listing says so; it is to
    /// be asked again before a sleep.
    pub fn is_attached_by_all(&mut self, patience: Patience) -> bool {
        let is_attached = |each: Seated| {
            each.claim.state() != State::Active
                || self
                    .directory
                    .progress(each.seat, self.listing, self.generation)
                    .is_some()
        };
        let is_by_all = self.directory.seated().all(is_attached);
        if let Patience::Waits(waiter) = patience {
            match is_by_all {
                true => self.forget(waiter),
                false => self.announce(waiter, Waiting::FOR_ANYBODY),
            }
        }
        is_by_all
    }

    // --- records ---

    /// Writes a record, which nobody sees before `publish`. `aligned`: its payload begins at a multiple of
    /// [`ALIGNMENT`]. It is not large.
    #[inline]
    pub fn append(
        &mut self,
        form: u8,
        payload: &[u8],
        aligned: bool,
        patience: Patience,
    ) -> Result<(), Refused> {
        debug_assert!(!self.is_large(payload.len() as u64));
        let alignment = if aligned { ALIGNMENT } else { 8 };
        let len = payload.len() as u64;
        let (mut start, mut end) = self.place(len, alignment);
        if !self.fits(end) {
            self.make_room(len, alignment, patience)?;
            (start, end) = self.place(len, alignment);
        }
        let at = self.log.data + (start & (self.shape.ring - 1));
        self.log.space().write(at, payload);
        self.enter(start, end, Record { at, len, form });
        Ok(())
    }

    /// Writes the record of a block that was filled with `used` bytes; the block comes back if it is refused.
    pub fn append_block(
        &mut self,
        form: u8,
        block: Block,
        used: u64,
        patience: Patience,
    ) -> Result<(), (Refused, Block)> {
        assert!(used <= block.len);
        if !self.fits(self.end)
            && let Err(refused) = self.make_room(0, 8, patience)
        {
            return Err((refused, block));
        }
        self.placed.push_back((self.next, block.run));
        let record = Record {
            at: block.at,
            len: used,
            form,
        };
        self.enter(self.end, self.end, record);
        Ok(())
    }

    #[inline]
    fn enter(&mut self, start: u64, end: u64, record: Record) {
        self.log.enter(self.next, record);
        let index = self.index(self.next);
        self.starts[index] = start;
        self.end = end;
        self.next += 1;
        self.bytes += record.len;
        crash::point!(RecordWritten);
    }

    /// Lets subscribers see what was written; whether there was anything. Wake them then.
    #[inline]
    pub fn publish(&mut self) -> bool {
        if self.next == self.published {
            return false;
        }
        self.published = self.next;
        // Relaxed: only said to people.
        self.log.bytes().store(self.bytes, Ordering::Relaxed);
        // Release: whoever sees it sees the records.
        self.log.tail().store(self.next, Ordering::Release);
        crash::point!(RecordsPublished);
        true
    }

    /// This one waits no more. Again: nothing.
    pub fn forget(&mut self, waiter: Waiter) {
        let before = self.waiting.len();
        self.waiting.retain(|each| each.0 != waiter);
        if self.waiting.len() < before {
            self.tell_listing();
        }
    }

    fn waits_for(&self, waiter: Waiter) -> Option<Waiting> {
        let found = self.waiting.iter().find(|each| each.0 == waiter);
        found.map(|each| each.1)
    }

    /// Says what one is about to sleep for. It looks once more before it does.
    fn announce(&mut self, waiter: Waiter, waiting: Waiting) {
        self.waiting.retain(|each| each.0 != waiter);
        self.waiting.push((waiter, waiting));
        self.tell_listing();
    }

    fn tell_listing(&self) {
        let all = self.waiting.iter().map(|each| each.1);
        match all.reduce(Waiting::or) {
            Some(Waiting { seat, target }) => self.directory.wait_for(self.listing, seat, target),
            None => self.directory.wait_for_nobody(self.listing),
        }
    }

    #[inline]
    fn index(&self, seq: u64) -> usize {
        (seq & (self.shape.entries - 1)) as usize
    }

    /// Where a payload of this many bytes would begin and end.
    #[inline]
    fn place(&self, len: u64, alignment: u64) -> (u64, u64) {
        let mut start = self.end.next_multiple_of(alignment);
        let left = self.shape.ring - (start & (self.shape.ring - 1));
        if len > left {
            start += left; // In one piece: the end of the ring stays empty.
        }
        (start, start + len.next_multiple_of(8))
    }

    /// Whether a record may be written whose payload ends there.
    #[inline]
    fn fits(&self, end: u64) -> bool {
        self.next < self.limit
            && self.directory.joined() == self.joined
            && self.next - self.kept < self.shape.entries
            && end - self.kept_from <= self.shape.ring
    }

    fn start_of(&self, seq: u64) -> u64 {
        if seq == self.next {
            self.end
        } else {
            self.starts[self.index(seq)]
        }
    }

    /// The first record that is kept if the ring is to have room up to `end`, and the index for one more.
    fn first_kept(&self, end: u64) -> u64 {
        let by_index = (self.next + 1).saturating_sub(self.shape.entries);
        let (mut low, mut high) = (self.kept, self.next);
        while low < high {
            let middle = low.midpoint(high);
            if end - self.start_of(middle) <= self.shape.ring {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low.max(by_index)
    }

    // --- room ---

    /// Makes room for one record of this many bytes in the ring.
    #[cold]
    fn make_room(&mut self, len: u64, alignment: u64, patience: Patience) -> Result<(), Refused> {
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

    fn behind(&self, head: &Head, cause: Cause) -> Slowest {
        Slowest {
            owner: Some(self.directory.owner(head.seat)),
            lag: self.next - head.at,
            cause,
        }
    }

    fn limit_for(&self, heads: &[Head]) -> u64 {
        let may_lag = |head: &Head| match head.claim.policy() {
            Some(Policy::Disconnect) => self.lag_of(head),
            _ => self.limits.high,
        };
        let limits = heads
            .iter()
            .map(|head| head.at.saturating_add(may_lag(head)));
        let limit = limits.min().unwrap_or(u64::MAX);
        // One that joins is seen after this many at the latest.
        limit.min(self.next + self.limits.high)
    }

    /// How far one may be behind before it is cut off.
    fn lag_of(&self, head: &Head) -> u64 {
        match self.directory.lag(head.seat) {
            0 => self.limits.high,
            lag => lag.min(self.limits.high),
        }
    }

    /// The heads of those that must be waited for, or are cut off when they are too slow.
    fn heads(&mut self) -> Vec<Head> {
        let seats = 0..self.directory.capacity().seats;
        seats.filter_map(|seat| self.head_of(seat)).collect()
    }

    fn head_of(&mut self, seat: usize) -> Option<Head> {
        let claim = self.directory.claim(seat);
        let state = claim.state();
        if !matches!(state, State::Joining | State::Active)
            || !claim.policy().is_some_and(Policy::is_respected)
            || self.known[seat].cut == Some(claim.generation())
        {
            return None;
        }
        let progress = self.directory.progress(seat, self.listing, self.generation);
        let at = match (state, progress) {
            // It has found this publisher's listing, or will, and then takes what is there.
            (State::Active, None) => self.kept,
            // It looks at the listings, and then at the floor.
            (_, None) => return None,
            (_, Some(progress)) if progress.head == READS_NOTHING => return None,
            (_, Some(progress)) => {
                let known = self.known[seat];
                let is_back = known.claim == claim.0 && progress.head < known.head;
                if is_back || progress.head > self.published {
                    self.cut_off(seat, claim, Why::Corruption);
                    return None;
                }
                if state == State::Active {
                    self.known[seat] = Known {
                        claim: claim.0,
                        head: progress.head,
                        cut: None,
                    };
                }
                // One that joins may be below what is kept: then it sees the floor, and mends its head.
                progress.head.max(self.kept)
            }
        };
        Some(Head { seat, claim, at })
    }

    /// Cuts those off that are too slow for what they have asked for, or are in the way of what is needed.
    fn cut_slow(&mut self, heads: &mut Vec<Head>, needed: u64) {
        heads.retain(|head| {
            let is_slow = head.claim.policy() == Some(Policy::Disconnect)
                && (self.next - head.at >= self.lag_of(head) || head.at < needed);
            if is_slow {
                self.known[head.seat].cut = Some(head.claim.generation());
                self.tell_cut(head.seat, head.claim, Why::Lag);
            }
            !is_slow
        });
    }

    fn cut_off(&mut self, seat: usize, claim: Claim, why: Why) {
        self.known[seat].cut = Some(claim.generation());
        self.tell_cut(seat, claim, why);
    }

    fn tell_cut(&self, seat: usize, claim: Claim, why: Why) {
        let word = u64::from(claim.generation()) << 32 | why as u64;
        // Relaxed: before the fence of `give_up`, and so before anything is written over.
        self.log.cut(seat).store(word, Ordering::Relaxed);
        crash::point!(CutOff);
    }

    /// Gives up all records below `to`, unless one has joined who must be waited for.
    fn give_up(&mut self, to: u64) {
        if to > self.floor {
            self.floor = to;
            // Relaxed: the fence orders it.
            self.log.floor().store(to, Ordering::Relaxed);
            crash::point!(FloorRaised);
        }
        // SeqCst: the floor, and what was cut off, are before the look at claims and pins, and before what is written
        // over.
        fence(Ordering::SeqCst);
        // One that was seen before is at `to` or above: heads do not go back. One that has joined since sees the floor, or
        // is seen here.
        let heads = self.heads();
        let least = heads.iter().map(|head| head.at).min();
        let kept = least.map_or(to, |least| to.min(least));
        if kept <= self.kept {
            return;
        }
        self.kept = kept;
        self.kept_from = self.start_of(kept);
        self.release_blocks();
        crash::point!(RecordsGivenUp);
    }

    /// Frees the blocks of records that were given up, unless somebody looks at them.
    fn release_blocks(&mut self) {
        let gone = |&(seq, _): &(u64, Run)| seq < self.kept;
        if !self.placed.front().is_some_and(gone) {
            return;
        }
        let count = self.placed.iter().take_while(|each| gone(each)).count();
        let pinned = self.directory.pinned(self.listing);
        for (seq, run) in self.placed.drain(..count) {
            match is_pinned(&pinned, seq) {
                true => self.limbo.push((seq, run)),
                false => self.blocks.free(run),
            }
        }
    }

    /// Frees the blocks that nobody looks at any more; whether there were any.
    fn sweep_limbo(&mut self) -> bool {
        if self.limbo.is_empty() {
            return false;
        }
        let pinned = self.directory.pinned(self.listing);
        let before = self.limbo.len();
        let blocks = &mut self.blocks;
        self.limbo.retain(|&(seq, run)| {
            let stays = is_pinned(&pinned, seq);
            if !stays {
                blocks.free(run);
            }
            stays
        });
        self.limbo.len() < before
    }

    // --- blocks ---

    /// A block for this many bytes, to be filled.
    pub fn reserve(&mut self, len: u64, patience: Patience) -> Result<Block, Refused> {
        let most = self.blocks.size();
        if len > most {
            return Err(Refused::TooLarge { asked: len, most });
        }
        loop {
            if let Some(run) = self.blocks.allocate(len) {
                if let Patience::Waits(waiter) = patience {
                    self.forget(waiter);
                }
                return self.backed(run);
            }
            let Err(slowest) = self.make_memory(len) else {
                continue;
            };
            match patience {
                Patience::Waits(waiter) if self.waits_for(waiter) != Some(Waiting::FOR_ANYBODY) => {
                    self.announce(waiter, Waiting::FOR_ANYBODY);
                }
                _ => return Err(Refused::Full(slowest)),
            }
        }
    }

    fn backed(&mut self, run: Run) -> Result<Block, Refused> {
        let first = self.log.blocks;
        if let Some(bare) = self.blocks.bare(run) {
            if let Err(error) = self.log.space().set_aside(first + bare.at, bare.len) {
                self.blocks.free(run);
                return Err(error.into());
            }
            self.blocks.has_memory(bare);
        }
        Ok(Block {
            at: first + run.at,
            len: run.len,
            run,
        })
    }

    /// Frees a block that is not wanted.
    pub fn give_back(&mut self, block: Block) {
        self.blocks.free(block.run);
    }

    /// Frees some memory, or says who has it.
    #[cold]
    fn make_memory(&mut self, len: u64) -> Result<(), Slowest> {
        if self.sweep_limbo() {
            return Ok(());
        }
        let Some(&(oldest, _)) = self.placed.front() else {
            return Err(self.holder_of_memory());
        };
        let mut heads = self.heads();
        self.cut_slow(&mut heads, oldest + 1);
        let slowest = heads.iter().min_by_key(|head| head.at).copied();
        let read = slowest.map_or(self.published, |slowest| slowest.at);
        if let Some(slowest) = slowest
            && read <= oldest
        {
            return Err(self.behind(&slowest, Cause::Memory));
        }
        if read <= oldest {
            return Err(self.holder_of_memory()); // Written, and not published so far.
        }
        // As much as is needed and a part of all, so that this is not done for each.
        let (mut freed, mut to) = (0, oldest + 1);
        for &(seq, run) in self.placed.iter().take_while(|&&(seq, _)| seq < read) {
            if freed >= len.max(self.blocks.size() / 8) {
                break;
            }
            (freed, to) = (freed + run.len, seq + 1);
        }
        let before = self.placed.len();
        self.give_up(to.max(self.kept));
        if self.placed.len() < before {
            return Ok(()); // If all of these are looked at, the next look finds others.
        }
        // One has joined meanwhile, and begins with the oldest.
        let heads = self.heads();
        let joined = heads.iter().min_by_key(|head| head.at);
        match joined {
            Some(joined) => Err(self.behind(joined, Cause::Memory)),
            None => Ok(()),
        }
    }

    fn holder_of_memory(&self) -> Slowest {
        let pinned = self.directory.pinned(self.listing);
        let holder = (self.limbo.iter())
            .find_map(|&(seq, _)| pinned.iter().find(|each| each.0 == seq & SEQ));
        Slowest {
            owner: holder.map(|&(_, seat)| self.directory.owner(seat)),
            lag: 0,
            cause: match holder {
                Some(_) => Cause::Memory,
                None => Cause::Filling,
            },
        }
    }

    // --- leaving ---

    /// Publishes what was written, and frees the listing. Wake everybody.
    pub fn close(&mut self) {
        self.publish();
        self.directory.unlist(self.listing);
    }
}

fn is_pinned(pinned: &[(u64, usize)], seq: u64) -> bool {
    let seq = seq & SEQ;
    pinned.iter().any(|each| each.0 == seq)
}
