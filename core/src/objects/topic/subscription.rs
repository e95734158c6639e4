//! The subscriptions of this process to a topic.

use super::membership::{LocalSubscription, Log, Processes, ROOM, TopicMembership};
use crate::memory::mapping::SharedMapping;
use crate::objects::error::ObjectError;
use crate::os::fallocate;
use crate::sync::lock;
use crate::topic::Policy;
use crate::topic::directory::ListingInfo;
use crate::topic::subscriber::{self, History, PublisherId, Received, Subscriber};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// A message that was read.
pub type Message = subscriber::Message<Log, Arc<SharedMapping>>;
/// The bytes of a message.
pub type Payload = subscriber::Payload<Log, Arc<SharedMapping>>;
/// A block of another process that this process has pinned.
pub type Pin = subscriber::PinnedBlock<Log, Arc<SharedMapping>>;

type LogSubscriber = Subscriber<Log, Arc<SharedMapping>>;

/// The outcome of receiving messages.
#[derive(Debug)]
pub enum ReceiveOutcome {
    /// The received messages, or the reason why there are none.
    Received(Received),
    /// A publisher that cannot be read, and the reason.
    Unreachable(PublisherId, String),
}

/// A subscription of this process to a topic, which ends when it is dropped.
pub struct Subscription {
    topic: Arc<TopicMembership>,
    processes: Processes,
    subscriber: Mutex<LogSubscriber>,
    /// The thread that has read last, or has subscribed.
    reader: AtomicUsize,
}

/// Returns a number that no other living thread has: the address of a variable of this thread.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

impl TopicMembership {
    /// Subscribes in this process, until the result is dropped, and attaches to the publishers. `policy` has the n of
    /// `KeepLast(n)` or `Disconnect(n)`. Raises `Os` for missing memory, and `Full` if the topic has the maximum number
    /// of subscribers. Starts the watcher, and also raises what `Membership::check` and `Membership::watch` raise.
    pub fn subscribe(
        self: &Arc<Self>,
        policy: (Policy, u64),
        history: History,
    ) -> Result<Arc<Subscription>, ObjectError> {
        self.check()?;
        self.watch()?;
        let weak = Arc::downgrade(self);
        let is_member = move || {
            let topic = weak.upgrade();
            topic.is_some_and(|topic| topic.is_here() && !topic.has_left())
        };
        let owner = (self.members().self_id().0, Box::new(is_member) as _);
        let prepare = |at, len| {
            let file = self.file();
            let file = file.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
            fallocate(file.as_fd(), libc::FALLOC_FL_KEEP_SIZE, at, len)
        };
        let processes = Processes::default();
        let mut open = |listed: &ListingInfo| self.open_log(listed, &processes);
        let joined = Subscriber::subscribe(
            self.directory().clone(),
            owner,
            policy,
            history,
            prepare,
            &mut open,
        );
        let joined = joined.map_err(ObjectError::no_memory("a subscriber"))?;
        let (subscriber, wakeups) = joined.ok_or(ObjectError::Full("128 subscribers"))?;
        self.wake_for(wakeups);
        let subscription = Arc::new(Subscription {
            topic: self.clone(),
            processes,
            subscriber: Mutex::new(subscriber),
            reader: AtomicUsize::new(this_thread()),
        });
        let weak: Weak<Subscription> = Arc::downgrade(&subscription);
        self.add_subscription(weak);
        Ok(subscription)
    }
}

impl Subscription {
    /// Returns the topic.
    pub fn membership(&self) -> &Arc<TopicMembership> {
        &self.topic
    }

    /// Locks the subscriber, and attaches it to all publishers that exist now, whose logs it maps. Raises no error for
    /// a log that cannot be opened: `receive` reports its publisher.
    fn refreshed(&self) -> Result<MutexGuard<'_, LogSubscriber>, ObjectError> {
        self.topic.check()?;
        let mut subscriber = lock(&self.subscriber);
        if subscriber.is_stale() {
            let wakeups = subscriber
                .refresh(&mut |listed: &ListingInfo| self.topic.open_log(listed, &self.processes));
            self.topic.wake_for(wakeups);
            let known: Vec<_> = subscriber.sources().collect();
            lock(&self.processes).retain(|&(listing, generation), _| {
                let is_same = |source: &PublisherId| {
                    source.listing == listing && source.generation == generation
                };
                known.iter().any(is_same)
            });
        }
        Ok(subscriber)
    }

    /// Receives messages, large ones in place, without waiting: see [`Subscriber::receive`]. Reports each publisher
    /// that cannot be read once, and receives nothing then. Raises what `Membership::check` raises.
    #[inline]
    pub fn receive(
        &self,
        max_messages: usize,
        out: &mut Vec<u8>,
        messages: &mut Vec<Message>,
    ) -> Result<ReceiveOutcome, ObjectError> {
        let mut subscriber = self.refreshed()?;
        if let Some((source, why)) = subscriber.next_unreadable() {
            return Ok(ReceiveOutcome::Unreachable(source, why));
        }
        let (received, wakeups) = subscriber.receive(max_messages, true, out, messages);
        drop(subscriber);
        // Relaxed: only for warnings.
        self.reader.store(this_thread(), Relaxed);
        self.topic.wake_for(wakeups);
        Ok(ReceiveOutcome::Received(received))
    }

    /// Returns true if there may be a message: a hint that is right once this process has announced that it sleeps.
    pub fn may_receive(&self) -> bool {
        lock(&self.subscriber).may_receive()
    }

    /// Returns the process id of a publisher that is read, also once the publisher has ended; 0 for other publishers.
    pub fn process_of(&self, source: PublisherId) -> libc::pid_t {
        let known = lock(&self.processes);
        let pid = known.get(&(source.listing, source.generation));
        pid.copied().unwrap_or(0)
    }

    /// Returns the number of missed records, of all publishers so far.
    pub fn lost(&self) -> Result<u64, ObjectError> {
        self.topic.check()?;
        Ok(lock(&self.subscriber).lost())
    }

    /// Returns the publishers that are read and have not ended.
    pub fn sources(&self) -> Result<Vec<PublisherId>, ObjectError> {
        Ok(self.refreshed()?.live_sources().collect())
    }

    /// Returns true if this publisher, which the subscription no longer reads, still publishes, and no other publisher
    /// is read.
    pub fn is_last_source(&self, source: PublisherId) -> Result<bool, ObjectError> {
        Ok(self.refreshed()?.is_last_source(source))
    }

    /// Ends the subscription, and wakes all sleepers of the topic. Pinned blocks stay pinned until
    /// [`unpin`](Self::unpin). Idempotent.
    pub fn leave(&self) {
        if self.topic.check().is_ok() {
            lock(&self.subscriber).leave();
            self.topic.wake_all_sets();
        }
    }

    /// Ends the pin of a block, and wakes publishers that wait for room.
    pub fn unpin(&self, pin: &mut Pin) {
        if pin.end() && self.topic.check().is_ok() {
            self.topic.wake_all(ROOM);
        }
    }
}

impl LocalSubscription for Subscription {
    /// Attaches as the next `receive` would, and ignores errors.
    fn attach_publishers(&self) {
        drop(self.refreshed());
    }

    fn was_read_by_this_thread(&self) -> bool {
        // Relaxed: only for warnings.
        self.reader.load(Relaxed) == this_thread()
    }
}

impl Drop for Subscription {
    /// Leaves as `leave` does.
    fn drop(&mut self) {
        self.leave();
    }
}
