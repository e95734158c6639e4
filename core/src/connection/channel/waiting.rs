//! Waiting for the other side: spinning for as long as it pays, and then sleeping.

use super::{Channel, POLLS_PER_CLOCK, Receiver, SLICE, SendError, SendOutcome, SleepMode};
use crate::clock;
use crate::crash;
use crate::ring::RingMemory;
use crate::ring::frame::Unread;
use crate::scheduling;
use crate::sync::lock;
use crate::violation::Violation;
use crate::wait::cpu_contention::YieldResult;
use crate::wait::flags;
use std::hint::spin_loop;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time of silence, in nanoseconds, after which a sender checks whether the peer still exists. By then the peer sleeps
/// and must be woken, which costs more than the check.
const QUIET: u64 = 1_000_000;

/// Return the number of the current CPU plus one, as a side stores it; 0 if unknown.
#[inline]
fn our_cpu() -> u32 {
    scheduling::current_cpu().map_or(0, |number| number.wrapping_add(1))
}

impl Channel {
    /// Check before a request is sent whether the peer has left, if it has been silent for a millisecond. Return the
    /// time, in nanoseconds of CLOCK_MONOTONIC. Fails only with [`SendError::PeerLeft`].
    ///
    /// A request that is not sent to a peer that has left was certainly not executed. The peer's end of the loop waker
    /// closes when its process dies, before or after its other descriptors, and with the connection: no frame is taken
    /// afterwards.
    #[inline]
    pub fn check_peer(&self) -> Result<u64, SendError> {
        let now = clock::now();
        // Relaxed: a hint.
        if now.saturating_sub(self.last_heard.load(Ordering::Relaxed)) > QUIET {
            if self.wakers.loop_waker.is_closed() {
                return Err(SendError::PeerLeft);
            }
            // Relaxed: a hint. A sender that never waits, for example of one-way calls, need not check each time.
            self.last_heard.store(now, Ordering::Relaxed);
        }
        Ok(now)
    }

    /// Spin for a frame for as long as that pays, in an event loop for at most [`SLICE`] without progress. `sent` is
    /// the outcome of the request, which was sent at `start`, in nanoseconds.
    ///
    /// Return true if a frame is there, which the caller takes, and the last reading of the clock. The receiving end is
    /// locked meanwhile, so the caller must not hold it, and another receiving thread waits.
    pub fn spin(&self, sent: SendOutcome, start: u64) -> Result<(bool, u64), Violation> {
        let longest = match self.sleep {
            SleepMode::Loop => SLICE,
            SleepMode::Thread => u64::MAX,
        };
        let mut receiver = lock(&self.receiver);
        if let Some(since) = receiver.working_since.take() {
            receiver.spin.record_work(start.saturating_sub(since));
        }
        receiver.since = start;
        receiver.woke_peer = sent == SendOutcome::PeerWoken;
        // A peer that had to be woken has not even begun, so its reply is worth a sleep. A large frame needs this side
        // to flush it: as long as it moves, it pays to stay.
        let mut budget = match sent {
            SendOutcome::PeerAwake if receiver.contention.must_sleep(start) => 0,
            SendOutcome::PeerAwake => receiver.spin.budget().min(longest),
            SendOutcome::PeerWoken => 0,
            SendOutcome::Queued => receiver.spin.limit().min(longest),
        };
        let mut now = start;
        let mut idle_since = start;
        let mut polls = 0u32;
        // A peer on this CPU cannot reply while this side spins.
        let mut may_yield = self.is_on_our_cpu();
        loop {
            let came = receiver.received_bytes();
            if receiver.peek()?.is_some() {
                let gap = now - start;
                self.record_arrival(&mut receiver, gap, now, 0);
                return Ok((true, now));
            }
            let moved = receiver.received_bytes() != came;
            if moved {
                self.release(&receiver);
            }
            if moved | self.flush()? {
                now = clock::now();
                idle_since = now;
                budget = receiver.spin.limit().min(longest);
            }
            polls += 1;
            if budget == 0 {
                return Ok((false, now));
            }
            if may_yield {
                let result = receiver.contention.yield_cpu();
                now = clock::now();
                may_yield = result == YieldResult::Yielded;
                if result == YieldResult::Costly || now - idle_since > budget {
                    budget = 0; // One more poll.
                }
                continue;
            }
            if polls % POLLS_PER_CLOCK == 0 {
                self.release(&receiver);
                now = clock::now();
                if now - idle_since > budget {
                    return Ok((false, now));
                }
                if receiver.contention.yield_after(now - idle_since) {
                    budget = 0; // One more poll.
                }
            }
            spin_loop();
        }
    }

    /// Store the CPU on which this side sends, if it has changed.
    #[inline]
    pub(super) fn publish_cpu(&self) {
        let cpu = our_cpu();
        // Relaxed, all: hints.
        if self.cpu.load(Ordering::Relaxed) != cpu {
            self.cpu.store(cpu, Ordering::Relaxed);
            self.segment
                .cpu(self.is_client)
                .store(cpu, Ordering::Relaxed);
        }
    }

    /// Return true if the peer has stored that it last sent on the current CPU.
    #[inline]
    pub fn is_on_our_cpu(&self) -> bool {
        // Relaxed: a hint.
        let theirs = self.segment.cpu(!self.is_client).load(Ordering::Relaxed);
        theirs != 0 && theirs == our_cpu()
    }

    /// Return true if the peer has frames to read and needs the current CPU for that. Return false while a thread sends
    /// to the peer.
    pub fn needs_our_cpu(&self) -> bool {
        let has_some = |unread: Unread| unread.in_ring > 0;
        self.is_on_our_cpu()
            && self
                .writer
                .try_lock()
                .is_ok_and(|mut writer| writer.unread().is_ok_and(has_some))
    }

    /// Record for the spin budget that a frame came after a wait in which this side may have slept.
    pub fn record_wake(&self, receiver: &mut Receiver) {
        let now = clock::now();
        let gap = now - receiver.since;
        let slept = self.woken_ago(receiver, now);
        if let Some(late) = slept {
            receiver.spin.record_sleep(late);
        }
        self.record_arrival(receiver, gap, now, u64::from(slept.is_some()));
    }

    /// Return the time since the peer woke this side, if it did after the sleep was announced, in nanoseconds. None if
    /// the peer did not store it; the value may be false.
    pub fn woken_ago(&self, receiver: &Receiver, now: u64) -> Option<u64> {
        // Relaxed: a hint.
        let at = self
            .segment
            .woken_at(self.is_client)
            .load(Ordering::Relaxed);
        let is_new = at > receiver.parked_at;
        is_new.then(|| now.checked_sub(at)).flatten()
    }

    /// Record a frame that came at `now`, `gap` after the wait began, with `sleeps` sleeps of this side in between.
    #[inline]
    fn record_arrival(&self, receiver: &mut Receiver, gap: u64, now: u64, sleeps: u64) {
        let woke_peer = std::mem::take(&mut receiver.woke_peer);
        receiver.spin.record(gap, sleeps + u64::from(woke_peer));
        receiver.since = now;
        receiver.working_since = Some(now);
        // Relaxed: a hint.
        self.last_heard.store(now, Ordering::Relaxed);
    }

    /// Announce a sleep, and send queued frames before. Return true if this side may sleep; false if there is something
    /// to do first. Locks the receiving end, so the caller must not hold it.
    ///
    /// With `reading` false, sleep for room alone, and leave incoming frames in the ring if the peer is still behind. A
    /// `patient` side, in an event loop, is not woken for items of streams; it is woken for frames behind them from now
    /// on, even if this returns false: the caller must then take the frames that have come.
    pub fn park(&self, reading: bool, patient: bool) -> Result<bool, Violation> {
        self.await_room()?;
        if !reading {
            return Ok(self.is_behind());
        }
        let mut receiver = lock(&self.receiver);
        receiver.parked_at = clock::now();
        let how = match self.sleep {
            SleepMode::Loop if patient => flags::PATIENT,
            sleep => sleep.flag(),
        };
        flags::announce(receiver.reader.memory().reader_waits(), how);
        if how == flags::PATIENT {
            receiver.reader.poll_tail()?; // Otherwise the known tail may miss frames that came before the announcement.
        }
        let arrived = receiver.peek()?.is_some();
        self.wake_writer(&receiver);
        if !arrived {
            crash::point!(Parked);
        } else if how != flags::PATIENT {
            flags::withdraw(receiver.reader.memory().reader_waits());
        }
        Ok(!arrived)
    }

    /// Wake a peer that waits for room, after all reads. Return true if the reads have taken everything that was there
    /// at the last load of the tail. Locks the receiving end.
    pub fn wake_waiting_writer(&self) -> bool {
        let receiver = lock(&self.receiver);
        self.wake_writer(&receiver);
        receiver.is_at_end()
    }

    /// Wake the peer's writer if it waits for room and at least half the ring is free, before a sleep;
    /// [`Channel::release`] does so without the fence.
    fn wake_writer(&self, receiver: &Receiver) {
        if receiver.reader.is_half_empty() {
            let how = flags::take_wake_token(receiver.reader.memory().writer_waits());
            self.wake_peer(how);
        }
    }

    /// Withdraw the announcement of [`park`](Self::park): this side is awake. Locks the receiving end.
    pub fn unpark(&self) {
        flags::withdraw(lock(&self.receiver).reader.memory().reader_waits());
    }

    /// Block the thread until a frame, a wake-up or a signal comes or `limit` has passed; not at all once the channel
    /// is closed. Return true if a frame is there, which the caller takes; after false the caller handles signals, the
    /// end of the channel and its deadline. Queued frames are sent before and after. Called without the lock of the
    /// receiving end, by one thread at a time, on a side with [`SleepMode::Thread`].
    pub fn sleep(&self, limit: Duration) -> Result<bool, Violation> {
        self.flush()?;
        if self.park(true, false)? {
            self.shutdown.sleep(|| self.wakers.sleep(limit));
            self.check_semaphores();
            crash::point!(Woken);
            self.unpark();
        }
        self.flush()?;
        let mut receiver = lock(&self.receiver);
        let arrived = receiver.peek()?.is_some();
        if arrived {
            self.record_wake(&mut receiver);
        }
        Ok(arrived)
    }
}
