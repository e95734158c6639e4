//! Blocks of publishers that a subscriber looks at in place.

use super::source::PublisherId;
use crate::shared_heap::Words;
use crate::topic::directory::Directory;
use crate::topic::log::Log;
use crate::topic::log_memory::LogMemory;
use std::sync::Arc;
use std::sync::atomic::AtomicBool as PrivateBool;
use std::sync::atomic::AtomicU32 as PrivateU32;
use std::sync::atomic::Ordering::Relaxed;

/// Whether this process still has what it has taken: it is no forked child, and has not left.
pub type OwnershipCheck = Box<dyn Fn() -> bool + Send + Sync>;

/// The pins of a seat, of which each block that is looked at has one. Dropped with the last of them, it frees the seat.
pub(super) struct PinTable<D: Words> {
    pub(super) directory: Directory<D>,
    pub(super) seat: usize,
    pub(super) me: u64,
    pub(super) is_ours: OwnershipCheck,
    /// Those in use. Only of interest here: others look at the pins themselves.
    pub(super) used: PrivateU32,
    /// One was dropped for which a publisher may sleep.
    pub(super) is_waited_for: PrivateBool,
}

impl<D: Words> Drop for PinTable<D> {
    fn drop(&mut self) {
        // Once this process has left, it may be another one's.
        if (self.is_ours)() && self.directory.owner(self.seat) == self.me {
            self.directory.release_seat(self.seat);
        }
    }
}

impl<D: Words> PinTable<D> {
    /// A pin that is not in use.
    pub(super) fn acquire(&self) -> Option<usize> {
        let most = self.directory.capacity().pins;
        let free = |used: u32| (0..most).find(|pin| used >> pin & 1 == 0);
        // Relaxed, both: the pin itself is ordered by what stands in it.
        let used = self
            .used
            .fetch_update(Relaxed, Relaxed, |used| Some(used | 1 << free(used)?));
        used.ok().and_then(free)
    }

    pub(super) fn release(&self, pin: usize, source: PublisherId, len: u64) {
        if (self.is_ours)() {
            self.directory.clear_pin(self.seat, pin);
            let publisher = (source.listing, source.generation);
            self.directory.return_bytes(self.seat, publisher, len);
        }
        self.mark_free(pin);
    }

    pub(super) fn mark_free(&self, pin: usize) {
        // Release: nobody takes it before it is cleared.
        self.used
            .fetch_and(!(1 << pin), std::sync::atomic::Ordering::Release);
    }
}

/// A block of a publisher that is looked at, and is not written over until this is dropped. Wake the publishers if
/// [`end`](Self::end) says so.
pub struct PinnedBlock<L: LogMemory, D: Words> {
    pub(super) log: Arc<Log<L>>,
    pub(super) pins: Arc<PinTable<D>>,
    pub(super) source: PublisherId,
    pub(super) pin: usize,
    /// Where its bytes begin in the log.
    pub at: u64,
    /// How many they are.
    pub len: u64,
    pub(super) is_active: bool,
}

impl<L: LogMemory, D: Words> PinnedBlock<L, D> {
    /// The log, which is there as long as this.
    pub fn log(&self) -> &Arc<Log<L>> {
        &self.log
    }

    /// Ends it now. Whether a publisher may sleep until then.
    pub fn end(&mut self) -> bool {
        if !std::mem::take(&mut self.is_active) {
            return false;
        }
        self.pins.release(self.pin, self.source, self.len);
        // For anybody: it never sleeps for the head of one and a pin.
        let PublisherId { listing, .. } = self.source;
        self.pins.directory.is_awaited(listing, self.pins.seat, 0)
    }
}

impl<L: LogMemory, D: Words> Drop for PinnedBlock<L, D> {
    fn drop(&mut self) {
        if self.end() {
            self.pins.is_waited_for.store(true, Relaxed); // Told by the next look for messages.
        }
    }
}
