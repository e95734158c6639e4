//! Memory that one member changes at a time, and that all may read meanwhile.
//!
//! Offsets in bytes, from where it begins, a multiple of 64:
//!
//! ```text
//!      0  lease       u64    see `owner_lock.rs`
//!      8  poison      3 u64  what was found that cannot be true, see `corruption.rs`
//!     40  died        u64    of a log: not 0 if memory of a dead holder is to be looked for
//!     48  long        u64    of a log: not 0 if the lease is held for long
//!     64  sequence    u64    odd while something changes
//!     72  count       u64    entries that count: of a `journal`, or of a `log`
//!     80  entries     each the offset of a word u64, and a value u64
//! ```
//!
//! What the entries mean, and so what becomes of the changes of one that dies, is for [`undo_log`](super::undo_log) and
//! [`redo_log`](super::redo_log) to say: the one undoes them, the other makes them again.
//!
//! A reader copies what it wants and looks whether the sequence is still what it was. If it never is, the writer has
//! died, or others follow without end: then the reader takes the lease, which mends the one, and keeps off the others.
//! One that copies much takes it at once, since looking again would take as long and be as vain.

use super::access::OptimisticView;
use super::owner_lock;
use super::{Corruption, Failure, HeapError, Members, Poison, Words};
#[cfg(not(loom))]
use crate::fork_guard::Origin;
use crate::sync::{AtomicU64, Ordering, fence, this_thread};
use std::io;
use std::sync::atomic::AtomicBool as PrivateBool;
use std::sync::atomic::AtomicUsize as PrivateUsize;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};

pub(super) const AT_POISON: u64 = 8;
pub(super) const AT_SEQUENCE: u64 = 64;
pub(super) const AT_COUNT: u64 = 72;
pub(super) const AT_ENTRIES: u64 = 80;
pub(super) const ENTRY: u64 = 16;

/// In the place of a thread: other memory is about to take the place of this, and no thread enters.
const PAUSED: usize = 1;
/// How often a reader looks before it takes the lease.
const MAX_ATTEMPTS: u32 = if cfg!(loom) { 2 } else { 64 };

/// For how long, in nanoseconds, a reader looks again.
#[cfg(not(loom))]
const MAX_RETRY_TIME: u64 = 100_000;

/// What becomes of a reader that takes no lease.
pub enum ReadAttempt<R> {
    /// This was there, all of one moment.
    Copied(R),
    /// All looks were in vain.
    Changing,
    /// The first looks have taken so long that the others would be in vain: it copies much.
    ChangingForLong,
}

/// Memory with a lease.
pub struct SeqLock<W, M> {
    words: W,
    start: u64,
    /// Bytes from there that are no words to be changed.
    size: u64,
    members: M,
    /// Threads of this process that are about to take the lease, or have it.
    active_threads: PrivateUsize,
    /// 0, [`MOVING`], or the thread that alone may take it still, by [`this_thread`].
    closed: PrivateUsize,
    /// Whether this process only reads it: then nothing of it is written, since it may be mapped so.
    read_only: PrivateBool,
    #[cfg(not(loom))]
    origin: Origin,
}

impl<W: Words, M: Members> SeqLock<W, M> {
    /// That whose `size` bytes begin `start` bytes into the memory. Zeros are one that nobody has used.
    ///
    /// # Panics
    /// If they are not within the memory, or not aligned.
    pub fn new(words: W, start: u64, size: u64, members: M) -> io::Result<Self> {
        assert!(start % 64 == 0 && start + size <= words.size() as u64);
        Ok(SeqLock {
            words,
            start,
            size,
            members,
            active_threads: PrivateUsize::new(0),
            closed: PrivateUsize::new(0),
            read_only: PrivateBool::new(false),
            #[cfg(not(loom))]
            origin: Origin::here()?,
        })
    }

    /// Says whether this process only reads it from now on: another one alone changes it.
    #[cfg(not(loom))]
    pub fn set_read_only(&self, read_only: bool) {
        // Release: whoever finds that it may write finds memory that it can write.
        self.read_only.store(read_only, Release);
    }

    /// Whether this process only reads it.
    #[inline]
    pub fn is_read_only(&self) -> bool {
        // Acquire: pairs with the release above.
        self.read_only.load(Acquire)
    }

    /// The member that has the lease just now; 0 if none does.
    pub fn holder(&self) -> u64 {
        owner_lock::holder(self.word(0))
    }

    /// A number that is another one after each change.
    pub fn sequence(&self) -> u64 {
        // Relaxed: a look.
        self.word(AT_SEQUENCE).load(Ordering::Relaxed)
    }

    /// Where it begins.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The memory.
    pub fn words(&self) -> &W {
        &self.words
    }

    /// Those who share it.
    pub fn members(&self) -> &M {
        &self.members
    }

    /// Copies what may be changing, all of one moment, unless it changes all the time. `copy` is called again if it was
    /// not of one moment, and must bear what it reads then.
    #[inline]
    pub fn read<R, E: Failure>(
        &self,
        mut copy: impl FnMut(&OptimisticView<'_, W>) -> Result<R, E>,
    ) -> Result<ReadAttempt<R>, E> {
        self.check()?;
        let look = OptimisticView::new(&self.words);
        #[cfg(not(loom))]
        let mut timer = RetryTimer::default();
        for _ in 0..MAX_ATTEMPTS {
            // Acquire: what is copied is not older than the sequence.
            let before = self.word(AT_SEQUENCE).load(Ordering::Acquire);
            if before % 2 == 0 {
                let copied = copy(&look);
                // Acquire: whoever has read what a transaction stored sees its odd sequence, too.
                fence(Ordering::Acquire);
                // Relaxed: the fence orders it.
                let after = self.word(AT_SEQUENCE).load(Ordering::Relaxed);
                if after == before {
                    // What is written here once there is a copy was never true.
                    self.check_poison()?;
                    return self.poison_if_corrupt(copied).map(ReadAttempt::Copied);
                }
                #[cfg(not(loom))]
                if timer.is_hopeless(after.wrapping_sub(before)) {
                    return Ok(ReadAttempt::ChangingForLong);
                }
            }
            #[cfg(not(loom))]
            std::hint::spin_loop();
            #[cfg(loom)]
            loom::thread::yield_now();
        }
        Ok(ReadAttempt::Changing)
    }

    /// What is found wrong is told to all. Of memory that was cut off, zeros were read, whatever came of that.
    #[inline]
    pub fn poison_if_corrupt<R, E: Failure>(&self, done: Result<R, E>) -> Result<R, E> {
        match done.as_ref().err().and_then(Failure::corruption) {
            Some(corruption) => Err(self.poison(corruption).into()),
            None if self.words.is_cut_off() => Err(self.poison(Corruption::CUT_OFF).into()),
            None => done,
        }
    }

    /// An error if this memory cannot be used any more, or not by this process.
    #[inline]
    pub fn check(&self) -> Result<(), HeapError> {
        if !self.is_own_process() || self.members.self_id() == 0 {
            return Err(HeapError::Detached);
        }
        self.check_poison()
    }

    #[inline]
    fn check_poison(&self) -> Result<(), HeapError> {
        // Relaxed: a mark. What it speaks of is an error by itself, also to one that sees the mark late.
        if self.word(AT_POISON).load(Ordering::Relaxed) != 0 {
            return Err(self.why_poisoned());
        }
        Ok(())
    }

    #[cold]
    fn why_poisoned(&self) -> HeapError {
        match self.poison_words().read() {
            Corruption {
                field: super::Field::Replaced,
                at: fenced,
                ..
            } => HeapError::Replaced { fenced },
            corruption => corruption.into(),
        }
    }

    /// After the lease was given back: an error if a copy was made while this process had it, which may have it or not.
    #[inline]
    pub(super) fn check_fenced(&self) -> Result<(), HeapError> {
        // SeqCst: after the exchange of the lease. Whoever makes a copy marks this memory first, then looks at the lease: if
        // we see no mark, what we have stored before is in the copy.
        if self.word(AT_POISON).load(Ordering::SeqCst) != 0
            && let error @ HeapError::Replaced { fenced } = self.why_poisoned()
            && fenced == self.members.self_id()
        {
            return Err(error);
        }
        Ok(())
    }

    /// Whether this process has made it, and is not a forked child's copy.
    #[inline]
    pub fn is_own_process(&self) -> bool {
        #[cfg(not(loom))]
        return self.origin.is_here();
        #[cfg(loom)]
        true
    }

    /// Ends the use of this memory, for all members. What they will read.
    ///
    /// One who only reads can tell nobody, and so is told alone, whenever it finds that.
    #[cold]
    pub(super) fn poison(&self, corruption: Corruption) -> HeapError {
        if !self.is_read_only() {
            self.poison_words().record(corruption);
        }
        corruption.into()
    }

    /// What all members are told.
    fn poison_words(&self) -> Poison<'_> {
        Poison([0, 8, 16].map(|at| self.word(AT_POISON + at)))
    }

    /// A word of it, which begins at this offset from its own beginning.
    #[inline]
    pub(super) fn word(&self, at: u64) -> &AtomicU64 {
        let word = self.words.word(self.start + at);
        word.expect("it was looked at in `new` that this is within the memory")
    }

    /// A word that may be changed: any but those of it.
    #[inline]
    pub(super) fn changeable(&self, at: u64) -> Option<&AtomicU64> {
        if at.wrapping_sub(self.start) < self.size {
            return None;
        }
        self.words.word(at)
    }

    /// Nothing changes any more: the next even sequence.
    #[inline]
    pub(super) fn end_change(&self, sequence: u64) -> u64 {
        let even = (sequence | 1).wrapping_add(1);
        // Release: a reader that sees it sees all that was changed.
        self.word(AT_SEQUENCE).store(even, Ordering::Release);
        even
    }

    /// Lets no other thread of this process change anything any more, and waits until none has the lease or is about to: it is
    /// to be no member soon.
    #[cfg(not(loom))]
    pub fn close(&self, deadline: u64) {
        // SeqCst: in one order with `enter`, so that either it sees this, or we see that it is busy.
        self.closed.store(this_thread(), SeqCst);
        while self.active_threads.load(SeqCst) > 0 && crate::clock::now() < deadline {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }

    /// Lets no thread of this process change anything while `act` puts other memory in the place of this; false if some do
    /// not end before `deadline`.
    #[cfg(not(loom))]
    pub fn with_paused<R>(&self, deadline: u64, act: impl FnOnce() -> R) -> Option<R> {
        // SeqCst: as in `close`. Relaxed: it has left.
        let begun =
            self.closed
                .compare_exchange(0, PAUSED, SeqCst, std::sync::atomic::Ordering::Relaxed);
        begun.ok()?;
        let is_idle = loop {
            if self.active_threads.load(SeqCst) == 0 {
                break true;
            }
            if crate::clock::now() >= deadline {
                break false;
            }
            std::thread::sleep(std::time::Duration::from_micros(50));
        };
        let done = is_idle.then(act);
        // SeqCst: whoever enters from now on finds the other memory.
        self.closed.store(0, SeqCst);
        done
    }

    /// Says that a copy is to take the place of this memory, without the member that holds the lease.
    #[cfg(not(loom))]
    pub fn mark_replaced(&self, fenced: u64) {
        let corruption = Corruption {
            field: super::Field::Replaced,
            at: fenced,
            found: 0,
        };
        self.poison_words().record(corruption);
        // SeqCst: the mark is before our look at the lease. See `check_fenced`, and `enter`.
        fence(Ordering::SeqCst);
    }

    /// Takes that back: there is no copy.
    #[cfg(not(loom))]
    pub fn clear_replaced(&self) {
        self.word(AT_POISON).store(0, Ordering::SeqCst);
    }

    /// The member without which a copy takes the place of this memory, if one does.
    #[cfg(not(loom))]
    pub fn fenced(&self) -> Option<u64> {
        match self.check_poison() {
            Err(HeapError::Replaced { fenced }) => Some(fenced),
            _ => None,
        }
    }

    /// Takes the lease. `deadline`: see [`owner_lock::NEVER`].
    #[inline]
    pub(super) fn acquire(&self, deadline: u64) -> Result<SeqLockGuard<'_, W, M>, HeapError> {
        self.check()?;
        if self.is_read_only() {
            return Err(HeapError::ReadOnly);
        }
        let active = ActiveThread::new(&self.active_threads);
        // SeqCst: see `close`.
        let closed = self.closed.load(SeqCst);
        if closed != 0 && closed != this_thread() {
            return Err(match closed {
                PAUSED => HeapError::Replaced { fenced: 0 },
                _ => HeapError::Detached,
            });
        }
        // Relaxed: as in `check`.
        let is_poisoned = || self.word(AT_POISON).load(Ordering::Relaxed) != 0;
        let changes = || self.sequence() / 2;
        let taken =
            owner_lock::acquire(self.word(0), &self.members, deadline, is_poisoned, changes);
        let taken_over = match taken {
            Ok(taken_over) => taken_over,
            Err(error) => return self.check().and(Err(error)),
        };
        let held = SeqLockGuard {
            seqlock: self,
            taken_over,
            _active: active,
        };
        // SeqCst: after the exchange of the lease. Whoever makes a copy marks this memory, then looks at the lease: it sees
        // that we have it, or we see the mark, and change nothing.
        if self.word(AT_POISON).load(Ordering::SeqCst) != 0 {
            return Err(self.why_poisoned());
        }
        Ok(held)
    }
}

impl<W: Words, M: Members> SeqLock<W, M> {
    /// Gives a lease back that was kept.
    #[inline]
    pub(super) fn release_leaked(&self) {
        drop(SeqLockGuard {
            seqlock: self,
            taken_over: false,
            _active: ActiveThread(&self.active_threads),
        });
    }
}

/// How long a reader has looked.
#[cfg(not(loom))]
#[derive(Default)]
struct RetryTimer {
    /// When the first one was over that was in vain.
    since: Option<u64>,
}

#[cfg(not(loom))]
impl RetryTimer {
    /// Whether another look is not worth its time. The sequence has moved by so much in the last one.
    #[cold]
    fn is_hopeless(&mut self, moved: u64) -> bool {
        if moved / 2 > u64::from(MAX_ATTEMPTS) {
            return true; // This many changes in one look: none will be without.
        }
        let now = crate::clock::now();
        let since = *self.since.get_or_insert(now);
        now.saturating_sub(since) > MAX_RETRY_TIME
    }
}

/// A thread that is about to take the lease, or has it.
struct ActiveThread<'a>(&'a PrivateUsize);

impl<'a> ActiveThread<'a> {
    #[inline]
    fn new(count: &'a PrivateUsize) -> Self {
        // SeqCst: see `SeqLock::close`.
        count.fetch_add(1, SeqCst);
        ActiveThread(count)
    }
}

impl Drop for ActiveThread<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: what we did with the lease is before the end that `close` sees.
        self.0.fetch_sub(1, Release);
    }
}

/// The lease, until it is dropped.
pub(super) struct SeqLockGuard<'a, W: Words, M: Members> {
    pub(super) seqlock: &'a SeqLock<W, M>,
    /// The last holder has died.
    pub(super) taken_over: bool,
    /// Dropped after the lease is given back.
    _active: ActiveThread<'a>,
}

impl<W: Words, M: Members> SeqLockGuard<'_, W, M> {
    /// Keeps the lease, until [`SeqLock::kept`] gives it back.
    #[inline]
    pub(super) fn leak(self) {
        std::mem::forget(self);
    }
}

impl<W: Words, M: Members> Drop for SeqLockGuard<'_, W, M> {
    #[inline]
    fn drop(&mut self) {
        // One that is no member any more has lost it: others take it over as that of a dead one.
        if !self.seqlock.is_own_process() || self.seqlock.members.self_id() == 0 {
            return;
        }
        if let Err(found) = owner_lock::release(self.seqlock.word(0), &self.seqlock.members) {
            let at = self.seqlock.start;
            self.seqlock.poison(Corruption {
                field: super::Field::Lease,
                at,
                found,
            });
        }
    }
}
