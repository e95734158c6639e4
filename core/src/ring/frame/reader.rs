//! The receiving end: whole frames, in order.

use super::header::{GROW, HEADER, Header};
use crate::crash;
use crate::ring::consumer::Consumer;
use crate::ring::memory::{RingMemory, WORD, padded};
use crate::violation::Violation;

/// Maximum allocation for a frame before its bytes have come, in bytes: a peer that announces a huge frame and sends
/// nothing costs no more than this.
const FIRST_RESERVE: usize = 1 << 20;

/// The progress of the next frame.
enum NextFrame {
    /// Nothing of it was read.
    Unknown,
    /// The whole frame is in the ring; this private copy of the header is the one that counts.
    InRing(Header),
    /// The frame comes in pieces; these bytes have come.
    InPieces(Header, Vec<u8>),
    /// The frame comes in pieces and there is no memory for it; this many bytes have come and were dropped.
    Lost(Header, usize),
}

/// The receiving end: finds whole frames, and assembles those that come in pieces. It never waits, and wakes no writer.
/// After a violation it must not be used.
pub struct FrameReader<M> {
    pub(super) ring: Consumer<M>,
    max_frame: usize,
    next: NextFrame,
    /// Highest id of a frame that was taken.
    reached: u64,
}

impl<M: RingMemory> FrameReader<M> {
    /// Create a reader of frames with up to `max_frame` bytes of payload.
    pub fn new(ring: Consumer<M>, max_frame: usize) -> Self {
        FrameReader {
            ring,
            max_frame,
            next: NextFrame::Unknown,
            reached: 0,
        }
    }

    /// Return the highest id of a frame that was taken or discarded; 0 before the first.
    pub fn reached(&self) -> u64 {
        self.reached
    }

    /// Return the memory of the ring.
    pub fn memory(&self) -> &M {
        self.ring.memory()
    }

    /// Return true if at least half the ring is free, as far as is known: the caller then wakes a waiting writer.
    #[inline]
    pub fn is_half_empty(&self) -> bool {
        self.ring.known() <= self.ring.used() / 2
    }

    /// Load the tail that the writer has announced. Fails with a violation if it is impossible, or the memory was
    /// truncated.
    #[inline]
    pub fn poll_tail(&mut self) -> Result<(), Violation> {
        self.ring.available().map(drop)
    }

    /// Return true if no byte is left in the ring that was there at the last load of the tail. A frame in pieces may
    /// still be incomplete, or complete and not taken.
    #[inline]
    pub fn is_at_end(&self) -> bool {
        self.ring.known() == 0
    }

    /// Return the number of received bytes of payload of a frame in pieces, 0 for any other; an increase shows that the
    /// frame is still coming.
    #[inline]
    pub fn received_bytes(&self) -> usize {
        match &self.next {
            NextFrame::InPieces(_, bytes) => bytes.len(),
            NextFrame::Lost(_, came) => *came,
            _ => 0,
        }
    }

    /// Return the header of the next frame if the whole frame has come, and else None. The frame stays until
    /// [`FrameReader::take`] or [`FrameReader::discard`]; if [`FrameReader::is_lost`] is true, it can only be
    /// discarded. Fails if the frame or its growth of the ring is over the limit, if the writer's index is impossible,
    /// or if the memory was truncated.
    ///
    /// The header is read once, into private memory, and checked there.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Header>, Violation> {
        match &mut self.next {
            NextFrame::Unknown => self.parse_header(),
            NextFrame::InRing(header) => Ok(Some(*header)),
            NextFrame::InPieces(header, bytes) => {
                let missing = header.len - bytes.len();
                let piece = self.ring.available()?.min(padded(missing));
                if piece > 0 {
                    let from = bytes.len();
                    let to = from + piece.min(missing);
                    if to > bytes.capacity() {
                        // Doubled, but never beyond the length of the frame: its limit bounds the memory too.
                        let capacity = (2 * bytes.capacity()).clamp(to, header.len);
                        if bytes.try_reserve_exact(capacity - from).is_err() {
                            self.next = NextFrame::Lost(*header, from);
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
            NextFrame::Lost(header, came) => {
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

    /// Read the header of the next frame, if it has come, and store how the frame comes. A frame that does not fit in
    /// the ring is read in pieces from now on, and a growth of the ring is applied. Return and fail as
    /// [`peek`](Self::peek) does.
    #[inline]
    fn parse_header(&mut self) -> Result<Option<Header>, Violation> {
        let mut known = self.ring.known();
        if known < HEADER {
            self.ring.prefetch();
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
            self.next = NextFrame::InRing(header);
            crash::point!(FrameFound);
            return Ok(Some(header));
        }
        self.ring.release(HEADER);
        crash::point!(PiecesBegun);
        let mut bytes = Vec::new();
        self.next = match bytes.try_reserve_exact(len.min(FIRST_RESERVE)) {
            Ok(()) => NextFrame::InPieces(header, bytes),
            Err(_) => NextFrame::Lost(header, 0),
        };
        self.peek()
    }

    /// Apply the frame that announces a growth, whose first word is `first`, and continue with the next one. Fails if
    /// it has a payload or an impossible size. The ring grows each time, so the recursion ends.
    #[cold]
    fn grow(&mut self, first: u64) -> Result<Option<Header>, Violation> {
        let to = self.ring.get_word(WORD);
        let len = first & u32::MAX as u64;
        if len > 0 {
            return Err(Violation::Oversize { len, max: 0 });
        }
        self.ring.release(HEADER);
        self.ring.grow(to)?;
        self.parse_header()
    }

    /// Return true if the payload of the frame that [`FrameReader::peek`] found was dropped for lack of memory.
    #[inline]
    pub fn is_lost(&self) -> bool {
        matches!(self.next, NextFrame::Lost(..))
    }

    /// Drop the frame that [`FrameReader::peek`] found, whole and if any, and free its room.
    pub fn discard(&mut self) {
        match std::mem::replace(&mut self.next, NextFrame::Unknown) {
            NextFrame::InRing(header) => {
                self.reached = self.reached.max(header.id);
                self.ring.release(HEADER + padded(header.len));
            }
            NextFrame::InPieces(header, _) | NextFrame::Lost(header, _) => {
                self.reached = self.reached.max(header.id);
            }
            NextFrame::Unknown => {}
        }
    }

    /// Copy the payload of the frame that [`FrameReader::peek`] found, and free its room.
    ///
    /// # Panics
    /// If no frame was found, the frame was dropped ([`FrameReader::is_lost`]), or `payload` does not have the
    /// length of the frame.
    #[inline]
    pub fn take(&mut self, payload: &mut [u8]) {
        match std::mem::replace(&mut self.next, NextFrame::Unknown) {
            NextFrame::InRing(header) => {
                assert_eq!(payload.len(), header.len, "as long as the header says");
                self.reached = self.reached.max(header.id);
                self.ring.get(HEADER, payload);
                crash::point!(FrameCopied);
                self.ring.release(HEADER + padded(header.len));
                crash::point!(FrameTaken);
            }
            NextFrame::InPieces(header, bytes) => {
                assert_eq!(bytes.len(), header.len, "peek found a whole frame");
                self.reached = self.reached.max(header.id);
                payload.copy_from_slice(&bytes);
            }
            NextFrame::Lost(..) => panic!("a frame that was dropped cannot be taken"),
            NextFrame::Unknown => panic!("peek found no frame"),
        }
    }
}
