//! The backlog: frames that wait for room in the ring.

use super::Channel;
use super::sending::{BEHIND_BYTES, BEHIND_FRAMES};
use crate::connection::parcel::{PARCEL, RELEASE};
use crate::connection::segment::MappedRing;
use crate::ring::frame::{FrameWriter, KeptPayload, Unread};
use crate::sync::lock;
use crate::violation::Violation;
use std::sync::atomic::Ordering;

impl Channel {
    /// Queue a frame for which there is no room, and wake the peer, because the ring may be full of releases, for which
    /// the peer was not woken. After a violation the frame is queued nevertheless, and the peer is not woken.
    pub(super) fn keep_frame(
        &self,
        writer: &mut FrameWriter<MappedRing>,
        opcode: u32,
        id: u64,
        payload: KeptPayload,
    ) -> Result<(), Violation> {
        writer.keep(opcode, id, payload, opcode != RELEASE);
        if !self.flush_frames(writer)? {
            self.wake_reader(writer);
        }
        Ok(())
    }

    /// Send queued frames, as far as there is room, and wake the peer for them. Return true if anything was sent. Does
    /// not wait for room. Fails if the peer's index is impossible or the memory was truncated.
    pub fn flush(&self) -> Result<bool, Violation> {
        // Relaxed: frames are queued and flushed under the lock; a stale hint is corrected by the wake-up that the peer
        // sends for room.
        if !self.stalled.load(Ordering::Relaxed) {
            return Ok(false);
        }
        self.flush_frames(&mut lock(&self.writer))
    }

    /// Return true if frames are queued. A hint.
    #[inline]
    pub fn is_stalled(&self) -> bool {
        // Relaxed: see `flush`.
        self.stalled.load(Ordering::Relaxed)
    }

    /// Return true if a caller waits for a queued frame. No caller waits for a release, or for the remaining frames of
    /// a cancelled call.
    pub fn is_awaited(&self) -> bool {
        self.is_stalled() && lock(&self.writer).is_awaited()
    }

    /// Return true if so much is queued, 512 KiB or 8192 frames, that the server takes no more requests from the peer
    /// until the peer reads.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.is_stalled() && {
            let writer = lock(&self.writer);
            writer.kept() >= BEHIND_BYTES || writer.backlog() >= BEHIND_FRAMES
        }
    }

    /// Count the frames and bytes that the peer has not read. Fails if the peer's index is impossible or the memory was
    /// truncated.
    pub fn unread(&self) -> Result<Unread, Violation> {
        lock(&self.writer).unread()
    }

    /// Remove the frame that began `id`, and end its loans, if it is still queued and nothing of it was sent. `begins`
    /// returns true for an opcode that begins a call. Return true if the frame was removed: the peer never sees the
    /// call. Return false also if there is no such frame.
    pub fn take_back(&self, id: u64, begins: impl Fn(u32) -> bool) -> bool {
        if !self.is_stalled() {
            return false;
        }
        let mut writer = lock(&self.writer);
        let unsent = writer.cancel_pending(id, |opcode| begins(opcode & !PARCEL));
        self.note_backlog(&writer);
        drop(writer);
        let Some((opcode, payload)) = unsent else {
            return false;
        };
        self.cancel_loans(opcode, (*payload).as_ref());
        true
    }

    /// Remove all queued frames of the call `id`, for which no caller waits, and end their loans. A frame that was
    /// partly sent stays, and so do releases.
    pub fn take_back_all(&self, id: u64) {
        if !self.is_stalled() {
            return;
        }
        let mut writer = lock(&self.writer);
        // A release belongs to no call, even if the peer gives a call its id.
        let unsent = writer.cancel_all_pending(id, |opcode| opcode != RELEASE);
        self.note_backlog(&writer);
        drop(writer);
        for (opcode, payload) in unsent {
            self.cancel_loans(opcode, (*payload).as_ref());
        }
    }

    /// Publish queued frames, as far as there is room, and wake the peer if any were published. Return true if any
    /// were. A violation is stored as the channel's fault, too.
    fn flush_frames(&self, writer: &mut FrameWriter<MappedRing>) -> Result<bool, Violation> {
        let flushed = writer.flush();
        self.note_backlog(writer);
        let moved = self.note_fault(flushed)?;
        if moved {
            self.wake_reader(writer);
        }
        Ok(moved)
    }

    /// Store the violation that a sender has found, if there is one, for the receiving thread. Return the result.
    #[inline]
    pub(super) fn note_fault<T>(&self, result: Result<T, Violation>) -> Result<T, Violation> {
        result.inspect_err(|&violation| {
            let _ = self.fault.set(violation);
        })
    }

    /// Store the hint that frames are queued, or that none are. The caller holds the lock of the writer.
    fn note_backlog(&self, writer: &FrameWriter<MappedRing>) {
        // Relaxed: see `flush`.
        self.stalled.store(writer.backlog() > 0, Ordering::Relaxed);
    }

    /// Send queued frames, and if some are left, announce that this side waits for room, for which the peer then wakes
    /// it. Does not sleep: the caller does so afterwards. A violation is stored as the channel's fault, too.
    pub fn await_room(&self) -> Result<(), Violation> {
        if !self.is_stalled() {
            return Ok(());
        }
        let mut writer = lock(&self.writer);
        loop {
            self.flush_frames(&mut writer)?;
            if writer.backlog() == 0 {
                return Ok(());
            }
            let announced = writer.announce_wait(self.sleep.flag());
            if self.note_fault(announced)? {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::channel::{SendError, SleepMode};
    use crate::connection::parcel::RELEASE_SIZE;
    use crate::connection::peer_extents::ReleaseSender;
    use crate::connection::segment::{Direction, Segment, size_for};
    use crate::packet;
    use crate::ring::RingMemory;
    use crate::testing::file_in_memory;
    use crate::wait::waker::{LoopWaker, Wakers};
    use std::os::fd::AsFd;
    use std::sync::Arc;

    const CAPACITY: usize = 4096;

    /// Create a channel with a frame that the peer has not read and for which the ring has no room left.
    fn full() -> Arc<Channel> {
        let file = file_in_memory();
        file.set_len(size_for(CAPACITY) as u64).unwrap();
        let segment = Segment::create(file.as_fd(), CAPACITY).unwrap();
        let [bell, _] = packet::pair().unwrap();
        let [updates, _] = packet::pair().unwrap();
        let wakers = Wakers {
            loop_waker: LoopWaker::new(bell),
            semaphores: None,
        };
        let (direction, sleep) = (Direction::ServerToClient, SleepMode::Loop);
        let channel = Channel::new(
            segment,
            direction,
            wakers,
            sleep,
            1 << 20,
            0,
            updates,
            1 << 20,
        );
        while lock(&channel.writer).send(1, 0, &[0; 8]).unwrap() {}
        channel
    }

    /// Store an impossible index of the peer.
    fn corrupt(channel: &Channel) {
        let writer = lock(&channel.writer);
        writer.memory().head().store(1 << 40, Ordering::Relaxed);
    }

    fn send(channel: &Channel) -> Result<(), SendError> {
        let payload = [0; 8];
        let keep = || Box::new(payload) as KeptPayload;
        channel.send(1, 0, &payload, keep).map(drop)
    }

    #[test]
    fn a_violation_behind_queued_frames_is_the_fault_of_the_channel() {
        let channel = full();
        send(&channel).unwrap();
        assert!(channel.is_stalled());
        corrupt(&channel);
        assert!(matches!(send(&channel), Err(SendError::Violation(_))));
        assert!(channel.fault().is_some() && channel.is_stalled());
        assert!(channel.flush().is_err());
    }

    #[test]
    fn a_violation_that_a_release_finds_is_the_fault_of_the_channel() {
        let channel = full();
        send(&channel).unwrap();
        corrupt(&channel);
        channel.send_release(&[0; RELEASE_SIZE]);
        assert!(channel.fault().is_some());
    }
}
