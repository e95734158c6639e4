//! Transactions that are collected in private memory and survive a crash by a redo log.
//!
//! The log is a seqlock (`seqlock`) of 16 MiB, with entries of new values. Only its beginning is backed by
//! pages, unless a transaction changes thousands of words.
//!
//! A transaction collects its changes in private memory, where its own reads find them. A commit writes an entry for
//! each word, then the count, then the words, then count 0. The transaction is committed once the count is stored: a
//! member that takes the lock and finds a count writes the words again, which is idempotent. A member that dies earlier
//! has changed nothing. So no word ever holds an uncommitted value, and a single word can be read without the sequence,
//! which is odd while the words are stored.
//!
//! A transaction of one word needs no entry: its store is the commit.
//!
//! Memory that was free when the transaction began is *fresh*: no other member can reach it, so it is written at once.

mod commit;
mod pending;

pub use pending::{PendingTransaction, Savepoint};

use crate::clock;
use crate::shared_heap::access::{OptimisticView, ReadWords, WriteWords};
use crate::shared_heap::access::{copy_words, invalid_offset};
use crate::shared_heap::backing_file::BackingFile;
use crate::shared_heap::error::{HeapError, TransactionError};
use crate::shared_heap::members::Members;
use crate::shared_heap::seqlock::{AT_COUNT, AT_ENTRIES, AT_SEQUENCE, ENTRY, ReadAttempt, SeqLock};
use crate::shared_heap::words::Words;
use pending::Undo;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// The offset of the flag that a holder has died and that its pages were not yet reclaimed.
const AT_DIED: u64 = 40;
/// The offset of the flag that the lock is held for long.
const AT_LONG: u64 = 48;
/// Bytes of the lock and its log.
pub const SIZE: u64 = 16 << 20;
/// The most words that a transaction may change, besides fresh memory.
pub const CAPACITY: usize = ((SIZE - AT_ENTRIES) / ENTRY) as usize;
/// Bytes of the log that are always backed.
pub const KEPT: u64 = 64 << 10;

/// A lock with a redo log, and the memory that its transactions change.
pub struct RedoLog<W, M> {
    seqlock: SeqLock<W, M>,
    backing_file: BackingFile,
    /// Bytes of the log that are backed by pages. Only the holder of the lock changes this.
    backed: AtomicU64,
    /// True if a reader of this process has held the lock for long and the waiters were not yet notified.
    held_long: AtomicBool,
}

/// The state of a log at one moment.
#[derive(Clone, Copy, Debug)]
pub struct LogPosition {
    sequence: u64,
    count: u64,
}

impl<W: Words, M: Members> RedoLog<W, M> {
    /// Opens the log that begins `start` bytes into the memory. Zeros are a valid, unused log. Backs [`KEPT`] bytes of
    /// it.
    ///
    /// # Panics
    /// If the log is not aligned or not within the memory.
    pub fn new(words: W, backing_file: BackingFile, start: u64, members: M) -> io::Result<Self> {
        backing_file.allocate(start, KEPT)?;
        RedoLog::open(words, backing_file, start, members)
    }

    /// Opens the log in a process that only reads, until it takes the memory over by [`SeqLock::set_read_only`].
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn open_read_only(
        words: W,
        backing_file: BackingFile,
        start: u64,
        members: M,
    ) -> io::Result<Self> {
        let log = RedoLog::open(words, backing_file, start, members)?;
        log.seqlock.set_read_only(true);
        Ok(log)
    }

    /// Opens a log without backing it.
    fn open(words: W, backing_file: BackingFile, start: u64, members: M) -> io::Result<Self> {
        Ok(RedoLog {
            seqlock: SeqLock::new(words, start, SIZE, members)?,
            backing_file,
            backed: AtomicU64::new(KEPT),
            held_long: AtomicBool::new(false),
        })
    }

    /// Returns the lock and its sequence.
    pub fn seqlock(&self) -> &SeqLock<W, M> {
        &self.seqlock
    }

    /// Copies words as of one moment. `copy` runs once for each attempt and must tolerate inconsistent values. If all
    /// attempts fail, it runs under the lock; `deadline` bounds the wait for that. A read-only process retries until
    /// `deadline` instead, and then fails with [`HeapError::NeverStable`]. Call [`Self::take_held_long`] afterwards.
    #[inline]
    pub fn read<R, E: TransactionError>(
        &self,
        deadline: u64,
        mut copy: impl FnMut(&OptimisticView<'_, W>) -> Result<R, E>,
    ) -> Result<R, E> {
        let is_long = match self.seqlock.read(&mut copy)? {
            ReadAttempt::Copied(copied) => return Ok(copied),
            ReadAttempt::Changing => false,
            ReadAttempt::ChangingForLong => true,
        };
        if self.seqlock.is_read_only() {
            return self.read_until(deadline, copy);
        }
        let pending = self.begin(deadline)?;
        if is_long {
            self.set_long_held(true);
        }
        let copied = copy(&OptimisticView::new(self.seqlock.words()));
        // Acquire: a copy with a word of another holder is seen to come after this process has left.
        fence(Ordering::Acquire);
        if !self.seqlock.is_member() {
            self.abandon(pending);
            return Err(HeapError::Detached.into());
        }
        if is_long {
            self.set_long_held(false);
        }
        self.abandon(pending);
        if is_long {
            // Relaxed: read by this thread, or by another one of this process that notifies in its place.
            self.held_long.store(true, Ordering::Relaxed);
        }
        self.seqlock.poison_if_corrupt(copied)
    }

    /// Retries a read until `deadline`, in a process that cannot take the lock. Fails with [`HeapError::NeverStable`],
    /// at once if the deadline has passed.
    #[cold]
    fn read_until<R, E: TransactionError>(
        &self,
        deadline: u64,
        mut copy: impl FnMut(&OptimisticView<'_, W>) -> Result<R, E>,
    ) -> Result<R, E> {
        while clock::now() < deadline {
            // The owner may need this CPU to end its change.
            std::thread::yield_now();
            if let ReadAttempt::Copied(copied) = self.seqlock.read(&mut copy)? {
                return Ok(copied);
            }
        }
        Err(HeapError::NeverStable.into())
    }

    /// Finishes the commit during which the owner died. The memory must be visible to this process alone, and be
    /// writable. Fails with [`HeapError::Poisoned`] if the log is corrupt.
    pub fn finish_commit(&self) -> Result<(), HeapError> {
        // Relaxed: no other process changes it.
        let mut sequence = self.seqlock.word(AT_SEQUENCE).load(Ordering::Relaxed);
        let redone = self.redo(&mut sequence);
        redone.map_err(|corruption| self.seqlock.poison(corruption))
    }

    /// Returns true if a commit is running.
    pub fn is_committing(&self) -> bool {
        // Acquire: pairs with the release at the end of a commit.
        self.seqlock.word(AT_SEQUENCE).load(Ordering::Acquire) % 2 != 0
    }

    /// Returns true, once, if a reader has held the lock for long: the caller must then wake the members that wait for
    /// its release.
    #[inline]
    pub fn take_held_long(&self) -> bool {
        // Relaxed, both: see `read`.
        self.held_long.load(Ordering::Relaxed) && self.held_long.swap(false, Ordering::Relaxed)
    }

    /// Returns a writer for a transaction of one operation. No savepoint is set: if the operation fails, the caller
    /// abandons the transaction.
    #[inline]
    pub fn writer<'a>(&'a self, pending: &'a mut PendingTransaction) -> Writer<'a, W, M> {
        Writer { log: self, pending }
    }

    /// Sets or clears the flag that the lock is held for long. This process must hold the lock.
    pub fn set_long_held(&self, is_long: bool) {
        // SeqCst: before the lock is released, so that a woken waiter sees it.
        let word = self.seqlock.word(AT_LONG);
        word.store(u64::from(is_long), Ordering::SeqCst);
    }

    /// Returns true if the lock is held for long.
    pub fn is_long_held(&self) -> bool {
        self.seqlock.word(AT_LONG).load(Ordering::SeqCst) != 0
    }

    /// Clears the flag that a holder has died, after its pages were reclaimed, and returns the pages of the log beyond
    /// the kept ones to the system.
    pub(super) fn clear_died(&self) {
        // A large transaction of the dead holder may have backed more of the log.
        let _ = self
            .backing_file
            .punch(self.seqlock.start() + KEPT, SIZE - KEPT);
        self.seqlock.word(AT_DIED).store(0, Ordering::Relaxed);
    }

    /// Returns the position of the committed state now. To copy this state, copy the words, then check
    /// [`is_unchanged_since`](Self::is_unchanged_since), then call [`adopt_position`](Self::adopt_position) in the
    /// copy.
    pub fn position(&self) -> LogPosition {
        // Acquire: the copy is not older. The count is read before the entries that it covers.
        let sequence = self.seqlock.word(AT_SEQUENCE).load(Ordering::Acquire);
        let count = self.seqlock.word(AT_COUNT).load(Ordering::Acquire);
        LogPosition { sequence, count }
    }

    /// Returns true if no commit has stored words since this position, so that the words copied since belong to it. A
    /// commit that was running at the position and has not ended is none: [`adopt_position`](Self::adopt_position)
    /// repeats it.
    pub fn is_unchanged_since(&self, position: LogPosition) -> bool {
        // Acquire, and relaxed after it: as a reader does it.
        fence(Ordering::Acquire);
        self.seqlock.word(AT_SEQUENCE).load(Ordering::Relaxed) == position.sequence
    }

    /// Continues from this position in a copy that no other process knows: frees its lock, and removes its poison. If a
    /// commit was running, the first member that takes the lock repeats it and reclaims pages.
    pub fn adopt_position(&self, LogPosition { sequence, count }: LogPosition) {
        // Relaxed, all: no other process knows this memory. The new sequence differs from all of the old memory.
        let set = |at, value| self.seqlock.word(at).store(value, Ordering::Relaxed);
        for at in (0..AT_SEQUENCE).step_by(8) {
            set(at, 0);
        }
        set(AT_DIED, 1);
        set(AT_SEQUENCE, sequence.wrapping_add(1 << 32));
        set(AT_COUNT, count);
    }

    /// Backs the beginning of the log, as [`new`](Self::new) does.
    pub fn allocate_kept(&self) -> io::Result<()> {
        self.backing_file.allocate(self.seqlock.start(), KEPT)
    }

    /// Forgets which part of the log is backed: other memory has replaced it.
    pub fn forget_backing(&self) {
        self.backed.store(KEPT, Ordering::Relaxed);
    }

    /// Cancels the replacement by a copy. Sets the flag that a holder has died, because a member that died meanwhile
    /// may have left pages to reclaim.
    pub fn clear_replaced(&self) {
        self.seqlock.word(AT_DIED).store(1, Ordering::Relaxed);
        self.seqlock.clear_replaced();
    }
}

/// The right of one operation to change words.
pub struct Writer<'a, W, M> {
    log: &'a RedoLog<W, M>,
    pub(super) pending: &'a mut PendingTransaction,
}

impl<W: Words, M: Members> Writer<'_, W, M> {
    /// Adds memory that was free to the fresh memory, in which [`WriteWords::set`] stores at once from now on.
    pub(super) fn add_fresh(&mut self, start: u64, len: u64) {
        self.pending.fresh.add(start, len);
    }

    /// Notes the fresh word at this offset, by which other members may identify an object. A rollback stores 0 there.
    pub fn note_created(&mut self, at: u64) {
        self.pending.created.push(at);
    }

    /// Copies bytes into a fresh block, at a multiple of 8. The rest of the last word is undefined, and a rollback does
    /// not restore the bytes.
    pub fn init_bytes(&mut self, at: u64, bytes: &[u8]) -> Result<(), HeapError> {
        match self.log.seqlock.words().copy_in(at, bytes) {
            true => Ok(()),
            false => Err(invalid_offset(at)),
        }
    }

    /// Returns the log.
    pub fn log(&self) -> &RedoLog<W, M> {
        self.log
    }
}

impl<W: Words, M: Members> ReadWords for Writer<'_, W, M> {
    /// Returns the value that this transaction has set, or else the one in the memory.
    #[inline]
    fn get(&self, at: u64) -> Result<u64, HeapError> {
        if self.pending.writes.count > 0
            && let Some(number) = self.pending.writes.find(at)
        {
            return Ok(self.pending.writes.get(number).1);
        }
        match self.log.seqlock.words().word(at) {
            // Relaxed: the lock orders it.
            Some(word) => Ok(word.load(Ordering::Relaxed)),
            None => Err(invalid_offset(at)),
        }
    }

    #[inline]
    fn copy(&self, at: u64, len: u64, out: &mut Vec<u8>) -> Result<(), HeapError> {
        copy_words(self.log.seqlock.words(), at, len, out)
    }
}

impl<W: Words, M: Members> WriteWords for Writer<'_, W, M> {
    /// Collects the change until the commit; stores at once in fresh memory. Fails only for an offset that must not
    /// change.
    #[inline]
    fn set(&mut self, at: u64, value: u64) -> Result<(), HeapError> {
        let Some(word) = self.log.seqlock.changeable(at) else {
            return Err(invalid_offset(at));
        };
        let PendingTransaction {
            writes,
            undo,
            fresh,
            ..
        } = &mut *self.pending;
        if fresh.has(at) {
            if let Some(undo) = undo {
                undo.push(Undo::Fresh(at, word.load(Ordering::Relaxed)));
            }
            // Release: like all stores to shared words, in program order.
            word.store(value, Ordering::Release);
            return Ok(());
        }
        match writes.find(at) {
            Some(number) => {
                let write = writes.get_mut(number);
                if let Some(undo) = undo {
                    undo.push(Undo::Write(number, write.1));
                }
                write.1 = value;
            }
            None => writes.push(at, value),
        }
        Ok(())
    }

    #[inline]
    fn init(&mut self, at: u64, value: u64) -> Result<(), HeapError> {
        match self.log.seqlock.changeable(at) {
            // Release: in program order.
            Some(word) => word.store(value, Ordering::Release),
            None => return Err(invalid_offset(at)),
        }
        Ok(())
    }

    #[inline]
    fn self_id(&self) -> u64 {
        self.log.seqlock.members().self_id()
    }
}
