//! Memory that one member changes at a time and that all members can read meanwhile: a robust lock with a sequence
//! number.
//!
//! Offsets in bytes from its beginning, a multiple of 64:
//!
//! ```text
//!      0  lock        u64    see `owner_lock.rs`
//!      8  poison      3 u64  the corrupt value that was found, see `corruption.rs`
//!     40  died        u64    of a redo log: not 0 if a holder has died and its pages were not yet reclaimed
//!     48  long        u64    of a redo log: not 0 if the lock is held for long
//!     64  sequence    u64    odd while a commit changes words
//!     72  count       u64    the number of valid entries of the undo or redo log
//!     80  entries     each the offset of a word u64, and a value u64
//! ```
//!
//! The log decides what the entries mean and so what becomes of the changes of a dead holder: the next holder undoes
//! them from an [`undo_log`](super::undo_log) and repeats them from a [`redo_log`](super::redo_log).
//!
//! A reader copies words and then checks that the sequence is unchanged. If it changes each time, the writer has died
//! or other writers follow without a pause. Then the reader takes the lock, which repairs the former and excludes the
//! latter. A reader that copies much takes the lock after its first attempt, because another attempt would take as long
//! and fail as well.

mod guard;
#[cfg(not(loom))]
mod replacement;

use super::access::OptimisticView;
use super::owner_lock;
use super::{Corruption, HeapError, Members, Poison, TransactionError, Words};
#[cfg(not(loom))]
use crate::fork_guard::OriginProcess;
use crate::sync::{AtomicU64, Ordering, fence};
use std::io;
use std::sync::atomic::AtomicBool as PrivateBool;
use std::sync::atomic::AtomicUsize as PrivateUsize;
use std::sync::atomic::Ordering::Acquire;
#[cfg(not(loom))]
use std::sync::atomic::Ordering::Release;

pub(super) use guard::SeqLockGuard;

const AT_POISON: u64 = 8;
pub(super) const AT_SEQUENCE: u64 = 64;
pub(super) const AT_COUNT: u64 = 72;
pub(super) const AT_ENTRIES: u64 = 80;
pub(super) const ENTRY: u64 = 16;

/// In the place of a thread: other memory is about to replace this memory, so no thread may enter.
const PAUSED: usize = 1;
/// The number of attempts before a reader takes the lock.
const MAX_ATTEMPTS: u32 = if cfg!(loom) { 2 } else { 64 };

/// The time, in nanoseconds, for which a reader retries.
#[cfg(not(loom))]
const MAX_RETRY_TIME: u64 = 100_000;

/// Result of a read without the lock.
pub enum ReadAttempt<R> {
    /// A consistent copy.
    Copied(R),
    /// Each attempt met a change.
    Changing,
    /// The attempts took so long that further ones would fail as well: the reader copies much.
    ChangingForLong,
}

/// Memory that one member at a time changes under an [`owner_lock`], with a sequence number for readers.
pub struct SeqLock<W, M> {
    words: W,
    start: u64,
    /// Bytes from `start` that transactions must not change.
    size: u64,
    members: M,
    /// The number of threads of this process that hold the lock or are about to take it.
    active_threads: PrivateUsize,
    /// 0, [`PAUSED`], or the one thread that may still take the lock, by [`this_thread`].
    closed: PrivateUsize,
    /// True if this process only reads: the memory may be mapped read-only, so nothing is written.
    read_only: PrivateBool,
    #[cfg(not(loom))]
    origin: OriginProcess,
}

impl<W: Words, M: Members> SeqLock<W, M> {
    /// Opens the `size` bytes that begin `start` bytes into the memory. Zeros are valid and unused.
    ///
    /// # Panics
    /// If these bytes are not aligned or not within the memory.
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
            origin: OriginProcess::current()?,
        })
    }

    /// Makes this process read-only, because another member alone changes the memory, or writable again. A thread that
    /// already holds the lock keeps it.
    #[cfg(not(loom))]
    pub fn set_read_only(&self, read_only: bool) {
        // Release: a thread that may write finds memory that is writable.
        self.read_only.store(read_only, Release);
    }

    /// Returns true if this process only reads.
    #[inline]
    pub fn is_read_only(&self) -> bool {
        // Acquire: pairs with the release above.
        self.read_only.load(Acquire)
    }

    /// Returns the member that holds the lock now; 0 if none does. A hint.
    pub fn holder(&self) -> u64 {
        owner_lock::holder(self.word(0))
    }

    /// Returns a number that differs after each change. A hint.
    pub fn sequence(&self) -> u64 {
        // Relaxed: a hint.
        self.word(AT_SEQUENCE).load(Ordering::Relaxed)
    }

    /// Returns the offset of the seqlock in the memory.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns the memory.
    pub fn words(&self) -> &W {
        &self.words
    }

    /// Returns the members that share the memory.
    pub fn members(&self) -> &M {
        &self.members
    }

    /// Tries to copy words as of one moment while members may change them. `copy` runs once for each attempt and must
    /// tolerate inconsistent values; only the result of a consistent attempt is returned, and a corruption in it
    /// poisons the memory. Never waits for the lock: the caller acquires it if no attempt has succeeded.
    #[inline]
    pub fn read<R, E: TransactionError>(
        &self,
        mut copy: impl FnMut(&OptimisticView<'_, W>) -> Result<R, E>,
    ) -> Result<ReadAttempt<R>, E> {
        self.check()?;
        let view = OptimisticView::new(&self.words);
        #[cfg(not(loom))]
        let mut timer = RetryTimer::default();
        for _ in 0..MAX_ATTEMPTS {
            // Acquire: the copy is not older than the sequence.
            let before = self.word(AT_SEQUENCE).load(Ordering::Acquire);
            if before % 2 == 0 {
                let copied = copy(&view);
                // Acquire: a reader that has read a word of a transaction also sees its odd sequence.
                fence(Ordering::Acquire);
                // Relaxed: the fence orders it.
                let after = self.word(AT_SEQUENCE).load(Ordering::Relaxed);
                if after == before {
                    // Changes made here after a copy has replaced this memory were never valid.
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

    /// Returns `done`. First poisons the memory for all members if it is a corruption, or if the memory was truncated,
    /// so that zeros were read in place of its contents: then returns that error.
    #[inline]
    pub fn poison_if_corrupt<R, E: TransactionError>(&self, done: Result<R, E>) -> Result<R, E> {
        match done.as_ref().err().and_then(TransactionError::corruption) {
            Some(corruption) => Err(self.poison(corruption).into()),
            None if self.words.is_truncated() => Err(self.poison(Corruption::TRUNCATED).into()),
            None => done,
        }
    }

    /// Returns an error if the memory is unusable: [`HeapError::Detached`] in a forked child or a process that is no
    /// member, [`HeapError::Poisoned`] or [`HeapError::Replaced`] for all members.
    #[inline]
    pub fn check(&self) -> Result<(), HeapError> {
        if !self.is_member() {
            return Err(HeapError::Detached);
        }
        self.check_poison()
    }

    /// Returns true while this process is a member: false in a forked child, and once the member has left. Other
    /// members then take its lock over as that of a dead member.
    #[inline]
    pub(super) fn is_member(&self) -> bool {
        self.is_own_process() && self.members.self_id() != 0
    }

    /// Returns [`HeapError::Poisoned`] or [`HeapError::Replaced`] if a member has reported a corruption or a
    /// replacement.
    #[inline]
    fn check_poison(&self) -> Result<(), HeapError> {
        // Relaxed: a flag. A member that sees it late meets the corrupt value itself.
        if self.word(AT_POISON).load(Ordering::Relaxed) != 0 {
            return Err(self.poison_error());
        }
        Ok(())
    }

    /// Returns the error for the report of a member.
    #[cold]
    fn poison_error(&self) -> HeapError {
        match self.poison_words().read() {
            Corruption {
                field: super::Field::Replaced,
                at: fenced,
                ..
            } => HeapError::Replaced { fenced },
            corruption => corruption.into(),
        }
    }

    /// Returns [`HeapError::Replaced`] if a copy was made while this process held the lock, since the copy may lack its
    /// changes. Called after the lock was released.
    #[inline]
    pub(super) fn check_fenced(&self) -> Result<(), HeapError> {
        // SeqCst: after the exchange of the lock. A member that makes a copy first marks this memory, then reads the
        // lock: if this process sees no mark, the copy has all of its earlier stores.
        if self.word(AT_POISON).load(Ordering::SeqCst) != 0
            && let error @ HeapError::Replaced { fenced } = self.poison_error()
            && fenced == self.members.self_id()
        {
            return Err(error);
        }
        Ok(())
    }

    /// Returns true in the process that opened the seqlock, and false in its forked children.
    #[inline]
    pub fn is_own_process(&self) -> bool {
        #[cfg(not(loom))]
        return self.origin.is_current();
        #[cfg(loom)]
        true
    }

    /// Marks the memory as corrupt for all members, and returns the error.
    ///
    /// A read-only process cannot mark it: only this process gets the error, each time it meets the corrupt value. Once
    /// this member has left, another member may have changed the words meanwhile: then marks nothing, and returns
    /// [`HeapError::Detached`].
    #[cold]
    pub(super) fn poison(&self, corruption: Corruption) -> HeapError {
        // Acquire: a thread that has read a word of the next holder sees that this member has left.
        fence(Ordering::Acquire);
        if self.members.self_id() == 0 {
            return HeapError::Detached;
        }
        if !self.is_read_only() {
            self.poison_words().record(corruption);
        }
        corruption.into()
    }

    /// Returns the words that report a corruption to all members.
    fn poison_words(&self) -> Poison<'_> {
        Poison([0, 8, 16].map(|at| self.word(AT_POISON + at)))
    }

    /// Returns the word at this offset from the beginning of the seqlock.
    #[inline]
    pub(super) fn word(&self, at: u64) -> &AtomicU64 {
        let word = self.words.word(self.start + at);
        word.expect("`new` has checked that the seqlock is within the memory")
    }

    /// Returns the word at this offset if transactions may change it: any word outside the seqlock itself.
    #[inline]
    pub(super) fn changeable(&self, at: u64) -> Option<&AtomicU64> {
        if at.wrapping_sub(self.start) < self.size {
            return None;
        }
        self.words.word(at)
    }

    /// Ends a change: stores the next even sequence and returns it.
    #[inline]
    pub(super) fn end_change(&self, sequence: u64) -> u64 {
        let even = (sequence | 1).wrapping_add(1);
        // Release: a reader that sees the sequence sees all changes before it.
        self.word(AT_SEQUENCE).store(even, Ordering::Release);
        even
    }
}

/// The time that a reader has spent on attempts.
#[cfg(not(loom))]
#[derive(Default)]
struct RetryTimer {
    /// The time at which the first failed attempt ended.
    since: Option<u64>,
}

#[cfg(not(loom))]
impl RetryTimer {
    /// Returns true if another attempt would most likely fail. `moved` is the change of the sequence during the last
    /// one.
    #[cold]
    fn is_hopeless(&mut self, moved: u64) -> bool {
        if moved / 2 > u64::from(MAX_ATTEMPTS) {
            return true; // After so many changes within one attempt the next attempt would meet some too.
        }
        let now = crate::clock::now();
        let since = *self.since.get_or_insert(now);
        now.saturating_sub(since) > MAX_RETRY_TIME
    }
}
