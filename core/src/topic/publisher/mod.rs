//! A publisher: the writer of a log.

mod error;
mod heads;
mod large_records;
mod reclaim;
mod room;
mod subscriber_state;
mod waiting;

pub use crate::topic::blocks::Block;
pub use error::{NoRoom, NoRoomCause, PublishError};
pub use waiting::{OnFull, Waiter};

use crate::crash;
use crate::shared_heap::Words;
use crate::sync::Ordering;
use crate::topic::blocks::{BlockAllocator, PageRun};
use crate::topic::directory::{Directory, SEQ, SeatInfo, SeatState};
use crate::topic::log::{Log, Record};
use crate::topic::log_layout::{ALIGNMENT, LogLayout, PublisherLimits};
use crate::topic::log_memory::LogMemory;
use std::collections::VecDeque;
use subscriber_state::SubscriberState;
use waiting::WakeCondition;

/// The writer of a log. Its drop releases nothing: the owner calls [`close`](Self::close). No method waits.
#[derive(Debug)]
pub struct Publisher<L, D> {
    log: Log<L>,
    directory: Directory<D>,
    listing: usize,
    generation: u64,
    limits: PublisherLimits,
    shape: LogLayout,
    /// Number of the next record: the number of written ones.
    next: u64,
    /// Number of visible records.
    published: u64,
    /// Bytes of the payloads of all records.
    bytes: u64,
    /// Records below this one may be written without loading the subscribers' heads.
    limit: u64,
    /// Number of subscribers that had ever joined at the last load.
    joined: u64,
    /// Floor that the log contains: subscribers assume that records below may be overwritten.
    floor: u64,
    /// First record that is kept; those below may be overwritten.
    kept: u64,
    /// Lowest position in the ring for the next payload, as a number that never decreases.
    end: u64,
    /// Position at which the payload of each record begins, by the index of the record.
    starts: Box<[u64]>,
    /// Position at which the payload of the first record that is kept begins.
    kept_from: u64,
    /// Last known state of each seat's subscriber.
    known: Box<[SubscriberState]>,
    blocks: BlockAllocator,
    /// Blocks of records, the oldest first.
    record_blocks: VecDeque<(u64, PageRun)>,
    /// Blocks of reclaimed records that a subscriber had pinned at the last check.
    pinned_blocks: Vec<(u64, PageRun)>,
    /// Wake-up condition of each waiter of this publisher; the listing has the combination of all.
    waiting: Vec<(Waiter, WakeCondition)>,
}

impl<L: LogMemory, D: Words> Publisher<L, D> {
    /// Acquire a listing for member `self_id`, and publish it: the log has the token and the descriptor of its file in
    /// this process. `space` is all zeros, and has the size of the layout `shape`. Return None if all listings are
    /// taken. The caller then wakes all sleepers of the topic.
    pub fn open(
        space: L,
        directory: Directory<D>,
        self_id: u64,
        limits: PublisherLimits,
        shape: LogLayout,
        (token, descriptor): (u64, i32),
    ) -> Option<Self> {
        let log = Log::create(space, shape, token);
        let (listing, generation) = directory.acquire_listing(self_id)?;
        directory.open_listing(listing, token, descriptor);
        let mut publisher = Publisher {
            known: vec![SubscriberState::default(); directory.capacity().seats].into(),
            starts: vec![0; shape.entries as usize].into(),
            blocks: BlockAllocator::new(shape.blocks),
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
            record_blocks: VecDeque::new(),
            pinned_blocks: Vec::new(),
            waiting: Vec::new(),
        };
        publisher.joined = publisher.directory.joined();
        let heads = publisher.respected_heads();
        publisher.limit = publisher.write_limit(&heads);
        Some(publisher)
    }

    /// Return the number and the generation of the listing.
    pub fn listing(&self) -> (usize, u64) {
        (self.listing, self.generation)
    }

    /// Return the log.
    pub fn log(&self) -> &Log<L> {
        &self.log
    }

    /// Return the limits.
    pub fn limits(&self) -> PublisherLimits {
        self.limits
    }

    /// Return the number of the next record: the number of records that were appended, published or not.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Return the bytes of blocks that are in use, and the bytes that have memory.
    pub fn memory(&self) -> (u64, u64) {
        (self.blocks.taken(), self.blocks.backed())
    }

    /// Return true if a payload of this length, in bytes, needs a block: [`append`](Self::append) must not be used.
    pub fn is_large(&self, len: u64) -> bool {
        len > self.shape.small()
    }

    /// Return true if all active subscribers have attached themselves. If not, and the caller waits, announce that in
    /// the listing; the caller then asks again before it sleeps.
    pub fn is_attached_by_all(&mut self, on_full: OnFull) -> bool {
        let is_attached = |each: SeatInfo| {
            each.word.state() != SeatState::Active
                || self
                    .directory
                    .progress(each.seat, self.listing, self.generation)
                    .is_some()
        };
        let is_by_all = self.directory.occupied_seats().all(is_attached);
        if let OnFull::Wait(waiter) = on_full {
            match is_by_all {
                true => self.cancel_wait(waiter),
                false => self.announce(waiter, WakeCondition::ANY_CHANGE),
            }
        }
        is_by_all
    }

    /// Write a record that is not [large](Self::is_large), which [`publish`](Self::publish) makes visible. With
    /// `aligned` its payload begins at a multiple of [`ALIGNMENT`]. Cuts off slow subscribers if there is no room.
    /// Fails only with `Full`, if there is still none: nothing is written, and a caller that waits is then announced in
    /// the listing, until [`cancel_wait`](Self::cancel_wait) or its success.
    #[inline]
    pub fn append(
        &mut self,
        form: u8,
        payload: &[u8],
        aligned: bool,
        on_full: OnFull,
    ) -> Result<(), PublishError> {
        debug_assert!(!self.is_large(payload.len() as u64));
        let alignment = if aligned { ALIGNMENT } else { 8 };
        let len = payload.len() as u64;
        let (mut start, mut end) = self.next_range(len, alignment);
        if !self.has_room_for(end) {
            self.make_room(len, alignment, on_full)?;
            (start, end) = self.next_range(len, alignment);
        }
        let at = self.log.data + (start & (self.shape.ring - 1));
        self.log.space().write(at, payload);
        self.write_record(start, end, Record { at, len, form });
        Ok(())
    }

    /// Write the record of a block of this publisher, of which the first `used` bytes are filled;
    /// [`publish`](Self::publish) makes it visible. Fails as [`append`](Self::append) does; the error contains the
    /// block, which the caller frees or appends later. Panics if `used` is more than the block has.
    pub fn append_block(
        &mut self,
        form: u8,
        block: Block,
        used: u64,
        on_full: OnFull,
    ) -> Result<(), (PublishError, Block)> {
        assert!(used <= block.len);
        if !self.has_room_for(self.end)
            && let Err(refused) = self.make_room(0, 8, on_full)
        {
            return Err((refused, block));
        }
        self.record_blocks.push_back((self.next, block.run));
        let record = Record {
            at: block.at,
            len: used,
            form,
        };
        self.write_record(self.end, self.end, record);
        Ok(())
    }

    /// Write the entry of the next record, whose payload is already written, and count the record. `start` and `end`
    /// are the positions of the payload in the ring; both are the current end for a block.
    #[inline]
    fn write_record(&mut self, start: u64, end: u64, record: Record) {
        self.log.write_entry(self.next, record);
        let index = self.index(self.next);
        self.starts[index] = start;
        self.end = end;
        self.next += 1;
        self.bytes += record.len;
        crash::point!(RecordWritten);
    }

    /// Make the written records visible. Return true if there were any; the caller then wakes the subscribers.
    #[inline]
    pub fn publish(&mut self) -> bool {
        if self.next == self.published {
            return false;
        }
        self.published = self.next;
        // Relaxed: only for statistics.
        self.log.bytes().store(self.bytes, Ordering::Relaxed);
        // Release: a reader of the tail sees the records.
        self.log.tail().store(self.next, Ordering::Release);
        crash::point!(RecordsPublished);
        true
    }

    /// Withdraw the announcement of a waiter that no longer waits. Wakes nothing. Idempotent.
    pub fn cancel_wait(&mut self, waiter: Waiter) {
        let before = self.waiting.len();
        self.waiting.retain(|each| each.0 != waiter);
        if self.waiting.len() < before {
            self.publish_wait();
        }
    }

    /// Return the condition for which a waiter is announced; None if it is not.
    fn condition_of(&self, waiter: Waiter) -> Option<WakeCondition> {
        let found = self.waiting.iter().find(|each| each.0 == waiter);
        found.map(|each| each.1)
    }

    /// Announce the condition for which a waiter is about to sleep, in place of its last one. The waiter checks once
    /// more before it sleeps.
    fn announce(&mut self, waiter: Waiter, waiting: WakeCondition) {
        self.waiting.retain(|each| each.0 != waiter);
        self.waiting.push((waiter, waiting));
        self.publish_wait();
    }

    /// Store the combination of all announced conditions in the listing.
    fn publish_wait(&self) {
        let all = self.waiting.iter().map(|each| each.1);
        match all.reduce(WakeCondition::or) {
            Some(WakeCondition { seat, target }) => {
                self.directory.announce_wait(self.listing, seat, target)
            }
            None => self.directory.withdraw_wait(self.listing),
        }
    }

    /// Return the index of a record in `starts`.
    #[inline]
    fn index(&self, seq: u64) -> usize {
        (seq & (self.shape.entries - 1)) as usize
    }

    /// Return the positions in the ring at which the payload of the next record, of this length, would begin and end.
    /// `alignment` is a power of two, at least 8.
    #[inline]
    fn next_range(&self, len: u64, alignment: u64) -> (u64, u64) {
        let mut start = self.end.next_multiple_of(alignment);
        let left = self.shape.ring - (start & (self.shape.ring - 1));
        if len > left {
            start += left; // In one piece: the end of the ring stays empty.
        }
        (start, start + len.next_multiple_of(8))
    }

    /// Return true if there is room for a record whose payload ends at this position, as far as is known without a
    /// load of the heads.
    #[inline]
    fn has_room_for(&self, end: u64) -> bool {
        self.next < self.limit
            && self.directory.joined() == self.joined
            && self.next - self.kept < self.shape.entries
            && end - self.kept_from <= self.shape.ring
    }

    /// Return the position at which the payload of a record begins; for the next record, the lowest possible one.
    fn start_of(&self, seq: u64) -> u64 {
        if seq == self.next {
            self.end
        } else {
            self.starts[self.index(seq)]
        }
    }

    /// Return the first record that can be kept if the ring must have room up to the position `end`, and the index for
    /// one more record.
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

    /// Publish all written records, and release the listing. Called once, as the last method; the caller then wakes
    /// all sleepers of the topic. Attached subscribers can still read all records.
    pub fn close(&mut self) {
        self.publish();
        self.directory.release_listing(self.listing);
    }
}

/// Return true if the record `seq` is among the pinned ones.
fn is_pinned(pinned: &[(u64, usize)], seq: u64) -> bool {
    let seq = seq & SEQ;
    pinned.iter().any(|each| each.0 == seq)
}
