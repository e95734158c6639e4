//! Transactions that are collected in private memory and survive a crash by a redo log.
//!
//! The log is a seqlock (`seqlock.rs`) of 16 MiB, with entries of new values. Only its beginning is backed by
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

use super::access::{OptimisticView, ReadWords, WriteWords};
use super::access::{copied, no_word};
use super::backing_file::BackingFile;
use super::seqlock::{AT_COUNT, AT_ENTRIES, AT_SEQUENCE, ENTRY, ReadAttempt, SeqLock};
use super::{Corruption, Failure, Field, HeapError, Members, Words};
use crate::clock;
use crate::crash;
use std::collections::{BTreeMap, HashMap};
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

/// The uncommitted changes of a transaction, which holds the lock.
#[must_use = "the lock is held until the transaction ends"]
pub struct PendingTransaction {
    sequence: u64,
    writes: Writes,
    fresh: Fresh,
    /// Steps to undo the current operation, the last one first, if savepoints are open.
    undo: Option<Vec<Undo>>,
    /// The number of open savepoints.
    open_savepoints: usize,
    /// Fresh words by which other members may identify an object that this transaction has created. A rollback stores 0
    /// there.
    created: Vec<u64>,
    /// True if a holder has died and its pages were not yet reclaimed.
    pub(super) taken_over: bool,
    /// Pages that the transaction has backed: start and length in bytes. A rollback returns them.
    pub(super) fetched: Vec<(u64, u64)>,
    /// Blocks to free at the end.
    pub(super) freed: Vec<u64>,
    /// Memory to return to the system after the commit: start and length in bytes.
    pub(super) to_punch: Vec<(u64, u64)>,
}

impl PendingTransaction {
    /// Returns true if a holder of the lock has died and its pages were not yet reclaimed.
    pub fn is_taken_over(&self) -> bool {
        self.taken_over
    }
}

enum Undo {
    /// The number of a write, and its earlier value.
    Write(usize, u64),
    /// The offset of a fresh word, and its earlier value.
    Fresh(u64, u64),
}

/// The state of a log at one moment.
#[derive(Clone, Copy, Debug)]
pub struct LogPosition {
    sequence: u64,
    count: u64,
}

/// A state of a transaction to which it can be rolled back.
#[derive(Clone, Copy, Debug)]
pub struct Savepoint {
    writes: usize,
    fresh: usize,
    fetched: usize,
    freed: usize,
    created: usize,
    undo: usize,
}

/// The number of writes that are stored inline: as many as a small operation makes.
const INLINE: usize = 24;

/// Words and their new values, in the order of their first change.
struct Writes {
    inline: [(u64, u64); INLINE],
    count: usize,
    /// The writes beyond the inline ones.
    overflow: Vec<(u64, u64)>,
    /// The numbers of the writes by offset, once there are more than the inline ones.
    index: HashMap<u64, usize>,
}

impl Writes {
    fn new() -> Self {
        Writes {
            inline: [(0, 0); INLINE],
            count: 0,
            overflow: Vec::new(),
            index: HashMap::new(),
        }
    }

    fn get(&self, number: usize) -> (u64, u64) {
        match number.checked_sub(INLINE) {
            None => self.inline[number],
            Some(number) => self.overflow[number],
        }
    }

    fn at_mut(&mut self, number: usize) -> &mut (u64, u64) {
        match number.checked_sub(INLINE) {
            None => &mut self.inline[number],
            Some(number) => &mut self.overflow[number],
        }
    }

    #[inline]
    fn find(&self, at: u64) -> Option<usize> {
        if self.count > INLINE {
            return self.index.get(&at).copied();
        }
        self.inline[..self.count]
            .iter()
            .position(|&(known, _)| known == at)
    }

    #[inline]
    fn push(&mut self, at: u64, value: u64) {
        if self.count < INLINE {
            self.inline[self.count] = (at, value);
        } else {
            if self.count == INLINE {
                let known = self.inline.iter().enumerate();
                self.index = known.map(|(number, &(at, _))| (at, number)).collect();
            }
            self.index.insert(at, self.count);
            self.overflow.push((at, value));
        }
        self.count += 1;
    }

    fn truncate(&mut self, count: usize) {
        while self.count > count {
            self.count -= 1;
            let (at, _) = self.get(self.count);
            self.index.remove(&at);
            if self.count >= INLINE {
                self.overflow.pop();
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let inline = self.inline[..self.count.min(INLINE)].iter();
        inline.chain(&self.overflow).copied()
    }
}

/// Memory that was free when the transaction began and that no other member can reach before it ends.
#[derive(Default)]
struct Fresh {
    order: Vec<u64>,
    ends: BTreeMap<u64, u64>,
}

impl Fresh {
    fn add(&mut self, start: u64, len: u64) {
        self.order.push(start);
        self.ends.insert(start, start + len);
    }

    #[inline]
    fn has(&self, at: u64) -> bool {
        !self.order.is_empty()
            && self
                .ends
                .range(..=at)
                .next_back()
                .is_some_and(|(_, &end)| at < end)
    }

    fn truncate(&mut self, count: usize) {
        for start in self.order.drain(count..) {
            self.ends.remove(&start);
        }
    }
}

impl<W: Words, M: Members> RedoLog<W, M> {
    /// Opens the log that begins `start` bytes into the memory. Zeros are a valid, unused log. Backs [`KEPT`] bytes of
    /// it.
    ///
    /// # Panics If the log is not aligned or not within the memory.
    pub fn new(words: W, backing_file: BackingFile, start: u64, members: M) -> io::Result<Self> {
        backing_file.allocate(start, KEPT)?;
        RedoLog::open(words, backing_file, start, members)
    }

    /// Opens the log in a process that only reads, until [`memory_replaced`](Self::memory_replaced).
    ///
    /// # Panics As [`new`](Self::new).
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
    /// attempts fail, it runs under the lock; `deadline` bounds the wait for that. Call [`Self::take_held_long`]
    /// afterwards.
    #[inline]
    pub fn read<R, E: Failure>(
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

    /// Retries a read until `deadline`, in a process that cannot take the lock.
    #[cold]
    fn read_until<R, E: Failure>(
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

    /// Repeats the commit in whose middle the owner died. The memory must be visible to this process alone.
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

    /// Returns true, once, if a reader has held the lock for long: then the caller must wake those that wait for its
    /// release.
    #[inline]
    pub fn take_held_long(&self) -> bool {
        // Relaxed, both: see `read`.
        self.held_long.load(Ordering::Relaxed) && self.held_long.swap(false, Ordering::Relaxed)
    }

    /// Begins a transaction of many operations, which holds the lock. End it by [`commit`](Self::commit) or
    /// [`abandon`](Self::abandon).
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

    /// Runs one operation of a transaction. If it fails, its changes are undone and the transaction continues.
    pub fn operate<R, E: Failure>(
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

    /// Ends a savepoint and keeps the changes since, or undoes them.
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

    /// Returns the writer for a transaction of one operation. If the operation fails, abandon the transaction.
    #[inline]
    pub fn writer<'a>(&'a self, pending: &'a mut PendingTransaction) -> Writer<'a, W, M> {
        Writer { log: self, pending }
    }

    /// Sets the flag that the lock, which this process holds, is held for long.
    pub fn set_long_held(&self, is_long: bool) {
        // SeqCst: before the lock is released, so that a woken waiter sees it.
        let word = self.seqlock.word(AT_LONG);
        word.store(u64::from(is_long), Ordering::SeqCst);
    }

    /// Returns true if the lock is held for long.
    pub fn is_long(&self) -> bool {
        self.seqlock.word(AT_LONG).load(Ordering::SeqCst) != 0
    }

    /// Clears the flag that a holder has died, after its pages were reclaimed.
    pub(super) fn clear_died(&self) {
        // A large transaction of the dead holder may have backed more of the log.
        let _ = self
            .backing_file
            .punch(self.seqlock.start() + KEPT, SIZE - KEPT);
        self.seqlock.word(AT_DIED).store(0, Ordering::Relaxed);
    }

    fn roll_back_to(&self, pending: &mut PendingTransaction, savepoint: &Savepoint) {
        let undo = pending.undo.as_mut();
        let undone = undo.map(|undo| undo.split_off(savepoint.undo.min(undo.len())));
        for undo in undone.into_iter().flatten().rev() {
            match undo {
                Undo::Write(number, value) => pending.writes.at_mut(number).1 = value,
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

    /// Marks objects that other members may already know as never created.
    fn erase_created(&self, created: impl Iterator<Item = u64>) {
        for at in created {
            if let Some(word) = self.seqlock.changeable(at) {
                // Release: like all stores to shared words. The lock is released after it, so every process that finds
                // a later transaction committed sees it.
                word.store(0, Ordering::Release);
            }
        }
    }

    /// Commits the transaction and releases the lock. If it fails, nothing has changed.
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
        if self.seqlock.words().is_cut_off() {
            return Err(self.seqlock.poison(Corruption::CUT_OFF));
        }
        Ok(())
    }

    /// Returns the committed state now. Words copied from now on belong to it if
    /// [`is_unchanged_since`](Self::is_unchanged_since) returns true afterwards, once
    /// [`adopt_position`](Self::adopt_position) was called in the copy.
    pub fn position(&self) -> LogPosition {
        // Acquire: the copy is not older. The count is read before the entries that it covers.
        let sequence = self.seqlock.word(AT_SEQUENCE).load(Ordering::Acquire);
        let count = self.seqlock.word(AT_COUNT).load(Ordering::Acquire);
        LogPosition { sequence, count }
    }

    /// Returns true if the words copied since are of that state.
    pub fn is_unchanged_since(&self, position: LogPosition) -> bool {
        // Acquire, and relaxed after it: as a reader does it.
        fence(Ordering::Acquire);
        self.seqlock.word(AT_SEQUENCE).load(Ordering::Relaxed) == position.sequence
    }

    /// Begins in a copy, which no other process knows, with the state that was copied. If a commit was running, the
    /// first member that takes the lock repeats it.
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
    pub fn memory_replaced(&self) {
        self.backed.store(KEPT, Ordering::Relaxed);
    }

    /// Cancels the replacement by a copy. A member that has died meanwhile may have left pages to reclaim.
    pub fn clear_replaced(&self) {
        self.seqlock.word(AT_DIED).store(1, Ordering::Relaxed);
        self.seqlock.clear_replaced();
    }

    /// Runs a transaction that stores one word at most: the offset and value that `change` returns.
    #[inline]
    pub fn store_word<R, E: Failure>(
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
                    return self.seqlock.poison_if_corrupt(Err(no_word(at).into()));
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

    /// Acquires the lock, repeats the commit of a dead holder, and returns the sequence.
    #[inline]
    fn acquire(&self, deadline: u64) -> Result<u64, HeapError> {
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

    /// Advances the sequence by one change, so that readers notice it.
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

    /// Writes the entries, commits them by the count, and stores the words.
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

    /// Rolls the transaction back and releases the lock.
    #[inline]
    pub fn abandon(&self, pending: PendingTransaction) {
        if !self.seqlock.is_own_process() {
            return;
        }
        if self.seqlock.members().self_id() != 0 {
            self.erase_created(pending.created.iter().copied());
            for &(start, len) in &pending.fetched {
                let _ = self.backing_file.punch(start, len);
            }
        }
        self.seqlock.release_leaked();
    }

    /// Repeats the commit of a dead holder, and begins a new sequence.
    #[cold]
    fn redo(&self, sequence: &mut u64) -> Result<(), Corruption> {
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

/// The right of one operation to change words.
pub struct Writer<'a, W, M> {
    log: &'a RedoLog<W, M>,
    pub(super) pending: &'a mut PendingTransaction,
}

impl<W: Words, M: Members> Writer<'_, W, M> {
    /// Adds memory that was free, which is written at once from now on.
    pub(super) fn add_fresh(&mut self, start: u64, len: u64) {
        self.pending.fresh.add(start, len);
    }

    /// Notes the fresh word at this offset, by which other members may identify an object. A rollback stores 0 there.
    pub fn note_created(&mut self, at: u64) {
        self.pending.created.push(at);
    }

    /// Copies bytes into a fresh block.
    pub fn init_bytes(&mut self, at: u64, bytes: &[u8]) -> Result<(), HeapError> {
        match self.log.seqlock.words().copy_in(at, bytes) {
            true => Ok(()),
            false => Err(no_word(at)),
        }
    }

    /// Returns the log.
    pub fn log(&self) -> &RedoLog<W, M> {
        self.log
    }
}

impl<W: Words, M: Members> ReadWords for Writer<'_, W, M> {
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
            None => Err(no_word(at)),
        }
    }

    #[inline]
    fn copy(&self, at: u64, len: u64, out: &mut Vec<u8>) -> Result<(), HeapError> {
        copied(self.log.seqlock.words(), at, len, out)
    }
}

impl<W: Words, M: Members> WriteWords for Writer<'_, W, M> {
    #[inline]
    fn set(&mut self, at: u64, value: u64) -> Result<(), HeapError> {
        let Some(word) = self.log.seqlock.changeable(at) else {
            return Err(no_word(at));
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
                let write = writes.at_mut(number);
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
            None => return Err(no_word(at)),
        }
        Ok(())
    }

    #[inline]
    fn self_id(&self) -> u64 {
        self.log.seqlock.members().self_id()
    }
}
