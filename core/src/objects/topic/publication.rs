//! The publication of this process in a topic.

use super::membership::{
    ITEMS, LocalPublication, LocalSubscription, Log, RETRY_PAUSE, ROOM, TopicMembership,
};
use super::overview::SubscriberSeen;
use crate::memory::mapping::SharedMapping;
use crate::objects::error::ObjectError;
use crate::objects::files::random;
use crate::objects::lifecycle::recover_dead;
use crate::sync::lock;
use crate::topic::log_layout::{LogLayout, PublisherLimits};
use crate::topic::mapped_log::MappedLog;
use crate::topic::publisher::{Block, NoRoom, OnFull, PublishError, Publisher, Waiter};
use crate::topic::subscriber::PublisherId;
use std::any::Any;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// The longest wait of a closing publisher for subscribers that have not attached: they may be stopped.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(1);

/// The maximum number of bytes that a publisher may hold for large records.
pub const MAX_MEMORY: u64 = 1 << 36;

type LogPublisher = Publisher<Log, Arc<SharedMapping>>;

/// The publication of this process in a topic. Its drop ends it, and may wait for `ATTACH_TIMEOUT` before.
pub struct Publication {
    topic: Arc<TopicMembership>,
    publisher: Mutex<LogPublisher>,
    shape: LogLayout,
    /// The number of waits that threads and tasks of this process have begun.
    waits: AtomicU64,
    /// True if a loop has waited for the subscribers before the publication closes.
    has_waited: AtomicBool,
}

/// The result of publishing some records.
#[derive(Debug)]
pub struct PublishOutcome {
    /// The number of published records.
    pub count: usize,
    /// The subscriber that leaves no room for the others, if there are any.
    pub refused: Option<NoRoom>,
}

impl TopicMembership {
    /// Begins to publish in this process, until the last reference to the result is dropped. Returns the publication
    /// that is open already, if there is one with the same limits. Raises `Limits` for other limits, `Os` for missing
    /// memory, and `Full` if the topic has the maximum number of publishers.
    pub fn publish(
        self: &Arc<Self>,
        limits: PublisherLimits,
    ) -> Result<Arc<Publication>, ObjectError> {
        self.check()?;
        let mut known = lock(&self.publication);
        let open = known.as_ref().and_then(Weak::upgrade);
        let open: Option<Arc<dyn Any + Send + Sync>> = open.map(|open| open as _);
        if let Some(open) = open.and_then(|open| open.downcast::<Publication>().ok()) {
            let found = lock(&open.publisher).limits();
            return match found == limits {
                true => Ok(open),
                false => Err(ObjectError::Limits {
                    found: describe_limits(found),
                    asked: describe_limits(limits),
                }),
            };
        }
        let shape = LogLayout::of(limits);
        let no_room =
            || ObjectError::no_memory(&format!("the {} bytes of its messages", shape.used()));
        let memory = MappedLog::create(shape).map_err(no_room())?;
        let descriptor = memory.descriptor().unwrap_or(-1);
        let token = random()? as u64;
        let publisher = Publisher::open(
            Arc::new(memory),
            self.directory().clone(),
            self.members().self_id().0,
            limits,
            shape,
            (token, descriptor),
        );
        let publisher = publisher.ok_or(ObjectError::Full("96 publishers"))?;
        let publication = Arc::new(Publication {
            topic: self.clone(),
            publisher: Mutex::new(publisher),
            shape,
            waits: AtomicU64::new(0),
            has_waited: AtomicBool::new(false),
        });
        let weak: Weak<Publication> = Arc::downgrade(&publication);
        *known = Some(weak);
        drop(known);
        // Sleeping subscribers attach themselves; watchers attach those of computing processes. Our own watcher is not
        // rung.
        self.wake_all(ITEMS);
        self.notify_watchers();
        self.attach_subscriptions();
        Ok(publication)
    }
}

/// Describes limits for an error message.
fn describe_limits(limits: PublisherLimits) -> String {
    let PublisherLimits { high, low, memory } = limits;
    format!("high_watermark={high}, low_watermark={low}, max_memory={memory}")
}

impl Publication {
    /// Returns the topic.
    pub fn membership(&self) -> &Arc<TopicMembership> {
        &self.topic
    }

    /// Locks the publisher. Raises what `Membership::check` raises.
    fn publisher(&self) -> Result<MutexGuard<'_, LogPublisher>, ObjectError> {
        self.topic.check()?;
        Ok(lock(&self.publisher))
    }

    /// Returns true if a payload of this many bytes needs a block.
    pub fn is_large(&self, len: u64) -> bool {
        len > self.shape.small()
    }

    /// Raises `TooLarge` if there can never be room for a payload of this many bytes.
    pub fn check_size(&self, len: u64) -> Result<(), ObjectError> {
        match self.is_large(len) && len > self.shape.blocks {
            true => Err(self.map_error(PublishError::TooLarge {
                asked: len,
                most: self.shape.blocks,
            })),
            false => Ok(()),
        }
    }

    /// Returns true if all subscribers have attached, so that they read what is published from now on. Notifies the
    /// other ones; `on_full` decides if they wake this process once they have attached.
    pub fn is_attached_by_all(&self, on_full: OnFull) -> Result<bool, ObjectError> {
        Ok(self.publisher()?.is_attached_by_all(on_full))
    }

    /// Publishes as many of these records as there is room for, and wakes subscribers. The caller publishes the rest
    /// once there is room. A record is its form, its payload, and true if the payload must be aligned. After an error,
    /// such as `Os` for missing memory, the records before the one that failed are published.
    #[inline]
    pub fn publish<'a>(
        &self,
        records: impl Iterator<Item = (u8, &'a [u8], bool)>,
        on_full: OnFull,
    ) -> Result<PublishOutcome, ObjectError> {
        let mut publisher = self.publisher()?;
        let (mut count, mut is_published) = (0, false);
        let mut refused = None;
        for record in records {
            let mut written = write(&mut publisher, record, on_full);
            if written.is_err() && publisher.publish() {
                // Subscribers must read what was written before there is room: only now a wait for room can end.
                is_published = true;
                written = write(&mut publisher, record, on_full);
            }
            match written {
                Ok(()) => count += 1,
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        if publisher.publish() || is_published {
            self.topic.wake_all(ITEMS);
        }
        drop(publisher);
        let refused = match refused {
            None => None,
            Some(PublishError::Full(slowest)) => Some(slowest),
            Some(other) => return Err(self.map_error(other)),
        };
        Ok(PublishOutcome { count, refused })
    }

    /// Reserves a block to fill, which the caller publishes or frees. Returns as the inner error the subscriber that
    /// holds the memory. Raises `TooLarge` or `Os` if there is no such memory.
    pub fn reserve(&self, len: u64, on_full: OnFull) -> Result<Result<Block, NoRoom>, ObjectError> {
        let reserved = self.publisher()?.reserve(len, on_full);
        self.separate_no_room(reserved)
    }

    /// Publishes the first `used` bytes of a filled block. Returns the slowest subscriber as the inner error if there
    /// is no room; then, and after an error, the block is back in `block`. Raises `NotHeld` if `block` is None.
    pub fn publish_block(
        &self,
        form: u8,
        block: &mut Option<Block>,
        used: u64,
        on_full: OnFull,
    ) -> Result<Result<(), NoRoom>, ObjectError> {
        let mut publisher = self.publisher()?;
        let Some(filled) = block.take() else {
            return Err(ObjectError::NotHeld("has published this block before"));
        };
        match publisher.append_block(form, filled, used, on_full) {
            Ok(()) => {
                publisher.publish();
                self.topic.wake_all(ITEMS);
                Ok(Ok(()))
            }
            Err((refused, filled)) => {
                *block = Some(filled);
                self.separate_no_room(Err(refused))
            }
        }
    }

    /// Frees a block that is not needed, and wakes all that wait for room.
    pub fn free_block(&self, block: Block) {
        lock(&self.publisher).free_block(block);
        if self.topic.is_here() {
            self.topic.wake_all(ROOM);
        }
    }

    /// Returns the address of a block, and the log that keeps it mapped.
    pub fn address(&self, block: &Block) -> (Log, *mut u8) {
        let log = lock(&self.publisher).log().space().clone();
        let address = log.address(block.at, block.len);
        (log, address)
    }

    /// Returns missing room, for which the caller may wait, as the inner error, and raises other errors.
    fn separate_no_room<T>(
        &self,
        result: Result<T, PublishError>,
    ) -> Result<Result<T, NoRoom>, ObjectError> {
        match result {
            Ok(done) => Ok(Ok(done)),
            Err(PublishError::Full(slowest)) => Ok(Err(slowest)),
            Err(other) => Err(self.map_error(other)),
        }
    }

    /// Converts an error other than missing room.
    #[cold]
    fn map_error(&self, error: PublishError) -> ObjectError {
        match error {
            PublishError::System(error) => ObjectError::no_memory("its messages")(error),
            other => ObjectError::TooLarge(other.to_string()),
        }
    }

    /// Begins a wait of a thread or task for room. The wait ends when the result is dropped.
    pub fn wait(self: &Arc<Self>) -> RoomWait {
        // Relaxed: only a number.
        let waiter = Waiter(self.waits.fetch_add(1, Relaxed));
        RoomWait {
            publication: self.clone(),
            waiter,
        }
    }

    /// Returns true if the slowest subscriber is in this process, and this thread was the last to read from it: a wait
    /// for this subscriber would not end.
    pub fn is_read_by_this_thread(&self, slowest: &NoRoom) -> bool {
        if self.topic.check().is_err() || slowest.owner != Some(self.topic.members().self_id().0) {
            return false;
        }
        let subscriptions = self.topic.local_subscriptions();
        let mut found = subscriptions.iter();
        found.any(|each| LocalSubscription::was_read_by_this_thread(&**each))
    }

    /// Returns the subscribers, with their progress in this publisher.
    pub fn subscribers(&self) -> Result<Vec<SubscriberSeen>, ObjectError> {
        let publisher = self.publisher()?;
        let (listing, generation) = publisher.listing();
        let next = publisher.next();
        drop(publisher);
        self.topic.check()?;
        Ok(self.topic.subscribers_of(&[(listing, generation, next)]))
    }

    /// Returns the number of published records, the bytes of large records in use, and the bytes with memory.
    pub fn stats(&self) -> Result<(u64, u64, u64), ObjectError> {
        let publisher = self.publisher()?;
        let (used, backed) = publisher.memory();
        Ok((publisher.next(), used, backed))
    }

    /// Returns the identity of the publisher.
    pub fn source(&self) -> Result<PublisherId, ObjectError> {
        let (listing, generation) = self.publisher()?.listing();
        Ok(PublisherId {
            listing,
            generation,
            owner: self.topic.members().self_id().0,
        })
    }

    /// Notes that a loop has waited for the subscribers, if this is the last handle: its drop then does not wait.
    pub fn note_waited(self: &Arc<Self>) {
        if Arc::strong_count(self) == 1 {
            self.has_waited.store(true, Relaxed);
        }
    }
}

/// Writes a record, without publishing it.
#[inline]
fn write(
    publisher: &mut LogPublisher,
    (form, payload, aligned): (u8, &[u8], bool),
    on_full: OnFull,
) -> Result<(), PublishError> {
    match publisher.is_large(payload.len() as u64) {
        false => publisher.append(form, payload, aligned, on_full),
        true => write_large(publisher, (form, payload), on_full),
    }
}

/// Writes a record whose payload needs a block.
#[cold]
fn write_large(
    publisher: &mut LogPublisher,
    (form, payload): (u8, &[u8]),
    on_full: OnFull,
) -> Result<(), PublishError> {
    let len = payload.len() as u64;
    let block = publisher.reserve(len, on_full)?;
    crate::topic::LogMemory::write(&**publisher.log().space(), block.at, payload);
    let written = publisher.append_block(form, block, len, on_full);
    written.map_err(|(refused, block)| {
        publisher.free_block(block);
        refused
    })
}

impl LocalPublication for Publication {
    /// Publishes what is written, and waits for at most [`ATTACH_TIMEOUT`] until all subscribers have attached.
    fn finish(&self) {
        // Relaxed: set by the thread that drops the last handle.
        if self.has_waited.load(Relaxed) {
            return;
        }
        let begun = Instant::now();
        let mut is_first = true;
        loop {
            let mut publisher = lock(&self.publisher);
            publisher.publish();
            if publisher.next() == 0 || publisher.is_attached_by_all(OnFull::Fail) {
                return;
            }
            drop(publisher);
            if std::mem::take(&mut is_first) {
                self.topic.wake_all(ITEMS);
            }
            // Killed subscribers are not waited for; the watcher does not recover them while this process leaves.
            recover_dead(&*self.topic);
            if begun.elapsed() >= ATTACH_TIMEOUT {
                return;
            }
            thread::sleep(RETRY_PAUSE);
        }
    }
}

impl Drop for Publication {
    fn drop(&mut self) {
        // A process that has left has given the listing back, and another process may have it by now.
        if self.topic.is_here() && !self.topic.has_left() {
            self.finish();
            lock(&self.publisher).close();
            self.topic.wake_all(ITEMS);
        }
    }
}

/// A wait of a thread or task for room, or for subscribers.
pub struct RoomWait {
    publication: Arc<Publication>,
    waiter: Waiter,
}

impl RoomWait {
    /// Returns the publication.
    pub fn publication(&self) -> &Publication {
        &self.publication
    }

    /// Returns the argument `on_full` for attempts to publish within this wait.
    pub fn on_full(&self) -> OnFull {
        OnFull::Wait(self.waiter)
    }
}

impl Drop for RoomWait {
    fn drop(&mut self) {
        if let Ok(mut publisher) = self.publication.publisher() {
            publisher.cancel_wait(self.waiter);
        }
    }
}
