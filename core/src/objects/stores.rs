//! What the members of a store do with it, and whom they wake.

use super::layout::Shape;
use super::members::{Holder, Number};
use super::membership::{Members, Membership, NameError};
use super::queueing::{PATIENCE, deadline};
use super::replacing::{self, TRIES};
use crate::clock;
use crate::crash;
use crate::memory::mapping::SharedMapping;
use crate::memory::named;
use crate::shared_heap::HeapError;
use crate::store::ContainerRef;
use crate::store::{CommitNotice, OpenTransaction, Root, Store, StoreError};
use crate::sync::lock;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, ThreadId};

/// The wait set of those that wait for the lease, since a transaction of somebody holds it for long.
pub const LEASE: usize = 0;
/// The wait set of those that wait until something has changed.
pub const CHANGES: usize = 1;
/// For how long, in nanoseconds, it is waited for a single operation of another process, before it is looked whose it is.
pub const SOON: u64 = 5_000_000;
/// The wait set of those that wait for a message.
pub const MESSAGES: usize = 2;

/// The store of a name, in memory.
pub type Shared = Store<Arc<SharedMapping>, Arc<Members>>;

/// A transaction that a task or a thread of this process has begun.
pub struct Transaction {
    open: OpenTransaction,
    /// The number of the task or thread.
    owner: u64,
    /// Whether it is a task: else whatever this thread does is within the transaction.
    is_task: bool,
    /// The thread.
    thread: ThreadId,
}

/// The store of a name.
pub struct Contents {
    pub(super) store: Shared,
    /// The file that has them, None once this process has left, and its number: 0 if it is the memory of the name itself.
    file: Mutex<Option<Arc<OwnedFd>>>,
    pub(super) current: AtomicU64,
    /// Of a store with an owner: what the memory of the name said when this process last looked for its contents.
    pub(super) seen: AtomicU64,
    /// Held while this process moves to a copy, or leaves.
    moving: Mutex<()>,
    /// The transaction that this process has begun, if it has one.
    open: Mutex<Option<Transaction>>,
    is_open: AtomicBool,
    /// A task waits for messages that cannot take one before the transaction of another one ends.
    has_waiting_sibling: AtomicBool,
    /// Blocks that nobody here looks at any more, of which the others are still to be told.
    unpinned: Mutex<Vec<u64>>,
}

/// The outcome of an attempt to begin a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It was.
    Now,
    /// Another one is under way, whose end wakes those that wait for it.
    AfterAnother,
    /// A single operation of another process is under way and does not end: that process is stopped, or has no CPU. The end
    /// of an operation wakes no waiter for a transaction, so the caller must try again.
    Later,
}

/// What an operation finds.
enum Turn<'o> {
    /// No transaction of its own.
    Free,
    /// The transaction that its task or thread has begun.
    Ours(&'o mut OpenTransaction),
    /// A transaction of another task of this thread, which cannot end before this one does.
    Stuck,
}

impl Contents {
    pub(super) fn new(
        mapping: &Arc<SharedMapping>,
        file: &Arc<OwnedFd>,
        shape: Shape,
        members: &Arc<Members>,
        memory: &str,
    ) -> Result<Self, NameError> {
        let failed = || NameError::os("its memory cannot be had");
        let file: Arc<OwnedFd> = Arc::new(file.try_clone().map_err(failed())?);
        let current = match shape.is_owned() {
            true => 0, // They are mapped by who joins.
            false => replacing::find_copy(mapping, &file, shape, memory)?,
        };
        let (words, members) = (mapping.clone(), members.clone());
        let start = shape.contents_at() as u64;
        let (of, amount) = (&file, shape.amount);
        let store = match shape.is_owned() {
            true => {
                Store::open_read_only(words, of, start, amount, members, shape.readers_at() as u64)
            }
            false => Store::new(words, of, start, amount, members),
        };
        Ok(Contents {
            store: store.map_err(failed())?,
            file: Mutex::new(Some(file)),
            current: AtomicU64::new(current),
            seen: AtomicU64::new(0),
            moving: Mutex::default(),
            open: Mutex::default(),
            is_open: AtomicBool::new(false),
            has_waiting_sibling: AtomicBool::new(false),
            unpinned: Mutex::default(),
        })
    }

    /// The file that has them. EBADF once this process has left.
    pub(super) fn file(&self) -> io::Result<Arc<OwnedFd>> {
        let file = lock(&self.file).clone();
        file.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    /// Closes the file, since this process has left.
    pub(super) fn close_file(&self) {
        let file = lock(&self.file).take();
        if let Some(file) = file {
            named::unshare(&*file); // A view may keep it mapped, and so open.
        }
    }

    /// Whether this process has begun a transaction.
    #[inline]
    fn is_open(&self) -> bool {
        // Relaxed: whoever has begun it sees it; others need the lease anyway.
        self.is_open.load(Relaxed)
    }

    /// Returns true if a task of this thread has begun the transaction. Ask this before the running task: to find that task
    /// calls Python, whose garbage collector may end a transaction, and so needs the lock.
    fn opened_in_this_thread(&self) -> bool {
        let open = lock(&self.open);
        let is_here = |open: &Transaction| open.is_task && open.thread == thread::current().id();
        open.as_ref().is_some_and(is_here)
    }

    /// Bytes of memory that it has now.
    pub(super) fn allocated(&self) -> io::Result<u64> {
        self.store.allocated()
    }

    /// Lets no thread move to a copy.
    pub(super) fn stay(&self) -> MutexGuard<'_, ()> {
        lock(&self.moving)
    }

    /// Gives back what this process has, which leaves.
    pub(super) fn abandon(&self, us: Number) {
        if let Some(transaction) = lock(&self.open).take() {
            self.store.abandon(transaction.open);
        }
        if !self.store.is_read_only() {
            self.store.notify_all_readers(); // Nobody changes it any more until there is another owner.
        }
        self.store.report_leaving(us.slot().unwrap_or_default());
        // Other threads of ours first: a lease of somebody who is no member would be taken over.
        self.store.close(clock::now() + PATIENCE);
        let is_gone = |member| member == us.0;
        let _ = self.store.recover(is_gone, clock::now() + PATIENCE);
    }
}

/// What a change means beside the transaction of another task of the thread.
#[cold]
fn beside_sibling() -> Refusal {
    let text = "another task of this thread is within a transaction, which cannot end before this operation; begin one \
                with 'async with'";
    NameError::NotHeld(text).into()
}

impl Membership {
    /// Makes what a store begins with, and the place of its root.
    pub fn found_store(&self) -> Result<ContainerRef, Refusal> {
        self.following(|contents| {
            let deadline = deadline(PATIENCE);
            let founded = contents.store.initialize(deadline);
            crash::point!(StoreFounded);
            let place = founded.and_then(|()| contents.store.root(Root::Store, deadline));
            place.map_err(|error| self.told_of(error))
        })
    }

    /// Gives back what dead members of a slot have left; false if that cannot be done now.
    pub(super) fn recover_store(&self, slot: u32) -> bool {
        if self.store.is_none() {
            return true;
        }
        let is_gone = |member| Number(member).slot() == Some(slot);
        if let Some(contents) = &self.store
            && self.shape().is_owned()
            && is_gone(contents.store.owner_header().owner)
        {
            contents.store.notify_all_readers(); // It may have committed what it has told nobody.
        }
        let recovered = self.following(|contents| {
            let recovered = contents.store.recover(is_gone, clock::now() + PATIENCE);
            crash::point!(StoreRecovered);
            recovered.map_err(|error| self.told_of(error))
        });
        recovered.is_ok()
    }

    /// Does something with the store, in a copy of it if there is one by then.
    #[inline]
    pub(super) fn following<R>(
        &self,
        operate: impl Fn(&Contents) -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        for _ in 0..TRIES {
            match operate(self.stored()?) {
                Err(Refusal::Replaced) => self.follow()?,
                done => return done,
            }
        }
        Err(replacing::too_often().into())
    }

    /// Does something with the store: in the transaction that `owner` has begun, if it has, or else in one of its own, for
    /// whose lease it waits for as long as `patience`, in nanoseconds. Without patience it does not go on in a copy either.
    #[inline]
    pub fn with_store<R>(
        &self,
        owner: impl Fn() -> u64,
        patience: u64,
        operate: impl Fn(&Shared, Option<&mut OpenTransaction>, u64) -> Result<R, StoreError>,
    ) -> Result<R, Refusal> {
        if patience == 0 {
            return self.with_contents(self.stored()?, owner, 0, operate);
        }
        self.following(|contents| self.with_contents(contents, &owner, patience, &operate))
    }

    #[inline]
    fn with_contents<R>(
        &self,
        contents: &Contents,
        owner: impl Fn() -> u64,
        patience: u64,
        operate: impl Fn(&Shared, Option<&mut OpenTransaction>, u64) -> Result<R, StoreError>,
    ) -> Result<R, Refusal> {
        if contents.store.is_read_only() {
            if contents.is_behind(self.mapping()) {
                return Err(Refusal::Replaced);
            }
            return self.read_contents(contents, patience, |deadline| {
                operate(&contents.store, None, deadline).map_err(|error| self.told_of(error))
            });
        }
        if !contents.is_open() {
            return self.do_alone(contents, patience, operate);
        }
        let us = contents.opened_in_this_thread().then(owner);
        let mut open = lock(&contents.open);
        let turn = match &mut *open {
            Some(transaction) if transaction.thread == thread::current().id() => {
                match !transaction.is_task || us == Some(transaction.owner) {
                    true => Turn::Ours(&mut transaction.open),
                    false => Turn::Stuck,
                }
            }
            _ => Turn::Free,
        };
        match turn {
            Turn::Ours(open) => {
                let done = operate(&contents.store, Some(open), deadline(patience));
                done.map_err(|error| self.told_of(error))
            }
            // It can read what is committed, and cannot wait for the lease.
            Turn::Stuck => {
                drop(open);
                match operate(&contents.store, None, deadline(0)) {
                    Err(StoreError::Heap(HeapError::Busy { .. })) => Err(beside_sibling()),
                    done => self.told(contents, done),
                }
            }
            Turn::Free => {
                drop(open);
                self.do_alone(contents, patience, operate)
            }
        }
    }

    /// Does something in a transaction of its own.
    #[inline]
    fn do_alone<R>(
        &self,
        contents: &Contents,
        patience: u64,
        operate: impl Fn(&Shared, Option<&mut OpenTransaction>, u64) -> Result<R, StoreError>,
    ) -> Result<R, Refusal> {
        let store = &contents.store;
        let mut done = operate(store, None, deadline(patience));
        // There may be room that readers have kept so far.
        if let Err(StoreError::Heap(HeapError::Limit { .. })) = done
            && self.shape().is_owned()
            && store.free_deferred(deadline(patience)).is_ok()
        {
            done = operate(store, None, deadline(patience));
        }
        self.told(contents, done)
    }

    #[inline]
    fn told<R>(&self, contents: &Contents, done: Result<R, StoreError>) -> Result<R, Refusal> {
        let news = contents.store.take_notice();
        if news != CommitNotice::default() {
            crash::point!(StoreChanged);
            self.spread_news(news);
        }
        done.map_err(|error| self.told_of(error))
    }

    /// What it means that something was not done.
    #[cold]
    pub fn refusal(&self, error: StoreError) -> Refusal {
        self.told_of(error)
    }

    /// Where bytes of a buffer lie, which this process has pinned.
    pub fn store_bytes(&self, at: u64, len: u64) -> *mut u8 {
        self.mapping().address(at as usize, len as usize)
    }

    /// The process that changes the store just now; 0 if none does, -1 if it is one of another container.
    pub fn store_holder(&self) -> i64 {
        let Ok(contents) = self.stored() else {
            return 0;
        };
        match contents.store.holder() {
            0 => 0,
            member => match self.holder_of(Number(member)) {
                Some(Holder::Process(pid)) => i64::from(pid),
                Some(Holder::Elsewhere) => -1,
                None => 0,
            },
        }
    }

    #[cold]
    pub(super) fn told_of(&self, error: StoreError) -> Refusal {
        match error {
            StoreError::Heap(HeapError::Replaced { fenced }) => {
                match fenced == self.others().us().0 {
                    true => Refusal::Name(NameError::Fenced),
                    false => Refusal::Replaced,
                }
            }
            StoreError::Heap(HeapError::Limit { asked, used, limit }) => {
                Refusal::Full { asked, used, limit }
            }
            StoreError::Heap(HeapError::TransactionTooLarge { most }) => Refusal::TooMany(most),
            StoreError::Heap(HeapError::ReadOnly) => Refusal::Name(NameError::ReadOnly {
                owner: self.store_owner(),
            }),
            StoreError::Heap(HeapError::NeverStable) => Refusal::Name(NameError::Restless {
                owner: self.store_owner(),
            }),
            StoreError::Heap(error) => Refusal::Name(self.refused(error)),
            other => Refusal::Store(other),
        }
    }

    /// Tells others of what was committed.
    #[cold]
    fn spread_news(&self, news: CommitNotice) {
        if news.changes {
            self.wake_all(CHANGES);
        }
        for _ in 0..news.messages {
            if !self.wake_next(MESSAGES) {
                break;
            }
        }
        if news.lease {
            self.wake_next(LEASE);
        }
    }

    /// Wakes the next one that waits for a message: there is one, which whoever was woken for it has left.
    pub fn message_left(&self) {
        self.wake_next(MESSAGES);
    }

    #[inline]
    pub(super) fn stored(&self) -> Result<&Contents, Refusal> {
        self.check()?;
        let contents = self.store.as_ref();
        Ok(contents.ok_or(NameError::NotHeld("is no store"))?)
    }

    /// Begins a part of the transaction that this task or thread is within: its number; None if it is within none.
    pub fn begin_savepoint(&self, owner: u64) -> Option<u64> {
        self.with_open(owner, |store, open| store.begin_savepoint(open))
    }

    /// Ends a part of it: what the part has done stays in the transaction, or is undone.
    pub fn end_savepoint(&self, owner: u64, part: u64, is_kept: bool) {
        self.with_open(owner, |store, open| {
            store.end_savepoint(open, part, is_kept)
        });
    }

    fn with_open<R>(
        &self,
        owner: u64,
        act: impl FnOnce(&Shared, &mut OpenTransaction) -> R,
    ) -> Option<R> {
        let contents = self.stored().ok().filter(|contents| contents.is_open())?;
        let mut open = lock(&contents.open);
        let transaction = open.as_mut().filter(|open| open.owner == owner)?;
        Some(act(&contents.store, &mut transaction.open))
    }

    /// This process has one proxy more of a container.
    pub fn hold_container(&self, id: u64) {
        if let Ok(contents) = self.stored() {
            contents.store.proxies().add(id);
        }
    }

    /// It has one less.
    pub fn let_container_go(&self, id: u64) {
        // Not in a forked child, where another thread of the parent may have had what counts them.
        if let Ok(contents) = self.stored() {
            contents.store.proxies().remove(id);
        }
    }

    /// Whether another task of this thread is within a transaction; if so, its end wakes those that wait for messages.
    pub fn waits_for_sibling(&self, owner: impl Fn() -> u64) -> bool {
        let is_beside = self.is_beside_sibling(owner);
        if let (true, Some(contents)) = (is_beside, self.store.as_ref()) {
            // Relaxed, here and where it is taken: in this thread.
            contents.has_waiting_sibling.store(true, Relaxed);
        }
        is_beside
    }

    /// Whether another task of this thread is within a transaction.
    pub fn is_beside_sibling(&self, owner: impl Fn() -> u64) -> bool {
        let Some(contents) = self.store.as_ref().filter(|contents| contents.is_open()) else {
            return false;
        };
        if !contents.opened_in_this_thread() {
            return false;
        }
        let us = owner();
        lock(&contents.open).as_ref().is_some_and(|open| {
            open.is_task && open.thread == thread::current().id() && open.owner != us
        })
    }

    /// An error if a wait for the lease would block the thread in which another task has to give it back.
    pub fn may_block(&self, owner: u64) -> Result<(), Refusal> {
        match self.is_beside_sibling(|| owner) {
            true => Err(beside_sibling()),
            false => Ok(()),
        }
    }

    /// Begins a transaction of a task, or of a thread. `patience`, in nanoseconds, is for a single operation of another process
    /// that does not end.
    pub fn begin_transaction(
        &self,
        owner: u64,
        is_task: bool,
        patience: u64,
    ) -> Result<Begun, Refusal> {
        let contents = self.stored()?;
        if contents.is_open()
            && lock(&contents.open)
                .as_ref()
                .is_some_and(|transaction| transaction.owner == owner)
        {
            let text = "this task or thread is within a transaction already";
            return Err(NameError::NotHeld(text).into());
        }
        let begun = self.following(|contents| {
            self.begin_soon(&contents.store, patience)
                .map_err(|error| self.told_of(error))
        });
        match begun? {
            Ok(open) => {
                let thread = thread::current().id();
                *lock(&contents.open) = Some(Transaction {
                    open,
                    owner,
                    is_task,
                    thread,
                });
                contents.is_open.store(true, Relaxed);
                Ok(Begun::Now)
            }
            Err(not_begun) => Ok(not_begun),
        }
    }

    /// Begins a transaction, or says why not.
    fn begin_soon(
        &self,
        store: &Shared,
        patience: u64,
    ) -> Result<Result<OpenTransaction, Begun>, StoreError> {
        let (mut since, mut soon) = (None, 0);
        loop {
            let error = match store.begin_long(deadline(soon)) {
                Ok(open) => return Ok(Ok(open)),
                Err(error) => error,
            };
            let StoreError::Heap(HeapError::Busy { holder }) = error else {
                return Err(error);
            };
            // It has begun after we looked for it, or its end wakes us.
            if store.is_long() {
                return Ok(Err(Begun::AfterAnother));
            }
            // Others follow each other without end, and it may be one process that does so, or one does not end.
            let (now, found) = (clock::now(), (holder, store.sequence()));
            match since {
                Some((known, from)) if known == found => {
                    if now.saturating_sub(from) >= patience {
                        return Ok(Err(Begun::Later));
                    }
                }
                _ => since = Some((found, now)),
            }
            soon = SOON.min(patience.max(1));
        }
    }

    /// Ends the transaction of a task or thread: all its changes are everybody's, or nothing was done.
    pub fn end_transaction(&self, owner: u64, is_kept: bool) -> Result<(), Refusal> {
        let contents = self.stored()?;
        let taken = {
            let mut open = lock(&contents.open);
            let is_ours = open.as_ref().is_some_and(|open| open.owner == owner);
            contents.is_open.store(open.is_some() && !is_ours, Relaxed);
            if is_ours { open.take() } else { None }
        };
        let Some(Transaction { open, .. }) = taken else {
            return Err(NameError::NotHeld("this task or thread is within no transaction").into());
        };
        let ended = match is_kept {
            true => contents.store.commit(open),
            false => {
                contents.store.abandon(open);
                Ok(())
            }
        };
        crash::point!(TransactionEnded);
        self.wake_next(LEASE);
        if contents.has_waiting_sibling.swap(false, Relaxed) {
            self.wake_all(MESSAGES);
        }
        self.unpin_all(contents);
        self.told(contents, ended)
    }

    /// Nobody here looks at this block of the store any more.
    pub fn unpin(&self, block: u64) {
        if let Ok(contents) = self.stored() {
            lock(&contents.unpinned).push(block);
            self.unpin_all(contents);
        }
    }

    /// Tells the others of what is looked at no more, if the lease is to be had now.
    fn unpin_all(&self, contents: &Contents) {
        loop {
            let Some(block) = lock(&contents.unpinned).pop() else {
                return;
            };
            if contents.is_open() || contents.store.unpin(deadline(1), block).is_err() {
                // With the next one, or when this process leaves.
                lock(&contents.unpinned).push(block);
                return;
            }
        }
    }
}

/// Why something was not done with a store.
#[derive(Debug)]
pub enum Refusal {
    /// The name cannot be used, or not now.
    Name(NameError),
    /// The store.
    Store(StoreError),
    /// The bytes that were asked for, those that there may be, and those that are used.
    #[allow(missing_docs, reason = "the line above says what the fields hold")]
    Full { asked: u64, used: u64, limit: u64 },
    /// A transaction changes this many words at most.
    TooMany(usize),
    /// Nothing was done: there is a copy, in which others go on.
    Replaced,
}

impl Refusal {
    /// Whether another process changes the store, or has replaced it, and so it may be done later.
    pub fn is_busy(&self) -> bool {
        matches!(
            self,
            Refusal::Name(NameError::Changing { .. } | NameError::Restless { .. })
                | Refusal::Replaced
        )
    }
}

impl From<NameError> for Refusal {
    fn from(error: NameError) -> Self {
        Refusal::Name(error)
    }
}
