//! Frames that wait for room.

use super::Channel;
use super::sending::{BEHIND_BYTES, BEHIND_FRAMES};
use crate::connection::parcel::{PARCEL, RELEASE};
use crate::connection::segment::MappedRing;
use crate::ring::frame::{FrameWriter, KeptPayload, Unread};
use crate::sync::lock;
use crate::violation::Violation;
use std::sync::atomic::Ordering;

impl Channel {
    /// Keeps a frame for which there is no room, and wakes the peer: the ring may be full of ends of leases, for which
    /// it was not woken.
    pub(super) fn keep_frame(
        &self,
        writer: &mut FrameWriter<MappedRing>,
        opcode: u32,
        id: u64,
        payload: KeptPayload,
    ) -> Result<(), Violation> {
        writer.keep(opcode, id, payload, opcode != RELEASE);
        if !self.progress(writer)? {
            self.wake_reader(writer);
        }
        Ok(())
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
    pub fn unread(&self) -> Result<Unread, Violation> {
        lock(&self.writer).unread()
    }

    /// Takes back the frame that began `id`, if it is still kept and nothing of it went. `begins`: whether an opcode
    /// begins a call.
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

    /// Takes back all that is kept of the call `id`, which nobody waits for any more, but for a frame of which
    /// something went.
    pub fn take_back_all(&self, id: u64) {
        if !self.is_stalled() {
            return;
        }
        let mut writer = lock(&self.writer);
        // An end of a lease belongs to no call, whatever id the peer may give one.
        let unsent = writer.cancel_all_pending(id, |opcode| opcode != RELEASE);
        self.note_backlog(&writer);
        drop(writer);
        for (opcode, payload) in unsent {
            self.cancel_loans(opcode, (*payload).as_ref());
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
            if writer.backlog() == 0 || writer.announce_wait(self.sleep.flag())? {
                return Ok(());
            }
        }
    }
}
