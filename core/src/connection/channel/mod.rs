//! One connection as one side sees it: a ring to write, a ring to read, and the bells.
//!
//! A channel may be used from many threads: one at a time sends, one at a time receives, and neither keeps the other
//! waiting for more than a copy.

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

/// The longest that a wait keeps a loop from turning, in nanoseconds.
pub const SLICE: u64 = 300_000;
/// How often a spinning wait looks at the clock, in looks at the ring.
pub(crate) const LOOKS_PER_CLOCK: u32 = 32;

/// One side of a connection.
pub struct Channel {
    writer: Mutex<FrameWriter<MappedRing>>,
    receiver: Mutex<Receiver>,
    /// Whether frames are kept because there is no room. Only ever a hint to look.
    stalled: AtomicBool,
    shutdown: ShutdownFlag,
    /// What the peer did wrong as we sent; the receiving thread is told.
    fault: OnceLock<Violation>,
    max_frame: usize,
    /// Bytes of payload that may wait for room.
    max_kept: u64,
    wakers: Wakers,
    segment: Arc<Segment>,
    sleep: SleepMode,
    loans: Arc<Loans>,
    is_client: bool,
    /// How many leases had ended when a wait for one more was.
    missed_returned: AtomicU64,
    /// When the peer was last there: a wait ended, or it was looked whether it is. In nanoseconds; only ever a hint.
    last_heard: AtomicU64,
    /// What we have told the peer of the CPU that we send on.
    cpu: AtomicU32,
}

/// A payload of up to this many bytes is kept whatever waits before it: it belongs to a call that is under way.
const TINY: usize = 64;

/// The largest body, in bytes, that does not go by reference: the ring is for what is small, and a frame of more than
/// half of it would go in pieces.
pub const LARGE_BODY: usize = (32 << 10) - HEADER;

impl Channel {
    /// The side of `segment` that writes in `direction`.
    ///
    /// `spin` is the longest a wait may spin, in nanoseconds; `max_frame` the largest payload accepted, in bytes;
    /// `news` the socket for news of extents; `max_memory` bytes of either side's arena, and of payloads of ours that
    /// wait for room, or one largest frame behind those of a peer that is not yet behind, if that is more: a peer whose
    /// call was taken is not cut off for the size of its answer.
    #[allow(clippy::too_many_arguments)] // In one place.
    pub fn new(
        segment: Arc<Segment>,
        direction: Direction,
        wakers: Wakers,
        sleep: SleepMode,
        max_frame: usize,
        spin: u64,
        news: OwnedFd,
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
        Arc::new_cyclic(|us| {
            let us: Weak<Channel> = us.clone();
            let loans = Loans::new(us, news, max_memory);
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

    /// The memory that both sides lend each other.
    pub fn loans(&self) -> &Arc<Loans> {
        &self.loans
    }

    /// The largest payload, in bytes.
    pub fn max_frame(&self) -> usize {
        self.max_frame
    }

    /// Our bell, for the loop's reader to silence. False if the peer has ended it.
    pub fn drain_wakeups(&self) -> bool {
        self.wakers.loop_waker.drain()
    }

    /// Sends a frame. `keep` makes the payload last, should there be no room now.
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

    /// Sends a frame.
    ///
    /// Of calls without an answer a server that stops tells by the highest id which ones it has taken. So calls are
    /// begun in the order of their ids. Threads draw their ids before they come here, and may overtake each other; a
    /// loop draws and sends in one go.
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
        let sent = writer.send(opcode, id, payload).inspect_err(|&violation| {
            let _ = self.fault.set(violation);
        })?;
        if !sent {
            let (kept, len, max) = (writer.kept(), payload.len(), self.max_kept);
            // One alone may be as large as a frame can be, and the tiny ones never add up to much.
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
                self.ring(how);
                Ok(SendOutcome::PeerWoken)
            }
        }
    }

    /// Wakes the peer as its flag said.
    fn ring(&self, how: u32) {
        if how == flags::AWAKE {
            return;
        }
        // Relaxed: a hint.
        let rung_at = self.segment.woken_at(!self.is_client);
        rung_at.store(clock::now(), Ordering::Relaxed);
        self.wakers.wake(how);
        if how == flags::ON_SEMAPHORE {
            self.check_semaphores();
        }
    }

    fn wake_reader(&self, writer: &FrameWriter<MappedRing>) {
        let how = flags::take_wake_token(writer.memory().reader_waits());
        self.ring(how);
    }

    /// Wakes the peer, also if it is patient: it has items that wait for it.
    pub fn nudge(&self) {
        self.wake_reader(&lock(&self.writer));
    }

    fn oversize(&self, len: usize) -> SendError {
        let max = self.max_frame;
        SendError::Oversize { len, max }
    }

    /// What the peer did wrong as we sent to it.
    #[inline]
    pub fn fault(&self) -> Option<Violation> {
        self.fault.get().copied()
    }

    /// Wakes the thread that sleeps on this channel, or keeps the next one from falling asleep.
    pub fn interrupt(&self) {
        self.wakers.interrupt();
        self.check_semaphores();
    }

    /// Ends the connection if a semaphore was cut off.
    fn check_semaphores(&self) {
        if self.wakers.is_cut_off() {
            self.segment.cut_off();
        }
    }

    /// Ends the sending, wakes the thread that sleeps on this channel, and keeps others from falling asleep.
    pub fn close(&self) {
        self.shutdown.close(|| {
            crash::point!(ChannelClosed);
            self.interrupt();
        });
    }

    /// The receiving end, for one frame: peek, then take.
    #[inline]
    pub fn receiver(&self) -> MutexGuard<'_, Receiver> {
        lock(&self.receiver)
    }

    /// After a frame was taken, or none was there: wakes the writer if it waits for room.
    #[inline]
    pub fn release(&self, receiver: &Receiver) {
        if receiver.reader.is_half_empty() {
            let how = flags::take_seen_wake_token(receiver.reader.memory().writer_waits());
            if how != flags::AWAKE {
                self.ring(how);
            }
        }
    }
}
