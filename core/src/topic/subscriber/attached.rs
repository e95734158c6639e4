//! The log of a publisher that a subscriber reads.

use super::message::{Message, Payload};
use super::outcome::{CorruptLog, Received};
use super::source::PublisherId;
use crate::shared_heap::Words;
use crate::sync::Ordering;
use crate::topic::directory::Directory;
use crate::topic::log::{Log, Record};
use crate::topic::log_layout::ALIGNMENT;
use crate::topic::log_memory::LogMemory;
use std::sync::Arc;

/// The log of a publisher that a subscriber reads.
#[derive(Debug)]
pub(super) struct AttachedLog<L> {
    pub(super) source: PublisherId,
    pub(super) log: Arc<Log<L>>,
    /// Record to read next.
    pub(super) head: u64,
    /// Tail at the last load.
    pub(super) tail: u64,
    pub(super) lost: u64,
    /// True if another publisher has its listing, and so its cell.
    pub(super) is_replaced: bool,
}

impl<L: LogMemory> AttachedLog<L> {
    /// Raise the head to the floor and store it, before the first read: nothing below the floor was promised. The
    /// skipped records are not counted as missed.
    pub(super) fn raise_head_to_floor<D: Words>(&mut self, directory: &Directory<D>, seat: usize) {
        // Relaxed: ordered by the fence of `Directory::attach`.
        let floor = self.log.floor().load(Ordering::Relaxed);
        if floor > self.head {
            self.head = floor;
            directory.set_head(seat, self.source.listing, floor);
        }
    }

    /// Return the position of a record below the tail, or the event that the log is corrupt.
    #[inline]
    pub(super) fn entry(&self, seq: u64) -> Result<Record, Received> {
        let found = self.log.entry(seq);
        found.map_err(|found| Received::Corrupt(self.source, CorruptLog::Entry(found)))
    }

    /// Create the message of a record of this log.
    #[inline]
    pub(super) fn message<D: Words>(
        &self,
        seq: u64,
        record: Record,
        payload: Payload<L, D>,
    ) -> Message<L, D> {
        Message {
            source: self.source,
            seq,
            form: record.form,
            payload,
        }
    }

    /// Load the number of published records. Return the event that the log is corrupt if that number has decreased.
    #[inline]
    pub(super) fn poll_tail(&mut self) -> Result<u64, Received> {
        // Acquire: pairs with the Release of `publish`.
        let tail = self.log.tail().load(Ordering::Acquire);
        if tail < self.tail || tail < self.head {
            return Err(Received::Corrupt(self.source, CorruptLog::Tail(tail)));
        }
        self.tail = tail;
        Ok(tail)
    }

    /// Skip to record `seq`, and count the skipped records as missed; do nothing if it is not ahead. The head is not
    /// stored in the directory.
    pub(super) fn skip_to<D: Words>(&mut self, seq: u64, directory: &Directory<D>, seat: usize) {
        let missed = seq.saturating_sub(self.head);
        if missed > 0 {
            self.head = seq;
            self.lost = self.lost.saturating_add(missed);
            if !self.is_replaced {
                directory.set_lost(seat, self.source.listing, self.lost);
            }
        }
    }

    /// Store the head. Return true if the publisher may sleep for it, and the caller wakes it; store nothing and return
    /// false if another publisher has the cell.
    #[inline]
    pub(super) fn publish_head<D: Words>(&self, directory: &Directory<D>, seat: usize) -> bool {
        if self.is_replaced {
            return false;
        }
        let listing = self.source.listing;
        directory.set_head(seat, listing, self.head);
        directory.is_awaited(listing, seat, self.head)
    }
}

/// A run of small records that lie one behind the other and are copied at once.
#[derive(Default)]
pub(super) struct CopyRun {
    /// Offsets in the log at which the first record begins and the last one ends.
    pub(super) at: u64,
    pub(super) end: u64,
    /// Offset in the output to which they are copied.
    pub(super) to: usize,
}

impl CopyRun {
    /// Begin a run with this record.
    pub(super) fn from(record: Record, to: usize) -> Self {
        let at = record.at;
        let end = at + record.len;
        CopyRun { at, end, to }
    }

    /// Add a record to the run if it is the next one. Return true if it is.
    #[inline]
    pub(super) fn extend_with(&mut self, record: Record) -> bool {
        let is_next = record.at >= self.end && record.at - self.end < ALIGNMENT;
        if is_next {
            self.end = record.at + record.len;
        }
        is_next
    }

    /// Return the offset in the output at which the payload of a record of the run begins once the run is copied.
    #[inline]
    pub(super) fn offset_in_output(&self, record: Record) -> usize {
        self.to + (record.at - self.at) as usize
    }

    /// Return the length of `out` after the run is copied, in bytes.
    #[inline]
    pub(super) fn end_in(&self, out: &[u8]) -> usize {
        out.len() + (self.end - self.at) as usize
    }

    /// Append the bytes of the run to the output.
    pub(super) fn copy<L: LogMemory>(&self, log: &Log<L>, out: &mut Vec<u8>) {
        log.space().read(self.at, self.end - self.at, out);
    }
}
