//! One who subscribes: it reads the logs of all publishers, each in its own order.

use super::directory::{Claim, Directory, LISTINGS, Listed, READS_NOTHING};
use super::log::{ALIGNMENT, Log, Record, Why};
use super::{Policy, Space};
use crate::crash;
use crate::shared_heap::Words;
use crate::sync::{Ordering, fence};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool as PrivateBool;
use std::sync::atomic::AtomicU32 as PrivateU32;
use std::sync::atomic::Ordering::Relaxed;

/// No more bytes are copied at once, but for those of a single message.
const MOST_BYTES: usize = 64 << 20;
/// One who is waited for copies no more than this share of a publisher's ring at once.
const SHARE: u64 = 4;

/// Where one that joins begins to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// With the last records of each publisher, this many; 0: with what comes.
    Last(u64),
    /// With the oldest that is there.
    Oldest,
}

/// A publisher, as its messages name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its listing.
    pub listing: usize,
    /// Whose turn in that it is.
    pub generation: u64,
    /// The member that publishes, or did.
    pub owner: u64,
}

impl Source {
    fn of(listed: Listed) -> Self {
        Source {
            listing: listed.listing,
            generation: listed.generation,
            owner: listed.owner,
        }
    }

    /// A number that no other publisher of the topic has.
    pub fn number(self) -> u64 {
        const { assert!(LISTINGS <= 1 << 7) };
        (self.generation << 7) + self.listing as u64
    }
}

/// What was read.
pub struct Message<L: Space, D: Words> {
    /// Whose it is.
    pub source: Source,
    /// Its number among those of its publisher.
    pub seq: u64,
    /// What its payload is.
    pub form: u8,
    /// Where the payload is.
    pub payload: Payload<L, D>,
}

/// The bytes of a message.
pub enum Payload<L: Space, D: Words> {
    /// They were copied: where they begin in what was filled, and how many.
    Copied(usize, usize),
    /// They are looked at in the publisher's memory. In a box: most messages are small.
    Pinned(Box<Pin<L, D>>),
}

/// What a look for messages has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// This many.
    Messages(usize),
    /// None is there.
    Empty,
    /// None is there, and this publisher is gone, whose last one was read.
    Gone(Source),
    /// This publisher does not wait for us any more, and nothing more is read of it.
    CutOff(Source, Why),
    /// What this publisher has written cannot be true, and nothing more is read of it.
    False(Source, False),
}

/// What cannot be true in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum False {
    /// The number of its records.
    Tail(u64),
    /// The entry of a record.
    Entry(u64),
}

/// What others are to be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// A publisher that sleeps may have room.
    pub room: bool,
}

/// Whether this process still has what it has taken: it is no forked child, and has not left.
pub type IsOurs = Box<dyn Fn() -> bool + Send + Sync>;

/// The pins of a seat, of which each block that is looked at has one. Dropped with the last of them, it frees the seat.
struct Pins<D: Words> {
    directory: Directory<D>,
    seat: usize,
    me: u64,
    is_ours: IsOurs,
    /// Those in use. Only of interest here: others look at the pins themselves.
    used: PrivateU32,
    /// One was dropped for which a publisher may sleep.
    is_waited_for: PrivateBool,
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
    fn take(&self) -> Option<usize> {
        let most = self.directory.capacity().pins;
        let free = |used: u32| (0..most).find(|pin| used >> pin & 1 == 0);
        // Relaxed, both: the pin itself is ordered by what stands in it.
        let used = self
            .used
            .fetch_update(Relaxed, Relaxed, |used| Some(used | 1 << free(used)?));
        used.ok().and_then(free)
    }

    fn give_back(&self, pin: usize, source: Source, len: u64) {
        if (self.is_ours)() {
            self.directory.clear_pin(self.seat, pin);
            let publisher = (source.listing, source.generation);
            self.directory.let_go(self.seat, publisher, len);
        }
        self.free(pin);
    }

    fn free(&self, pin: usize) {
        // Release: nobody takes it before it is cleared.
        self.used
            .fetch_and(!(1 << pin), std::sync::atomic::Ordering::Release);
    }
}

/// A block of a publisher that is looked at, and is not written over until this is dropped. Wake the publishers if
/// [`end`](Self::end) says so.
pub struct Pin<L: Space, D: Words> {
    log: Arc<Log<L>>,
    pins: Arc<Pins<D>>,
    source: Source,
    pin: usize,
    /// Where its bytes begin in the log.
    pub at: u64,
    /// How many they are.
    pub len: u64,
    is_held: bool,
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

/// A publisher that is read.
#[derive(Debug)]
struct Attached<L> {
    source: Source,
    log: Arc<Log<L>>,
    /// The record that is read next.
    head: u64,
    /// As it was last seen.
    tail: u64,
    lost: u64,
    /// Another publisher has its listing, and so its cell.
    is_replaced: bool,
}

/// Small records that lie one behind the other, and are copied in one go.
#[derive(Default)]
struct Run {
    /// Where the first of them is in the log, and where the last one ends.
    at: u64,
    end: u64,
    /// Where in what is filled they are copied to.
    to: usize,
}

impl Run {
    fn from(record: Record, to: usize) -> Self {
        let at = record.at;
        let end = at + record.len;
        Run { at, end, to }
    }

    /// Whether this record is the next one, which is part of it then.
    #[inline]
    fn takes(&mut self, record: Record) -> bool {
        let is_next = record.at >= self.end && record.at - self.end < ALIGNMENT;
        if is_next {
            self.end = record.at + record.len;
        }
        is_next
    }

    /// Where the payload of one of them is in what is filled.
    #[inline]
    fn place(&self, record: Record) -> usize {
        self.to + (record.at - self.at) as usize
    }

    /// Where it will end in what is filled.
    #[inline]
    fn end_in(&self, out: &[u8]) -> usize {
        out.len() + (self.end - self.at) as usize
    }

    fn copy<L: Space>(&self, log: &Log<L>, out: &mut Vec<u8>) {
        log.space().read(self.at, self.end - self.at, out);
    }
}

/// The reader of all publishers.
pub struct Subscriber<L, D: Words> {
    directory: Directory<D>,
    seat: usize,
    claim: Claim,
    policy: Policy,
    /// The number of the policy.
    lag: u64,
    attached: Vec<Attached<L>>,
    /// By listing: the generation of a publisher that is not read any more, or cannot be.
    finished: Vec<u64>,
    /// Those that cannot be read, of which nobody was told so far, and why.
    out_of_reach: Vec<(Source, String)>,
    /// Whose turn it is.
    turn: usize,
    version: u64,
    /// One of those that it reads has ended: that is to be said once it is read to its end, however much there is of others.
    has_ended: bool,
    pins: Arc<Pins<D>>,
    /// Missed of publishers that are not read any more.
    lost_before: u64,
}

/// Finds the memory of a publisher's log; or why it cannot be had, or nothing if that one has ended.
pub trait Opener<L>: FnMut(&Listed) -> Result<L, Option<String>> {}

impl<L, F: FnMut(&Listed) -> Result<L, Option<String>>> Opener<L> for F {}

impl<L: Space, D: Words + Clone> Subscriber<L, D> {
    /// Takes a seat for member `me`, and attaches it to all publishers. `prepare` sets memory aside, as
    /// [`Directory::sit`] has it. None if all seats are taken.
    pub fn join(
        directory: Directory<D>,
        (me, is_ours): (u64, IsOurs),
        (policy, lag): (Policy, u64),
        history: History,
        prepare: impl FnOnce(u64, u64) -> io::Result<()>,
        open: &mut impl Opener<L>,
    ) -> io::Result<Option<(Self, News)>> {
        let Some((seat, claim)) = directory.sit(me, policy, lag, prepare)? else {
            return Ok(None);
        };
        let mut subscriber = Subscriber {
            pins: Arc::new(Pins {
                directory: directory.clone(),
                seat,
                me,
                is_ours,
                is_waited_for: PrivateBool::new(false),
                used: PrivateU32::new(0),
            }),
            finished: vec![0; directory.capacity().listings],
            out_of_reach: Vec::new(),
            directory,
            seat,
            claim,
            policy,
            lag,
            attached: Vec::new(),
            turn: 0,
            version: 0,
            has_ended: false,
            lost_before: 0,
        };
        let news = subscriber.attach_all(history, false, open);
        subscriber.claim = subscriber.directory.activate(seat, claim);
        Ok(Some((subscriber, news)))
    }

    /// Its seat.
    pub fn seat(&self) -> usize {
        self.seat
    }

    /// Records that it has missed; at most what fits, since a publisher that lies may have any number of them.
    pub fn lost(&self) -> u64 {
        let attached = self.attached.iter().map(|each| each.lost);
        attached.fold(self.lost_before, u64::saturating_add)
    }

    /// The publishers that it reads, also those that have ended and are not read to their end.
    pub fn sources(&self) -> impl Iterator<Item = Source> {
        self.attached.iter().map(|each| each.source)
    }

    /// Those of them that have not ended.
    pub fn live_sources(&self) -> impl Iterator<Item = Source> {
        self.sources().filter(|&source| self.is_there(source))
    }

    /// Whether it reads nobody, and this publisher, of which it reads nothing any more, still publishes.
    pub fn reads_nobody_but(&self, source: Source) -> bool {
        self.attached.is_empty() && self.is_there(source)
    }

    fn reads_the_dead(&self) -> bool {
        self.sources().any(|source| !self.is_there(source))
    }

    fn is_there(&self, source: Source) -> bool {
        (self.directory).is_listed(source.listing, source.generation)
    }

    /// Whether publishers have come or gone since `refresh`.
    #[inline]
    pub fn is_stale(&self) -> bool {
        self.directory.version() != self.version
    }

    /// Attaches it to the publishers that have come since.
    pub fn refresh(&mut self, open: &mut impl Opener<L>) -> News {
        self.attach_all(History::Oldest, true, open)
    }

    /// `from_the_first`: whatever these publish is for us, and what we find gone is missed.
    fn attach_all(
        &mut self,
        history: History,
        from_the_first: bool,
        open: &mut impl Opener<L>,
    ) -> News {
        let mut news = News::default();
        // Before the look at the listings: a change that comes later is seen the next time.
        self.version = self.directory.version();
        for listing in 0..self.directory.capacity().listings {
            let Some(listed) = self.directory.listed(listing) else {
                continue;
            };
            if self.reads(&listed) {
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
                Ok(log) => news.room |= self.attach(listed, log, history, from_the_first),
                // One that has ended is not there to be read.
                Err(None) => {}
                Err(_) if !self.directory.is_listed(listing, listed.generation) => {}
                Err(Some(why)) => {
                    let source = Source::of(listed);
                    self.finish(source, false);
                    self.out_of_reach.push((source, why));
                    news.room = true;
                }
            }
        }
        self.has_ended = self.reads_the_dead();
        news
    }

    fn reads(&self, listed: &Listed) -> bool {
        let source = Source::of(*listed);
        self.finished[listed.listing] == listed.generation
            || self.attached.iter().any(|each| each.source == source)
    }

    /// Nothing more is read of a publisher, which must not wait for us.
    fn finish(&mut self, source: Source, is_replaced: bool) {
        let (listing, generation) = (source.listing, source.generation);
        if !is_replaced {
            self.finished[listing] = generation;
            (self.directory).attach(self.seat, listing, generation, READS_NOTHING);
        }
    }

    fn attach(
        &mut self,
        listed: Listed,
        log: Log<L>,
        history: History,
        from_the_first: bool,
    ) -> bool {
        // Relaxed, both: nothing is read before the next look at the tail, and the floor is looked at again after the fence
        // of `Directory::attach`.
        let tail = log.tail().load(Ordering::Relaxed);
        let floor = log.floor().load(Ordering::Relaxed).min(tail);
        let head = match history {
            History::Last(count) => floor.max(tail.saturating_sub(count)),
            History::Oldest => floor,
        };
        // Not so many that it is cut off before it has read one.
        let head = match self.policy {
            Policy::Disconnect if self.lag > 0 => head.max(tail.saturating_sub(self.lag / 2)),
            _ => head,
        };
        let (listing, generation) = (listed.listing, listed.generation);
        (self.directory).attach(self.seat, listing, generation, head);
        let mut attached = Attached {
            source: Source::of(listed),
            log: Arc::new(log),
            head,
            tail,
            lost: 0,
            is_replaced: false,
        };
        attached.mend(&self.directory, self.seat);
        // What one is waited for is kept from the moment on in which it is there.
        if from_the_first && self.policy != Policy::Block && attached.head > 0 {
            attached.lost = attached.head;
            self.directory.set_lost(self.seat, listing, attached.lost);
        }
        self.attached.push(attached);
        (self.directory).is_waited_for(listing, self.seat, head)
    }

    // --- reading ---

    /// Takes up to `most` messages, as they come: of each publisher in its order, of several in turns. The bytes of small
    /// ones are appended to `out`; large ones are pinned if `pins`, and copied too if not, or if there is no pin.
    pub fn take(
        &mut self,
        most: usize,
        pins: bool,
        out: &mut Vec<u8>,
        messages: &mut Vec<Message<L, D>>,
    ) -> (Taken, News) {
        let (mut news, begin) = (News::default(), messages.len());
        if self.has_ended
            && let gone @ Taken::Gone(_) = self.gone()
        {
            return (gone, news);
        }
        let count = self.attached.len();
        for step in 0..count {
            let taken = messages.len() - begin;
            if taken == most {
                break;
            }
            let index = (self.turn + step) % count;
            let read = self.read(index, most - taken, pins, out, messages);
            let attached = &self.attached[index];
            if messages.len() > begin + taken {
                crash::point!(RecordsCopied);
                news.room |= attached.has_read(&self.directory, self.seat);
            }
            if let Err(trouble) = read {
                if messages.len() > begin {
                    break; // It is found again by the next look.
                }
                self.drop_attached(index);
                news.room = true;
                return (trouble, news);
            }
        }
        if count > 0 {
            self.turn = (self.turn + 1) % count;
        }
        // Relaxed: a hint of this process to itself.
        news.room |= self.pins.is_waited_for.swap(false, Relaxed);
        match messages.len() - begin {
            0 => (self.gone(), news),
            taken => (Taken::Messages(taken), news),
        }
    }

    /// Whether there may be something to take, or to hear of: a hint that is right once it was announced that somebody
    /// sleeps.
    pub fn may_take(&self) -> bool {
        // Relaxed: the fence of whoever is about to sleep orders it.
        let has_records = |each: &Attached<L>| each.log.tail().load(Ordering::Relaxed) != each.head;
        // The watcher may have found out already what there is to hear of.
        let is_news = self.has_ended || !self.out_of_reach.is_empty();
        self.is_stale() || is_news || self.attached.iter().any(has_records)
    }

    fn gone(&mut self) -> Taken {
        let is_gone = |each: &Attached<L>| {
            // The look at the tail is after that at the listing: all that was published is found.
            // Acquire: pairs with the Release of `publish`.
            !self.is_there(each.source) && each.log.tail().load(Ordering::Acquire) == each.head
        };
        match self.attached.iter().position(is_gone) {
            Some(index) => {
                let source = self.drop_attached(index);
                self.has_ended = self.reads_the_dead();
                Taken::Gone(source)
            }
            None => Taken::Empty,
        }
    }

    fn drop_attached(&mut self, index: usize) -> Source {
        let attached = self.attached.swap_remove(index);
        self.lost_before = self.lost_before.saturating_add(attached.lost);
        self.finish(attached.source, attached.is_replaced);
        attached.source
    }

    /// A publisher that cannot be read, and why: each once.
    pub fn out_of_reach(&mut self) -> Option<(Source, String)> {
        self.out_of_reach.pop()
    }

    fn read(
        &mut self,
        index: usize,
        most: usize,
        pins: bool,
        out: &mut Vec<u8>,
        messages: &mut Vec<Message<L, D>>,
    ) -> Result<(), Taken> {
        let begin = (out.len(), messages.len());
        let read = match self.policy {
            Policy::KeepLast => self.read_last(index, most, pins, out, messages),
            _ => self.read_all(index, most, pins, out, messages),
        };
        if read.is_err() && self.policy != Policy::KeepLast {
            out.truncate(begin.0);
            messages.truncate(begin.1);
        }
        read
    }

    /// Reads what the publisher keeps for us.
    fn read_all(
        &mut self,
        index: usize,
        most: usize,
        pins: bool,
        out: &mut Vec<u8>,
        messages: &mut Vec<Message<L, D>>,
    ) -> Result<(), Taken> {
        let tail = self.attached[index].look()?;
        let (head, from) = (self.attached[index].head, out.len());
        let to = tail.min(head.saturating_add(most as u64));
        // The publisher may write again once the head has moved: of a ring that is read at once it would stand still until
        // all is copied.
        let most_of_ring = self.attached[index].log.ring() / SHARE;
        let (mut next, mut of_ring, mut run) = (head, 0, Run::default());
        while next < to && run.end_in(out) - from < MOST_BYTES && of_ring <= most_of_ring {
            // What was read may be anything once we were cut off.
            let record = self.attached[index].entry(next);
            let record = record.map_err(|trouble| self.why_cut(index).unwrap_or(trouble))?;
            let attached = &self.attached[index];
            if record.at < attached.log.blocks {
                if !run.takes(record) {
                    run.copy(&attached.log, out);
                    run = Run::from(record, out.len());
                }
                of_ring += record.len;
                let payload = Payload::Copied(run.place(record), record.len as usize);
                messages.push(attached.message(next, record, payload));
            } else {
                std::mem::take(&mut run).copy(&attached.log, out);
                messages.push(self.read_record(attached, next, record, pins, out));
            }
            next += 1;
        }
        run.copy(&self.attached[index].log, out);
        match self.why_cut(index) {
            Some(cut) => Err(cut),
            None => {
                self.attached[index].head = next;
                Ok(())
            }
        }
    }

    fn why_cut(&self, index: usize) -> Option<Taken> {
        let attached = &self.attached[index];
        // Acquire: what was written over what we have read was so after the cut.
        fence(Ordering::Acquire);
        // Relaxed: ordered by the fence.
        let cut = attached.log.cut(self.seat).load(Ordering::Relaxed);
        if cut >> 32 != u64::from(self.claim.generation()) || cut as u32 == 0 {
            return None;
        }
        let why = match cut as u32 {
            2 => Why::Corruption,
            _ => Why::Lag,
        };
        Some(Taken::CutOff(attached.source, why))
    }

    /// Reads the last ones, whatever the publisher does meanwhile.
    fn read_last(
        &mut self,
        index: usize,
        most: usize,
        pins: bool,
        out: &mut Vec<u8>,
        messages: &mut Vec<Message<L, D>>,
    ) -> Result<(), Taken> {
        let mut tail = self.attached[index].look()?;
        let (lag, seat) = (self.lag.max(1), self.seat);
        self.attached[index].skip_to(tail.saturating_sub(lag), &self.directory, seat);
        let (mut taken, from) = (0, out.len());
        while taken < most && self.attached[index].head < tail && out.len() - from < MOST_BYTES {
            let begin = out.len();
            let seq = self.attached[index].head;
            let attached = &self.attached[index];
            let read = |record| self.read_record(attached, seq, record, pins, out);
            let message = attached.entry(seq).map(read);
            // Acquire: what was written over what we have read was so after the floor.
            fence(Ordering::Acquire);
            // Relaxed: ordered by the fence.
            let floor = self.attached[index].log.floor().load(Ordering::Relaxed);
            if floor > seq {
                out.truncate(begin);
                drop(message);
                tail = self.attached[index].look()?;
                let least = floor.min(tail).max(tail.saturating_sub(lag));
                self.attached[index].skip_to(least.max(seq + 1), &self.directory, seat);
                continue;
            }
            messages.push(message?);
            taken += 1;
            self.attached[index].head += 1;
        }
        Ok(())
    }

    /// Copies or pins a record, which may be written over meanwhile: look afterwards.
    fn read_record(
        &self,
        attached: &Attached<L>,
        seq: u64,
        record: Record,
        pins: bool,
        out: &mut Vec<u8>,
    ) -> Message<L, D> {
        let log = &attached.log;
        let pins = pins && record.at >= log.blocks;
        let pin = pins.then(|| self.pin(attached, seq, record.at, record.len));
        let payload = match pin.flatten() {
            Some(pin) => Payload::Pinned(Box::new(pin)),
            None => {
                let begin = out.len();
                log.space().read(record.at, record.len, out);
                Payload::Copied(begin, record.len as usize)
            }
        };
        attached.message(seq, record, payload)
    }

    fn pin(&self, attached: &Attached<L>, seq: u64, at: u64, len: u64) -> Option<Pin<L, D>> {
        if attached.is_replaced {
            return None;
        }
        // Of what a publisher has for blocks, all subscribers together keep no more than half: it needs the rest to go on.
        let most = (attached.log.space().size() as u64 - attached.log.blocks) / 2;
        let pin = self.pins.take()?;
        let publisher = (attached.source.listing, attached.source.generation);
        if !self.directory.hold(self.seat, publisher, len, most) {
            self.pins.free(pin);
            return None;
        }
        (self.directory).set_pin(self.seat, pin, attached.source.listing, seq);
        Some(Pin {
            log: attached.log.clone(),
            pins: self.pins.clone(),
            source: attached.source,
            pin,
            at,
            len,
            is_held: true,
        })
    }

    // --- leaving ---

    /// Reads nothing more. Wake the publishers. The seat is free once this and all that it has pinned is dropped.
    pub fn leave(&mut self) {
        if (self.pins.is_ours)() {
            self.directory.begin_to_leave(self.seat, self.claim);
        }
        self.attached.clear();
    }
}

impl<L: Space> Attached<L> {
    /// Before it reads, or when it was attached: what is not there any more is not read. Nobody has promised it.
    fn mend<D: Words>(&mut self, directory: &Directory<D>, seat: usize) {
        // Relaxed: ordered by the fence of `Directory::attach`.
        let floor = self.log.floor().load(Ordering::Relaxed);
        if floor > self.head {
            self.head = floor;
            directory.set_head(seat, self.source.listing, floor);
        }
    }

    /// Where a record is.
    #[inline]
    fn entry(&self, seq: u64) -> Result<Record, Taken> {
        let found = self.log.entry(seq);
        found.map_err(|found| Taken::False(self.source, False::Entry(found)))
    }

    #[inline]
    fn message<D: Words>(&self, seq: u64, record: Record, payload: Payload<L, D>) -> Message<L, D> {
        Message {
            source: self.source,
            seq,
            form: record.form,
            payload,
        }
    }

    /// How many records there are.
    #[inline]
    fn look(&mut self) -> Result<u64, Taken> {
        // Acquire: pairs with the Release of `publish`.
        let tail = self.log.tail().load(Ordering::Acquire);
        if tail < self.tail || tail < self.head {
            return Err(Taken::False(self.source, False::Tail(tail)));
        }
        self.tail = tail;
        Ok(tail)
    }

    /// Goes on with this record at the earliest; those before are missed.
    fn skip_to<D: Words>(&mut self, seq: u64, directory: &Directory<D>, seat: usize) {
        let missed = seq.saturating_sub(self.head);
        if missed > 0 {
            self.head = seq;
            self.lost = self.lost.saturating_add(missed);
            if !self.is_replaced {
                directory.set_lost(seat, self.source.listing, self.lost);
            }
        }
    }

    /// Says how far it has read; whether its publisher may sleep until then.
    #[inline]
    fn has_read<D: Words>(&self, directory: &Directory<D>, seat: usize) -> bool {
        if self.is_replaced {
            return false;
        }
        let listing = self.source.listing;
        directory.set_head(seat, listing, self.head);
        directory.is_waited_for(listing, seat, self.head)
    }
}
