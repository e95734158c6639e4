//! Transactions: changes of many words that are made whole or not at all, whoever dies in the middle.
//!
//! Offsets in bytes, from where the journal begins, a multiple of 64:
//!
//! ```text
//!      0  lease       u64    see `lease.rs`
//!      8  poison      3 u64  what was found that cannot be true, see `lie.rs`
//!     64  sequence    u64    odd while something changes
//!     72  count       u64    entries that count
//!     80  entries     251 x  the offset of a word u64, what it held u64
//!   4096  end
//! ```
//!
//! A change is an entry, then the count, then the store. The end of a transaction is count 0. Whoever takes the lease
//! and finds a count puts the old values back, the last one first. That may be done any number of times, so one that
//! dies of it is no different from one that died before. Only the order of a program counts for what its death leaves;
//! releases make the compiler keep it.
//!
//! The sequence is odd from before the first change until after the count is 0. A reader copies what it wants and looks
//! whether the sequence is still what it was. If it never is, the writer has died, or others follow without end: then
//! the reader takes the lease, which mends the one, and keeps off the others.

use super::lease;
use super::{Field, Lie, Members, Poison, SharedError, Words};
use crate::crash;
#[cfg(not(loom))]
use crate::origin::Origin;
use crate::sync::{AtomicU64, Ordering, fence};
use std::io;
use std::sync::atomic::AtomicUsize as PrivateUsize;
use std::sync::atomic::Ordering::{Release, SeqCst};

/// Bytes of a lease and its journal.
pub const SIZE: u64 = 4096;
/// Words that a transaction may change.
pub const CAPACITY: usize = ((SIZE - AT_ENTRIES) / ENTRY) as usize;

const AT_POISON: u64 = 8;
const AT_SEQUENCE: u64 = 64;
const AT_COUNT: u64 = 72;
const AT_ENTRIES: u64 = 80;
const ENTRY: u64 = 16;

/// How often a reader looks before it takes the lease.
const LOOKS: u32 = if cfg!(loom) { 2 } else { 64 };

/// A lease with its journal, and the memory that its transactions change.
pub struct Journal<W, M> {
    words: W,
    start: u64,
    members: M,
    /// Threads of this process that are about to take the lease, or have it.
    busy: PrivateUsize,
    /// 0, or the thread that alone may take it still, by [`this_thread`].
    closed: PrivateUsize,
    #[cfg(not(loom))]
    origin: Origin,
}

impl<W: Words, M: Members> Journal<W, M> {
    /// The journal that begins `start` bytes into the memory. Zeros are one that nobody has used.
    ///
    /// # Panics
    /// If it is not within the memory, or not aligned.
    pub fn new(words: W, start: u64, members: M) -> io::Result<Self> {
        assert!(start % 64 == 0 && start + SIZE <= words.size() as u64);
        Ok(Journal {
            words,
            start,
            members,
            busy: PrivateUsize::new(0),
            closed: PrivateUsize::new(0),
            #[cfg(not(loom))]
            origin: Origin::here()?,
        })
    }

    /// The memory.
    pub fn words(&self) -> &W {
        &self.words
    }

    /// Those who share it.
    pub fn members(&self) -> &M {
        &self.members
    }

    /// Takes the lease, lets `change` change words, and gives the lease back. If that returns an error, nothing was
    /// changed. `deadline` is for the lease; see [`lease::NEVER`].
    #[inline]
    pub fn transact<R>(
        &self,
        deadline: u64,
        change: impl FnOnce(&mut Transaction<'_, W, M>) -> Result<R, SharedError>,
    ) -> Result<R, SharedError> {
        let mut transaction = self.begin(deadline)?;
        let changed = change(&mut transaction);
        if changed.is_ok() {
            if !self.is_ours() {
                return Err(SharedError::Detached); // Forked within the change: the parent ends it.
            }
            transaction.commit();
        }
        drop(transaction);
        self.settled(changed)
    }

    /// Copies what a transaction may be changing, all of one moment. `copy` is called again if it was none, and must
    /// bear what it reads then.
    pub fn read<R>(
        &self,
        deadline: u64,
        mut copy: impl FnMut(&Look<'_, W>) -> Result<R, SharedError>,
    ) -> Result<R, SharedError> {
        self.check()?;
        let look = Look(&self.words);
        for _ in 0..LOOKS {
            // Acquire: what is copied is not older than the sequence.
            let before = self.word(AT_SEQUENCE).load(Ordering::Acquire);
            if before % 2 == 0 {
                let copied = copy(&look);
                // Acquire: whoever has read what a transaction stored sees its odd sequence, too.
                fence(Ordering::Acquire);
                // Relaxed: the fence orders it.
                if self.word(AT_SEQUENCE).load(Ordering::Relaxed) == before {
                    return self.settled(copied);
                }
            }
            #[cfg(not(loom))]
            std::hint::spin_loop();
            #[cfg(loom)]
            loom::thread::yield_now();
        }
        self.transact(deadline, |_| copy(&look))
    }

    /// What is found wrong is told to all. Of memory that was cut off, zeros were read, whatever came of that.
    #[inline]
    fn settled<R>(&self, done: Result<R, SharedError>) -> Result<R, SharedError> {
        match done {
            Err(SharedError::Poisoned(lie)) => Err(self.poison(lie)),
            _ if self.words.is_cut_off() => Err(self.poison(Lie::CUT_OFF)),
            done => done,
        }
    }

    /// Leaves all as the death of this process would in the middle of `change`: for tests.
    pub fn die_within(
        &self,
        change: impl FnOnce(&mut Transaction<'_, W, M>) -> Result<(), SharedError>,
    ) {
        let mut transaction = self.begin(lease::NEVER).expect("a lease that can be had");
        change(&mut transaction).expect("a change that can be made");
        std::mem::forget(transaction);
    }

    /// An error if this memory cannot be used any more, or not by this process.
    #[inline]
    fn check(&self) -> Result<(), SharedError> {
        if !self.is_ours() || self.members.me() == 0 {
            return Err(SharedError::Detached);
        }
        // Relaxed: a mark. What it speaks of is an error by itself, also to one that sees the mark late.
        if self.word(AT_POISON).load(Ordering::Relaxed) != 0 {
            return Err(self.told().look().into());
        }
        Ok(())
    }

    /// Whether this process has made it, and is not a forked child's copy.
    #[inline]
    fn is_ours(&self) -> bool {
        #[cfg(not(loom))]
        return self.origin.is_here();
        #[cfg(loom)]
        true
    }

    /// Ends the use of this memory, for all members. What they will read.
    #[cold]
    pub(super) fn poison(&self, lie: Lie) -> SharedError {
        self.told().tell(lie);
        lie.into()
    }

    /// What all members are told.
    fn told(&self) -> Poison<'_> {
        Poison([0, 8, 16].map(|at| self.word(AT_POISON + at)))
    }

    /// A word of the lease or the journal.
    #[inline]
    fn word(&self, at: u64) -> &AtomicU64 {
        let word = self.words.word(self.start + at);
        word.expect("it was looked at in `new` that the journal is within the memory")
    }

    /// Lets no other thread of this process change anything any more, and waits until none has the lease or is about to: it is
    /// to be no member soon.
    #[cfg(not(loom))]
    pub fn close(&self, deadline: u64) {
        // SeqCst: in one order with `begin`, so that either it sees this, or we see that it is busy.
        self.closed.store(this_thread(), SeqCst);
        while self.busy.load(SeqCst) > 0 && crate::clock::now() < deadline {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }

    #[inline]
    fn begin(&self, deadline: u64) -> Result<Transaction<'_, W, M>, SharedError> {
        self.check()?;
        let busy = Busy::new(&self.busy);
        // SeqCst: see `close`.
        let closed = self.closed.load(SeqCst);
        if closed != 0 && closed != this_thread() {
            return Err(SharedError::Detached);
        }
        lease::take(self.word(0), &self.members, deadline)?;
        let mut transaction = Transaction {
            journal: self,
            changed: 0,
            sequence: 0,
            _busy: busy,
        };
        // Relaxed, both: the lease orders them, or the kernel, who says that the last holder is dead.
        transaction.sequence = self.word(AT_SEQUENCE).load(Ordering::Relaxed);
        let count = self.word(AT_COUNT).load(Ordering::Relaxed);
        if count != 0 || transaction.sequence % 2 != 0 {
            let recovered = self.roll_back();
            recovered.map_err(|lie| self.poison(lie))?;
            transaction.sequence = self.settle(transaction.sequence);
        }
        Ok(transaction)
    }

    /// Puts back what was changed, the last one first. May be done again.
    #[cold]
    fn roll_back(&self) -> Result<(), Lie> {
        let lie = |field, at, found| Lie {
            field,
            at: self.start + at,
            found,
        };
        // Acquire: it comes with the entries that it counts.
        let found = self.word(AT_COUNT).load(Ordering::Acquire);
        let count = usize::try_from(found).unwrap_or(usize::MAX);
        if count > CAPACITY {
            return Err(lie(Field::JournalCount, AT_COUNT, found));
        }
        crash::point!(RollbackBegun);
        // Copied before they are checked.
        let mut entries = [(0, 0); CAPACITY];
        for (index, entry) in entries[..count].iter_mut().enumerate() {
            let at = AT_ENTRIES + ENTRY * index as u64;
            // Relaxed, both: see the count.
            entry.0 = self.word(at).load(Ordering::Relaxed);
            entry.1 = self.word(at + 8).load(Ordering::Relaxed);
            if self.changeable(entry.0).is_none() {
                return Err(lie(Field::JournalEntry, at, entry.0));
            }
        }
        for &(at, old) in entries[..count].iter().rev() {
            if let Some(word) = self.changeable(at) {
                // Release: in the order of the program, and seen by readers as any change.
                word.store(old, Ordering::Release);
                crash::point!(WordRestored);
            }
        }
        // Release: after the words.
        self.word(AT_COUNT).store(0, Ordering::Release);
        crash::point!(RollbackDone);
        Ok(())
    }

    /// Nothing changes any more: the next even sequence.
    #[inline]
    fn settle(&self, sequence: u64) -> u64 {
        let even = (sequence | 1).wrapping_add(1);
        // Release: a reader that sees it sees all that was changed.
        self.word(AT_SEQUENCE).store(even, Ordering::Release);
        even
    }

    /// A word that transactions may change: any but the journal's own.
    #[inline]
    fn changeable(&self, at: u64) -> Option<&AtomicU64> {
        if at.wrapping_sub(self.start) < SIZE {
            return None;
        }
        self.words.word(at)
    }
}

/// Words that may be looked at.
pub trait See {
    /// What the word at this offset holds. It may be anything.
    fn get(&self, at: u64) -> Result<u64, SharedError>;
}

/// Words that may be changed.
pub trait Change: See {
    /// Changes the word at this offset.
    fn set(&mut self, at: u64, value: u64) -> Result<(), SharedError>;
    /// Stores a word of memory that is free as long as this transaction is not over: its old value is of no use.
    fn init(&mut self, at: u64, value: u64) -> Result<(), SharedError>;
    /// The number of the member that this process is.
    fn me(&self) -> u64;
}

/// A look at words that may be changing.
pub struct Look<'a, W>(&'a W);

impl<W: Words> See for Look<'_, W> {
    #[inline]
    fn get(&self, at: u64) -> Result<u64, SharedError> {
        match self.0.word(at) {
            // Relaxed: the sequence orders it.
            Some(word) => Ok(word.load(Ordering::Relaxed)),
            None => Err(no_word(at)),
        }
    }
}

/// The right to change words, until it is dropped.
pub struct Transaction<'a, W: Words, M: Members> {
    journal: &'a Journal<W, M>,
    /// Words that were changed so far.
    changed: usize,
    /// What the sequence was, and will be again if nothing changes: even.
    sequence: u64,
    /// Dropped after the lease is given back.
    _busy: Busy<'a>,
}

/// A number that no other thread has as long as this one lives; not 0.
#[cold]
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// A thread that is about to take the lease, or has it.
struct Busy<'a>(&'a PrivateUsize);

impl<'a> Busy<'a> {
    #[inline]
    fn new(count: &'a PrivateUsize) -> Self {
        // SeqCst: see `Journal::close`.
        count.fetch_add(1, SeqCst);
        Busy(count)
    }
}

impl Drop for Busy<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: what we did with the lease is before the end that `close` sees.
        self.0.fetch_sub(1, Release);
    }
}

impl<W: Words, M: Members> See for Transaction<'_, W, M> {
    #[inline]
    fn get(&self, at: u64) -> Result<u64, SharedError> {
        match self.journal.words.word(at) {
            // Relaxed: the lease orders it.
            Some(word) => Ok(word.load(Ordering::Relaxed)),
            None => Err(no_word(at)),
        }
    }
}

impl<W: Words, M: Members> Change for Transaction<'_, W, M> {
    #[inline]
    fn set(&mut self, at: u64, value: u64) -> Result<(), SharedError> {
        let journal = self.journal;
        let Some(word) = journal.changeable(at) else {
            return Err(no_word(at));
        };
        if self.changed == CAPACITY {
            return Err(SharedError::JournalFull { most: CAPACITY });
        }
        if self.changed == 0 {
            // Relaxed: before the stores below, which are releases; a reader that sees one of those sees this.
            let odd = self.sequence.wrapping_add(1);
            journal.word(AT_SEQUENCE).store(odd, Ordering::Relaxed);
            crash::point!(SequenceOdd);
        }
        let entry = AT_ENTRIES + ENTRY * self.changed as u64;
        // Relaxed, all three: the count orders them.
        journal.word(entry).store(at, Ordering::Relaxed);
        let old = word.load(Ordering::Relaxed);
        journal.word(entry + 8).store(old, Ordering::Relaxed);
        crash::point!(EntryWritten);
        self.changed += 1;
        // Release: after the entry.
        journal
            .word(AT_COUNT)
            .store(self.changed as u64, Ordering::Release);
        crash::point!(EntryCounted);
        // Release: after the count, and after the odd sequence.
        word.store(value, Ordering::Release);
        crash::point!(WordChanged);
        Ok(())
    }

    #[inline]
    fn init(&mut self, at: u64, value: u64) -> Result<(), SharedError> {
        match self.journal.changeable(at) {
            // Release: in the order of the program.
            Some(word) => word.store(value, Ordering::Release),
            None => return Err(no_word(at)),
        }
        Ok(())
    }

    #[inline]
    fn me(&self) -> u64 {
        self.journal.members.me()
    }
}

impl<W: Words, M: Members> Transaction<'_, W, M> {
    /// What was changed stays.
    #[inline]
    fn commit(&mut self) {
        if self.changed > 0 {
            // Release: after the changes.
            self.journal.word(AT_COUNT).store(0, Ordering::Release);
            crash::point!(Committed);
            self.changed = 0;
            self.journal.settle(self.sequence);
            crash::point!(SequenceEven);
        }
    }
}

impl<W: Words, M: Members> Drop for Transaction<'_, W, M> {
    #[inline]
    fn drop(&mut self) {
        if !self.journal.is_ours() {
            return;
        }
        if self.changed > 0 {
            match self.journal.roll_back() {
                Ok(()) => drop(self.journal.settle(self.sequence)),
                Err(lie) => drop(self.journal.poison(lie)),
            }
        }
        if let Err(found) = lease::give_back(self.journal.word(0), &self.journal.members) {
            let at = self.journal.start;
            self.journal.poison(Lie {
                field: Field::Lease,
                at,
                found,
            });
        }
    }
}

#[cold]
fn no_word(at: u64) -> SharedError {
    let lie = Lie {
        field: Field::Offset,
        at,
        found: at,
    };
    lie.into()
}
