//! Running transactions: operations, savepoints, commit, rollback, and the commit of a dead holder.

use super::pending::{Fresh, PendingTransaction, Savepoint, Undo, Writes};
use super::{AT_DIED, CAPACITY, KEPT, RedoLog, Writer};
use crate::crash;
use crate::shared_heap::access::{OptimisticView, invalid_offset};
use crate::shared_heap::corruption::{Corruption, Field};
use crate::shared_heap::error::{HeapError, TransactionError};
use crate::shared_heap::members::Members;
use crate::shared_heap::seqlock::{AT_COUNT, AT_ENTRIES, AT_SEQUENCE, ENTRY};
use crate::shared_heap::words::Words;
use std::sync::atomic::{AtomicU64, Ordering};

impl<W: Words, M: Members> RedoLog<W, M> {
    /// Begins a transaction of many operations, which holds the lock, after repeating the commit of a dead holder. End
    /// it by [`commit`](Self::commit) or [`abandon`](Self::abandon), because a drop does not release the lock. Fails as
    /// `SeqLock::acquire` does, with [`HeapError::Busy`] at the deadline, and holds no lock then.
    #[inline]
    pub fn begin(&self, deadline: u64) -> Result<PendingTransaction, HeapError> {
        let sequence = self.acquire(deadline)?;
        Ok(PendingTransaction {
            sequence,
            writes: Writes::new(),
            fresh: Fresh::default(),
            undo: None,
            open_savepoints: 0,
            created: Vec::new(),
            taken_over: self.seqlock.word(AT_DIED).load(Ordering::Relaxed) != 0,
            fetched: Vec::new(),
            freed: Vec::new(),
            to_punch: Vec::new(),
        })
    }

    /// Runs one operation of a transaction. If the operation fails, undoes its changes; the transaction continues,
    /// unless the error is a corruption, which poisons the memory.
    pub fn operate<R, E: TransactionError>(
        &self,
        pending: &mut PendingTransaction,
        operate: impl FnOnce(&mut Writer<'_, W, M>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.seqlock.check()?;
        let savepoint = self.savepoint(pending);
        let done = operate(&mut Writer { log: self, pending });
        self.end_savepoint(pending, &savepoint, done.is_ok());
        self.seqlock.poison_if_corrupt(done)
    }

    /// Sets a savepoint. End each by [`end_savepoint`](Self::end_savepoint), the last one first.
    pub fn savepoint(&self, pending: &mut PendingTransaction) -> Savepoint {
        let undo = pending.undo.get_or_insert_default();
        pending.open_savepoints += 1;
        Savepoint {
            writes: pending.writes.count,
            fresh: pending.fresh.order.len(),
            fetched: pending.fetched.len(),
            freed: pending.freed.len(),
            created: pending.created.len(),
            undo: undo.len(),
        }
    }

    /// Ends a savepoint. Unless `is_kept`, undoes the changes since the savepoint, and returns the pages that were
    /// backed since then to the system.
    pub fn end_savepoint(
        &self,
        pending: &mut PendingTransaction,
        savepoint: &Savepoint,
        is_kept: bool,
    ) {
        if !is_kept {
            self.roll_back_to(pending, savepoint);
        }
        pending.open_savepoints = pending.open_savepoints.saturating_sub(1);
        if pending.open_savepoints == 0 {
            pending.undo = None;
        }
    }

    /// Undoes all changes since a savepoint, and returns the pages that were backed since then to the system.
    fn roll_back_to(&self, pending: &mut PendingTransaction, savepoint: &Savepoint) {
        let undo = pending.undo.as_mut();
        let undone = undo.map(|undo| undo.split_off(savepoint.undo.min(undo.len())));
        for undo in undone.into_iter().flatten().rev() {
            match undo {
                Undo::Write(number, value) => pending.writes.get_mut(number).1 = value,
                Undo::Fresh(at, value) => {
                    if let Some(word) = self.seqlock.changeable(at) {
                        // Release: like all stores to shared words, in program order.
                        word.store(value, Ordering::Release);
                    }
                }
            }
        }
        pending.writes.truncate(savepoint.writes);
        pending.fresh.truncate(savepoint.fresh);
        pending.freed.truncate(savepoint.freed);
        self.erase_created(pending.created.drain(savepoint.created..));
        for (start, len) in pending.fetched.drain(savepoint.fetched..) {
            let _ = self.backing_file.punch(start, len);
        }
    }

    /// Stores 0 in these words, so that other members no longer find the objects that they identify.
    fn erase_created(&self, created: impl Iterator<Item = u64>) {
        for at in created {
            if let Some(word) = self.seqlock.changeable(at) {
                // Release: like all stores to shared words. The lock is released after it, so every process that finds
                // a later transaction committed sees it.
                word.store(0, Ordering::Release);
            }
        }
    }

    /// Commits the transaction and releases the lock, also if it fails. Then nothing has changed, except with
    /// [`HeapError::Replaced`] or for truncated memory: then the copy or the file may lack the changes. Fails with
    /// [`HeapError::TransactionTooLarge`] beyond [`CAPACITY`] words, and with [`HeapError::System`] without memory for
    /// the log.
    #[inline]
    pub fn commit(&self, mut pending: PendingTransaction) -> Result<(), HeapError> {
        if !self.seqlock.is_own_process() {
            return Err(HeapError::Detached); // Forked within the transaction: the parent ends it.
        }
        if let Err(error) = self.seqlock.check() {
            self.abandon(pending); // The process has left, or the memory was poisoned meanwhile.
            return Err(error);
        }
        match pending.writes.count {
            0 => {}
            1 => {
                let (at, value) = pending.writes.inline[0];
                // Release: a reader that sees the word sees all earlier stores.
                self.word(at).store(value, Ordering::Release);
                crash::point!(OnlyWordStored);
                self.advance_sequence(&mut pending.sequence);
            }
            _ => {
                if let Err(error) = self.write_and_apply(&mut pending) {
                    self.abandon(pending);
                    return Err(error);
                }
            }
        }
        for &(start, len) in &pending.to_punch {
            crash::point!(HeapFreed);
            // Memory that cannot be returned is reclaimed at the next takeover, or used again.
            let _ = self.backing_file.punch(start, len);
            crash::point!(HeapPunched);
        }
        self.seqlock.release_leaked();
        self.seqlock.check_fenced()?;
        if self.seqlock.words().is_truncated() {
            return Err(self.seqlock.poison(Corruption::TRUNCATED));
        }
        Ok(())
    }

    /// Runs a transaction that stores at most one word. `change` returns its offset and its value, or None, and the
    /// result. If it fails, no word is stored; a corruption then poisons the memory. `change` runs once, under the
    /// lock, for which the call waits until `deadline`.
    #[inline]
    pub fn store_word<R, E: TransactionError>(
        &self,
        deadline: u64,
        change: impl FnOnce(&OptimisticView<'_, W>) -> Result<(Option<(u64, u64)>, R), E>,
    ) -> Result<R, E> {
        let mut sequence = self.acquire(deadline)?;
        let change = change(&OptimisticView::new(self.seqlock.words()));
        if let Ok((Some((at, value)), _)) = change {
            match self.seqlock.changeable(at) {
                // Release: as in `commit`.
                Some(word) => word.store(value, Ordering::Release),
                None => {
                    self.seqlock.release_leaked();
                    return self
                        .seqlock
                        .poison_if_corrupt(Err(invalid_offset(at).into()));
                }
            }
            crash::point!(OnlyWordStored);
            self.advance_sequence(&mut sequence);
        }
        self.seqlock.release_leaked();
        self.seqlock.check_fenced()?;
        self.seqlock
            .poison_if_corrupt(change)
            .map(|(_, result)| result)
    }

    /// Acquires the lock and returns the sequence. If the last holder has died, first repeats its commit. The caller
    /// releases the lock by `SeqLock::release_leaked`.
    #[inline]
    pub(super) fn acquire(&self, deadline: u64) -> Result<u64, HeapError> {
        let held = self.seqlock.acquire(deadline)?;
        // Relaxed, both: the lock orders them, or the kernel, which reports the death of the last holder.
        let mut sequence = self.seqlock.word(AT_SEQUENCE).load(Ordering::Relaxed);
        let count = self.seqlock.word(AT_COUNT).load(Ordering::Relaxed);
        if count != 0 || sequence % 2 != 0 || held.taken_over {
            // Relaxed, here and where it is read: the lock orders it.
            self.seqlock.word(AT_DIED).store(1, Ordering::Relaxed);
            self.set_long_held(false);
            let redone = self.redo(&mut sequence);
            redone.map_err(|corruption| self.seqlock.poison(corruption))?;
        }
        held.leak();
        Ok(sequence)
    }

    /// Adds one change to the sequence, here and in the memory, so that readers notice it.
    #[inline]
    fn advance_sequence(&self, sequence: &mut u64) {
        *sequence = sequence.wrapping_add(2);
        // Release: after the word.
        self.seqlock
            .word(AT_SEQUENCE)
            .store(*sequence, Ordering::Release);
    }

    /// Returns the word at a checked offset.
    #[inline]
    fn word(&self, at: u64) -> &AtomicU64 {
        let word = self.seqlock.changeable(at);
        word.expect("the offset was checked")
    }

    /// Writes the entries, commits them by storing the count, and stores the words. Fails with
    /// [`HeapError::TransactionTooLarge`] or [`HeapError::System`] before the first store; the lock stays held.
    fn write_and_apply(&self, pending: &mut PendingTransaction) -> Result<(), HeapError> {
        let count = pending.writes.count;
        if count > CAPACITY {
            return Err(HeapError::TransactionTooLarge { most: CAPACITY });
        }
        let needed = AT_ENTRIES + ENTRY * count as u64;
        // Relaxed: the lock orders it.
        if needed > self.backed.load(Ordering::Relaxed) {
            let start = self.seqlock.start() + KEPT;
            let asked = needed - KEPT;
            let fetched = self.backing_file.allocate(start, asked);
            fetched.map_err(|error| HeapError::System { asked, error })?;
            self.backed.store(needed, Ordering::Relaxed);
        }
        let entry = |number: usize| AT_ENTRIES + ENTRY * number as u64;
        let log = &self.seqlock;
        for (number, (at, value)) in pending.writes.iter().enumerate() {
            // Relaxed, both: the count orders them.
            log.word(entry(number)).store(at, Ordering::Relaxed);
            log.word(entry(number) + 8).store(value, Ordering::Relaxed);
        }
        crash::point!(LogWritten);
        // Release: after the entries, and after the contents of fresh memory.
        log.word(AT_COUNT).store(count as u64, Ordering::Release);
        crash::point!(LogCounted);
        // Relaxed: before the stores below, which are releases; a reader that sees one of those sees this.
        let odd = pending.sequence | 1;
        log.word(AT_SEQUENCE).store(odd, Ordering::Relaxed);
        for (at, value) in pending.writes.iter() {
            // Release: after the odd sequence, and in program order.
            self.word(at).store(value, Ordering::Release);
            crash::point!(LogWordStored);
        }
        // Release: after the words.
        log.word(AT_COUNT).store(0, Ordering::Release);
        crash::point!(LogEnded);
        pending.sequence = log.end_change(pending.sequence);
        crash::point!(LogSettled);
        if needed > KEPT {
            let (start, len) = (log.start() + KEPT, needed - KEPT);
            pending.to_punch.push((start, len));
            self.backed.store(KEPT, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Rolls the transaction back and releases the lock. Does nothing in a forked child, whose parent ends the
    /// transaction, and after this process has left, because another member then ends it.
    #[inline]
    pub fn abandon(&self, pending: PendingTransaction) {
        if !self.seqlock.is_own_process() {
            return;
        }
        if self.seqlock.is_member() {
            self.erase_created(pending.created.iter().copied());
            for &(start, len) in &pending.fetched {
                let _ = self.backing_file.punch(start, len);
            }
        }
        self.seqlock.release_leaked();
    }

    /// Repeats the commit of a dead holder, if it has left one, and advances the sequence in either case. Fails, before
    /// any word of the commit is stored, if the log is corrupt.
    #[cold]
    pub(super) fn redo(&self, sequence: &mut u64) -> Result<(), Corruption> {
        let log = &self.seqlock;
        let corrupt = |field, at, found| Corruption {
            field,
            at: log.start() + at,
            found,
        };
        // Acquire: the entries that the count covers are visible.
        let found = log.word(AT_COUNT).load(Ordering::Acquire);
        let count = usize::try_from(found).unwrap_or(usize::MAX);
        if count > CAPACITY {
            return Err(corrupt(Field::LogCount, AT_COUNT, found));
        }
        crash::point!(RedoBegun);
        // Relaxed: before the stores below, which are releases.
        log.word(AT_SEQUENCE)
            .store(*sequence | 1, Ordering::Relaxed);
        // Copied before the check, because other members can write them.
        let entries: Vec<(u64, u64)> = (0..count as u64)
            .map(|number| {
                let at = AT_ENTRIES + ENTRY * number;
                // Relaxed, both: see the count.
                let word = |at| log.word(at).load(Ordering::Relaxed);
                (word(at), word(at + 8))
            })
            .collect();
        for (number, &(at, _)) in entries.iter().enumerate() {
            if log.changeable(at).is_none() {
                let entry = AT_ENTRIES + ENTRY * number as u64;
                return Err(corrupt(Field::LogEntry, entry, at));
            }
        }
        for &(at, value) in &entries {
            // Release: in program order, and readers see it like any change.
            self.word(at).store(value, Ordering::Release);
            crash::point!(RedoWordStored);
        }
        // Release: after the words.
        log.word(AT_COUNT).store(0, Ordering::Release);
        crash::point!(RedoDone);
        *sequence = log.end_change(*sequence);
        Ok(())
    }
}
