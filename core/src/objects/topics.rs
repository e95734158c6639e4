//! What the members of a topic do with it, and whom they wake.

use super::layout::Shape;
use super::members::{Holder, Number};
use super::membership::{Membership, NameError};
use super::queueing::{ITEMS, ROOM};
use crate::memory::mapping::SharedMapping;
use crate::memory::sealed;
use crate::os::{fallocate, status};
use crate::sync::lock;
use crate::topic::Policy;
use crate::topic::directory::{Capacity, Directory, ListingInfo, SeatInfo, SeatState};
use crate::topic::log;
use crate::topic::log_layout::{LogLayout, PublisherLimits as Limits};
use crate::topic::mapped_log::{self, BLOCK, MappedLog};
use crate::topic::publisher::{Block, NoRoom, OnFull, PublishError, Publisher, Waiter};
use crate::topic::subscriber::{self, History, PublisherId, Received, Subscriber, Wakeups};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// The log of a publisher, mapped here.
pub type Log = Arc<MappedLog>;
/// What was read.
pub type Message = subscriber::Message<Log, Arc<SharedMapping>>;
/// The bytes of it.
pub type Payload = subscriber::Payload<Log, Arc<SharedMapping>>;
/// A block of another process that is looked at.
pub type Pin = subscriber::PinnedBlock<Log, Arc<SharedMapping>>;

/// How often a log that cannot be opened is looked for again, and how long after the time before.
const LOOKS: usize = 10;
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);
/// The time that a closing publisher waits for subscribers that have not attached: they may be stopped.
const ATTACHING: Duration = Duration::from_secs(1);

/// The most bytes that a publisher may hold for large records.
pub const MOST_MEMORY: u64 = 1 << 36;

/// What a topic has.
pub struct Topic {
    directory: Directory<Arc<SharedMapping>>,
    file: Weak<OwnedFd>,
    publishing: Mutex<Weak<Publishing>>,
    subscriptions: Mutex<Vec<Weak<Subscription>>>,
}

impl Topic {
    pub(super) fn new(mapping: &Arc<SharedMapping>, file: &Arc<OwnedFd>, shape: Shape) -> Self {
        let start = shape.data() as u64;
        Topic {
            directory: Directory::new(mapping.clone(), start, Capacity::OF_A_TOPIC),
            file: Arc::downgrade(file),
            publishing: Mutex::default(),
            subscriptions: Mutex::default(),
        }
    }

    /// Gives back what dead members of a slot have left, which may be ours now.
    pub(super) fn recover(&self, slot: u32, us: Number) {
        self.directory
            .recover(|owner| Number(owner).slot() == Some(slot) && owner != us.0);
    }

    /// Gives back what this process has, which leaves: what it has published is seen first.
    pub(super) fn abandon(&self, us: Number) {
        let publishing = lock(&self.publishing).upgrade();
        if let Some(publishing) = publishing {
            publishing.finish();
        }
        self.directory.recover(|owner| owner == us.0);
    }
}

/// A publisher of a topic, as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublisherSeen {
    /// Which it is.
    pub source: PublisherId,
    /// Its process; 0 if that is in another container, or gone.
    pub pid: libc::pid_t,
    /// How many records it has published, and their bytes; None if its log cannot be opened from here.
    pub published: Option<(u64, u64)>,
}

/// A subscriber of a topic, as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriberSeen {
    /// Its process; 0 if that is in another container, or gone.
    pub pid: libc::pid_t,
    /// How many records it is behind, of all publishers that are asked for; None if it reads of none of these.
    pub lag: Option<u64>,
    /// How many it has missed.
    pub lost: u64,
    /// Bytes of their large records that it looks at.
    pub held: u64,
    /// What it costs if it is slow.
    pub policy: Policy,
    /// The number of the policy.
    pub number: u64,
}

/// What can be seen of a topic by those that do not publish in it.
#[derive(Debug)]
pub struct Overview {
    /// Those that publish.
    pub publishers: Vec<PublisherSeen>,
    /// Those that subscribe, as all these publishers see them.
    pub subscribers: Vec<SubscriberSeen>,
    /// Bytes of memory that the topic has: its own, and of its publishers' logs.
    pub size: u64,
}

/// What became of records that were to be published.
#[derive(Debug)]
pub struct Published {
    /// This many are.
    pub count: usize,
    /// Why there is no room for the others, if there are any.
    pub refused: Option<NoRoom>,
}

impl Membership {
    fn topic(&self) -> Result<&Topic, NameError> {
        self.check()?;
        self.topic.as_ref().ok_or(NameError::NotHeld("is no topic"))
    }

    /// Publishes in this process from now on, until the last of what comes back is dropped. Another one that is open has
    /// the same limits.
    pub fn publish(self: &Arc<Self>, limits: Limits) -> Result<Arc<Publishing>, NameError> {
        let topic = self.topic()?;
        let mut known = lock(&topic.publishing);
        if let Some(publishing) = known.upgrade() {
            let found = lock(&publishing.publisher).limits();
            return match found == limits {
                true => Ok(publishing),
                false => Err(NameError::Limits {
                    found: words_of(found),
                    asked: words_of(limits),
                }),
            };
        }
        let shape = LogLayout::of(limits);
        let no_room =
            || NameError::no_memory(&format!("the {} bytes of its messages", shape.used()));
        let memory = MappedLog::create(shape).map_err(no_room())?;
        let descriptor = memory.descriptor().unwrap_or(-1);
        let token = super::registry::random()? as u64;
        let publisher = Publisher::open(
            Arc::new(memory),
            topic.directory.clone(),
            self.others().us().0,
            limits,
            shape,
            (token, descriptor),
        );
        let publisher = publisher.ok_or(NameError::Full("96 publishers"))?;
        let publishing = Arc::new(Publishing {
            membership: self.clone(),
            publisher: Mutex::new(publisher),
            shape,
            waiters: AtomicU64::new(0),
            has_waited: AtomicBool::new(false),
        });
        *known = Arc::downgrade(&publishing);
        drop(known);
        // Whoever sleeps attaches itself, and the watchers do it for those that compute; ours is not told.
        self.wake_all(ITEMS);
        self.tell_watchers();
        self.attach_subscriptions();
        Ok(publishing)
    }

    /// Subscribes in this process from now on, until what comes back is dropped.
    pub fn subscribe(
        self: &Arc<Self>,
        policy: (Policy, u64),
        history: History,
    ) -> Result<Arc<Subscription>, NameError> {
        let topic = self.topic()?;
        self.watch()?;
        let weak = Arc::downgrade(self);
        let is_ours = move || {
            let us = weak.upgrade();
            us.is_some_and(|us| us.is_here() && !us.has_left())
        };
        let us = (self.others().us().0, Box::new(is_ours) as _);
        let prepare = |at, len| {
            let file = topic.file.upgrade();
            let file = file.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
            fallocate(file.as_fd(), libc::FALLOC_FL_KEEP_SIZE, at, len)
        };
        let processes = Processes::default();
        let mut open = |listed: &ListingInfo| self.open_log(listed, &processes);
        let joined = Subscriber::subscribe(
            topic.directory.clone(),
            us,
            policy,
            history,
            prepare,
            &mut open,
        );
        let joined = joined.map_err(NameError::no_memory("a subscriber"))?;
        let (subscriber, news) = joined.ok_or(NameError::Full("128 subscribers"))?;
        self.spread_room(news);
        let subscription = Arc::new(Subscription {
            membership: self.clone(),
            processes,
            subscriber: Mutex::new(subscriber),
            reader: AtomicUsize::new(this_thread()),
        });
        let mut subscriptions = lock(&topic.subscriptions);
        subscriptions.retain(|each| each.strong_count() > 0);
        subscriptions.push(Arc::downgrade(&subscription));
        Ok(subscription)
    }

    /// Attaches the subscriptions of this process to publishers that have come.
    pub(super) fn attach_subscriptions(&self) {
        let Ok(topic) = self.topic() else {
            return;
        };
        let subscriptions = lock(&topic.subscriptions).clone();
        for subscription in subscriptions.iter().filter_map(Weak::upgrade) {
            drop(subscription.refreshed());
        }
    }

    fn spread_room(&self, news: Wakeups) {
        if news.room {
            self.wake_all(ROOM);
        }
    }

    /// Maps the log of a publisher, and notes its process.
    fn open_log(&self, listed: &ListingInfo, processes: &Processes) -> Result<Log, Option<String>> {
        match self.holder_of(Number(listed.owner)) {
            Some(Holder::Process(pid)) => {
                lock(processes).insert((listed.listing, listed.generation), pid);
                self.log_of(pid, listed)
            }
            Some(Holder::Elsewhere) => Err(Some(
                "it is in another container, and its memory can be opened only in the same one"
                    .to_owned(),
            )),
            None => Err(None),
        }
    }

    /// Maps the log of a publisher of this process; nothing if that ends just now: its memory may be gone before its place
    /// among the members is, and long before on a busy machine.
    fn log_of(&self, pid: libc::pid_t, listed: &ListingInfo) -> Result<Log, Option<String>> {
        let is_there = || match self.holder_of(Number(listed.owner)) {
            Some(Holder::Process(holder)) => holder == pid && !sealed::is_ending(pid),
            _ => false,
        };
        let open = || MappedLog::open(pid, listed.descriptor).map(Arc::new);
        let mut opened = open();
        for _ in 0..LOOKS {
            if opened.is_ok() || !is_there() {
                break;
            }
            thread::sleep(BETWEEN_LOOKS);
            opened = open();
        }
        opened.map_err(|why| is_there().then_some(why))
    }

    /// The publishers and the subscribers that are there, and what they have done.
    pub fn overview(&self) -> Result<Overview, NameError> {
        let topic = self.topic()?;
        let directory = &topic.directory;
        let (mut publishers, mut ends) = (Vec::new(), Vec::new());
        let file = topic.file.upgrade();
        let found = file.and_then(|file| status(file.as_fd()).ok());
        let mut size = found.map_or(0, |found| BLOCK * found.st_blocks as u64);
        for listed in
            (0..directory.capacity().listings).filter_map(|each| directory.listing_info(each))
        {
            let pid = self.process_of(listed.owner);
            let log = MappedLog::open(pid, listed.descriptor);
            let log = log
                .ok()
                .and_then(|memory| log::Log::open(memory, listed.token));
            if log.is_some() {
                size += mapped_log::allocated(pid, listed.descriptor);
            }
            let published = log.map(|log| log.published());
            if let Some((tail, _)) = published {
                ends.push((listed.listing, listed.generation, tail));
            }
            publishers.push(PublisherSeen {
                source: PublisherId {
                    listing: listed.listing,
                    generation: listed.generation,
                    owner: listed.owner,
                },
                pid,
                published,
            });
        }
        Ok(Overview {
            publishers,
            subscribers: self.subscribers_of(topic, &ends),
            size,
        })
    }

    /// Those that subscribe, as these publishers see them, each of which has a listing, a generation, and the number of its
    /// next record.
    fn subscribers_of(
        &self,
        topic: &Topic,
        publishers: &[(usize, u64, u64)],
    ) -> Vec<SubscriberSeen> {
        let directory = &topic.directory;
        let seen = |each: SeatInfo| {
            // It may begin behind what is published now.
            if each.claim.state() == SeatState::Joining {
                return None;
            }
            let (mut lag, mut lost, mut held) = (None, 0_u64, 0_u64);
            for &(listing, generation, next) in publishers {
                if let Some(progress) = directory.progress(each.seat, listing, generation) {
                    lost = progress.lost.saturating_add(lost);
                    held = progress.held.saturating_add(held);
                    if let Some(behind) = next.checked_sub(progress.head) {
                        lag = Some(behind.saturating_add(lag.unwrap_or(0)));
                    }
                }
            }
            Some(SubscriberSeen {
                pid: self.process_of(each.owner),
                lag,
                lost,
                held,
                policy: each.claim.policy()?,
                number: each.lag,
            })
        };
        directory.occupied_seats().filter_map(seen).collect()
    }
}

/// The processes of publishers, by listing and generation, as they were when they were attached.
type Processes = Mutex<HashMap<(usize, u64), libc::pid_t>>;

fn words_of(limits: Limits) -> String {
    let Limits { high, low, memory } = limits;
    format!("high={high}, low={low}, max_memory={memory}")
}

/// What this process publishes.
pub struct Publishing {
    membership: Arc<Membership>,
    publisher: Mutex<Publisher<Log, Arc<SharedMapping>>>,
    shape: LogLayout,
    /// How many of our threads and tasks have had a number to wait by.
    waiters: AtomicU64,
    /// True if the publisher has waited for its subscribers before it closed.
    has_waited: AtomicBool,
}

impl Publishing {
    /// The topic.
    pub fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }

    fn ours(&self) -> Result<MutexGuard<'_, Publisher<Log, Arc<SharedMapping>>>, NameError> {
        self.membership.check()?;
        Ok(lock(&self.publisher))
    }

    /// Whether a payload of this many bytes needs a block.
    pub fn is_large(&self, len: u64) -> bool {
        len > self.shape.small()
    }

    /// An error if there can never be room for a payload of this many bytes.
    pub fn check_size(&self, len: u64) -> Result<(), NameError> {
        match self.is_large(len) && len > self.shape.blocks {
            true => Err(self.failed(PublishError::TooLarge {
                asked: len,
                most: self.shape.blocks,
            })),
            false => Ok(()),
        }
    }

    /// Whether all that subscribe read what is published from now on; it is said to them if they do not.
    pub fn is_attached_by_all(&self, on_full: OnFull) -> Result<bool, NameError> {
        Ok(self.ours()?.is_attached_by_all(on_full))
    }

    /// Publishes as many of these records as there is room for, each with its form, and whether its payload is to be aligned.
    #[inline]
    pub fn publish<'a>(
        &self,
        records: impl Iterator<Item = (u8, &'a [u8], bool)>,
        on_full: OnFull,
    ) -> Result<Published, NameError> {
        let mut publisher = self.ours()?;
        let (mut count, mut is_news) = (0, false);
        let mut refused = None;
        for record in records {
            let mut written = write(&mut publisher, record, on_full);
            if written.is_err() && publisher.publish() {
                // What was written before is to be read before there is room: only now one can wait for that.
                is_news = true;
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
        if publisher.publish() || is_news {
            self.membership.wake_all(ITEMS);
        }
        drop(publisher);
        let refused = match refused {
            None => None,
            Some(PublishError::Full(slowest)) => Some(slowest),
            Some(other) => return Err(self.failed(other)),
        };
        Ok(Published { count, refused })
    }

    /// A block to fill, which is to be published or given back; or who has the memory.
    pub fn reserve(&self, len: u64, on_full: OnFull) -> Result<Result<Block, NoRoom>, NameError> {
        let reserved = self.ours()?.reserve(len, on_full);
        self.told(reserved)
    }

    /// Publishes a block that was filled; it comes back if there is no room.
    pub fn publish_block(
        &self,
        form: u8,
        block: &mut Option<Block>,
        used: u64,
        on_full: OnFull,
    ) -> Result<Result<(), NoRoom>, NameError> {
        let mut publisher = self.ours()?;
        let Some(filled) = block.take() else {
            return Err(NameError::NotHeld("has published this block before"));
        };
        match publisher.append_block(form, filled, used, on_full) {
            Ok(()) => {
                publisher.publish();
                self.membership.wake_all(ITEMS);
                Ok(Ok(()))
            }
            Err((refused, filled)) => {
                *block = Some(filled);
                self.told(Err(refused))
            }
        }
    }

    /// Frees a block that is not wanted.
    pub fn give_back(&self, block: Block) {
        lock(&self.publisher).free_block(block);
        if self.membership.is_here() {
            self.membership.wake_all(ROOM);
        }
    }

    /// Where a block lies in our memory, for as long as the log.
    pub fn address(&self, block: &Block) -> (Log, *mut u8) {
        let log = lock(&self.publisher).log().space().clone();
        let address = log.address(block.at, block.len);
        (log, address)
    }

    fn told<T>(&self, result: Result<T, PublishError>) -> Result<Result<T, NoRoom>, NameError> {
        match result {
            Ok(done) => Ok(Ok(done)),
            Err(PublishError::Full(slowest)) => Ok(Err(slowest)),
            Err(other) => Err(self.failed(other)),
        }
    }

    #[cold]
    fn failed(&self, refused: PublishError) -> NameError {
        match refused {
            PublishError::System(error) => NameError::no_memory("its messages")(error),
            other => NameError::TooLarge(other.to_string()),
        }
    }

    /// One of ours that may wait, until this is dropped.
    pub fn wait(self: &Arc<Self>) -> Waiting {
        // Relaxed: only a number.
        let waiter = Waiter(self.waiters.fetch_add(1, Relaxed));
        Waiting {
            publishing: self.clone(),
            waiter,
        }
    }

    /// Returns true if this thread waits for a subscriber that no other thread has read so far.
    pub fn is_read_by_this_thread(&self, slowest: &NoRoom) -> bool {
        let Ok(topic) = self.membership.topic() else {
            return false;
        };
        if slowest.owner != Some(self.membership.others().us().0) {
            return false;
        }
        let subscriptions = lock(&topic.subscriptions).clone();
        let mut found = subscriptions.iter().filter_map(Weak::upgrade);
        // Relaxed: a hint for people.
        found.any(|each| each.reader.load(Relaxed) == this_thread())
    }

    /// Those that subscribe, as this publisher sees them.
    pub fn subscribers(&self) -> Result<Vec<SubscriberSeen>, NameError> {
        let publisher = self.ours()?;
        let (listing, generation) = publisher.listing();
        let next = publisher.next();
        drop(publisher);
        let topic = self.membership.topic()?;
        let us = [(listing, generation, next)];
        Ok(self.membership.subscribers_of(topic, &us))
    }

    /// How many records were published, bytes of large ones that are in use, and that have memory.
    pub fn stats(&self) -> Result<(u64, u64, u64), NameError> {
        let publisher = self.ours()?;
        let (used, backed) = publisher.memory();
        Ok((publisher.next(), used, backed))
    }

    /// Which publisher it is.
    pub fn source(&self) -> Result<PublisherId, NameError> {
        let (listing, generation) = self.ours()?.listing();
        Ok(PublisherId {
            listing,
            generation,
            owner: self.membership.others().us().0,
        })
    }
}

#[inline]
fn write(
    publisher: &mut Publisher<Log, Arc<SharedMapping>>,
    (form, payload, aligned): (u8, &[u8], bool),
    on_full: OnFull,
) -> Result<(), PublishError> {
    match publisher.is_large(payload.len() as u64) {
        false => publisher.append(form, payload, aligned, on_full),
        true => write_large(publisher, (form, payload), on_full),
    }
}

#[cold]
fn write_large(
    publisher: &mut Publisher<Log, Arc<SharedMapping>>,
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

impl Publishing {
    /// Says before the last handle is dropped that those that subscribe were waited for, as a loop does it.
    pub fn has_waited(self: &Arc<Self>) {
        if Arc::strong_count(self) == 1 {
            self.has_waited.store(true, Relaxed);
        }
    }

    /// Publishes what was written, and waits until all that subscribe have attached themselves, for a while: what is mapped
    /// is read also after this process has gone. The process of one that was there first may not have turned to it so far.
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
                self.membership.wake_all(ITEMS);
                // Those that were killed are not waited for.
                let _ = self.membership.prepare_to_sleep();
            }
            if begun.elapsed() >= ATTACHING {
                return;
            }
            thread::sleep(BETWEEN_LOOKS);
        }
    }
}

impl Drop for Publishing {
    fn drop(&mut self) {
        // One that has left has given it back; another process may have the listing by now.
        if self.membership.is_here() && !self.membership.has_left() {
            self.finish();
            lock(&self.publisher).close();
            self.membership.wake_all(ITEMS);
        }
    }
}

/// A wait for room, or for those that subscribe.
pub struct Waiting {
    publishing: Arc<Publishing>,
    waiter: Waiter,
}

impl Waiting {
    /// What it waits for room in.
    pub fn publishing(&self) -> &Publishing {
        &self.publishing
    }

    /// How it waits.
    pub fn patience(&self) -> OnFull {
        OnFull::Wait(self.waiter)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Ok(mut publisher) = self.publishing.ours() {
            publisher.cancel_wait(self.waiter);
        }
    }
}

/// What a look for messages has found.
#[derive(Debug)]
pub enum Look {
    /// What was taken, or why nothing was.
    Received(Received),
    /// This publisher cannot be read, and why.
    OutOfReach(PublisherId, String),
}

/// What this process reads.
pub struct Subscription {
    membership: Arc<Membership>,
    processes: Processes,
    subscriber: Mutex<Subscriber<Log, Arc<SharedMapping>>>,
    /// The thread that has read last, or has subscribed.
    reader: AtomicUsize,
}

/// A number of this thread that no other one has at the same time.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

impl Subscription {
    /// The topic.
    pub fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }

    /// The reader, which knows all publishers that are there now.
    fn refreshed(&self) -> Result<MutexGuard<'_, Subscriber<Log, Arc<SharedMapping>>>, NameError> {
        self.membership.check()?;
        let mut subscriber = lock(&self.subscriber);
        if subscriber.is_stale() {
            let news = subscriber.refresh(&mut |listed: &ListingInfo| {
                self.membership.open_log(listed, &self.processes)
            });
            self.membership.spread_room(news);
            let known: Vec<_> = subscriber.sources().collect();
            lock(&self.processes).retain(|&(listing, generation), _| {
                let is_it = |source: &PublisherId| {
                    source.listing == listing && source.generation == generation
                };
                known.iter().any(is_it)
            });
        }
        Ok(subscriber)
    }

    /// Takes messages, as [`Subscriber::take`] does, large ones in place; or says of a publisher that it cannot be read, of
    /// each once.
    #[inline]
    pub fn take(
        &self,
        most: usize,
        out: &mut Vec<u8>,
        messages: &mut Vec<Message>,
    ) -> Result<Look, NameError> {
        let mut subscriber = self.refreshed()?;
        if let Some((source, why)) = subscriber.next_unreadable() {
            return Ok(Look::OutOfReach(source, why));
        }
        let (taken, news) = subscriber.receive(most, true, out, messages);
        drop(subscriber);
        // Relaxed: a hint for people.
        self.reader.store(this_thread(), Relaxed);
        self.membership.spread_room(news);
        Ok(Look::Received(taken))
    }

    /// Whether there may be something to take: a hint that is right once it was announced that somebody sleeps.
    pub fn may_receive(&self) -> bool {
        lock(&self.subscriber).may_receive()
    }

    /// The process of a publisher that it reads, also once that is gone; 0 if it is not known.
    pub fn process_of(&self, source: PublisherId) -> libc::pid_t {
        let known = lock(&self.processes);
        let pid = known.get(&(source.listing, source.generation));
        pid.copied().unwrap_or(0)
    }

    /// Records that it has missed.
    pub fn lost(&self) -> Result<u64, NameError> {
        self.membership.check()?;
        Ok(lock(&self.subscriber).lost())
    }

    /// The publishers that it reads, and that have not ended.
    pub fn sources(&self) -> Result<Vec<PublisherId>, NameError> {
        Ok(self.refreshed()?.live_sources().collect())
    }

    /// Whether it reads nobody, and this publisher, of which it reads nothing any more, still publishes.
    pub fn is_last_source(&self, source: PublisherId) -> Result<bool, NameError> {
        Ok(self.refreshed()?.is_last_source(source))
    }

    /// Ends it; what it has pinned stays as long as it is looked at.
    pub fn leave(&self) {
        if self.membership.check().is_ok() {
            lock(&self.subscriber).leave();
            self.membership.wake_everybody();
        }
    }

    /// What was looked at is not any more.
    pub fn let_go(&self, pin: &mut Pin) {
        if pin.end() && self.membership.check().is_ok() {
            self.membership.wake_all(ROOM);
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.leave();
    }
}
