//! Blocks of publishers that a subscriber looks at in place.

use super::source::Source;
use crate::shared_heap::Words;
use crate::topic::directory::Directory;
use crate::topic::log::Log;
use crate::topic::log_memory::Space;
use std::sync::Arc;
use std::sync::atomic::AtomicBool as PrivateBool;
use std::sync::atomic::AtomicU32 as PrivateU32;
use std::sync::atomic::Ordering::Relaxed;

/// Whether this process still has what it has taken: it is no forked child, and has not left.
pub type IsOurs = Box<dyn Fn() -> bool + Send + Sync>;

/// The pins of a seat, of which each block that is looked at has one. Dropped with the last of them, it frees the seat.
pub(super) struct Pins<D: Words> {
    pub(super) directory: Directory<D>,
    pub(super) seat: usize,
    pub(super) me: u64,
    pub(super) is_ours: IsOurs,
    /// Those in use. Only of interest here: others look at the pins themselves.
    pub(super) used: PrivateU32,
    /// One was dropped for which a publisher may sleep.
    pub(super) is_waited_for: PrivateBool,
}

impl<D: Words> Drop for Pins<D> {
    fn drop(&mut self) {
        // Once this process has left, it may be another one's.
        if (self.is_ours)() && self.directory.owner(self.seat) == self.me {
            self.directory.stand_up(self.seat);
        }
    }
}

impl<D: Words> Pins<D> {
    /// A pin that is not in use.
    pub(super) fn take(&self) -> Option<usize> {
        let most = self.directory.capacity().pins;
        let free = |used: u32| (0..most).find(|pin| used >> pin & 1 == 0);
        // Relaxed, both: the pin itself is ordered by what stands in it.
        let used = self
            .used
            .fetch_update(Relaxed, Relaxed, |used| Some(used | 1 << free(used)?));
        used.ok().and_then(free)
    }

    pub(super) fn give_back(&self, pin: usize, source: Source, len: u64) {
        if (self.is_ours)() {
            self.directory.clear_pin(self.seat, pin);
            let publisher = (source.listing, source.generation);
            self.directory.let_go(self.seat, publisher, len);
        }
        self.free(pin);
    }

    pub(super) fn free(&self, pin: usize) {
        // Release: nobody takes it before it is cleared.
        self.used
            .fetch_and(!(1 << pin), std::sync::atomic::Ordering::Release);
    }
}

/// A block of a publisher that is looked at, and is not written over until this is dropped. Wake the publishers if
/// [`end`](Self::end) says so.
pub struct Pin<L: Space, D: Words> {
    pub(super) log: Arc<Log<L>>,
    pub(super) pins: Arc<Pins<D>>,
    pub(super) source: Source,
    pub(super) pin: usize,
    /// Where its bytes begin in the log.
    pub at: u64,
    /// How many they are.
    pub len: u64,
    pub(super) is_held: bool,
}

impl<L: Space, D: Words> Pin<L, D> {
    /// The log, which is there as long as this.
    pub fn log(&self) -> &Arc<Log<L>> {
        &self.log
    }

    /// Ends it now. Whether a publisher may sleep until then.
    pub fn end(&mut self) -> bool {
        if !std::mem::take(&mut self.is_held) {
            return false;
        }
        self.pins.give_back(self.pin, self.source, self.len);
        // For anybody: it never sleeps for the head of one and a pin.
        let Source { listing, .. } = self.source;
        self.pins
            .directory
            .is_waited_for(listing, self.pins.seat, 0)
    }
}

impl<L: Space, D: Words> Drop for Pin<L, D> {
    fn drop(&mut self) {
        if self.end() {
            self.pins.is_waited_for.store(true, Relaxed); // Told by the next look for messages.
        }
    }
}
