//! The receiving end of a channel.

use crate::connection::loans::Loans;
use crate::connection::parcel::{RELEASE, RELEASE_SIZE};
use crate::connection::segment::MappedRing;
use crate::crash;
use crate::ring::RingMemory;
use crate::ring::frame::{FrameReader, Header};
use crate::violation::Violation;
use crate::wait::cpu_contention::CpuContention;
use crate::wait::spin::SpinBudget;
use std::sync::Arc;

/// The receiving end, with the measurements that decide how long it spins.
pub struct Receiver {
    pub(super) loans: Arc<Loans>,
    pub(super) reader: FrameReader<MappedRing>,
    pub(super) spin: SpinBudget,
    pub(super) contention: CpuContention,
    /// Time at which this side last sent or received a frame, in nanoseconds.
    pub(super) since: u64,
    /// Time at which this side last received a frame, if it has not sent since, in nanoseconds.
    pub(super) working_since: Option<u64>,
    /// Time at which this side last announced a sleep, in nanoseconds.
    pub(super) parked_at: u64,
    /// True if the peer had to be woken for the last sent frame.
    pub(super) woke_peer: bool,
    /// Violation by a RELEASE. Its frame is already taken, unless the length is wrong or the frame was lost.
    pub(super) broken: Option<Violation>,
}

impl Receiver {
    /// Peek at the next frame (see [`FrameReader::peek`]), and process the releases before it. Never waits. A violation
    /// by a release is returned by each later call, too.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Header>, Violation> {
        if let Some(violation) = self.broken {
            return Err(violation);
        }
        loop {
            match self.reader.peek()? {
                Some(header) if header.opcode == RELEASE => {
                    self.take_release(header)
                        .inspect_err(|&violation| self.broken = Some(violation))?;
                }
                found => return Ok(found),
            }
        }
    }

    /// Take the RELEASE frame that was found, and end the loan that it names. Fails if its length is wrong, if it was
    /// dropped for lack of memory, if the peer has no such loan, or if the memory was truncated. In the first two cases
    /// the frame is not taken.
    fn take_release(&mut self, header: Header) -> Result<(), Violation> {
        let mut payload = [0; RELEASE_SIZE];
        if header.len != RELEASE_SIZE {
            let (len, expected) = (header.len, RELEASE_SIZE);
            return Err(Violation::Release { len, expected });
        }
        if self.is_lost() {
            return Err(Violation::NoMemory { len: header.len });
        }
        self.take(&mut payload)?;
        crash::point!(ReleaseRead);
        self.loans.release(&payload)
    }

    /// See [`FrameReader::received_bytes`].
    #[inline]
    pub fn received_bytes(&self) -> usize {
        self.reader.received_bytes()
    }

    /// See [`FrameReader::is_at_end`].
    pub fn is_at_end(&self) -> bool {
        self.reader.is_at_end()
    }

    /// See [`FrameReader::reached`].
    pub fn reached(&self) -> u64 {
        self.reader.reached()
    }

    /// See [`FrameReader::is_lost`].
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.reader.is_lost()
    }

    /// See [`FrameReader::discard`].
    pub fn discard(&mut self) {
        self.reader.discard();
    }

    /// Take the payload of the frame that `peek` found (see [`FrameReader::take`], also for its panics). Fails if the
    /// memory was truncated: the payload may then be zeros.
    #[inline]
    pub fn take(&mut self, payload: &mut [u8]) -> Result<(), Violation> {
        self.reader.take(payload);
        if self.reader.memory().is_truncated() {
            return Err(Violation::Truncated);
        }
        Ok(())
    }
}
