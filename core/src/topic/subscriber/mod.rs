//! A subscriber: it reads the logs of all publishers, each in its own order.

mod attached;
mod message;
mod outcome;
mod pins;
mod reading;
mod source;

pub use message::{Message, Payload};
pub use outcome::{CorruptLog, Received, Wakeups};
pub use pins::{OwnershipCheck, PinnedBlock};
pub use source::PublisherId;

use crate::shared_heap::Words;
use crate::sync::Ordering;
use crate::topic::directory::{Directory, ListingInfo, READS_NOTHING, SeatWord};
use crate::topic::log::Log;
use crate::topic::log_memory::LogMemory;
use crate::topic::policy::Policy;
use attached::AttachedLog;
use pins::PinTable;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool as PrivateBool;
use std::sync::atomic::AtomicU32 as PrivateU32;

/// The position at which a new subscriber begins to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// At most this many of the last records of each publisher; 0: only new ones.
    Last(u64),
    /// The oldest record that is kept.
    Oldest,
}

/// The reader of all publishers of a topic.
pub struct Subscriber<L, D: Words> {
    directory: Directory<D>,
    seat: usize,
    word: SeatWord,
    policy: Policy,
    /// Parameter of the policy, in records.
    lag: u64,
    attached: Vec<AttachedLog<L>>,
    /// Generation of the publisher that is no longer read, or cannot be, by listing.
    finished: Vec<u64>,
    /// Publishers that cannot be read and were not reported, with the reasons.
    unreadable: Vec<(PublisherId, String)>,
    /// Index of the log to read first at the next call.
    next_index: usize,
    version: u64,
    /// True if a publisher of an attached log has ended, which is reported once its log is read to the end.
    has_ended: bool,
    pins: Arc<PinTable<D>>,
    /// Number of missed records of publishers that are no longer read.
    lost_before: u64,
}

/// A function that opens the memory of a publisher's log. Its error is a sentence with the reason of the failure, or
/// None if the publisher has ended.
pub trait Opener<L>: FnMut(&ListingInfo) -> Result<L, Option<String>> {}

impl<L, F: FnMut(&ListingInfo) -> Result<L, Option<String>>> Opener<L> for F {}

impl<L: LogMemory, D: Words + Clone> Subscriber<L, D> {
    /// Acquire a seat for member `self_id`, attach it to all publishers, and activate it. `is_ours` tells whether the
    /// seat still belongs to this process; `lag` is the parameter of the policy, in records. `prepare` allocates memory
    /// as in [`Directory::acquire_seat`]; its error is the only one. Return None if all seats are taken. Publishers
    /// that cannot be read are no error: see [`next_unreadable`](Self::next_unreadable). The caller does the wake-ups.
    pub fn subscribe(
        directory: Directory<D>,
        (self_id, is_ours): (u64, OwnershipCheck),
        (policy, lag): (Policy, u64),
        history: History,
        prepare: impl FnOnce(u64, u64) -> io::Result<()>,
        open: &mut impl Opener<L>,
    ) -> io::Result<Option<(Self, Wakeups)>> {
        let Some((seat, word)) = directory.acquire_seat(self_id, policy, lag, prepare)? else {
            return Ok(None);
        };
        let mut subscriber = Subscriber {
            pins: Arc::new(PinTable {
                directory: directory.clone(),
                seat,
                self_id,
                is_ours,
                is_waited_for: PrivateBool::new(false),
                used: PrivateU32::new(0),
            }),
            finished: vec![0; directory.capacity().listings],
            unreadable: Vec::new(),
            directory,
            seat,
            word,
            policy,
            lag,
            attached: Vec::new(),
            next_index: 0,
            version: 0,
            has_ended: false,
            lost_before: 0,
        };
        let wakeups = subscriber.attach_all(history, false, open);
        subscriber.word = subscriber.directory.activate(seat, word);
        Ok(Some((subscriber, wakeups)))
    }

    /// Return the number of the seat.
    pub fn seat(&self) -> usize {
        self.seat
    }

    /// Return the number of missed records of all publishers, past ones included. It saturates, because a hostile
    /// publisher may claim any number of them.
    pub fn lost(&self) -> u64 {
        let attached = self.attached.iter().map(|each| each.lost);
        attached.fold(self.lost_before, u64::saturating_add)
    }

    /// Return the publishers that are read, including those that have ended and are not read to the end.
    pub fn sources(&self) -> impl Iterator<Item = PublisherId> {
        self.attached.iter().map(|each| each.source)
    }

    /// Return the publishers that are read and have not ended.
    pub fn live_sources(&self) -> impl Iterator<Item = PublisherId> {
        self.sources().filter(|&source| self.is_publishing(source))
    }

    /// Return true if the subscriber reads no publisher, although `source`, which it has stopped reading, still
    /// publishes.
    pub fn is_last_source(&self, source: PublisherId) -> bool {
        self.attached.is_empty() && self.is_publishing(source)
    }

    /// Return true if a publisher that is read has ended.
    fn has_ended_source(&self) -> bool {
        self.sources().any(|source| !self.is_publishing(source))
    }

    /// Return true if a publisher has not ended.
    fn is_publishing(&self, source: PublisherId) -> bool {
        (self.directory).is_listed(source.listing, source.generation)
    }

    /// Return true if publishers have come or gone since the last `refresh`; the caller then refreshes.
    #[inline]
    pub fn is_stale(&self) -> bool {
        self.directory.version() != self.version
    }

    /// Attach the subscriber to publishers that have come since the last call, from their oldest kept record on. Those
    /// that cannot be read are no error: see [`next_unreadable`](Self::next_unreadable). The caller does the wake-ups.
    pub fn refresh(&mut self, open: &mut impl Opener<L>) -> Wakeups {
        self.attach_all(History::Oldest, true, open)
    }

    /// Attach the subscriber to all publishers that it does not know. With `from_the_first` all of their records count:
    /// reclaimed ones are missed.
    fn attach_all(
        &mut self,
        history: History,
        from_the_first: bool,
        open: &mut impl Opener<L>,
    ) -> Wakeups {
        let mut wakeups = Wakeups::default();
        // Before the load of the listings: a later change is seen at the next call.
        self.version = self.directory.version();
        for listing in 0..self.directory.capacity().listings {
            let Some(listed) = self.directory.listing_info(listing) else {
                continue;
            };
            if self.knows(&listed) {
                continue;
            }
            for attached in &mut self.attached {
                attached.is_replaced |= attached.source.listing == listing;
            }
            let opened = open(&listed).and_then(|space| {
                let log = Log::open(space, listed.token);
                log.ok_or_else(|| Some("its memory is no log of its own".to_owned()))
            });
            match opened {
                Ok(log) => wakeups.room |= self.attach(listed, log, history, from_the_first),
                // A publisher that has ended cannot be read.
                Err(None) => {}
                Err(_) if !self.directory.is_listed(listing, listed.generation) => {}
                Err(Some(why)) => {
                    let source = PublisherId::of(listed);
                    self.finish(source, false);
                    self.unreadable.push((source, why));
                    wakeups.room = true;
                }
            }
        }
        self.has_ended = self.has_ended_source();
        wakeups
    }

    /// Return true if the subscriber reads this publisher, or has stopped reading it, or cannot read it.
    fn knows(&self, listed: &ListingInfo) -> bool {
        let source = PublisherId::of(*listed);
        self.finished[listed.listing] == listed.generation
            || self.attached.iter().any(|each| each.source == source)
    }

    /// Store that a publisher, which must not wait for this subscriber, is no longer read. With `is_replaced` the cell
    /// belongs to another publisher and stays.
    fn finish(&mut self, source: PublisherId, is_replaced: bool) {
        let (listing, generation) = (source.listing, source.generation);
        if !is_replaced {
            self.finished[listing] = generation;
            (self.directory).attach(self.seat, listing, generation, READS_NOTHING);
        }
    }

    /// Attach the subscriber to the log of a publisher. Return true if the publisher may sleep for its head.
    fn attach(
        &mut self,
        listed: ListingInfo,
        log: Log<L>,
        history: History,
        from_the_first: bool,
    ) -> bool {
        // Relaxed, both: nothing is read before the next load of the tail, and the floor is loaded again after the
        // fence of `Directory::attach`.
        let tail = log.tail().load(Ordering::Relaxed);
        let floor = log.floor().load(Ordering::Relaxed).min(tail);
        let head = match history {
            History::Last(count) => floor.max(tail.saturating_sub(count)),
            History::Oldest => floor,
        };
        // At most half of the allowed lag, so that the subscriber is not cut off before it has read a record.
        let head = match self.policy {
            Policy::Disconnect if self.lag > 0 => head.max(tail.saturating_sub(self.lag / 2)),
            _ => head,
        };
        let (listing, generation) = (listed.listing, listed.generation);
        (self.directory).attach(self.seat, listing, generation, head);
        let mut attached = AttachedLog {
            source: PublisherId::of(listed),
            log: Arc::new(log),
            head,
            tail,
            lost: 0,
            is_replaced: false,
        };
        attached.raise_head_to_floor(&self.directory, self.seat);
        // A publisher that waits for the subscriber keeps all records from the moment on in which the subscriber is
        // attached.
        if from_the_first && self.policy != Policy::Block && attached.head > 0 {
            attached.lost = attached.head;
            self.directory.set_lost(self.seat, listing, attached.lost);
        }
        self.attached.push(attached);
        (self.directory).is_awaited(listing, self.seat, head)
    }

    /// Return true if there may be a message or an event to receive. A hint, which is right after a sleep was
    /// announced.
    pub fn may_receive(&self) -> bool {
        // Relaxed: the fence of the thread that is about to sleep orders it.
        let has_records =
            |each: &AttachedLog<L>| each.log.tail().load(Ordering::Relaxed) != each.head;
        // The watcher may have found the event before.
        let has_event = self.has_ended || !self.unreadable.is_empty();
        self.is_stale() || has_event || self.attached.iter().any(has_records)
    }

    /// Return the event that a publisher has gone and its log was read to the end, and stop reading it; else `Empty`.
    fn poll_gone(&mut self) -> Received {
        let is_gone = |each: &AttachedLog<L>| {
            // The load of the tail is after that of the listing, so all that was published is found. Acquire: pairs
            // with the Release of `publish`.
            !self.is_publishing(each.source) && each.log.tail().load(Ordering::Acquire) == each.head
        };
        match self.attached.iter().position(is_gone) {
            Some(index) => {
                let source = self.drop_attached(index);
                self.has_ended = self.has_ended_source();
                Received::PublisherGone(source)
            }
            None => Received::Empty,
        }
    }

    /// Stop reading the log at this index, after which the publisher no longer waits for this subscriber. Return its
    /// publisher. The last log takes the index.
    fn drop_attached(&mut self, index: usize) -> PublisherId {
        let attached = self.attached.swap_remove(index);
        self.lost_before = self.lost_before.saturating_add(attached.lost);
        self.finish(attached.source, attached.is_replaced);
        attached.source
    }

    /// Return a publisher that cannot be read, and the reason, once for each; None if there is no other.
    pub fn next_unreadable(&mut self) -> Option<(PublisherId, String)> {
        self.unreadable.pop()
    }

    /// Stop reading, and mark the seat as leaving. Pinned blocks stay readable. The caller wakes the publishers. The
    /// seat is released once the subscriber and its pins are dropped.
    pub fn leave(&mut self) {
        if (self.pins.is_ours)() {
            self.directory.mark_leaving(self.seat, self.word);
        }
        self.attached.clear();
    }
}
