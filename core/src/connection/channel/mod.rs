//! One connection as one side sees it: a ring to write, a ring to read, and the bells.
//!
//! A channel may be used from many threads: one at a time sends, one at a time receives, and neither keeps the other
//! waiting for more than a copy.

mod parcels;
mod waiting;

use crate::clock;
use crate::connection::loans::Lending;
use crate::connection::parcel::{PARCEL, RELEASE, RELEASE_SIZE};
use crate::connection::peer_extents::Carrier;
use crate::connection::segment::{Direction, MappedRing, Segment};
use crate::crash;
use crate::ring::frame::{FrameReader, FrameWriter, HEADER, Header, Kept, Untaken};
use crate::ring::{Consumer, Producer, RingMemory};
use crate::sync::lock;
use crate::violation::Violation;
use crate::wait::flags;
use crate::wait::shutdown_flag::Closing;
use crate::wait::spin::{Crowding, Spin};
use crate::wait::waker::Bells;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use thiserror::Error;

/// The longest that a wait keeps a loop from turning, in nanoseconds.
pub const SLICE: u64 = 300_000;
/// How often a spinning wait looks at the clock, in looks at the ring.
pub(crate) const LOOKS_PER_CLOCK: u32 = 32;

/// How this side sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// In an event loop that has the bell among its readers.
    Loop,
    /// In a thread, on the semaphore.
    Thread,
}

impl Sleep {
    fn flag(self) -> u32 {
        match self {
            Sleep::Loop => flags::ON_BELL,
            Sleep::Thread => flags::ON_SEMAPHORE,
        }
    }
}

/// Why a frame was not sent. Nothing of it was; but for a violation or after the end, the channel goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the texts say what the fields hold")]
pub enum SendError {
    #[error("the channel is closed")]
    Closed,
    /// It has closed its end of the bell.
    #[error("the peer has left")]
    PeerLeft,
    #[error("a call with a higher id was begun before")]
    Overtaken,
    #[error("{len} bytes, the limit is {max}")]
    Oversize { len: usize, max: usize },
    /// There is no room for it now, and too much waits for room already.
    #[error(
        "{kept} bytes wait for the peer to read them; with {len} more they are over the limit of {max}"
    )]
    Backlog { kept: usize, len: usize, max: u64 },
    #[error(transparent)]
    Violation(#[from] Violation),
}

/// What a frame is to the call that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It begins the call.
    Begins,
    /// An item of a stream: a peer that is patient is not woken for it.
    Item,
    /// Any other.
    Goes,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is in the ring, and the peer was awake.
    Hot,
    /// It is in the ring, and the peer had to be woken.
    Rang,
    /// There was no room. It is kept and goes out as the peer reads.
    Kept,
}

/// The receiving end and what it knows of its rhythm.
pub struct Receiver {
    lending: Arc<Lending>,
    reader: FrameReader<MappedRing>,
    spin: Spin,
    crowding: Crowding,
    /// When we last sent, or last got a frame, in nanoseconds.
    since: u64,
    /// When we last got a frame, if we have not sent since.
    working_since: Option<u64>,
    /// When we last said that we sleep.
    parked: u64,
    /// Whether the peer had to be woken for what we sent last.
    rang: bool,
    /// A false RELEASE: its frame is taken, so no later look would find it again.
    broken: Option<Violation>,
}

impl Receiver {
    /// See [`FrameReader::peek`]. Ends of leases are taken on the way.
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
        self.lending.give_back(&payload)
    }

    /// See [`FrameReader::came`].
    #[inline]
    pub fn came(&self) -> usize {
        self.reader.came()
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

    /// See [`FrameReader::take`]. What was taken counts only if the memory was there.
    #[inline]
    pub fn take(&mut self, payload: &mut [u8]) -> Result<(), Violation> {
        self.reader.take(payload);
        if self.reader.memory().is_cut_off() {
            return Err(Violation::CutOff);
        }
        Ok(())
    }
}

/// One side of a connection.
pub struct Channel {
    writer: Mutex<FrameWriter<MappedRing>>,
    receiver: Mutex<Receiver>,
    /// Whether frames are kept because there is no room. Only ever a hint to look.
    stalled: AtomicBool,
    closing: Closing,
    /// What the peer did wrong as we sent; the receiving thread is told.
    fault: OnceLock<Violation>,
    max_frame: usize,
    /// Bytes of payload that may wait for room.
    max_kept: u64,
    bells: Bells,
    segment: Arc<Segment>,
    sleep: Sleep,
    lending: Arc<Lending>,
    is_client: bool,
    /// How many leases had ended when a wait for one more was.
    in_vain: AtomicU64,
    /// When the peer was last there: a wait ended, or it was looked whether it is. In nanoseconds; only ever a hint.
    heard: AtomicU64,
    /// What we have told the peer of the CPU that we send on.
    cpu: AtomicU32,
}

/// A payload of up to this many bytes is kept whatever waits before it: it belongs to a call that is under way.
const TINY: usize = 64;

/// Bytes of payload, and frames, that wait for a peer's room before it counts as behind: a server asks it for nothing
/// more. Up to there it reads on, or it would not hear what takes nothing, a CANCEL above all, from a client that reads
/// nothing: a thread that has left a stream, say. What a stream may send ahead is 128 KiB, so that is for a few of
/// them; and a frame that is kept takes about 100 bytes besides its payload, so the frames are 800 KiB at most.
const BEHIND_BYTES: usize = 512 << 10;
const BEHIND_FRAMES: usize = 8192;

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
        bells: Bells,
        sleep: Sleep,
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
            let lending = Lending::new(us, news, max_memory);
            Channel {
                writer: Mutex::new(writer),
                receiver: Mutex::new(Receiver {
                    lending: lending.clone(),
                    reader,
                    spin: Spin::new(spin),
                    crowding: Crowding::default(),
                    since: clock::now(),
                    working_since: None,
                    parked: 0,
                    rang: false,
                    broken: None,
                }),
                stalled: AtomicBool::new(false),
                closing: Closing::new(),
                fault: OnceLock::new(),
                max_frame,
                max_kept: max_memory.max((max_frame + BEHIND_BYTES) as u64),
                bells,
                segment,
                sleep,
                lending,
                is_client: direction == Direction::ClientToServer,
                in_vain: AtomicU64::new(u64::MAX),
                heard: AtomicU64::new(0),
                cpu: AtomicU32::new(0),
            }
        })
    }

    /// The memory that both sides lend each other.
    pub fn lending(&self) -> &Arc<Lending> {
        &self.lending
    }

    /// The largest payload, in bytes.
    pub fn max_frame(&self) -> usize {
        self.max_frame
    }

    /// Our bell, for the loop's reader to silence. False if the peer has ended it.
    pub fn silence(&self) -> bool {
        self.bells.bell.silence()
    }

    /// Sends a frame. `keep` makes the payload last, should there be no room now.
    #[inline]
    pub fn send(
        &self,
        opcode: u32,
        id: u64,
        payload: &[u8],
        keep: impl FnOnce() -> Kept,
    ) -> Result<Sent, SendError> {
        self.publish(opcode, id, payload, keep, Role::Goes)
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
        keep: impl FnOnce() -> Kept,
        role: Role,
    ) -> Result<Sent, SendError> {
        if self.closing.is_closed() {
            return Err(SendError::Closed);
        }
        if payload.len() > self.max_frame {
            return Err(self.oversize(payload.len()));
        }
        let mut writer = lock(&self.writer);
        if role == Role::Begins && self.sleep == Sleep::Thread && !writer.begin(id) {
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
            self.set_aside(&mut writer, opcode, id, keep())?;
            return Ok(Sent::Kept);
        }
        self.tell_cpu();
        let waits = writer.memory().reader_waits();
        let how = match role {
            Role::Item => flags::claim_for_item(waits),
            _ => flags::claim(waits),
        };
        match how {
            flags::AWAKE => Ok(Sent::Hot),
            how => {
                self.ring(how);
                Ok(Sent::Rang)
            }
        }
    }

    /// Keeps a frame for which there is no room, and wakes the peer: the ring may be full of ends of leases, for which
    /// it was not woken.
    fn set_aside(
        &self,
        writer: &mut FrameWriter<MappedRing>,
        opcode: u32,
        id: u64,
        payload: Kept,
    ) -> Result<(), Violation> {
        writer.keep(opcode, id, payload, opcode != RELEASE);
        if !self.progress(writer)? {
            self.wake_reader(writer);
        }
        Ok(())
    }

    /// Wakes the peer as its flag said.
    fn ring(&self, how: u32) {
        if how == flags::AWAKE {
            return;
        }
        // Relaxed: a hint.
        let rung_at = self.segment.rung_at(!self.is_client);
        rung_at.store(clock::now(), Ordering::Relaxed);
        self.bells.ring(how);
        if how == flags::ON_SEMAPHORE {
            self.look_at_semaphores();
        }
    }

    fn wake_reader(&self, writer: &FrameWriter<MappedRing>) {
        let how = flags::claim(writer.memory().reader_waits());
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
        self.bells.interrupt();
        self.look_at_semaphores();
    }

    /// Ends the connection if a semaphore was cut off.
    fn look_at_semaphores(&self) {
        if self.bells.is_cut_off() {
            self.segment.cut_off();
        }
    }

    /// Ends the sending, wakes the thread that sleeps on this channel, and keeps others from falling asleep.
    pub fn close(&self) {
        self.closing.close(|| {
            crash::point!(ChannelClosed);
            self.interrupt();
        });
    }

    /// Sends what is kept, as far as there is room. True if anything went.
    pub fn flush(&self) -> Result<bool, Violation> {
        // Relaxed: a frame is kept and flushed under the lock; a stale hint is corrected by the bell that the peer
        // rings for room.
        if !self.stalled.load(Ordering::Relaxed) {
            return Ok(false);
        }
        self.progress(&mut lock(&self.writer))
    }

    /// Whether frames are kept because there is no room.
    #[inline]
    pub fn is_stalled(&self) -> bool {
        // Relaxed: see `flush`.
        self.stalled.load(Ordering::Relaxed)
    }

    /// Whether a frame is kept that somebody waits for. Nobody waits for the end of a lease, or for what is left of a
    /// call that was cancelled.
    pub fn is_awaited(&self) -> bool {
        self.is_stalled() && lock(&self.writer).is_awaited()
    }

    /// Whether so much waits for the peer to read that it is asked for nothing more until it does.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.is_stalled() && {
            let writer = lock(&self.writer);
            writer.kept() >= BEHIND_BYTES || writer.backlog() >= BEHIND_FRAMES
        }
    }

    /// What the peer has not taken yet.
    pub fn untaken(&self) -> Result<Untaken, Violation> {
        lock(&self.writer).untaken()
    }

    /// Takes back the frame that began `id`, if it is still kept and nothing of it went. `begins`: whether an opcode
    /// begins a call.
    pub fn take_back(&self, id: u64, begins: impl Fn(u32) -> bool) -> bool {
        if !self.is_stalled() {
            return false;
        }
        let mut writer = lock(&self.writer);
        let unsent = writer.take_back(id, |opcode| begins(opcode & !PARCEL));
        self.note_backlog(&writer);
        drop(writer);
        let Some((opcode, payload)) = unsent else {
            return false;
        };
        self.unlend(opcode, (*payload).as_ref());
        true
    }

    /// Takes back all that is kept of the call `id`, which nobody waits for any more, but for a frame of which
    /// something went.
    pub fn take_back_all(&self, id: u64) {
        if !self.is_stalled() {
            return;
        }
        let mut writer = lock(&self.writer);
        // An end of a lease belongs to no call, whatever id the peer may give one.
        let unsent = writer.take_back_all(id, |opcode| opcode != RELEASE);
        self.note_backlog(&writer);
        drop(writer);
        for (opcode, payload) in unsent {
            self.unlend(opcode, (*payload).as_ref());
        }
    }

    fn progress(&self, writer: &mut FrameWriter<MappedRing>) -> Result<bool, Violation> {
        let moved = writer.flush()?;
        if moved {
            self.wake_reader(writer);
        }
        self.note_backlog(writer);
        Ok(moved)
    }

    fn note_backlog(&self, writer: &FrameWriter<MappedRing>) {
        // Relaxed: see `flush`.
        self.stalled.store(writer.backlog() > 0, Ordering::Relaxed);
    }

    /// Before we sleep: sends what is kept, or says that we wait for room.
    pub fn await_room(&self) -> Result<(), Violation> {
        if !self.is_stalled() {
            return Ok(());
        }
        let mut writer = lock(&self.writer);
        loop {
            self.progress(&mut writer)?;
            if writer.backlog() == 0 || writer.must_wait(self.sleep.flag())? {
                return Ok(());
            }
        }
    }

    /// The receiving end, for one frame: peek, then take.
    #[inline]
    pub fn receiver(&self) -> MutexGuard<'_, Receiver> {
        lock(&self.receiver)
    }

    /// After a frame was taken, or none was there: wakes the writer if it waits for room.
    #[inline]
    pub fn release(&self, receiver: &Receiver) {
        if receiver.reader.has_room() {
            let how = flags::claim_seen(receiver.reader.memory().writer_waits());
            if how != flags::AWAKE {
                self.ring(how);
            }
        }
    }
}

impl Carrier for Channel {
    /// A peer that sleeps is not woken for that: it looks before it takes more memory, and as often as idle memory is
    /// given back.
    fn send_release(&self, payload: &[u8; RELEASE_SIZE]) {
        if self.closing.is_closed() {
            return;
        }
        let mut writer = lock(&self.writer);
        match writer.send(RELEASE, 0, payload) {
            Ok(true) => {}
            Ok(false) => {
                let _ = self.set_aside(&mut writer, RELEASE, 0, Box::new(payload.to_vec()));
                drop(writer);
                let _ = self.await_room();
            }
            Err(violation) => {
                let _ = self.fault.set(violation);
            }
        }
    }

    fn collect(&self) -> Result<(), Violation> {
        match self.receiver.try_lock() {
            Ok(mut receiver) => {
                receiver.peek()?;
                self.release(&receiver);
                Ok(())
            }
            Err(_) => Ok(()), // Somebody looks at this moment.
        }
    }
}
