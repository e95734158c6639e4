//! Sending bodies with buffers, by reference if there is memory.

use super::{Channel, FrameRole, LARGE_BODY, POLLS_PER_CLOCK, SendError, SendOutcome};
use crate::clock;
use crate::connection::loans::Loans;
use crate::connection::parcel::{self, Entry, Location, PARCEL};
use crate::connection::peer_extents::ReleaseSender;
use crate::crash;
use crate::memory::bytes::append_from;
use crate::ring::frame::KeptPayload;
use crate::violation::Violation;
use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Lent bytes from which on a client waits for some to be released.
const AHEAD: u64 = 4 << 20;
/// Maximum wait for the next release, and for all of them, in nanoseconds.
const MOMENT: u64 = 300_000;
const LONGEST: u64 = 2_000_000;

/// A payload that may have to be queued.
struct Shared(Arc<Vec<u8>>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The loans for a frame. Their drop cancels them, unless the frame was sent.
struct FrameLoans<'a> {
    loans: &'a Loans,
    entries: Vec<Entry>,
}

impl Drop for FrameLoans<'_> {
    /// Cancel the loans, unless the frame was sent.
    fn drop(&mut self) {
        for entry in &self.entries {
            self.loans.cancel(entry);
        }
    }
}

impl Channel {
    /// Send a body with the buffers that it refers to. Buffers and a large body go by reference if there is memory for
    /// them, and else are copied into the frame. `keep` creates a payload that outlives the call, for a body alone in
    /// the frame. Fails as [`Channel::publish`] does, and with `Oversize` if what remains in the frame is too large;
    /// then no loan stays. A client with much memory lent first waits for up to 2 ms for the peer to release some.
    ///
    /// # Safety
    /// Each of `buffers` is readable for its length.
    pub unsafe fn send_parcel(
        &self,
        opcode: u32,
        id: u64,
        body: &[u8],
        buffers: &[(*const u8, usize)],
        keep: impl FnOnce() -> KeptPayload,
        role: FrameRole,
    ) -> Result<SendOutcome, SendError> {
        if body.len() > self.max_frame {
            return Err(self.oversize(body.len()));
        }
        self.wait_for_memory()?;
        let mut lent = FrameLoans {
            loans: &self.loans,
            entries: Vec::with_capacity(1 + buffers.len()),
        };
        let mut apart = false;
        if body.len() > LARGE_BODY {
            // SAFETY: a slice is readable.
            if let Some(entry) = unsafe { self.loans.lend(body.as_ptr(), body.len()) } {
                lent.entries.push(entry);
                apart = true;
            } else if buffers.is_empty() {
                return self.publish(opcode, id, body, keep, role);
            }
        }
        let mut here = Vec::new();
        let mut room = if apart { 0 } else { body.len() };
        for &(from, len) in buffers {
            // SAFETY: the caller's promise.
            let entry = unsafe { self.loans.lend(from, len) }.unwrap_or_else(|| {
                here.push((from, len));
                room += len;
                let len = len as u64;
                let location = Location::InFrame;
                Entry {
                    location,
                    start: 0,
                    len,
                }
            });
            lent.entries.push(entry);
        }
        if room > self.max_frame {
            return Err(self.oversize(room));
        }
        let mut payload = parcel::begin(&lent.entries, apart, room);
        if !apart {
            payload.extend_from_slice(body);
        }
        for (from, len) in here {
            // SAFETY: the caller's promise.
            unsafe { append_from(&mut payload, from, len) };
        }
        let payload = Arc::new(payload);
        let kept = payload.clone();
        let keep = || Box::new(Shared(kept)) as KeptPayload;
        let sent = self.publish(opcode | PARCEL, id, &payload, keep, role)?;
        crash::point!(ParcelSent);
        lent.entries.clear(); // The loans belong to the peer now.
        Ok(sent)
    }

    /// Process the releases that have come. If many bytes are lent, a client also waits a moment for further releases,
    /// because a sender far ahead of its peer gains nothing, and memory that was just used is still in the caches.
    ///
    /// A server does not wait, because it has other clients. The wait spins and yields, for up to 2 ms.
    fn wait_for_memory(&self) -> Result<(), Violation> {
        self.collect_releases()?;
        if !self.is_client {
            return Ok(());
        }
        let (away, mut returned) = self.loans.allocator().lent_away();
        // Relaxed, here and below: a hint.
        if away < AHEAD || returned == self.missed_returned.load(Ordering::Relaxed) {
            return Ok(());
        }
        let start = clock::now();
        let mut end = start + MOMENT;
        loop {
            for _ in 0..POLLS_PER_CLOCK {
                spin_loop();
            }
            self.collect_releases()?;
            let (away, now_returned) = self.loans.allocator().lent_away();
            if away < AHEAD {
                return Ok(());
            }
            let now = clock::now();
            if now_returned != returned {
                returned = now_returned;
                end = (now + MOMENT).min(start + LONGEST);
            }
            if now > end {
                // The peer keeps its loans: until the next release another wait would not help.
                self.missed_returned.store(returned, Ordering::Relaxed);
                return Ok(());
            }
            std::thread::yield_now();
        }
    }

    /// End the loans of a frame of this side that was not sent. Does nothing if the frame is no parcel.
    pub(super) fn cancel_loans(&self, opcode: u32, payload: &[u8]) {
        if opcode & PARCEL != 0 {
            let parsed = parcel::parse(payload).expect("a table of our own");
            for entry in &parsed.entries {
                self.loans.cancel(entry);
            }
        }
    }
}
