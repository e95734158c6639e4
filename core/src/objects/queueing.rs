//! What the members of a queue do with it, and whom they wake.

use super::layout::Shape;
use super::members::{Holder, Number};
use super::membership::{Members, Membership, Memory, NameError};
use crate::clock;
use crate::memory::mapping::SharedMapping;
use crate::queue::{
    Chunk, Claim, ClaimEnd, ClaimOutcome, PopOutcome, PutOutcome, Queue, QueueStats, Source,
    TrimState, WaitingItem, Wakeups, WritersToWake,
};
use crate::shared_heap::HeapError;
use crate::sync::lock;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The wait set of those that wait for an item.
pub const ITEMS: usize = 0;
/// The wait set of those that wait for room.
pub const ROOM: usize = 1;
/// The wait set of those that wait until all items are dealt with.
pub const DONE: usize = 2;

/// For how long a lease is waited for where nobody else waits, in nanoseconds: who gives back what the dead have.
pub(super) const PATIENCE: u64 = 1_000_000_000;

/// How long a lease is waited for, in nanoseconds, once it was not to be had at once: whoever holds it needs less than
/// a thousandth of that, unless it is stopped.
pub const LEASE_PATIENCE: u64 = 100_000_000;
/// The same for a while after that was in vain: the many tasks of a loop must not hold it up one after the other.
const IMPATIENCE: u64 = 1_000_000;
/// For how long, in nanoseconds.
const IMPATIENT_FOR: u64 = 1_000_000_000;

/// The queue of a name.
pub struct Contents {
    queue: Queue<Arc<SharedMapping>, Arc<Members>>,
    /// Items that were in it when all members were killed, before us.
    lost: AtomicU64,
    /// What was seen when memory was last to be given back.
    look: Mutex<TrimState>,
}

impl Contents {
    pub(super) fn new(
        mapping: &Arc<SharedMapping>,
        file: &Arc<OwnedFd>,
        shape: Shape,
        members: &Arc<Members>,
    ) -> Result<Self, NameError> {
        let (words, members) = (mapping.clone(), members.clone());
        let start = shape.contents_at() as u64;
        let made = Queue::new(words, file, start, shape.limits(), members);
        Ok(Contents {
            queue: made.map_err(NameError::os("its memory cannot be had"))?,
            lost: AtomicU64::new(0),
            look: Mutex::default(),
        })
    }

    /// How many items are in the queue of members who were all killed.
    pub(super) fn items_in(memory: &Memory) -> u64 {
        let word = |at| {
            let at = memory.shape.contents_at() + at as usize;
            memory.mapping.u64_at(at).load(Relaxed)
        };
        Queue::<Arc<SharedMapping>, Arc<Members>>::count_items_in(word)
    }

    pub(super) fn has_lost(&self, items: u64) {
        self.lost.store(items, Relaxed);
    }

    /// Bytes of memory that it has now.
    pub(super) fn allocated(&self) -> io::Result<u64> {
        self.queue.allocated()
    }

    /// Items that wait: a hint.
    pub(super) fn depth(&self) -> u64 {
        self.queue.len()
    }

    /// Returns true if a writer that sleeps for room may find some: a hint.
    pub(super) fn has_room(&self) -> bool {
        self.queue.is_shut_down() || !self.queue.is_known_full(1)
    }

    pub(super) fn has_items(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(super) fn count_held(&self, member: u64) -> usize {
        self.queue.claims_held_by(member)
    }

    /// Gives back what dead members of a slot have left; false if that cannot be done now.
    pub(super) fn recover(&self, slot: u32) -> bool {
        self.queue.recover(slot, clock::now() + PATIENCE).is_ok()
    }

    /// Gives memory back that is not needed; whether to look again.
    pub(super) fn settle(&self) -> bool {
        let mut look = lock(&self.look);
        let now = self.queue.trim(*look, clock::now() + PATIENCE);
        *look = now.unwrap_or_default();
        now.is_some()
    }

    /// Gives back what this process has, which leaves.
    pub(super) fn abandon(&self) {
        // Other threads of ours first: a lease of somebody who is no member would be taken over.
        self.queue.close(clock::now() + PATIENCE);
        let _ = self.queue.abandon(clock::now() + PATIENCE);
    }
}

/// When a lease is waited for no longer, this many nanoseconds from now on. With 0 it is only looked at.
pub(super) fn deadline(patience: u64) -> u64 {
    match patience {
        0 => 0,
        patience => clock::now().saturating_add(patience),
    }
}

impl Membership {
    fn contents(&self) -> Result<&Contents, NameError> {
        self.check()?;
        self.queue.as_ref().ok_or(NameError::NotHeld("is no queue"))
    }

    /// The queue, for a member that takes from it or looks at it: it also sees to it that what the dead have claimed comes
    /// back.
    #[inline]
    fn contents_to_take(&self) -> Result<&Contents, NameError> {
        // Acquire: as in `watch`.
        if !self.is_watching.load(Acquire) {
            self.watch_us()?;
        }
        self.contents()
    }

    /// Does what needs a lease that was not to be had at once.
    #[cold]
    pub fn patiently<T>(
        &self,
        act: impl FnOnce(u64) -> Result<T, NameError>,
    ) -> Result<T, NameError> {
        // Relaxed, both: a hint.
        let is_impatient = clock::now() < self.impatient_until.load(Relaxed);
        if is_impatient {
            return act(IMPATIENCE);
        }
        let done = act(LEASE_PATIENCE);
        if matches!(done, Err(NameError::Changing { .. })) {
            let until = clock::now() + IMPATIENT_FOR;
            self.impatient_until.store(until, Relaxed);
        }
        done
    }

    /// What it means for a queue that something was not done.
    #[cold]
    pub(super) fn refused(&self, error: HeapError) -> NameError {
        if self.has_left() {
            return NameError::Left; // Its file is closed, and zeros are in its place.
        }
        match error {
            HeapError::Busy { holder } => {
                // If it has ended just now, it is ours to take over.
                let ours = Holder::Process(std::process::id() as libc::pid_t);
                let holder = self.holder_of(Number(holder)).unwrap_or(ours);
                NameError::Changing { holder }
            }
            HeapError::Poisoned(corruption) => self.poisoned(corruption),
            HeapError::Detached => self.check().err().unwrap_or(NameError::Forked),
            HeapError::Limit { asked, limit, .. } => NameError::TooLarge(format!(
                "{asked} bytes are more than it may ever hold: an item may have {limit} at most"
            )),
            HeapError::System { asked, error } => {
                NameError::no_memory(&format!("{asked} bytes more"))(error)
            }
            other => NameError::Os {
                what: other.to_string(),
                error: io::Error::from_raw_os_error(libc::ENOMEM),
            },
        }
    }

    fn spread(&self, news: Wakeups) {
        if news.over {
            self.wake_all(ITEMS);
        } else if news.items {
            self.wake_next(ITEMS);
        }
        match news.room {
            WritersToWake::None => {}
            WritersToWake::One => drop(self.wake_next(ROOM)),
            WritersToWake::All => self.wake_all(ROOM),
        }
        if news.done {
            self.wake_all(DONE);
        }
        if news.freed {
            self.expect_spare();
        }
    }

    /// Puts small items, as [`Queue::put`] has them. `patience`: how long a lease may take, in nanoseconds.
    #[inline]
    pub fn put(&self, items: &[u8], count: u64, patience: u64) -> Result<PutOutcome, NameError> {
        let contents = self.contents()?;
        let put = contents.queue.put(items, count, deadline(patience));
        self.has_put(contents, put)
    }

    /// Puts items that `fill` writes, as [`Queue::put_large`] does.
    pub fn put_aside(
        &self,
        len: u64,
        count: u64,
        patience: u64,
        fill: impl FnOnce(*mut u8, u64) -> u64,
    ) -> Result<PutOutcome, NameError> {
        let contents = self.contents()?;
        let put = contents
            .queue
            .put_large(len, count, deadline(patience), fill);
        self.has_put(contents, put)
    }

    #[inline]
    fn has_put(
        &self,
        contents: &Contents,
        put: Result<PutOutcome, HeapError>,
    ) -> Result<PutOutcome, NameError> {
        if contents.queue.must_wake_writers() {
            self.wake_all(ROOM);
        }
        let put = put.map_err(|error| self.refused(error))?;
        if put == PutOutcome::Stored {
            self.wake_next(ITEMS);
        }
        Ok(put)
    }

    /// A chunk to fill; None if there is no memory for it now. It is to be linked or given up.
    pub fn reserve_chunk(&self, len: u64, patience: u64) -> Result<Option<Chunk>, NameError> {
        let contents = self.contents()?;
        let reserved = contents
            .queue
            .reserve_or_request_wakeup(len, deadline(patience));
        reserved.map_err(|error| self.refused(error))
    }

    /// Puts what a chunk was filled with.
    pub fn link_chunk(
        &self,
        chunk: &mut Option<Chunk>,
        used: u64,
        patience: u64,
    ) -> Result<PutOutcome, NameError> {
        let contents = self.contents()?;
        let put = contents.queue.link(chunk, used, 1, deadline(patience));
        self.has_put(contents, put)
    }

    /// Frees a chunk that is not wanted.
    pub fn give_chunk_up(&self, chunk: Chunk, patience: u64) -> Result<(), NameError> {
        let contents = self.contents()?;
        contents.queue.free_chunk(chunk, deadline(patience));
        self.keep_leftovers(contents);
        self.wake_all(ROOM);
        Ok(())
    }

    /// Takes items, as [`Queue::take`] does.
    #[inline]
    pub fn take(
        &self,
        source: Source,
        most: usize,
        out: &mut Vec<u8>,
        patience: u64,
    ) -> Result<PopOutcome, NameError> {
        let contents = self.contents_to_take()?;
        self.expire_claims(contents, patience)?;
        let taken = contents.queue.pop(source, most, out, deadline(patience));
        let (taken, news) = taken.map_err(|error| self.refused(error))?;
        self.spread(news);
        Ok(taken)
    }

    /// Claims an item, for `limit` nanoseconds if that is not 0.
    pub fn claim(
        &self,
        source: Source,
        limit: u64,
        patience: u64,
    ) -> Result<ClaimOutcome, NameError> {
        let contents = self.contents_to_take()?;
        self.expire_claims(contents, patience)?;
        let claimed = contents.queue.claim(source, limit, deadline(patience));
        let (claimed, news) = claimed.map_err(|error| self.refused(error))?;
        self.spread(news);
        Ok(claimed)
    }

    /// Gives back what is held for too long, if there is any.
    #[inline]
    fn expire_claims(&self, contents: &Contents, patience: u64) -> Result<(), NameError> {
        let expiry = contents.queue.expiry();
        if expiry.is_some_and(|expiry| expiry <= clock::now()) {
            let expired = contents.queue.expire(deadline(patience));
            let (_, news) = expired.map_err(|error| self.refused(error))?;
            self.spread(news);
        }
        Ok(())
    }

    /// In how long a claim ends by itself, if one does.
    pub fn next_expiry(&self) -> Option<Duration> {
        let expiry = self.queue.as_ref()?.queue.expiry()?;
        Some(Duration::from_nanos(expiry.saturating_sub(clock::now())))
    }

    /// Ends a claim whose item does not come back. False if it has ended before.
    pub fn acknowledge(
        &self,
        claim: &Claim,
        end: ClaimEnd,
        keeps: bool,
        patience: u64,
    ) -> Result<bool, NameError> {
        let contents = self.contents()?;
        let queue = &contents.queue;
        self.has_ended(queue.acknowledge(claim, end, keeps, deadline(patience)))
    }

    /// Ends a claim whose item comes back. False if it has ended before.
    pub fn give_item_back(&self, claim: &Claim, patience: u64) -> Result<bool, NameError> {
        let contents = self.contents()?;
        self.has_ended(contents.queue.give_back(claim, deadline(patience)))
    }

    fn has_ended(&self, ended: Result<Option<Wakeups>, HeapError>) -> Result<bool, NameError> {
        let news = ended.map_err(|error| self.refused(error))?;
        if let Some(news) = news {
            self.spread(news);
        }
        Ok(news.is_some())
    }

    /// Nobody refers to a claim, nor to its item's memory, any more: the item comes back, if it was not dealt with. After
    /// a while, if a process keeps us from that. What is wrong, whoever uses the queue next is told.
    pub fn drop_claim(&self, claim: Claim, is_over: bool) {
        if let Ok(contents) = self.contents() {
            contents.queue.defer_claim(claim, is_over);
            let _ = self.patiently(|patience| self.end_leftovers(patience));
            self.keep_leftovers(contents);
        }
    }

    fn end_leftovers(&self, patience: u64) -> Result<(), NameError> {
        let mut news = Wakeups::default();
        let ended = self
            .contents()?
            .queue
            .finish_deferred(deadline(patience), &mut news);
        self.spread(news);
        ended.map_err(|error| self.refused(error))
    }

    /// What could not be ended now is ended later.
    fn keep_leftovers(&self, contents: &Contents) {
        if contents.queue.has_deferred() {
            self.expect_leftovers();
        }
    }

    /// Whether something could not be ended.
    pub(super) fn has_leftovers(&self) -> bool {
        let contents = self.queue.as_ref();
        contents.is_some_and(|contents| contents.queue.has_deferred())
    }

    /// Tries to end it again.
    pub(super) fn tidy_up(&self) {
        let _ = self.end_leftovers(IMPATIENCE);
    }

    /// Why there is no place for another claim.
    #[cold]
    pub fn no_claim(&self) -> NameError {
        let stats = self.queue_stats(LEASE_PATIENCE);
        NameError::Claimed {
            dead: stats.map_or(0, |stats| stats.dead),
        }
    }

    /// Says of items that this process has got that they are dealt with; false if it has not got that many.
    pub fn task_done(&self, count: u64, patience: u64) -> Result<bool, NameError> {
        let contents = self.contents()?;
        self.has_ended(contents.queue.task_done(count, deadline(patience)))
    }

    /// Whether all items are dealt with.
    pub fn is_done(&self, patience: u64) -> Result<bool, NameError> {
        let done = self
            .contents_to_take()?
            .queue
            .is_all_done(deadline(patience));
        done.map_err(|error| self.refused(error))
    }

    /// Lets nothing more be put; with `immediate` what waits is dropped.
    pub fn shut_queue_down(&self, immediate: bool, patience: u64) -> Result<(), NameError> {
        let shut = self
            .contents()?
            .queue
            .shut_down(immediate, deadline(patience));
        shut.map_err(|error| self.refused(error))?;
        self.wake_everybody();
        Ok(())
    }

    /// How many items wait: a hint.
    pub fn queue_len(&self) -> Result<u64, NameError> {
        let contents = self.contents_to_take()?;
        match self.expire_claims(contents, 0) {
            Ok(()) | Err(NameError::Changing { .. }) => Ok(contents.queue.len()),
            Err(error) => Err(error),
        }
    }

    /// Whether there may be something to take, or to hear of: a hint that is right once it was announced that somebody
    /// sleeps.
    pub fn may_take(&self) -> bool {
        let Some(contents) = &self.queue else {
            return true;
        };
        let queue = &contents.queue;
        !queue.is_empty()
            || queue.may_be_finished()
            || queue.expiry().is_some_and(|expiry| expiry <= clock::now())
    }

    /// Whether there may be room for this many items: as in `may_take`.
    pub fn may_put(&self, count: u64) -> bool {
        let Some(contents) = &self.queue else {
            return true;
        };
        contents.queue.is_shut_down() || !contents.queue.is_known_full(count)
    }

    /// Copies items that wait, as [`Queue::peek`] does.
    pub fn peek(&self, most: usize, patience: u64) -> Result<Vec<WaitingItem>, NameError> {
        let contents = self.contents_to_take()?;
        self.expire_claims(contents, patience)?;
        let found = contents.queue.peek(most, deadline(patience));
        found.map_err(|error| self.refused(error))
    }

    /// What can be seen of the queue; each claim's member as its process.
    pub fn queue_stats(&self, patience: u64) -> Result<QueueStats, NameError> {
        let contents = self.contents_to_take()?;
        self.expire_claims(contents, patience)?;
        let stats = contents.queue.stats(deadline(patience));
        stats.map_err(|error| self.refused(error))
    }

    /// Items that were in the queue when all its members were killed, and are lost. Said once: 0 from then on.
    pub fn take_lost(&self) -> u64 {
        let contents = self.queue.as_ref();
        contents.map_or(0, |contents| contents.lost.swap(0, Relaxed))
    }

    /// Whether nothing more is put.
    pub fn is_shut_down(&self) -> Result<bool, NameError> {
        Ok(self.contents()?.queue.is_shut_down())
    }

    /// Where the bytes of a claim or a chunk are in our memory. They stay mapped as long as the membership lives.
    pub fn queue_bytes(&self, at: u64, len: u64) -> Result<*mut u8, NameError> {
        let found = self.contents()?.queue.bytes(at, len);
        found.map_err(|error| self.refused(error))
    }

    /// The process of a member; 0 if it is none of ours, or gone.
    pub fn process_of(&self, member: u64) -> libc::pid_t {
        match self.holder_of(Number(member)) {
            Some(Holder::Process(pid)) => pid,
            _ => 0,
        }
    }

    /// Who a member is; None if it is gone.
    pub(super) fn holder_of(&self, number: Number) -> Option<Holder> {
        let members = self.others();
        if number == members.us() {
            return Some(Holder::Process(std::process::id() as libc::pid_t));
        }
        let is_current = |&slot: &u32| members.number(slot) == number;
        let member = members.member(number.slot().filter(is_current)?);
        member.ok()?.holder
    }

    /// How many wait for an item, for room, and until all is done.
    pub fn queue_waiters(&self) -> [usize; 3] {
        [ITEMS, ROOM, DONE].map(|set| self.sleeping_in(set))
    }
}
