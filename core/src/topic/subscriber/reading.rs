//! Receiving messages.

use super::Subscriber;
use super::attached::{AttachedLog, CopyRun};
use super::message::{Message, Payload};
use super::outcome::{Received, Wakeups};
use super::pins::PinnedBlock;
use crate::crash;
use crate::shared_heap::Words;
use crate::sync::{Ordering, fence};
use crate::topic::log::{CutReason, Record};
use crate::topic::log_memory::LogMemory;
use crate::topic::policy::Policy;
use std::sync::atomic::Ordering::Relaxed;

/// Maximum number of bytes that one call copies, unless a single message has more.
const MAX_COPY_BYTES: usize = 64 << 20;

/// A subscriber that a publisher waits for copies at most this fraction of the ring at once.
const MAX_RING_SHARE: u64 = 4;

impl<L: LogMemory, D: Words + Clone> Subscriber<L, D> {
    /// Receive up to `most` messages: those of each publisher in order, and several publishers in turn. The bytes of
    /// small ones are appended to `out`; large ones are pinned if `pins` is true and a pin is free, and copied
    /// otherwise. One call copies a bounded number of bytes, so it may return fewer messages although more are there.
    /// Never waits: without a message it returns `Empty`. An event other than messages and `Empty` comes without
    /// messages and ends the reading of its publisher. The caller does the wake-ups, also after such an event.
    pub fn receive(
        &mut self,
        most: usize,
        pins: bool,
        out: &mut Vec<u8>,
        messages: &mut Vec<Message<L, D>>,
    ) -> (Received, Wakeups) {
        let (mut wakeups, begin) = (Wakeups::default(), messages.len());
        if self.has_ended
            && let gone @ Received::PublisherGone(_) = self.poll_gone()
        {
            return (gone, wakeups);
        }
        let count = self.attached.len();
        for step in 0..count {
            let taken = messages.len() - begin;
            if taken == most {
                break;
            }
            let index = (self.next_index + step) % count;
            let read = self.read(index, most - taken, pins, out, messages);
            let attached = &self.attached[index];
            if messages.len() > begin + taken {
                crash::point!(RecordsCopied);
                wakeups.room |= attached.publish_head(&self.directory, self.seat);
            }
            if let Err(trouble) = read {
                if messages.len() > begin {
                    break; // The next call finds it again.
                }
                self.drop_attached(index);
                wakeups.room = true;
                return (trouble, wakeups);
            }
        }
        if count > 0 {
            self.next_index = (self.next_index + 1) % count;
        }
        // Relaxed: a hint of this process to itself.
        wakeups.room |= self.pins.is_waited_for.swap(false, Relaxed);
        match messages.len() - begin {
            0 => (self.poll_gone(), wakeups),
            taken => (Received::Messages(taken), wakeups),
        }
    }

    /// Read up to `most` messages of the publisher at this index. The error is the event after which it is no longer
    /// read; only with [`Policy::KeepLast`] there may be messages before it.
    fn read(
        &mut self,
        index: usize,
        most: usize,
        pins: bool,
        out: &mut Vec<u8>,
        messages: &mut Vec<Message<L, D>>,
    ) -> Result<(), Received> {
        let begin = (out.len(), messages.len());
        let read = match self.policy {
            Policy::KeepLast => self.read_last(index, most, pins, out, messages),
            _ => self.read_kept(index, most, pins, out, messages),
        };
        if read.is_err() && self.policy != Policy::KeepLast {
            out.truncate(begin.0);
            messages.truncate(begin.1);
        }
        read
    }

    /// Read the records that the publisher keeps for this subscriber. After an error the caller drops what was
    /// appended, and the head stays.
    fn read_kept(
        &mut self,
        index: usize,
        most: usize,
        pins: bool,
        out: &mut Vec<u8>,
        messages: &mut Vec<Message<L, D>>,
    ) -> Result<(), Received> {
        let tail = self.attached[index].poll_tail()?;
        let (head, from) = (self.attached[index].head, out.len());
        let to = tail.min(head.saturating_add(most as u64));
        // The publisher can reuse the ring once the head has moved. If the whole ring were read at once, the publisher
        // would be blocked until all is copied.
        let most_of_ring = self.attached[index].log.ring() / MAX_RING_SHARE;
        let (mut next, mut of_ring, mut run) = (head, 0, CopyRun::default());
        while next < to && run.end_in(out) - from < MAX_COPY_BYTES && of_ring <= most_of_ring {
            // After a cut-off the bytes that were read may be anything.
            let record = self.attached[index].entry(next);
            let record = record.map_err(|trouble| self.cut_reason(index).unwrap_or(trouble))?;
            let attached = &self.attached[index];
            if record.at < attached.log.blocks {
                if !run.extend_with(record) {
                    run.copy(&attached.log, out);
                    run = CopyRun::from(record, out.len());
                }
                of_ring += record.len;
                let payload = Payload::Copied(run.offset_in_output(record), record.len as usize);
                messages.push(attached.message(next, record, payload));
            } else {
                std::mem::take(&mut run).copy(&attached.log, out);
                messages.push(self.read_record(attached, next, record, pins, out));
            }
            next += 1;
        }
        run.copy(&self.attached[index].log, out);
        match self.cut_reason(index) {
            Some(cut) => Err(cut),
            None => {
                self.attached[index].head = next;
                Ok(())
            }
        }
    }

    /// Return the event that the publisher at this index has cut the subscriber off; None if it has not.
    fn cut_reason(&self, index: usize) -> Option<Received> {
        let attached = &self.attached[index];
        // Acquire: bytes that overwrite what was read are stored after the cut.
        fence(Ordering::Acquire);
        // Relaxed: ordered by the fence.
        let cut = attached.log.cut(self.seat).load(Ordering::Relaxed);
        if cut >> 32 != u64::from(self.word.generation()) || cut as u32 == 0 {
            return None;
        }
        let why = match cut as u32 {
            2 => CutReason::Corruption,
            _ => CutReason::Lag,
        };
        Some(Received::CutOff(attached.source, why))
    }

    /// Read the last records, which the publisher may overwrite meanwhile: those are skipped and count as missed. After
    /// an error the messages before it stay.
    fn read_last(
        &mut self,
        index: usize,
        most: usize,
        pins: bool,
        out: &mut Vec<u8>,
        messages: &mut Vec<Message<L, D>>,
    ) -> Result<(), Received> {
        let mut tail = self.attached[index].poll_tail()?;
        let (lag, seat) = (self.lag.max(1), self.seat);
        self.attached[index].skip_to(tail.saturating_sub(lag), &self.directory, seat);
        let (mut taken, from) = (0, out.len());
        while taken < most && self.attached[index].head < tail && out.len() - from < MAX_COPY_BYTES
        {
            let begin = out.len();
            let seq = self.attached[index].head;
            let attached = &self.attached[index];
            let read = |record| self.read_record(attached, seq, record, pins, out);
            let message = attached.entry(seq).map(read);
            // Acquire: bytes that overwrite what was read are stored after the floor.
            fence(Ordering::Acquire);
            // Relaxed: ordered by the fence.
            let floor = self.attached[index].log.floor().load(Ordering::Relaxed);
            if floor > seq {
                out.truncate(begin);
                drop(message);
                tail = self.attached[index].poll_tail()?;
                let least = floor.min(tail).max(tail.saturating_sub(lag));
                self.attached[index].skip_to(least.max(seq + 1), &self.directory, seat);
                continue;
            }
            messages.push(message?);
            taken += 1;
            self.attached[index].head += 1;
        }
        Ok(())
    }

    /// Copy or pin a record, which may be overwritten meanwhile: the caller checks afterwards.
    fn read_record(
        &self,
        attached: &AttachedLog<L>,
        seq: u64,
        record: Record,
        pins: bool,
        out: &mut Vec<u8>,
    ) -> Message<L, D> {
        let log = &attached.log;
        let pins = pins && record.at >= log.blocks;
        let pin = pins.then(|| self.pin_block(attached, seq, record.at, record.len));
        let payload = match pin.flatten() {
            Some(pin) => Payload::Pinned(Box::new(pin)),
            None => {
                let begin = out.len();
                log.space().read(record.at, record.len, out);
                Payload::Copied(begin, record.len as usize)
            }
        };
        attached.message(seq, record, payload)
    }

    /// Pin the block of a record. Return None if no pin is free, if all subscribers would pin too many bytes, or if
    /// another publisher has the cell.
    fn pin_block(
        &self,
        attached: &AttachedLog<L>,
        seq: u64,
        at: u64,
        len: u64,
    ) -> Option<PinnedBlock<L, D>> {
        if attached.is_replaced {
            return None;
        }
        // All subscribers together pin at most half of a publisher's blocks, because it needs the rest to continue.
        let most = (attached.log.space().size() as u64 - attached.log.blocks) / 2;
        let pin = self.pins.acquire()?;
        let publisher = (attached.source.listing, attached.source.generation);
        if !self.directory.borrow_bytes(self.seat, publisher, len, most) {
            self.pins.mark_free(pin);
            return None;
        }
        (self.directory).set_pin(self.seat, pin, attached.source.listing, seq);
        Some(PinnedBlock {
            log: attached.log.clone(),
            pins: self.pins.clone(),
            source: attached.source,
            pin,
            at,
            len,
            is_active: true,
        })
    }
}
