//! The receiving end.

use super::header::{GROW, HEADER, Header};
use crate::crash;
use crate::ring::consumer::Consumer;
use crate::ring::memory::{RingMemory, WORD, padded};
use crate::violation::Violation;

/// The largest piece of a frame that is set aside before its bytes have come: a
/// peer that announces a huge frame and sends nothing costs us no more than this.
const FIRST_RESERVE: usize = 1 << 20;

/// How far the next frame has come.
enum NextFrame {
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
    pub(super) ring: Consumer<M>,
    max_frame: usize,
    next: NextFrame,
    /// The highest id of a frame that was taken.
    reached: u64,
}

impl<M: RingMemory> FrameReader<M> {
    /// Frames of up to `max_frame` bytes of payload from `ring`.
    pub fn new(ring: Consumer<M>, max_frame: usize) -> Self {
        FrameReader {
            ring,
            max_frame,
            next: NextFrame::Unknown,
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
    pub fn is_half_empty(&self) -> bool {
        self.ring.known() <= self.ring.used() / 2
    }

    /// Looks at what the writer has announced.
    #[inline]
    pub fn poll_tail(&mut self) -> Result<(), Violation> {
        self.ring.available().map(drop)
    }

    /// Whether all was taken that was there when we last looked.
    #[inline]
    pub fn is_at_end(&self) -> bool {
        self.ring.known() == 0
    }

    /// Bytes that have come of a frame in pieces: more than before means that it moves.
    #[inline]
    pub fn received_bytes(&self) -> usize {
        match &self.next {
            NextFrame::InPieces(_, bytes) => bytes.len(),
            NextFrame::Lost(_, came) => *came,
            _ => 0,
        }
    }

    /// The next frame if all of it has come. It stays until [`FrameReader::take`].
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
                        // Doubled, but never more than the frame says: the limit is one for memory too.
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
        self.parse_header()
    }

    /// Whether the frame that [`FrameReader::peek`] found was dropped as it came, since there was no memory for it.
    #[inline]
    pub fn is_lost(&self) -> bool {
        matches!(self.next, NextFrame::Lost(..))
    }

    /// Drops the frame that [`FrameReader::peek`] found, if it found one, and gives its room back.
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

    /// Copies the payload of the frame that [`FrameReader::peek`] found, and gives its room back.
    ///
    /// # Panics
    /// If no frame was found, it was dropped ([`FrameReader::is_lost`]), or `payload` is not of the length that its header has.
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
