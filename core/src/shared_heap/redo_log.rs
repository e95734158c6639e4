//! Transactions that are made in private memory first, and then all at once.
//!
//! It is [`seqlock`](super::seqlock) memory of 16 MiB, with entries of what words will hold. Of it only the
//! beginning has memory as long as no transaction changes thousands of words.
//!
//! What a transaction changes it collects in its process, where its own reads find it. To commit, it writes an entry for
//! each word, then the count, then the words, then count 0. With the count it has happened: whoever takes the lease and
//! finds a count stores the words again. That may be done any number of times. One that dies before has changed
//! nothing. So no word ever holds what was not committed, and one word can be read without a look at the sequence; the
//! sequence is odd while the words are stored.
//!
//! A transaction of one word needs no entry: its store is the commit.
//!
//! Memory that was free when the transaction began is *fresh*: nobody can reach it, so it is written at once.

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

/// Where it stands that a holder has died, and that its memory was not looked for so far.
const AT_DIED: u64 = 40;
/// Where it stands that the lease is held for long.
const AT_LONG: u64 = 48;
/// Bytes of a lease and its log.
pub const SIZE: u64 = 16 << 20;
/// Words that a transaction may change, beside those of fresh memory.
pub const CAPACITY: usize = ((SIZE - AT_ENTRIES) / ENTRY) as usize;
/// Bytes of it that always have memory.
pub const KEPT: u64 = 64 << 10;

/// A lease with its log, and the memory that its transactions change.
pub struct RedoLog<W, M> {
    seqlock: SeqLock<W, M>,
    backing_file: BackingFile,
    /// Bytes of the log that have memory: changed by the holder of the lease.
    backed: AtomicU64,
    /// A reader of this process has held the lease for long, of which nobody was told so far.
    held_long: AtomicBool,
}

/// What a transaction has done so far, which nobody sees. It holds the lease.
#[must_use = "the lease is held until it is ended"]
pub struct PendingTransaction {
    sequence: u64,
    writes: Writes,
    fresh: Fresh,
    /// How to go back to where the operation began that is under way, the last step first; if it is one of many.
    undo: Option<Vec<Undo>>,
    /// The number of marks to go back to.
    open_savepoints: usize,
    /// Words by which others know what this transaction has made, in fresh memory: 0 if nothing comes of it.
    created: Vec<u64>,
    /// Whether a holder has died: what memory it had fetched is to be looked for.
    pub(super) taken_over: bool,
    /// Memory that was fetched: if nothing comes of it, it is given back.
    pub(super) fetched: Vec<(u64, u64)>,
    /// Blocks that are to be freed at the end.
    pub(super) freed: Vec<u64>,
    /// Memory that is to be given back once all is committed.
    pub(super) to_punch: Vec<(u64, u64)>,
}

impl PendingTransaction {
    /// Whether a holder of the lease has died, whose memory was not looked for so far.
    pub fn is_taken_over(&self) -> bool {
        self.taken_over
    }
}

enum Undo {
    /// The write of this number was another one.
    Write(usize, u64),
    /// This fresh word held that.
    Fresh(u64, u64),
}

/// How far a log was at one moment.
#[derive(Clone, Copy, Debug)]
pub struct LogPosition {
    sequence: u64,
    count: u64,
}

/// The state of a transaction before an operation, or before several that are undone together.
#[derive(Clone, Copy, Debug)]
pub struct Savepoint {
    writes: usize,
    fresh: usize,
    fetched: usize,
    freed: usize,
    created: usize,
    undo: usize,
}

/// As many words as a small operation changes.
const INLINE: usize = 24;

/// Words and what they will hold, in the order in which they were changed first.
struct Writes {
    inline: [(u64, u64); INLINE],
    count: usize,
    /// Those beyond the few ones.
    overflow: Vec<(u64, u64)>,
    /// By offset, if there are more.
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

/// Memory that was free when the transaction began, and that nobody can reach before its end.
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
    /// The log that begins `start` bytes into the memory. Zeros are one that nobody has used. It gets [`KEPT`] bytes of
    /// memory.
    ///
    /// # Panics
    /// If it is not within the memory, or not aligned.
    pub fn new(words: W, backing_file: BackingFile, start: u64, members: M) -> io::Result<Self> {
        backing_file.allocate(start, KEPT)?;
        RedoLog::open(words, backing_file, start, members)
    }

    /// That of one who only reads, until it [`is_moved`](Self::is_moved) to memory of its own.
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

    fn open(words: W, backing_file: BackingFile, start: u64, members: M) -> io::Result<Self> {
        Ok(RedoLog {
            seqlock: SeqLock::new(words, start, SIZE, members)?,
            backing_file,
            backed: AtomicU64::new(KEPT),
            held_long: AtomicBool::new(false),
        })
    }

    /// The lease and what belongs to it.
    pub fn seqlock(&self) -> &SeqLock<W, M> {
        &self.seqlock
    }

    /// Copies words, all of one moment. `copy` is called again if it was none, and must bear what it reads then. `deadline`
    /// is for the lease, which it takes if others change things without end. Ask [`Self::take_held_long`] after it.
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
            // Relaxed: for this thread, or another one of this process that tells of it instead.
            self.held_long.store(true, Ordering::Relaxed);
        }
        self.seqlock.poison_if_corrupt(copied)
    }

    /// The same for one who cannot take the lease.
    #[cold]
    fn read_until<R, E: Failure>(
        &self,
        deadline: u64,
        mut copy: impl FnMut(&OptimisticView<'_, W>) -> Result<R, E>,
    ) -> Result<R, E> {
        while clock::now() < deadline {
            // Its owner may want this CPU to end what it is doing.
            std::thread::yield_now();
            if let ReadAttempt::Copied(copied) = self.seqlock.read(&mut copy)? {
                return Ok(copied);
            }
        }
        Err(HeapError::NeverStable.into())
    }

    /// In memory that this process alone sees, as it was left by an owner that has died in the middle of a commit: ends that.
    pub fn finish_commit(&self) -> Result<(), HeapError> {
        // Relaxed: nobody changes it any more.
        let mut sequence = self.seqlock.word(AT_SEQUENCE).load(Ordering::Relaxed);
        let redone = self.redo(&mut sequence);
        redone.map_err(|corruption| self.seqlock.poison(corruption))
    }

    /// Whether a commit is under way.
    pub fn is_committing(&self) -> bool {
        // Acquire: pairs with the release at its end.
        self.seqlock.word(AT_SEQUENCE).load(Ordering::Acquire) % 2 != 0
    }

    /// Whether a reader has held the lease for long, and those that sleep until it is given back are to be told now.
    #[inline]
    pub fn take_held_long(&self) -> bool {
        // Relaxed, both: see `read`.
        self.held_long.load(Ordering::Relaxed) && self.held_long.swap(false, Ordering::Relaxed)
    }

    /// Begins a transaction of many operations, which holds the lease. End it by [`commit`](Self::commit) or
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

    /// Does one operation of a transaction. If it fails, it has changed nothing, and the transaction goes on.
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

    /// Marks how far a transaction is. End each mark by [`end_mark`](Self::end_mark), the last one first.
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

    /// Ends a mark: what was done since stays, or is undone.
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

    /// The transaction, for one operation that is all of it: if it fails, abandon it.
    #[inline]
    pub fn writer<'a>(&'a self, pending: &'a mut PendingTransaction) -> Writer<'a, W, M> {
        Writer { log: self, pending }
    }

    /// Says of the lease, which we hold, whether it is held for long.
    pub fn set_long_held(&self, is_long: bool) {
        // SeqCst: before the lease is given back, and whoever is woken then finds it so.
        let word = self.seqlock.word(AT_LONG);
        word.store(u64::from(is_long), Ordering::SeqCst);
    }

    /// Whether the lease is held for long.
    pub fn is_long(&self) -> bool {
        self.seqlock.word(AT_LONG).load(Ordering::SeqCst) != 0
    }

    /// What a holder that died had fetched was looked for.
    pub(super) fn clear_died(&self) {
        // A large transaction of it may have got memory for its entries.
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
                        // Release: as all stores to shared words, in the order of the program.
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

    /// Marks containers that others may know of already as never made.
    fn erase_created(&self, created: impl Iterator<Item = u64>) {
        for at in created {
            if let Some(word) = self.seqlock.changeable(at) {
                // Release: as all stores to shared words. The lease is given back after it, so every process that finds a
                // later transaction committed sees it.
                word.store(0, Ordering::Release);
            }
        }
    }

    /// Makes what was done everybody's, and gives the lease back. On an error nothing was changed.
    #[inline]
    pub fn commit(&self, mut pending: PendingTransaction) -> Result<(), HeapError> {
        if !self.seqlock.is_own_process() {
            return Err(HeapError::Detached); // Forked within it: the parent ends it.
        }
        if let Err(error) = self.seqlock.check() {
            self.abandon(pending); // No member any overflow, or poisoned meanwhile.
            return Err(error);
        }
        match pending.writes.count {
            0 => {}
            1 => {
                let (at, value) = pending.writes.inline[0];
                // Release: what was written before it is seen by whoever sees it.
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
            // What cannot be given back is found by who takes a lease over, or used again.
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

    /// What is committed at this moment: words that are copied now are of it if [`is_still`](Self::is_still) says so
    /// afterwards, and [`inherit`](Self::inherit) is called where they are.
    pub fn position(&self) -> LogPosition {
        // Acquire: what is copied is not older. The count is before the entries that it counts.
        let sequence = self.seqlock.word(AT_SEQUENCE).load(Ordering::Acquire);
        let count = self.seqlock.word(AT_COUNT).load(Ordering::Acquire);
        LogPosition { sequence, count }
    }

    /// Whether words that were copied since are of that moment.
    pub fn is_unchanged_since(&self, position: LogPosition) -> bool {
        // Acquire, and relaxed after it: as a reader does it.
        fence(Ordering::Acquire);
        self.seqlock.word(AT_SEQUENCE).load(Ordering::Relaxed) == position.sequence
    }

    /// In a copy that nobody else knows: begins with what was copied. If a commit was under way, the first one who takes the
    /// lease ends it.
    pub fn adopt_position(&self, LogPosition { sequence, count }: LogPosition) {
        // Relaxed, all: nobody else knows this memory. No reader takes the sequence for one of the memory before.
        let set = |at, value| self.seqlock.word(at).store(value, Ordering::Relaxed);
        for at in (0..AT_SEQUENCE).step_by(8) {
            set(at, 0);
        }
        set(AT_DIED, 1);
        set(AT_SEQUENCE, sequence.wrapping_add(1 << 32));
        set(AT_COUNT, count);
    }

    /// Sets memory aside for the beginning, as [`new`](Self::new) does.
    pub fn allocate_kept(&self) -> io::Result<()> {
        self.backing_file.allocate(self.seqlock.start(), KEPT)
    }

    /// Other memory has taken the place of what this process had.
    pub fn memory_replaced(&self) {
        self.backed.store(KEPT, Ordering::Relaxed);
    }

    /// There is no copy, and nobody is fenced off: whoever has died meanwhile may have left memory.
    pub fn clear_replaced(&self) {
        self.seqlock.word(AT_DIED).store(1, Ordering::Relaxed);
        self.seqlock.clear_replaced();
    }

    /// Stores one word, if the memory is this process's at the moment: the whole of a transaction. What `change` says
    /// is stored there.
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

    /// Takes the lease: the sequence.
    #[inline]
    fn acquire(&self, deadline: u64) -> Result<u64, HeapError> {
        let held = self.seqlock.acquire(deadline)?;
        // Relaxed, both: the lease orders them, or the kernel, who says that the last holder is dead.
        let mut sequence = self.seqlock.word(AT_SEQUENCE).load(Ordering::Relaxed);
        let count = self.seqlock.word(AT_COUNT).load(Ordering::Relaxed);
        if count != 0 || sequence % 2 != 0 || held.taken_over {
            // Relaxed, here and where it is looked at: the lease orders it.
            self.seqlock.word(AT_DIED).store(1, Ordering::Relaxed);
            self.set_long_held(false);
            let redone = self.redo(&mut sequence);
            redone.map_err(|corruption| self.seqlock.poison(corruption))?;
        }
        held.leak();
        Ok(sequence)
    }

    /// Readers that have seen words before this see others after it.
    #[inline]
    fn advance_sequence(&self, sequence: &mut u64) {
        *sequence = sequence.wrapping_add(2);
        // Release: after the word.
        self.seqlock
            .word(AT_SEQUENCE)
            .store(*sequence, Ordering::Release);
    }

    /// The word at an offset at which there is one.
    #[inline]
    fn word(&self, at: u64) -> &AtomicU64 {
        let word = self.seqlock.changeable(at);
        word.expect("it was looked at that there is a word")
    }

    /// Writes the entries, and lets them happen.
    fn write_and_apply(&self, pending: &mut PendingTransaction) -> Result<(), HeapError> {
        let count = pending.writes.count;
        if count > CAPACITY {
            return Err(HeapError::TransactionTooLarge { most: CAPACITY });
        }
        let needed = AT_ENTRIES + ENTRY * count as u64;
        // Relaxed: the lease orders it.
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
        // Release: after the entries, and after what fresh memory holds.
        log.word(AT_COUNT).store(count as u64, Ordering::Release);
        crash::point!(LogCounted);
        // Relaxed: before the stores below, which are releases; a reader that sees one of those sees this.
        let odd = pending.sequence | 1;
        log.word(AT_SEQUENCE).store(odd, Ordering::Relaxed);
        for (at, value) in pending.writes.iter() {
            // Release: after the odd sequence, and in the order of the program.
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

    /// Gives the lease back, and nothing has happened.
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

    /// Lets what one that died had committed happen, and begins a new sequence.
    #[cold]
    fn redo(&self, sequence: &mut u64) -> Result<(), Corruption> {
        let log = &self.seqlock;
        let corrupt = |field, at, found| Corruption {
            field,
            at: log.start() + at,
            found,
        };
        // Acquire: it comes with the entries that it counts.
        let found = log.word(AT_COUNT).load(Ordering::Acquire);
        let count = usize::try_from(found).unwrap_or(usize::MAX);
        if count > CAPACITY {
            return Err(corrupt(Field::JournalCount, AT_COUNT, found));
        }
        crash::point!(RedoBegun);
        // Relaxed: before the stores below, which are releases.
        log.word(AT_SEQUENCE)
            .store(*sequence | 1, Ordering::Relaxed);
        // Copied before they are checked.
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
                return Err(corrupt(Field::JournalEntry, entry, at));
            }
        }
        for &(at, value) in &entries {
            // Release: in the order of the program, and seen by readers as any change.
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

/// The right to change words, as one operation has it.
pub struct Writer<'a, W, M> {
    log: &'a RedoLog<W, M>,
    pub(super) pending: &'a mut PendingTransaction,
}

impl<W: Words, M: Members> Writer<'_, W, M> {
    /// From now on this memory, which was free, is written at once.
    pub(super) fn add_fresh(&mut self, start: u64, len: u64) {
        self.pending.fresh.add(start, len);
    }

    /// The word at this offset, of fresh memory, is what others know something by: if nothing comes of the transaction, it is 0.
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

    /// The log.
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
            // Relaxed: the lease orders it.
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
            // Release: as all stores to shared words, in the order of the program.
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
            // Release: in the order of the program.
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
