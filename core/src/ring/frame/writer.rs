//! The sending end: frames into a ring, and a queue of those that find no room.

use super::header::{GROW, HEADER};
use crate::crash;
use crate::ring::memory::{RingMemory, WORD, padded};
use crate::ring::producer::Producer;
use crate::violation::Violation;
use crate::wait::flags;
use std::collections::VecDeque;

/// Factor by which a ring grows.
const GROWTH_FACTOR: usize = 4;

/// Number of times without room after which memory is requested again, after it was refused.
const RETRY_AFTER: u32 = 64;

/// A payload that is kept until there is room for it.
pub type KeptPayload = Box<dyn AsRef<[u8]> + Send>;

/// A frame that waits for room.
struct Pending {
    opcode: u32,
    id: u64,
    payload: KeptPayload,
    /// Bytes of header and payload that are published.
    done: usize,
    /// True if a caller waits for the frame.
    awaited: bool,
}

/// The sending end: writes frames that fit, and keeps the rest in order. It never waits, and wakes no reader. After a
/// violation it must not be used.
pub struct FrameWriter<M> {
    pub(super) ring: Producer<M>,
    pending: VecDeque<Pending>,
    /// Bytes of the payloads in `pending`.
    kept: usize,
    /// Highest id of a call that was begun.
    begun: u64,
    /// Number of times without room before memory is requested again.
    refused: u32,
}

/// The frames that the reader has not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread {
    /// Bytes that the reader has read.
    pub read: u64,
    /// Unread bytes in the ring.
    pub in_ring: usize,
    /// Number of frames that wait for room, including the one in pieces.
    pub frames: usize,
    /// Bytes of their payloads.
    pub bytes: usize,
}

impl<M: RingMemory> FrameWriter<M> {
    /// Create a writer of frames into `ring`.
    pub fn new(ring: Producer<M>) -> Self {
        FrameWriter {
            ring,
            pending: VecDeque::new(),
            kept: 0,
            begun: 0,
            refused: 0,
        }
    }

    /// Return the memory of the ring.
    pub fn memory(&self) -> &M {
        self.ring.memory()
    }

    /// Return the number of frames that wait for room, including the one in pieces.
    #[inline]
    pub fn backlog(&self) -> usize {
        self.pending.len()
    }

    /// Return the bytes of payload of the frames that wait for room, including all of the one in pieces.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// Record that the next frame begins the call `id`. Return false, and record nothing, if a call with a higher id
    /// was begun before.
    pub fn begin_call(&mut self, id: u64) -> bool {
        let in_order = id >= self.begun;
        if in_order {
            self.begun = id;
        }
        in_order
    }

    /// Publish a frame if there is room for all of it and no frame waits before it; the ring may grow for it. Return
    /// true if it was published: the caller then wakes the reader. Return false if not: the caller may
    /// [`keep`](Self::keep) it. Fails if the reader's index is impossible or the memory was truncated. The length of
    /// the payload is limited by the reader, not here.
    #[inline]
    pub fn send(&mut self, opcode: u32, id: u64, payload: &[u8]) -> Result<bool, Violation> {
        let need = HEADER + padded(payload.len());
        if !self.pending.is_empty() {
            return Ok(false);
        }
        if need > self.ring.known_room()
            && need > self.ring.room()?
            && !(self.grow(need) && need <= self.ring.known_room())
        {
            return Ok(false);
        }
        crash::point!(FrameBegun);
        self.put_header(opcode, id, payload.len());
        crash::point!(FrameHeaded);
        self.ring.put(HEADER, payload);
        crash::point!(FrameWritten);
        self.ring.publish(need);
        crash::point!(FramePublished);
        Ok(true)
    }

    /// Grow the ring because there is no room for a frame of `need` bytes. Return false if it uses all its memory, or
    /// none is available; memory that was refused is requested again only after some calls. No frame may be partly
    /// published.
    #[cold]
    fn grow(&mut self, need: usize) -> bool {
        let (used, most) = (self.ring.used(), self.ring.memory().capacity());
        if used == most {
            return false;
        }
        if self.refused > 0 {
            self.refused -= 1;
            return false;
        }
        let whole = need.saturating_mul(2).min(most).next_power_of_two();
        let to = (used * GROWTH_FACTOR).max(whole).min(most);
        if !self.ring.populate(to) {
            self.refused = RETRY_AFTER;
            return false;
        }
        crash::point!(RingGrows);
        self.ring.grow([u64::from(GROW) << 32, to as u64], to);
        crash::point!(RingGrown);
        true
    }

    /// Keep a frame for which [`FrameWriter::send`] had no room; [`FrameWriter::flush`] sends it after those that were
    /// kept before. `awaited` is true if a caller waits for it. The number of kept bytes is not limited here.
    pub fn keep(&mut self, opcode: u32, id: u64, payload: KeptPayload, awaited: bool) {
        self.kept += (*payload).as_ref().len();
        self.pending.push_back(Pending {
            opcode,
            id,
            payload,
            done: 0,
            awaited,
        });
        crash::point!(FrameKept);
    }

    /// Count the frames and bytes that the reader has not taken, after a load of the head. Fails as
    /// [`send`](Self::send) does.
    pub fn unread(&mut self) -> Result<Unread, Violation> {
        self.ring.room()?;
        Ok(Unread {
            read: self.ring.read(),
            in_ring: self.ring.unread(),
            frames: self.pending.len(),
            bytes: self.kept,
        })
    }

    /// Remove the first pending frame of `id` if `begins` is true for its opcode and nothing of it is published. Return
    /// its opcode and payload, whose loans the caller ends; None if nothing was removed.
    pub fn cancel_pending(
        &mut self,
        id: u64,
        begins: impl Fn(u32) -> bool,
    ) -> Option<(u32, KeptPayload)> {
        let index = self.pending.iter().position(|frame| frame.id == id)?;
        let frame = &self.pending[index];
        if frame.done > 0 || !begins(frame.opcode) {
            return None;
        }
        let frame = self.pending.remove(index)?;
        self.kept -= (*frame.payload).as_ref().len();
        Some((frame.opcode, frame.payload))
    }

    /// Return true if a caller waits for a pending frame.
    pub fn is_awaited(&self) -> bool {
        self.pending.iter().any(|frame| frame.awaited)
    }

    /// Remove all pending frames of `id` for whose opcodes `belongs` is true and of which nothing is published, because
    /// no caller waits for them. One that is partly published stays, and counts as not awaited. Return the opcodes and
    /// payloads of the removed ones, whose loans the caller ends.
    pub fn cancel_all_pending(
        &mut self,
        id: u64,
        belongs: impl Fn(u32) -> bool,
    ) -> Vec<(u32, KeptPayload)> {
        let mut unsent = Vec::new();
        for mut frame in std::mem::take(&mut self.pending) {
            let dropped = frame.id == id && belongs(frame.opcode);
            if dropped && frame.done == 0 {
                self.kept -= (*frame.payload).as_ref().len();
                unsent.push((frame.opcode, frame.payload));
            } else {
                frame.awaited &= !dropped;
                self.pending.push_back(frame);
            }
        }
        unsent
    }

    /// Publish as much of the pending frames as there is room for; a frame of more than half the ring goes in pieces.
    /// Return true if anything was published: the caller then wakes the reader. Fails as [`send`](Self::send) does; the
    /// frames that are not published stay pending.
    pub fn flush(&mut self) -> Result<bool, Violation> {
        let mut published = false;
        while !self.pending.is_empty() {
            // Before the frame is removed: after a violation it stays, and the caller can still end its loans.
            let mut room = self.ring.room()?;
            let mut frame = self.pending.pop_front().expect("it is not empty");
            let payload = (*frame.payload).as_ref();
            let need = HEADER + padded(payload.len());
            if room < need && frame.done == 0 && self.grow(need) {
                room = self.ring.known_room();
            }
            let whole = need <= self.ring.used() / 2;
            let piece = (need - frame.done).min(room);
            if piece == 0 || (whole && piece < need) || (frame.done == 0 && piece < HEADER) {
                self.pending.push_front(frame);
                break;
            }
            let mut offset = 0;
            if frame.done == 0 {
                let len = payload.len();
                self.put_header(frame.opcode, frame.id, len);
                offset = HEADER;
            }
            let payload = (*frame.payload).as_ref();
            let from = frame.done + offset - HEADER;
            let to = (frame.done + piece - HEADER).min(payload.len());
            self.ring.put(offset, &payload[from..to]);
            crash::point!(PieceWritten);
            self.ring.publish(piece);
            crash::point!(PiecePublished);
            published = true;
            frame.done += piece;
            if frame.done < need {
                self.pending.push_front(frame);
            } else {
                self.kept -= (*frame.payload).as_ref().len();
            }
        }
        Ok(published)
    }

    /// Announce a sleep for room in the way `how`, a value of [`flags`], and check again. Return true if less than half
    /// of the ring is free: the caller may sleep. Else withdraw the announcement. Fails as [`send`](Self::send) does,
    /// with the announcement in place.
    pub fn announce_wait(&mut self, how: u32) -> Result<bool, Violation> {
        flags::announce(self.ring.memory().writer_waits(), how);
        let half = self.ring.used() / 2;
        if self.ring.room()? >= half {
            flags::withdraw(self.ring.memory().writer_waits());
            return Ok(false);
        }
        Ok(true)
    }

    /// Write the header of a frame at the tail, without publishing it.
    #[inline]
    fn put_header(&mut self, opcode: u32, id: u64, len: usize) {
        self.ring.put_word(0, len as u64 | (opcode as u64) << 32);
        self.ring.put_word(WORD, id);
    }
}
