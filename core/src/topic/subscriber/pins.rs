//! Blocks of publishers that a subscriber reads in place.

use super::source::PublisherId;
use crate::shared_heap::Words;
use crate::topic::directory::Directory;
use crate::topic::log::Log;
use crate::topic::log_memory::LogMemory;
use std::sync::Arc;
use std::sync::atomic::AtomicBool as PrivateBool;
use std::sync::atomic::AtomicU32 as PrivateU32;
use std::sync::atomic::Ordering::Relaxed;

/// Returns true if this process still owns the seat: it is no forked child, and has not left.
pub type OwnershipCheck = Box<dyn Fn() -> bool + Send + Sync>;

/// The pins of a seat, one for each block that is read in place. The drop of the last reference releases the seat.
pub(super) struct PinTable<D: Words> {
    pub(super) directory: Directory<D>,
    pub(super) seat: usize,
    pub(super) self_id: u64,
    pub(super) is_ours: OwnershipCheck,
    /// Bits of the pins in use. Private: other processes read the pins themselves.
    pub(super) used: PrivateU32,
    /// True if a pin was dropped for which a publisher may sleep.
    pub(super) is_waited_for: PrivateBool,
}

impl<D: Words> Drop for PinTable<D> {
    /// Release the seat if it still belongs to this process. No process is woken.
    fn drop(&mut self) {
        // After this process has left, the seat may belong to another one.
        if (self.is_ours)() && self.directory.owner(self.seat) == self.self_id {
            self.directory.release_seat(self.seat);
        }
    }
}

impl<D: Words> PinTable<D> {
    /// Take a pin that is not in use, and return its number; None if all are in use. The caller sets it in the
    /// directory, or calls [`mark_free`](Self::mark_free). The directory is not changed.
    pub(super) fn acquire(&self) -> Option<usize> {
        let most = self.directory.capacity().pins;
        let free = |used: u32| (0..most).find(|pin| used >> pin & 1 == 0);
        // Relaxed, both: the word of the pin is ordered by itself.
        let used = self
            .used
            .fetch_update(Relaxed, Relaxed, |used| Some(used | 1 << free(used)?));
        used.ok().and_then(free)
    }

    /// Clear a pin in the directory, give back the `len` bytes that the pin borrowed, and make the pin available.
    /// Changes nothing in the directory if the seat is no longer ours.
    pub(super) fn release(&self, pin: usize, source: PublisherId, len: u64) {
        if (self.is_ours)() {
            self.directory.clear_pin(self.seat, pin);
            let publisher = (source.listing, source.generation);
            self.directory.return_bytes(self.seat, publisher, len);
        }
        self.mark_free(pin);
    }

    /// Make a pin available that is clear in the directory. The directory is not changed.
    pub(super) fn mark_free(&self, pin: usize) {
        // Release: no thread acquires the pin before it is cleared.
        self.used
            .fetch_and(!(1 << pin), std::sync::atomic::Ordering::Release);
    }
}

/// A pinned block of a publisher, which is not overwritten until [`end`](Self::end) or the drop. After a drop the next
/// call to receive reports the wake-up that is due.
pub struct PinnedBlock<L: LogMemory, D: Words> {
    pub(super) log: Arc<Log<L>>,
    pub(super) pins: Arc<PinTable<D>>,
    pub(super) source: PublisherId,
    pub(super) pin: usize,
    /// Offset of its bytes in the log.
    pub at: u64,
    /// Number of bytes.
    pub len: u64,
    pub(super) is_active: bool,
}

impl<L: LogMemory, D: Words> PinnedBlock<L, D> {
    /// Return the log, which stays open as long as `self`.
    pub fn log(&self) -> &Arc<Log<L>> {
        &self.log
    }

    /// Unpin the block now; its bytes must not be read afterwards. Return true if its publisher may sleep for that:
    /// the caller then wakes the publishers. A further call returns false.
    pub fn end(&mut self) -> bool {
        if !std::mem::take(&mut self.is_active) {
            return false;
        }
        self.pins.release(self.pin, self.source, self.len);
        // Any head: a publisher never sleeps for both the head of one seat and a pin.
        let PublisherId { listing, .. } = self.source;
        self.pins.directory.is_awaited(listing, self.pins.seat, 0)
    }
}

impl<L: LogMemory, D: Words> Drop for PinnedBlock<L, D> {
    /// Unpin the block, if that was not done, and let the next call to receive report the wake-up that is due.
    fn drop(&mut self) {
        if self.end() {
            self.pins.is_waited_for.store(true, Relaxed); // The next call to receive reports it.
        }
    }
}
