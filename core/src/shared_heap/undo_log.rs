//! Transactions that survive a crash by an undo log: all of their changes happen, or none.
//!
//! The log is a seqlock (`seqlock`) of 4096 bytes, with 251 entries of old values.
//!
//! A change writes an entry, then the count, then the word. Storing count 0 ends the transaction. A member that takes
//! the lock and finds a count restores the old values, the last one first. Restoring is idempotent, so a member that
//! dies meanwhile leaves the same state as the one before it. Only program order matters for what a death leaves
//! behind; the releases make the compiler keep it.
//!
//! The sequence is odd from before the first change until after count 0.

use super::access::{OptimisticView, ReadWords, WriteWords, copy_words, invalid_offset};
use super::corruption::{Corruption, Field};
use super::error::HeapError;
use super::members::Members;
use super::owner_lock;
use super::seqlock::{
    AT_COUNT, AT_ENTRIES, AT_SEQUENCE, ENTRY, ReadAttempt, SeqLock, SeqLockGuard,
};
use super::words::Words;
use crate::crash;
use crate::sync::Ordering;
use std::io;

/// Bytes of the lock and its log.
pub const SIZE: u64 = 4096;
/// The most words that a transaction may change.
pub const CAPACITY: usize = ((SIZE - AT_ENTRIES) / ENTRY) as usize;

/// A lock with an undo log, and the memory that its transactions change.
pub struct UndoLog<W, M>(SeqLock<W, M>);

impl<W: Words, M: Members> UndoLog<W, M> {
    /// Opens the log that begins `start` bytes into the memory. Zeros are a valid, unused log. Fails as
    /// `OriginProcess::current` does if this process cannot be identified.
    ///
    /// # Panics
    /// If the log is not aligned or not within the memory.
    pub fn new(words: W, start: u64, members: M) -> io::Result<Self> {
        SeqLock::new(words, start, SIZE, members).map(UndoLog)
    }

    /// Returns the memory.
    pub fn words(&self) -> &W {
        self.0.words()
    }

    /// Returns the members that share the memory.
    pub fn members(&self) -> &M {
        self.0.members()
    }

    /// Refuses changes by all other threads of this process: see `SeqLock::close`.
    #[cfg(not(loom))]
    pub fn close(&self, deadline: u64) {
        self.0.close(deadline);
    }

    /// Runs `change` once, as one transaction, and returns its result. If `change` fails, nothing has changed, and a
    /// corruption that it found poisons the memory for all members. `deadline` bounds the wait for the lock, and then
    /// the call fails with [`HeapError::Busy`]; see [`owner_lock::NEVER`]. `change` must not begin another transaction.
    ///
    /// Fails with [`HeapError::Detached`] in a forked child and once this process has left, also if that happens within
    /// a `change` that succeeds, and with [`HeapError::Poisoned`] or [`HeapError::Replaced`] if the memory is unusable.
    /// If the memory was truncated, fails with `Poisoned` even after a `change` that has succeeded. Words that
    /// `change` has stored by `init` are not restored.
    #[inline]
    pub fn transact<R>(
        &self,
        deadline: u64,
        change: impl FnOnce(&mut Transaction<'_, W, M>) -> Result<R, HeapError>,
    ) -> Result<R, HeapError> {
        let mut transaction = self.begin(deadline)?;
        let changed = change(&mut transaction);
        if changed.is_ok() {
            if !self.0.is_member() {
                // Forked within the change, or left meanwhile: the parent or another member ends the transaction.
                return Err(HeapError::Detached);
            }
            transaction.commit();
        }
        drop(transaction);
        self.0.poison_if_corrupt(changed)
    }

    /// Copies words as of one moment. `copy` runs once for each attempt and must tolerate inconsistent values. If all
    /// attempts fail, it runs under the lock; `deadline` bounds the wait for that.
    pub fn read<R>(
        &self,
        deadline: u64,
        mut copy: impl FnMut(&OptimisticView<'_, W>) -> Result<R, HeapError>,
    ) -> Result<R, HeapError> {
        match self.0.read(&mut copy)? {
            ReadAttempt::Copied(copied) => Ok(copied),
            ReadAttempt::Changing | ReadAttempt::ChangingForLong => {
                self.transact(deadline, |_| copy(&OptimisticView::new(self.words())))
            }
        }
    }

    /// Runs `change` and leaves the memory as the death of this process at its end, before the commit, would. For
    /// tests. The lock stays held. Panics if `change` fails.
    pub fn die_within(
        &self,
        change: impl FnOnce(&mut Transaction<'_, W, M>) -> Result<(), HeapError>,
    ) {
        let mut transaction = self
            .begin(owner_lock::NEVER)
            .expect("the lock is available");
        change(&mut transaction).expect("the change succeeds");
        std::mem::forget(transaction);
    }

    /// Acquires the lock and begins a transaction. If the last holder has died, first undoes its changes.
    #[inline]
    fn begin(&self, deadline: u64) -> Result<Transaction<'_, W, M>, HeapError> {
        let held = self.0.acquire(deadline)?;
        let mut transaction = Transaction {
            log: self,
            changed: 0,
            sequence: 0,
            _held: held,
        };
        // Relaxed, both: the lock orders them, or the kernel, which reports the death of the last holder.
        transaction.sequence = self.0.word(AT_SEQUENCE).load(Ordering::Relaxed);
        let count = self.0.word(AT_COUNT).load(Ordering::Relaxed);
        if count != 0 || transaction.sequence % 2 != 0 {
            let recovered = self.roll_back();
            recovered.map_err(|corruption| self.0.poison(corruption))?;
            transaction.sequence = self.0.end_change(transaction.sequence);
        }
        Ok(transaction)
    }

    /// Restores the old values, the last one first. Idempotent.
    #[cold]
    fn roll_back(&self) -> Result<(), Corruption> {
        let corrupt = |field, at, found| Corruption {
            field,
            at: self.0.start() + at,
            found,
        };
        // Acquire: the entries that the count covers are visible.
        let found = self.0.word(AT_COUNT).load(Ordering::Acquire);
        let count = usize::try_from(found).unwrap_or(usize::MAX);
        if count > CAPACITY {
            return Err(corrupt(Field::LogCount, AT_COUNT, found));
        }
        crash::point!(RollbackBegun);
        // Copied before the check, because other members can write them.
        let mut entries = [(0, 0); CAPACITY];
        for (index, entry) in entries[..count].iter_mut().enumerate() {
            let at = AT_ENTRIES + ENTRY * index as u64;
            // Relaxed, both: see the count.
            entry.0 = self.0.word(at).load(Ordering::Relaxed);
            entry.1 = self.0.word(at + 8).load(Ordering::Relaxed);
            if self.0.changeable(entry.0).is_none() {
                return Err(corrupt(Field::LogEntry, at, entry.0));
            }
        }
        for &(at, old) in entries[..count].iter().rev() {
            if let Some(word) = self.0.changeable(at) {
                // Release: in program order, and readers see it like any change.
                word.store(old, Ordering::Release);
                crash::point!(WordRestored);
            }
        }
        // Release: after the words.
        self.0.word(AT_COUNT).store(0, Ordering::Release);
        crash::point!(RollbackDone);
        Ok(())
    }
}

/// The right to change words, until it is dropped.
pub struct Transaction<'a, W: Words, M: Members> {
    log: &'a UndoLog<W, M>,
    /// The number of changes so far.
    changed: usize,
    /// The even sequence before the transaction, which stays if nothing changes.
    sequence: u64,
    /// Dropped after everything else.
    _held: SeqLockGuard<'a, W, M>,
}

impl<W: Words, M: Members> ReadWords for Transaction<'_, W, M> {
    #[inline]
    fn get(&self, at: u64) -> Result<u64, HeapError> {
        match self.log.words().word(at) {
            // Relaxed: the lock orders it.
            Some(word) => Ok(word.load(Ordering::Relaxed)),
            None => Err(invalid_offset(at)),
        }
    }

    #[inline]
    fn copy(&self, at: u64, len: u64, out: &mut Vec<u8>) -> Result<(), HeapError> {
        copy_words(self.log.words(), at, len, out)
    }
}

impl<W: Words, M: Members> WriteWords for Transaction<'_, W, M> {
    /// Logs the old value, and stores the new one at once. Fails with [`HeapError::TransactionTooLarge`] beyond
    /// `CAPACITY` changes, each of which counts, also of the same word.
    #[inline]
    fn set(&mut self, at: u64, value: u64) -> Result<(), HeapError> {
        let log = self.log;
        let Some(word) = log.0.changeable(at) else {
            return Err(invalid_offset(at));
        };
        if self.changed == CAPACITY {
            return Err(HeapError::TransactionTooLarge { most: CAPACITY });
        }
        if self.changed == 0 {
            // Relaxed: before the stores below, which are releases; a reader that sees one of those sees this.
            let odd = self.sequence.wrapping_add(1);
            log.0.word(AT_SEQUENCE).store(odd, Ordering::Relaxed);
            crash::point!(SequenceOdd);
        }
        let entry = AT_ENTRIES + ENTRY * self.changed as u64;
        // Relaxed, all three: the count orders them.
        log.0.word(entry).store(at, Ordering::Relaxed);
        let old = word.load(Ordering::Relaxed);
        log.0.word(entry + 8).store(old, Ordering::Relaxed);
        crash::point!(EntryWritten);
        self.changed += 1;
        // Release: after the entry.
        log.0
            .word(AT_COUNT)
            .store(self.changed as u64, Ordering::Release);
        crash::point!(EntryCounted);
        // Release: after the count, and after the odd sequence.
        word.store(value, Ordering::Release);
        crash::point!(WordChanged);
        Ok(())
    }

    #[inline]
    fn init(&mut self, at: u64, value: u64) -> Result<(), HeapError> {
        match self.log.0.changeable(at) {
            // Release: in program order.
            Some(word) => word.store(value, Ordering::Release),
            None => return Err(invalid_offset(at)),
        }
        Ok(())
    }

    #[inline]
    fn self_id(&self) -> u64 {
        self.log.members().self_id()
    }
}

impl<W: Words, M: Members> Transaction<'_, W, M> {
    /// Keeps the changes so far. The lock is released by the drop.
    #[inline]
    fn commit(&mut self) {
        if self.changed > 0 {
            // Release: after the changes.
            self.log.0.word(AT_COUNT).store(0, Ordering::Release);
            crash::point!(Committed);
            self.changed = 0;
            self.log.0.end_change(self.sequence);
            crash::point!(SequenceEven);
        }
    }
}

impl<W: Words, M: Members> Drop for Transaction<'_, W, M> {
    /// Undoes the changes that are not committed, then releases the lock. Does nothing in a forked child, nor after
    /// this process has left.
    #[inline]
    fn drop(&mut self) {
        let seqlock = &self.log.0;
        if self.changed > 0 && seqlock.is_member() {
            match self.log.roll_back() {
                Ok(()) => drop(seqlock.end_change(self.sequence)),
                Err(corruption) => drop(seqlock.poison(corruption)),
            }
        }
    }
}
