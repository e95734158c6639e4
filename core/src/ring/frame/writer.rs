//! The sending end.

use super::header::{GROW, HEADER};
use crate::crash;
use crate::ring::memory::{RingMemory, WORD, padded};
use crate::ring::producer::Producer;
use crate::violation::Violation;
use crate::wait::flags;
use std::collections::VecDeque;

/// How many times as much a ring uses when it grows.
const GROWTH_FACTOR: usize = 4;

/// How often there is no room after memory was refused before it is asked for again.
const RETRY_AFTER: u32 = 64;

/// A payload kept until there is room for it.
pub type KeptPayload = Box<dyn AsRef<[u8]> + Send>;

struct Pending {
    opcode: u32,
    id: u64,
    payload: KeptPayload,
    /// Bytes of header and payload that are published.
    done: usize,
    /// Whether anybody waits for it.
    awaited: bool,
}

/// The sending end: writes what fits, keeps the rest in order.
pub struct FrameWriter<M> {
    pub(super) ring: Producer<M>,
    pending: VecDeque<Pending>,
    /// Bytes of the payloads in `pending`.
    kept: usize,
    /// The highest id with which a call was begun.
    begun: u64,
    /// How often there is to be no room before memory is asked for again, since it was refused.
    refused: u32,
}

/// What the reader has not taken yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread {
    /// Bytes that it has read so far.
    pub read: u64,
    /// Bytes in the ring that it has not read.
    pub in_ring: usize,
    /// Frames that are kept until there is room, the one in pieces included.
    pub frames: usize,
    /// Bytes of their payloads.
    pub bytes: usize,
}

impl<M: RingMemory> FrameWriter<M> {
    /// Frames into `ring`.
    pub fn new(ring: Producer<M>) -> Self {
        FrameWriter {
            ring,
            pending: VecDeque::new(),
            kept: 0,
            begun: 0,
            refused: 0,
        }
    }

    /// The memory that the ring lies in.
    pub fn memory(&self) -> &M {
        self.ring.memory()
    }

    /// Frames that wait for room, the one in pieces included.
    #[inline]
    pub fn backlog(&self) -> usize {
        self.pending.len()
    }

    /// Bytes of payload of the frames that wait for room, the whole of the one in pieces included.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// Notes that the next frame begins the call `id`. False, and nothing is noted, if one with a higher id was begun
    /// before.
    pub fn begin_call(&mut self, id: u64) -> bool {
        let in_order = id >= self.begun;
        if in_order {
            self.begun = id;
        }
        in_order
    }

    /// Publishes a frame if there is room for all of it and nothing waits before it.
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

    /// Lets the ring use more of its memory, since there is no room for a frame of `need` bytes. False if it uses all, or
    /// there is none to be had. No frame may be under way in pieces.
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
        if !self.ring.set_aside(to) {
            self.refused = RETRY_AFTER;
            return false;
        }
        crash::point!(RingGrows);
        self.ring.grow([u64::from(GROW) << 32, to as u64], to);
        crash::point!(RingGrown);
        true
    }

    /// Keeps a frame that [`FrameWriter::send`] had no room for; [`FrameWriter::flush`] sends it. `awaited`:
    /// whether anybody waits for it.
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

    /// What the reader has not taken yet. Looks at what it announced.
    pub fn unread(&mut self) -> Result<Unread, Violation> {
        self.ring.room()?;
        Ok(Unread {
            read: self.ring.read(),
            in_ring: self.ring.unread(),
            frames: self.pending.len(),
            bytes: self.kept,
        })
    }

    /// Takes back the first frame that is kept of `id`, if it has one of the opcodes that `begins` knows and
    /// nothing of it is published: its opcode and its payload.
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

    /// Whether anybody waits for a frame that is kept.
    pub fn is_awaited(&self) -> bool {
        self.pending.iter().any(|frame| frame.awaited)
    }

    /// Nobody waits for `id` any more. Takes back all frames that are kept of it, have an opcode that `belongs`
    /// knows, and of which nothing is published: their opcodes and payloads.
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

    /// Publishes as much as there is room for. True if anything was published.
    pub fn flush(&mut self) -> Result<bool, Violation> {
        let mut published = false;
        while let Some(mut frame) = self.pending.pop_front() {
            let mut room = self.ring.room()?;
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

    /// Says how we sleep for room, and looks again: true if there is still none worth writing into.
    pub fn announce_wait(&mut self, how: u32) -> Result<bool, Violation> {
        flags::announce(self.ring.memory().writer_waits(), how);
        let half = self.ring.used() / 2;
        if self.ring.room()? >= half {
            flags::withdraw(self.ring.memory().writer_waits());
            return Ok(false);
        }
        Ok(true)
    }

    #[inline]
    fn put_header(&mut self, opcode: u32, id: u64, len: usize) {
        self.ring.put_word(0, len as u64 | (opcode as u64) << 32);
        self.ring.put_word(WORD, id);
    }
}
