//! Frames over a ring: an opcode, an id and a payload, in order, of any size.
//!
//! A frame is two words and then its payload, filled up to a whole word:
//!
//! ```text
//!   word 0   low half: length of the payload in bytes   high half: opcode
//!   word 1   id
//!   word 2…  payload
//! ```
//!
//! A frame of up to half the ring is published whole. A larger one is published
//! in pieces, as much as there is room for each time; the reader puts it together
//! in private memory. So the ring bounds the shared memory, never the frame.
//!
//! Between two frames the ring may grow, which a frame without a payload says: [`GROW`]. It is the ring's own, and no
//! reader is given it.

use crate::crash;
use crate::ring::{Consumer, Producer, RingMemory, WORD, padded};
use crate::violation::Violation;
use crate::wait::flags;
use std::collections::VecDeque;

/// Bytes before the payload.
pub const HEADER: usize = 2 * WORD;

/// The opcode of a frame that says that from its end on more of the ring's memory is in use; its id says how much, in
/// bytes.
pub const GROW: u32 = 0x1FF;

/// How many times as much a ring uses when it grows.
const GROWTH_FACTOR: usize = 4;
/// How often there is no room after memory was refused before it is asked for again.
const REFUSED: u32 = 64;

/// The largest piece of a frame that is set aside before its bytes have come: a
/// peer that announces a huge frame and sends nothing costs us no more than this.
const FIRST_RESERVE: usize = 1 << 20;

/// What stands before a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame is, to the layer above.
    pub opcode: u32,
    /// Which call it belongs to, to the layer above.
    pub id: u64,
    /// Bytes of payload.
    pub len: usize,
}

/// A payload kept until there is room for it.
pub type Kept = Box<dyn AsRef<[u8]> + Send>;

struct Pending {
    opcode: u32,
    id: u64,
    payload: Kept,
    /// Bytes of header and payload that are published.
    done: usize,
    /// Whether anybody waits for it.
    awaited: bool,
}

/// The sending end: writes what fits, keeps the rest in order.
pub struct FrameWriter<M> {
    ring: Producer<M>,
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
pub struct Untaken {
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
    pub fn begin(&mut self, id: u64) -> bool {
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
            self.refused = REFUSED;
            return false;
        }
        crash::point!(RingGrows);
        self.ring.grow([u64::from(GROW) << 32, to as u64], to);
        crash::point!(RingGrown);
        true
    }

    /// Keeps a frame that [`FrameWriter::send`] had no room for; [`FrameWriter::flush`] sends it. `awaited`:
    /// whether anybody waits for it.
    pub fn keep(&mut self, opcode: u32, id: u64, payload: Kept, awaited: bool) {
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
    pub fn untaken(&mut self) -> Result<Untaken, Violation> {
        self.ring.room()?;
        Ok(Untaken {
            read: self.ring.read(),
            in_ring: self.ring.held(),
            frames: self.pending.len(),
            bytes: self.kept,
        })
    }

    /// Takes back the first frame that is kept of `id`, if it has one of the opcodes that `begins` knows and
    /// nothing of it is published: its opcode and its payload.
    pub fn take_back(&mut self, id: u64, begins: impl Fn(u32) -> bool) -> Option<(u32, Kept)> {
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
    pub fn take_back_all(&mut self, id: u64, belongs: impl Fn(u32) -> bool) -> Vec<(u32, Kept)> {
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
    pub fn must_wait(&mut self, how: u32) -> Result<bool, Violation> {
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

/// How far the next frame has come.
enum Next {
    /// Nothing of it was read.
    Unknown,
    /// All of it is in the ring; the header is our copy, and the one that counts.
    InRing(Header),
    /// It comes in pieces; these are the ones that came.
    InPieces(Header, Vec<u8>),
    /// It comes in pieces, for which there is no memory; the number of bytes that came and were dropped.
    Lost(Header, usize),
}

/// The receiving end: finds whole frames, puts those together that come in pieces.
pub struct FrameReader<M> {
    ring: Consumer<M>,
    max_frame: usize,
    next: Next,
    /// The highest id of a frame that was taken.
    reached: u64,
}

impl<M: RingMemory> FrameReader<M> {
    /// Frames of up to `max_frame` bytes of payload from `ring`.
    pub fn new(ring: Consumer<M>, max_frame: usize) -> Self {
        FrameReader {
            ring,
            max_frame,
            next: Next::Unknown,
            reached: 0,
        }
    }

    /// The highest id of a frame that was taken; 0 before the first.
    pub fn reached(&self) -> u64 {
        self.reached
    }

    /// The memory that the ring lies in.
    pub fn memory(&self) -> &M {
        self.ring.memory()
    }

    /// Whether at least half the ring is free, as far as is known: time to wake a waiting writer.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.ring.known() <= self.ring.used() / 2
    }

    /// Looks at what the writer has announced.
    #[inline]
    pub fn look(&mut self) -> Result<(), Violation> {
        self.ring.available().map(drop)
    }

    /// Whether all was taken that was there when we last looked.
    #[inline]
    pub fn is_at_end(&self) -> bool {
        self.ring.known() == 0
    }

    /// Bytes that have come of a frame in pieces: more than before means that it moves.
    #[inline]
    pub fn came(&self) -> usize {
        match &self.next {
            Next::InPieces(_, bytes) => bytes.len(),
            Next::Lost(_, came) => *came,
            _ => 0,
        }
    }

    /// The next frame if all of it has come. It stays until [`FrameReader::take`].
    ///
    /// The header is read once, into private memory, and checked there.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Header>, Violation> {
        match &mut self.next {
            Next::Unknown => self.find(),
            Next::InRing(header) => Ok(Some(*header)),
            Next::InPieces(header, bytes) => {
                let missing = header.len - bytes.len();
                let piece = self.ring.available()?.min(padded(missing));
                if piece > 0 {
                    let from = bytes.len();
                    let to = from + piece.min(missing);
                    if to > bytes.capacity() {
                        // Doubled, but never more than the frame says: the limit is one for memory too.
                        let capacity = (2 * bytes.capacity()).clamp(to, header.len);
                        if bytes.try_reserve_exact(capacity - from).is_err() {
                            self.next = Next::Lost(*header, from);
                            return self.peek();
                        }
                    }
                    bytes.resize(to, 0);
                    self.ring.get(0, &mut bytes[from..]);
                    crash::point!(PieceCopied);
                    self.ring.release(piece);
                    crash::point!(PieceTaken);
                }
                Ok((bytes.len() == header.len).then_some(*header))
            }
            Next::Lost(header, came) => {
                let missing = header.len - *came;
                let piece = self.ring.available()?.min(padded(missing));
                if piece > 0 {
                    *came += piece.min(missing);
                    self.ring.release(piece);
                }
                Ok((*came == header.len).then_some(*header))
            }
        }
    }

    #[inline]
    fn find(&mut self) -> Result<Option<Header>, Violation> {
        let mut known = self.ring.known();
        if known < HEADER {
            self.ring.fetch();
            known = self.ring.available()?;
            if known < HEADER {
                return Ok(None);
            }
        }
        let first = self.ring.get_word(0);
        if (first >> 32) as u32 == GROW {
            return self.grow(first);
        }
        let len = (first & u32::MAX as u64) as usize;
        if len > self.max_frame {
            return Err(Violation::Oversize {
                len: len as u64,
                max: self.max_frame as u64,
            });
        }
        let header = Header {
            opcode: (first >> 32) as u32,
            id: self.ring.get_word(WORD),
            len,
        };
        let need = HEADER + padded(len);
        if known >= need || self.ring.available()? >= need {
            self.next = Next::InRing(header);
            crash::point!(FrameFound);
            return Ok(Some(header));
        }
        self.ring.release(HEADER);
        crash::point!(PiecesBegun);
        let mut bytes = Vec::new();
        self.next = match bytes.try_reserve_exact(len.min(FIRST_RESERVE)) {
            Ok(()) => Next::InPieces(header, bytes),
            Err(_) => Next::Lost(header, 0),
        };
        self.peek()
    }

    /// Takes the frame that says that the ring has grown, and looks on. Each time it is larger, so that has an end.
    #[cold]
    fn grow(&mut self, first: u64) -> Result<Option<Header>, Violation> {
        let to = self.ring.get_word(WORD);
        let len = first & u32::MAX as u64;
        if len > 0 {
            return Err(Violation::Oversize { len, max: 0 });
        }
        self.ring.release(HEADER);
        self.ring.grow(to)?;
        self.find()
    }

    /// Whether the frame that [`FrameReader::peek`] found was dropped as it came, since there was no memory for it.
    #[inline]
    pub fn is_lost(&self) -> bool {
        matches!(self.next, Next::Lost(..))
    }

    /// Drops the frame that [`FrameReader::peek`] found, if it found one, and gives its room back.
    pub fn discard(&mut self) {
        match std::mem::replace(&mut self.next, Next::Unknown) {
            Next::InRing(header) => {
                self.reached = self.reached.max(header.id);
                self.ring.release(HEADER + padded(header.len));
            }
            Next::InPieces(header, _) | Next::Lost(header, _) => {
                self.reached = self.reached.max(header.id);
            }
            Next::Unknown => {}
        }
    }

    /// Copies the payload of the frame that [`FrameReader::peek`] found, and gives its room back.
    ///
    /// # Panics
    /// If no frame was found, it was dropped ([`FrameReader::is_lost`]), or `payload` is not of the length that its header has.
    #[inline]
    pub fn take(&mut self, payload: &mut [u8]) {
        match std::mem::replace(&mut self.next, Next::Unknown) {
            Next::InRing(header) => {
                assert_eq!(payload.len(), header.len, "as long as the header says");
                self.reached = self.reached.max(header.id);
                self.ring.get(HEADER, payload);
                crash::point!(FrameCopied);
                self.ring.release(HEADER + padded(header.len));
                crash::point!(FrameTaken);
            }
            Next::InPieces(header, bytes) => {
                assert_eq!(bytes.len(), header.len, "peek found a whole frame");
                self.reached = self.reached.max(header.id);
                payload.copy_from_slice(&bytes);
            }
            Next::Lost(..) => panic!("a frame that was dropped cannot be taken"),
            Next::Unknown => panic!("peek found no frame"),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ring::HeapMemory;
    use crate::sync::{AtomicU32, AtomicU64, Ordering};
    use std::sync::Arc;

    type Writer = FrameWriter<Arc<HeapMemory>>;
    type Reader = FrameReader<Arc<HeapMemory>>;

    fn pair(capacity: usize, max_frame: usize) -> (Writer, Reader) {
        let memory = Arc::new(HeapMemory::new(capacity));
        let writer = FrameWriter::new(Producer::new(memory.clone()));
        (writer, FrameReader::new(Consumer::new(memory), max_frame))
    }

    fn receive(reader: &mut Reader) -> Option<(u32, u64, Vec<u8>)> {
        let header = reader.peek().unwrap()?;
        let mut payload = vec![0; header.len];
        reader.take(&mut payload);
        Some((header.opcode, header.id, payload))
    }

    #[test]
    fn frames_keep_their_order_and_their_bytes_whatever_their_size() {
        let (mut writer, mut reader) = pair(256, 1 << 20);
        let sizes = [
            0, 1, 7, 8, 9, 100, 112, 113, 239, 240, 241, 256, 1000, 5, 70_000, 3,
        ];
        let frames: Vec<Vec<u8>> = sizes
            .iter()
            .map(|&n| (0..n).map(|i| (i * 31 + n) as u8).collect())
            .collect();
        for (id, payload) in frames.iter().enumerate() {
            if writer.backlog() > 0 || !writer.send(9, id as u64, payload).unwrap() {
                writer.keep(9, id as u64, Box::new(payload.clone()), true);
            }
        }
        let mut received = Vec::new();
        for _ in 0..10_000 {
            while let Some(frame) = receive(&mut reader) {
                received.push(frame);
            }
            writer.flush().unwrap();
        }
        assert_eq!(writer.backlog(), 0);
        assert_eq!(received.len(), frames.len());
        for (id, (got, want)) in received.iter().zip(&frames).enumerate() {
            assert_eq!((got.0, got.1, &got.2), (9, id as u64, want));
        }
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_before_memory_is_set_aside() {
        let (mut writer, mut reader) = pair(64, 16);
        assert!(writer.send(1, 1, &[0; 17]).unwrap());
        assert_eq!(reader.peek(), Err(Violation::Oversize { len: 17, max: 16 }));
    }

    #[test]
    fn a_frame_of_up_to_half_the_ring_is_never_cut() {
        let (mut writer, mut reader) = pair(128, 1000);
        assert!(writer.send(1, 1, &[1; 64]).unwrap());
        assert!(!writer.send(1, 2, &[2; 48]).unwrap());
        writer.keep(1, 2, Box::new(vec![2; 48]), true);
        assert!(!writer.flush().unwrap());
        assert!(writer.must_wait(flags::ON_BELL).unwrap());
        assert_eq!(receive(&mut reader), Some((1, 1, vec![1; 64])));
        assert!(!writer.must_wait(flags::ON_BELL).unwrap());
        assert!(writer.flush().unwrap());
        assert_eq!(receive(&mut reader), Some((1, 2, vec![2; 48])));
    }

    #[test]
    fn what_is_kept_is_counted_and_can_be_taken_back_until_its_first_byte_went() {
        let (mut writer, mut reader) = pair(128, 1000);
        assert!(writer.send(1, 1, &[1; 100]).unwrap());
        writer.keep(1, 2, Box::new(vec![2; 300]), true);
        writer.keep(1, 3, Box::new(vec![3; 40]), true);
        writer.keep(9, 4, Box::new(vec![4; 2]), true);
        writer.keep(1, 4, Box::new(vec![4; 1]), true);
        let kept = |writer: &mut Writer| {
            let untaken = writer.untaken().unwrap();
            (untaken.read, untaken.frames, untaken.bytes)
        };
        assert_eq!(kept(&mut writer), (0, 4, 343));
        assert_eq!(writer.untaken().unwrap().in_ring, 120);
        receive(&mut reader).unwrap();
        writer.flush().unwrap(); // A piece of the second frame went.
        assert_eq!(kept(&mut writer), (120, 4, 343));
        let begins = |opcode| opcode == 1;
        for id in [1, 2, 4, 5] {
            assert!(writer.take_back(id, begins).is_none(), "{id}");
        }
        let (opcode, payload) = writer.take_back(3, begins).unwrap();
        assert_eq!((opcode, (*payload).as_ref()), (1, &[3; 40][..]));
        assert_eq!(kept(&mut writer), (120, 3, 303));
        let mut ids = Vec::new();
        for _ in 0..100 {
            ids.extend(receive(&mut reader).map(|frame| frame.1));
            writer.flush().unwrap();
        }
        assert_eq!(ids, [2, 4, 4]);
        let untaken = writer.untaken().unwrap();
        assert_eq!((untaken.in_ring, untaken.frames, untaken.bytes), (0, 0, 0));
    }

    #[test]
    fn all_that_is_kept_of_an_id_can_be_taken_back_but_for_what_is_on_its_way() {
        let (mut writer, mut reader) = pair(128, 1000);
        assert!(writer.send(1, 1, &[1; 100]).unwrap());
        for (opcode, id, len) in [(1, 2, 300), (1, 3, 1), (1, 2, 5), (9, 2, 6), (7, 2, 7)] {
            writer.keep(
                opcode,
                id,
                Box::new(vec![id as u8; len]),
                id == 2 && opcode != 7,
            );
        }
        receive(&mut reader).unwrap();
        writer.flush().unwrap(); // A piece of the next frame went.
        assert!(writer.is_awaited());
        let unsent = writer.take_back_all(2, |opcode| opcode != 7);
        let unsent: Vec<_> = unsent
            .iter()
            .map(|(opcode, payload)| (*opcode, (**payload).as_ref().len()))
            .collect();
        assert_eq!(unsent, [(1, 5), (9, 6)]);
        assert_eq!((writer.backlog(), writer.kept()), (3, 308));
        assert!(!writer.is_awaited());
        let mut received = Vec::new();
        for _ in 0..100 {
            received.extend(
                receive(&mut reader).map(|(opcode, id, payload)| (opcode, id, payload.len())),
            );
            writer.flush().unwrap();
        }
        assert_eq!(received, [(1, 2, 300), (1, 3, 1), (7, 2, 7)]);
        assert_eq!((writer.backlog(), writer.kept()), (0, 0));
    }

    #[test]
    fn a_header_changed_after_it_was_read_changes_nothing() {
        let (mut writer, mut reader) = pair(128, 64);
        assert!(writer.send(1, 1, &[5; 16]).unwrap());
        let header = reader.peek().unwrap().unwrap();
        reader.memory().store_word(0, u64::MAX);
        assert_eq!(reader.peek().unwrap(), Some(header));
        assert_eq!(receive(&mut reader), Some((1, 1, vec![5; 16])));
    }

    #[test]
    fn what_was_reached_is_what_was_taken_and_not_what_is_there() {
        let (mut writer, mut reader) = pair(256, 64);
        for id in [3, 5, 4, 9] {
            assert!(writer.send(1, id, &[]).unwrap());
        }
        assert_eq!(reader.reached(), 0);
        for reached in [3, 5, 5] {
            receive(&mut reader).unwrap();
            assert_eq!(reader.reached(), reached);
        }
    }

    fn growing(first: usize, capacity: usize) -> (Arc<HeapMemory>, Writer, Reader) {
        let memory = Arc::new(HeapMemory::growing(first, capacity));
        let writer = FrameWriter::new(Producer::new(memory.clone()));
        let reader = FrameReader::new(Consumer::new(memory.clone()), 1 << 20);
        (memory, writer, reader)
    }

    #[test]
    fn a_ring_grows_when_there_is_no_room_and_loses_nothing() {
        for seed in 1..200u64 {
            let (_, mut writer, mut reader) = growing(64, 4096);
            let (mut dice, mut sent, mut got) = (seed, 0u64, 0u64);
            let payload =
                |id: u64| vec![id as u8; (id * seed * 7 % 61) as usize * (seed as usize % 9)];
            while got < 500 {
                dice = dice.wrapping_mul(6364136223846793005).wrapping_add(seed);
                if dice >> 61 < 4 && sent < 500 {
                    let body = payload(sent);
                    if !writer.send(1, sent, &body).unwrap() {
                        writer.keep(1, sent, Box::new(body), true);
                    }
                    sent += 1;
                } else if let Some(frame) = receive(&mut reader) {
                    assert_eq!(frame, (1, got, payload(got)));
                    got += 1;
                }
                writer.flush().unwrap();
            }
            assert!(writer.ring.used() > 64 && reader.ring.used() == writer.ring.used());
        }
    }

    #[test]
    fn a_ring_stays_small_as_long_as_there_is_room() {
        let (_, mut writer, mut reader) = growing(128, 4096);
        for id in 0..1000 {
            assert!(writer.send(1, id, &[3; 40]).unwrap());
            assert_eq!(receive(&mut reader), Some((1, id, vec![3; 40])));
        }
        assert_eq!((writer.ring.used(), reader.ring.used()), (128, 128));
    }

    #[test]
    fn what_is_unread_when_a_ring_grows_is_not_written_over() {
        let (_, mut writer, mut reader) = growing(128, 1024);
        assert!(writer.send(1, 0, &[1; 80]).unwrap());
        assert_eq!(receive(&mut reader), Some((1, 0, vec![1; 80])));
        // Across the end of what is in use, which lies across the ring's then.
        assert!(writer.send(1, 1, &[2; 96]).unwrap());
        let mut sent = 2;
        while writer.send(1, sent, &[sent as u8; 40]).unwrap() {
            sent += 1;
        }
        assert_eq!(writer.ring.used(), 1024);
        assert_eq!(receive(&mut reader), Some((1, 1, vec![2; 96])));
        for id in 2..sent {
            assert_eq!(receive(&mut reader), Some((1, id, vec![id as u8; 40])));
        }
        assert_eq!(reader.ring.used(), 1024);
        assert!(writer.send(1, sent, &[5; 500]).unwrap());
    }

    #[test]
    fn a_growth_that_cannot_be_is_refused() {
        for to in [0, 1, 64, 128, 192, 2048, u64::MAX, 1 << 63] {
            let (memory, mut writer, mut reader) = growing(128, 1024);
            assert!(writer.send(GROW, to, &[]).unwrap());
            let most = memory.capacity() as u64;
            let used = 128;
            assert_eq!(reader.peek(), Err(Violation::Growth { used, to, most }));
        }
        let (_, mut writer, mut reader) = growing(128, 1024);
        assert!(writer.send(GROW, 512, &[0]).unwrap());
        assert_eq!(reader.peek(), Err(Violation::Oversize { len: 1, max: 0 }));
    }

    /// A ring for which there is no more memory, until there is.
    struct Short {
        memory: HeapMemory,
        refuses: std::sync::atomic::AtomicBool,
        asked: std::sync::atomic::AtomicU32,
    }

    impl RingMemory for Short {
        fn capacity(&self) -> usize {
            self.memory.capacity()
        }
        fn first(&self) -> usize {
            self.memory.first()
        }
        fn set_aside(&self, _from: usize, _to: usize) -> bool {
            self.asked.fetch_add(1, Ordering::Relaxed);
            !self.refuses.load(Ordering::Relaxed)
        }
        fn load_word(&self, index: usize) -> u64 {
            self.memory.load_word(index)
        }
        fn store_word(&self, index: usize, value: u64) {
            self.memory.store_word(index, value);
        }
        fn tail(&self) -> &AtomicU64 {
            self.memory.tail()
        }
        fn head(&self) -> &AtomicU64 {
            self.memory.head()
        }
        fn reader_waits(&self) -> &AtomicU32 {
            self.memory.reader_waits()
        }
        fn writer_waits(&self) -> &AtomicU32 {
            self.memory.writer_waits()
        }
    }

    #[test]
    fn without_memory_to_grow_into_frames_go_in_pieces_and_it_is_asked_for_again() {
        let memory = Arc::new(Short {
            memory: HeapMemory::growing(128, 1024),
            refuses: true.into(),
            asked: 0.into(),
        });
        let mut writer = FrameWriter::new(Producer::new(memory.clone()));
        let mut reader = FrameReader::new(Consumer::new(memory.clone()), 1 << 20);
        for id in 0..300 {
            if id == 200 {
                memory.refuses.store(false, Ordering::Relaxed);
            }
            let sent = vec![id as u8; 400];
            if !writer.send(1, id, &sent).unwrap() {
                writer.keep(1, id, Box::new(sent.clone()), true);
            }
            let header = loop {
                if let Some(header) = reader.peek().unwrap() {
                    break header;
                }
                writer.flush().unwrap();
            };
            let mut payload = vec![0; header.len];
            reader.take(&mut payload);
            assert_eq!((header.id, payload), (id, sent));
        }
        assert_eq!(writer.ring.used(), 1024);
        assert!(memory.asked.load(Ordering::Relaxed) < 20);
    }
}
