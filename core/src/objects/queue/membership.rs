//! The membership of this process in a queue: waking sleepers, and waiting for the owner lock.

use crate::clock;
use crate::memory::mapping::SharedMapping;
use crate::objects::deadline::{
    OWNER_LOCK_TIMEOUT, SHORT_OWNER_LOCK_TIMEOUT, SHORT_TIMEOUT_PERIOD,
};
use crate::objects::error::ObjectError;
use crate::objects::members::lock_file::ObjectMembers;
use crate::objects::members::watcher::Watched;
use crate::objects::membership::Membership;
use crate::objects::parts::Parts;
use crate::queue::{PutOutcome, Queue, TrimState, Wakeups, WritersToWake};
use crate::shared_heap::HeapError;
use std::ops::Deref;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, Weak};

/// The wait set of readers that wait for an item.
pub const ITEMS: usize = 0;
/// The wait set of writers that wait for room.
pub const ROOM: usize = 1;
/// The wait set of members that wait until all items are done.
pub const DONE: usize = 2;

/// The queue of an object, in memory.
pub(super) type ObjectQueue = Queue<Arc<SharedMapping>, Arc<ObjectMembers>>;

/// The membership of this process in a queue.
pub struct QueueMembership {
    membership: Membership,
    queue: ObjectQueue,
    /// Items that were lost when all members were killed, before this process.
    pub(super) lost_items: AtomicU64,
    /// The state of the last attempt to reclaim memory.
    pub(super) trim_state: Mutex<TrimState>,
    /// True if memory of the queue is free, and the watcher must check whether it can be reclaimed.
    has_spare_memory: AtomicBool,
    /// The time, in nanoseconds of CLOCK_MONOTONIC, until which operations use the short timeout for the owner lock.
    short_timeout_until: AtomicU64,
}

impl Deref for QueueMembership {
    type Target = Membership;

    fn deref(&self) -> &Membership {
        &self.membership
    }
}

impl QueueMembership {
    /// Builds the membership from its parts. Raises `Os` if the memory cannot be used.
    pub fn build(parts: Parts) -> Result<Arc<Self>, ObjectError> {
        let shape = parts.shape;
        let start = shape.contents_at() as u64;
        let (words, members) = (parts.mapping.clone(), parts.members.clone());
        let queue = Queue::new(words, &parts.file, start, shape.limits(), members);
        let queue = queue.map_err(ObjectError::os("its memory cannot be had"))?;
        Ok(Arc::new_cyclic(|weak: &Weak<Self>| {
            let weak: Weak<dyn Watched> = weak.clone();
            QueueMembership {
                membership: Membership::new(parts, weak),
                queue,
                lost_items: AtomicU64::new(0),
                trim_state: Mutex::default(),
                has_spare_memory: AtomicBool::new(false),
                short_timeout_until: AtomicU64::new(0),
            }
        }))
    }

    /// Returns the queue. Raises what `Membership::check` raises.
    #[inline]
    pub(super) fn queue(&self) -> Result<&ObjectQueue, ObjectError> {
        self.check()?;
        Ok(&self.queue)
    }

    /// Returns the queue for a member that receives or inspects items. From then on the watcher returns the items that
    /// dead members have claimed. Raises what `Membership::check` and `Membership::watch` raise.
    #[inline]
    pub(super) fn watched_queue(&self) -> Result<&ObjectQueue, ObjectError> {
        self.watch()?;
        self.queue()
    }

    /// Returns the queue, without a check that it can be used.
    pub(super) fn unchecked_queue(&self) -> &ObjectQueue {
        &self.queue
    }

    /// Calls `operate` once, with the timeout for the owner lock, in nanoseconds: `SHORT_OWNER_LOCK_TIMEOUT` for
    /// `SHORT_TIMEOUT_PERIOD` after another operation has raised `Changing`, `OWNER_LOCK_TIMEOUT` otherwise. Returns
    /// the result of `operate`.
    #[cold]
    pub fn with_lock_timeout<T>(
        &self,
        operate: impl FnOnce(u64) -> Result<T, ObjectError>,
    ) -> Result<T, ObjectError> {
        // Relaxed, both: a hint.
        if clock::now() < self.short_timeout_until.load(Relaxed) {
            return operate(SHORT_OWNER_LOCK_TIMEOUT);
        }
        let done = operate(OWNER_LOCK_TIMEOUT);
        if matches!(done, Err(ObjectError::Changing { .. })) {
            let until = clock::now() + SHORT_TIMEOUT_PERIOD;
            self.short_timeout_until.store(until, Relaxed);
        }
        done
    }

    /// Wakes the sleepers for which a change has made room or items, and requests that freed memory is reclaimed.
    pub(super) fn wake_for(&self, wakeups: Wakeups) {
        if wakeups.over {
            self.wake_all(ITEMS);
        } else if wakeups.items {
            self.wake_next(ITEMS);
        }
        match wakeups.room {
            WritersToWake::None => {}
            WritersToWake::One => drop(self.wake_next(ROOM)),
            WritersToWake::All => self.wake_all(ROOM),
        }
        if wakeups.done {
            self.wake_all(DONE);
        }
        if wakeups.freed {
            self.request_reclaim();
        }
    }

    /// Wakes a reader if the put was stored, and the writers if the queue asks for it, and converts the error of the
    /// put.
    #[inline]
    pub(super) fn finish_put(
        &self,
        put: Result<PutOutcome, HeapError>,
    ) -> Result<PutOutcome, ObjectError> {
        if self.queue.must_wake_writers() {
            self.wake_all(ROOM);
        }
        let put = put.map_err(|error| self.map_shared_error(error))?;
        if put == PutOutcome::Stored {
            self.wake_next(ITEMS);
        }
        Ok(put)
    }

    /// Wakes the sleepers that wait for the end of items, and converts the error. Returns false if no item has ended.
    pub(super) fn finish_end(
        &self,
        ended: Result<Option<Wakeups>, HeapError>,
    ) -> Result<bool, ObjectError> {
        let wakeups = ended.map_err(|error| self.map_shared_error(error))?;
        if let Some(wakeups) = wakeups {
            self.wake_for(wakeups);
        }
        Ok(wakeups.is_some())
    }

    /// Asks the watcher to check after a while whether memory can be reclaimed.
    #[cold]
    fn request_reclaim(&self) {
        // Relaxed: the watcher learns of it by a system call.
        if !self.has_spare_memory.swap(true, Relaxed) {
            // Without a watcher the memory is there until the last member leaves.
            self.request_chore();
        }
    }

    /// Returns true if the watcher has been asked to check whether memory can be reclaimed.
    pub(super) fn is_reclaim_requested(&self) -> bool {
        // Relaxed: a hint.
        self.has_spare_memory.load(Relaxed)
    }

    /// Sets whether the watcher must check for memory that can be reclaimed.
    pub(super) fn set_reclaim_requested(&self, is_requested: bool) {
        self.has_spare_memory.store(is_requested, Relaxed);
    }

    /// Asks the watcher to finish deferred operations later, if there are any.
    pub(super) fn request_deferred(&self) {
        if self.queue.has_deferred() {
            // Without a watcher it is finished when this process leaves.
            self.request_chore();
        }
    }
}
