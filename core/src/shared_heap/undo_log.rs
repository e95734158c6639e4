//! Transactions: changes of many words that are made whole or not at all, whoever dies in the middle.
//!
//! It is [`seqlock`](super::seqlock) memory of 4096 bytes, with 251 entries of what words held.
//!
//! A change is an entry, then the count, then the store. The end of a transaction is count 0. Whoever takes the lease
//! and finds a count puts the old values back, the last one first. That may be done any number of times, so one that
//! dies of it is no different from one that died before. Only the order of a program counts for what its death leaves;
//! releases make the compiler keep it.
//!
//! The sequence is odd from before the first change until after the count is 0.

use super::access::{OptimisticView, ReadWords, WriteWords, copied, no_word};
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

/// Bytes of a lease and its journal.
pub const SIZE: u64 = 4096;
/// Words that a transaction may change.
pub const CAPACITY: usize = ((SIZE - AT_ENTRIES) / ENTRY) as usize;

/// A lease with its journal, and the memory that its transactions change.
pub struct UndoLog<W, M>(SeqLock<W, M>);

impl<W: Words, M: Members> UndoLog<W, M> {
    /// The journal that begins `start` bytes into the memory. Zeros are one that nobody has used.
    ///
    /// # Panics
    /// If it is not within the memory, or not aligned.
    pub fn new(words: W, start: u64, members: M) -> io::Result<Self> {
        SeqLock::new(words, start, SIZE, members).map(UndoLog)
    }

    /// The memory.
    pub fn words(&self) -> &W {
        self.0.words()
    }

    /// Those who share it.
    pub fn members(&self) -> &M {
        self.0.members()
    }

    /// Lets no other thread of this process change anything any more: see [`SeqLock::close`].
    #[cfg(not(loom))]
    pub fn close(&self, deadline: u64) {
        self.0.close(deadline);
    }

    /// Takes the lease, lets `change` change words, and gives the lease back. If that returns an error, nothing was
    /// changed. `deadline` is for the lease; see [`owner_lock::NEVER`].
    #[inline]
    pub fn transact<R>(
        &self,
        deadline: u64,
        change: impl FnOnce(&mut Transaction<'_, W, M>) -> Result<R, HeapError>,
    ) -> Result<R, HeapError> {
        let mut transaction = self.begin(deadline)?;
        let changed = change(&mut transaction);
        if changed.is_ok() {
            if !self.0.is_own_process() {
                return Err(HeapError::Detached); // Forked within the change: the parent ends it.
            }
            transaction.commit();
        }
        drop(transaction);
        self.0.poison_if_corrupt(changed)
    }

    /// Copies what a transaction may be changing, all of one moment. `copy` is called again if it was none, and must
    /// bear what it reads then. `deadline` is for the lease, which it takes if others change things without end.
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

    /// Leaves all as the death of this process would in the middle of `change`: for tests.
    pub fn die_within(
        &self,
        change: impl FnOnce(&mut Transaction<'_, W, M>) -> Result<(), HeapError>,
    ) {
        let mut transaction = self
            .begin(owner_lock::NEVER)
            .expect("a lease that can be had");
        change(&mut transaction).expect("a change that can be made");
        std::mem::forget(transaction);
    }

    #[inline]
    fn begin(&self, deadline: u64) -> Result<Transaction<'_, W, M>, HeapError> {
        let held = self.0.acquire(deadline)?;
        let mut transaction = Transaction {
            journal: self,
            changed: 0,
            sequence: 0,
            _held: held,
        };
        // Relaxed, both: the lease orders them, or the kernel, who says that the last holder is dead.
        transaction.sequence = self.0.word(AT_SEQUENCE).load(Ordering::Relaxed);
        let count = self.0.word(AT_COUNT).load(Ordering::Relaxed);
        if count != 0 || transaction.sequence % 2 != 0 {
            let recovered = self.roll_back();
            recovered.map_err(|corruption| self.0.poison(corruption))?;
            transaction.sequence = self.0.end_change(transaction.sequence);
        }
        Ok(transaction)
    }

    /// Puts back what was changed, the last one first. May be done again.
    #[cold]
    fn roll_back(&self) -> Result<(), Corruption> {
        let corrupt = |field, at, found| Corruption {
            field,
            at: self.0.start() + at,
            found,
        };
        // Acquire: it comes with the entries that it counts.
        let found = self.0.word(AT_COUNT).load(Ordering::Acquire);
        let count = usize::try_from(found).unwrap_or(usize::MAX);
        if count > CAPACITY {
            return Err(corrupt(Field::JournalCount, AT_COUNT, found));
        }
        crash::point!(RollbackBegun);
        // Copied before they are checked.
        let mut entries = [(0, 0); CAPACITY];
        for (index, entry) in entries[..count].iter_mut().enumerate() {
            let at = AT_ENTRIES + ENTRY * index as u64;
            // Relaxed, both: see the count.
            entry.0 = self.0.word(at).load(Ordering::Relaxed);
            entry.1 = self.0.word(at + 8).load(Ordering::Relaxed);
            if self.0.changeable(entry.0).is_none() {
                return Err(corrupt(Field::JournalEntry, at, entry.0));
            }
        }
        for &(at, old) in entries[..count].iter().rev() {
            if let Some(word) = self.0.changeable(at) {
                // Release: in the order of the program, and seen by readers as any change.
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
    journal: &'a UndoLog<W, M>,
    /// Words that were changed so far.
    changed: usize,
    /// What the sequence was, and will be again if nothing changes: even.
    sequence: u64,
    /// Dropped when all else is over.
    _held: SeqLockGuard<'a, W, M>,
}

impl<W: Words, M: Members> ReadWords for Transaction<'_, W, M> {
    #[inline]
    fn get(&self, at: u64) -> Result<u64, HeapError> {
        match self.journal.words().word(at) {
            // Relaxed: the lease orders it.
            Some(word) => Ok(word.load(Ordering::Relaxed)),
            None => Err(no_word(at)),
        }
    }

    #[inline]
    fn copy(&self, at: u64, len: u64, out: &mut Vec<u8>) -> Result<(), HeapError> {
        copied(self.journal.words(), at, len, out)
    }
}

impl<W: Words, M: Members> WriteWords for Transaction<'_, W, M> {
    #[inline]
    fn set(&mut self, at: u64, value: u64) -> Result<(), HeapError> {
        let journal = self.journal;
        let Some(word) = journal.0.changeable(at) else {
            return Err(no_word(at));
        };
        if self.changed == CAPACITY {
            return Err(HeapError::TransactionTooLarge { most: CAPACITY });
        }
        if self.changed == 0 {
            // Relaxed: before the stores below, which are releases; a reader that sees one of those sees this.
            let odd = self.sequence.wrapping_add(1);
            journal.0.word(AT_SEQUENCE).store(odd, Ordering::Relaxed);
            crash::point!(SequenceOdd);
        }
        let entry = AT_ENTRIES + ENTRY * self.changed as u64;
        // Relaxed, all three: the count orders them.
        journal.0.word(entry).store(at, Ordering::Relaxed);
        let old = word.load(Ordering::Relaxed);
        journal.0.word(entry + 8).store(old, Ordering::Relaxed);
        crash::point!(EntryWritten);
        self.changed += 1;
        // Release: after the entry.
        journal
            .0
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
        match self.journal.0.changeable(at) {
            // Release: in the order of the program.
            Some(word) => word.store(value, Ordering::Release),
            None => return Err(no_word(at)),
        }
        Ok(())
    }

    #[inline]
    fn self_id(&self) -> u64 {
        self.journal.members().self_id()
    }
}

impl<W: Words, M: Members> Transaction<'_, W, M> {
    /// What was changed stays.
    #[inline]
    fn commit(&mut self) {
        if self.changed > 0 {
            // Release: after the changes.
            self.journal.0.word(AT_COUNT).store(0, Ordering::Release);
            crash::point!(Committed);
            self.changed = 0;
            self.journal.0.end_change(self.sequence);
            crash::point!(SequenceEven);
        }
    }
}

impl<W: Words, M: Members> Drop for Transaction<'_, W, M> {
    #[inline]
    fn drop(&mut self) {
        let seqlock = &self.journal.0;
        if self.changed > 0 && seqlock.is_own_process() {
            match self.journal.roll_back() {
                Ok(()) => drop(seqlock.end_change(self.sequence)),
                Err(corruption) => drop(seqlock.poison(corruption)),
            }
        }
    }
}
