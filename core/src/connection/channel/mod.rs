//! A channel: one side of a connection, with a ring to write, a ring to read, and the wakers.
//!
//! Many threads may use a channel: one at a time sends, one at a time receives, and neither blocks the other for longer
//! than a copy.

mod backlog;
mod parcels;
mod receiver;
mod release_sender;
mod sending;
mod sleep_mode;
mod waiting;

pub use receiver::Receiver;
pub use sending::{FrameRole, SendError, SendOutcome};
pub use sleep_mode::SleepMode;

use crate::clock;
use crate::connection::loans::Loans;
use crate::connection::segment::{Direction, MappedRing, Segment};
use crate::crash;
use crate::ring::frame::{FrameReader, FrameWriter, HEADER, KeptPayload};
use crate::ring::{Consumer, Producer, RingMemory};
use crate::sync::lock;
use crate::violation::Violation;
use crate::wait::cpu_contention::CpuContention;
use crate::wait::flags;
use crate::wait::shutdown_flag::ShutdownFlag;
use crate::wait::spin::SpinBudget;
use crate::wait::waker::Wakers;
use sending::BEHIND_BYTES;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

/// Maximum time for which a wait blocks an event loop, in nanoseconds.
pub const SLICE: u64 = 300_000;
/// Number of polls of the ring between two readings of the clock, in a spinning wait.
pub(crate) const POLLS_PER_CLOCK: u32 = 32;

/// One side of a connection. A method fails with a [`Violation`] if an index or a frame of the peer is impossible, or
/// if the memory was truncated; the owner then closes the channel.
pub struct Channel {
    writer: Mutex<FrameWriter<MappedRing>>,
    receiver: Mutex<Receiver>,
    /// True if frames are queued. Only a hint.
    stalled: AtomicBool,
    shutdown: ShutdownFlag,
    /// Violation of the peer that a sender has found, for the receiving thread.
    fault: OnceLock<Violation>,
    max_frame: usize,
    /// Maximum bytes of payload in the queue.
    max_kept: u64,
    wakers: Wakers,
    segment: Arc<Segment>,
    sleep: SleepMode,
    loans: Arc<Loans>,
    is_client: bool,
    /// Number of ended loans at the end of the last wait for memory without success.
    missed_returned: AtomicU64,
    /// Time of the last sign of life of the peer, in nanoseconds. Only a hint.
    last_heard: AtomicU64,
    /// CPU on which this side sends, as the peer knows it.
    cpu: AtomicU32,
}

/// A payload of up to this many bytes is queued even over the limit, because it belongs to a running call.
const TINY: usize = 64;

/// Maximum size of a body in the ring, in bytes. A larger one goes by reference, because a frame of more than half the
/// ring would go in pieces.
pub const LARGE_BODY: usize = (32 << 10) - HEADER;

impl Channel {
    /// Create the side of `segment` that writes in `direction`.
    ///
    /// `spin` is the maximum time for which a wait spins, in nanoseconds; `max_frame` the largest payload accepted, in
    /// bytes; `updates` the socket for extent updates; `max_memory` the maximum size of either side's memory, in bytes,
    /// and of the payloads that are queued. At least one frame of the maximum size can be queued behind those of a peer
    /// that is not yet behind, so that a peer whose call was taken is not disconnected because of the size of its
    /// reply.
    #[allow(clippy::too_many_arguments)] // In one place.
    pub fn new(
        segment: Arc<Segment>,
        direction: Direction,
        wakers: Wakers,
        sleep: SleepMode,
        max_frame: usize,
        spin: u64,
        updates: OwnedFd,
        max_memory: u64,
    ) -> Arc<Self> {
        let back = match direction {
            Direction::ClientToServer => Direction::ServerToClient,
            Direction::ServerToClient => Direction::ClientToServer,
        };
        let writer = FrameWriter::new(Producer::new(MappedRing::new(segment.clone(), direction)));
        let reader = FrameReader::new(
            Consumer::new(MappedRing::new(segment.clone(), back)),
            max_frame,
        );
        Arc::new_cyclic(|channel: &Weak<Channel>| {
            let loans = Loans::new(channel.clone(), updates, max_memory);
            Channel {
                writer: Mutex::new(writer),
                receiver: Mutex::new(Receiver {
                    loans: loans.clone(),
                    reader,
                    spin: SpinBudget::new(spin),
                    contention: CpuContention::default(),
                    since: clock::now(),
                    working_since: None,
                    parked_at: 0,
                    woke_peer: false,
                    broken: None,
                }),
                stalled: AtomicBool::new(false),
                shutdown: ShutdownFlag::new(),
                fault: OnceLock::new(),
                max_frame,
                max_kept: max_memory.max((max_frame + BEHIND_BYTES) as u64),
                wakers,
                segment,
                sleep,
                loans,
                is_client: direction == Direction::ClientToServer,
                missed_returned: AtomicU64::new(u64::MAX),
                last_heard: AtomicU64::new(0),
                cpu: AtomicU32::new(0),
            }
        })
    }

    /// Return the loans of the connection.
    pub fn loans(&self) -> &Arc<Loans> {
        &self.loans
    }

    /// Return the maximum size of a payload, in bytes.
    pub fn max_frame(&self) -> usize {
        self.max_frame
    }

    /// Drain the socket of the event loop's wake-ups, at most a few. Return false if the peer has closed its end.
    pub fn drain_wakeups(&self) -> bool {
        self.wakers.loop_waker.drain()
    }

    /// Send a frame that does not begin a call, as [`publish`](Self::publish) does, with the same errors.
    #[inline]
    pub fn send(
        &self,
        opcode: u32,
        id: u64,
        payload: &[u8],
        keep: impl FnOnce() -> KeptPayload,
    ) -> Result<SendOutcome, SendError> {
        self.publish(opcode, id, payload, keep, FrameRole::Other)
    }

    /// Send a frame, or queue it if there is no room now: `keep` then creates a payload that outlives the call. Wakes a
    /// peer that sleeps, and never waits for it. Fails with `Closed`, with `Oversize` if the payload is too large, with
    /// `Backlog` if too many bytes are queued, or with `Violation`; the loans in the payload then stay the caller's. A
    /// peer that has left is no error here: see [`check_peer`](Self::check_peer).
    ///
    /// A server that stops reports the one-way calls that it has taken by their highest id. So calls must begin in the
    /// order of their ids: one that comes too late fails with [`SendError::Overtaken`]. Threads draw their ids before
    /// they come here, and may overtake each other; an event loop draws an id and sends without interruption.
    #[inline]
    pub fn publish(
        &self,
        opcode: u32,
        id: u64,
        payload: &[u8],
        keep: impl FnOnce() -> KeptPayload,
        role: FrameRole,
    ) -> Result<SendOutcome, SendError> {
        if self.shutdown.is_closed() {
            return Err(SendError::Closed);
        }
        if payload.len() > self.max_frame {
            return Err(self.oversize(payload.len()));
        }
        let mut writer = lock(&self.writer);
        if role == FrameRole::Begin && self.sleep == SleepMode::Thread && !writer.begin_call(id) {
            return Err(SendError::Overtaken);
        }
        let sent = self.note_fault(writer.send(opcode, id, payload))?;
        if !sent {
            let (kept, len, max) = (writer.kept(), payload.len(), self.max_kept);
            // A single frame may have the maximum size, and tiny ones never add up to much.
            if kept > 0 && len > TINY && (kept + len) as u64 > max {
                return Err(SendError::Backlog { kept, len, max });
            }
            self.keep_frame(&mut writer, opcode, id, keep())?;
            return Ok(SendOutcome::Queued);
        }
        self.publish_cpu();
        let waits = writer.memory().reader_waits();
        let how = match role {
            FrameRole::StreamItem => flags::take_wake_token_for_item(waits),
            _ => flags::take_wake_token(waits),
        };
        match how {
            flags::AWAKE => Ok(SendOutcome::PeerAwake),
            how => {
                self.wake_peer(how);
                Ok(SendOutcome::PeerWoken)
            }
        }
    }

    /// Wake the peer in the way `how` that its flag named, and store the time. Does nothing for `AWAKE`.
    fn wake_peer(&self, how: u32) {
        if how == flags::AWAKE {
            return;
        }
        // Relaxed: a hint.
        let woken_at = self.segment.woken_at(!self.is_client);
        woken_at.store(clock::now(), Ordering::Relaxed);
        self.wakers.wake(how);
        if how == flags::ON_SEMAPHORE {
            self.check_semaphores();
        }
    }

    /// Wake the peer if it sleeps for frames.
    fn wake_reader(&self, writer: &FrameWriter<MappedRing>) {
        let how = flags::take_wake_token(writer.memory().reader_waits());
        self.wake_peer(how);
    }

    /// Wake the peer if it sleeps for frames, even if it is patient, because items of a stream wait for it.
    pub fn nudge(&self) {
        self.wake_reader(&lock(&self.writer));
    }

    /// Return the error for a payload of `len` bytes, which is too large.
    fn oversize(&self, len: usize) -> SendError {
        let max = self.max_frame;
        SendError::Oversize { len, max }
    }

    /// Return the violation of the peer that a sender has found, for the receiving thread; None if there is none.
    #[inline]
    pub fn fault(&self) -> Option<Violation> {
        self.fault.get().copied()
    }

    /// Wake the thread of this side that sleeps on this channel, or let its next sleep end at once. Does nothing to an
    /// event loop.
    pub fn interrupt(&self) {
        self.wakers.interrupt();
        self.check_semaphores();
    }

    /// Mark the segment as truncated if the file of a semaphore is.
    fn check_semaphores(&self) {
        if self.wakers.is_truncated() {
            self.segment.mark_truncated();
        }
    }

    /// Close the sending side: frames fail with [`SendError::Closed`] from now on. Wake the thread that sleeps on this
    /// channel, and prevent further sleeps. Frames that have come can still be received. The peer is not told.
    pub fn close(&self) {
        self.shutdown.close(|| {
            crash::point!(ChannelClosed);
            self.interrupt();
        });
    }

    /// Return the receiving end, locked: for one frame, peek and then take. Blocks while another thread has it, also
    /// one that spins.
    #[inline]
    pub fn receiver(&self) -> MutexGuard<'_, Receiver> {
        lock(&self.receiver)
    }

    /// Wake the peer's writer if it waits for room and at least half the ring is free. The receiving thread calls this
    /// after a frame was taken or none was there.
    #[inline]
    pub fn release(&self, receiver: &Receiver) {
        if receiver.reader.is_half_empty() {
            let how = flags::take_seen_wake_token(receiver.reader.memory().writer_waits());
            if how != flags::AWAKE {
                self.wake_peer(how);
            }
        }
    }
}
