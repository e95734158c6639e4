//! One who publishes: the writer of a log.

mod error;
mod heads;
mod large_records;
mod reclaim;
mod room;
mod subscriber_state;
mod waiting;

pub use crate::topic::blocks::Block;
pub use error::{Cause, Refused, Slowest};
pub use waiting::{Patience, Waiter};

use crate::crash;
use crate::shared_heap::Words;
use crate::sync::Ordering;
use crate::topic::blocks::{Blocks, Run};
use crate::topic::directory::{Directory, SEQ, Seated, State};
use crate::topic::log::{Log, Record};
use crate::topic::log_layout::{ALIGNMENT, Limits, Shape};
use crate::topic::log_memory::Space;
use std::collections::VecDeque;
use subscriber_state::Known;
use waiting::Waiting;

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
