//! Transactions that tasks and threads begin and end.

use super::error::StoreRefused;
use super::local_transaction::Transaction;
use super::membership::{MESSAGES, ObjectStore, StoreMembership, TRANSACTIONS};
use super::operations::beside_sibling_error;
use crate::clock;
use crate::crash;
use crate::objects::deadline::deadline_after;
use crate::objects::error::ObjectError;
use crate::shared_heap::HeapError;
use crate::store::{OpenTransaction, StoreError};
use std::thread;

/// The time, in nanoseconds, for which the beginning of a transaction waits for a single operation of another process
/// before it checks whether that process makes progress.
pub const OPERATION_TIMEOUT: u64 = 5_000_000;

/// The outcome of an attempt to begin a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeginOutcome {
    /// The transaction was begun.
    Begun,
    /// Another transaction is open, whose end wakes its waiters.
    MustWait,
    /// A single operation of another process does not end: the process is stopped, or has no CPU. The end of an
    /// operation wakes no waiter for a transaction, so the caller must try again.
    MustRetry,
}

impl StoreMembership {
    /// Begins a transaction of a task or of a thread, which holds the owner lock until its end. Waits for single
    /// operations of other processes, until one of them has made no progress for `timeout` nanoseconds, but not for
    /// another transaction. `is_task` is true if the owner is a task. Raises `NotHeld` if this task or thread is within
    /// a transaction.
    pub fn begin_transaction(
        &self,
        owner: u64,
        is_task: bool,
        timeout: u64,
    ) -> Result<BeginOutcome, StoreRefused> {
        self.check()?;
        if self.transaction.is_of(owner) {
            let text = "this task or thread is within a transaction already";
            return Err(ObjectError::NotHeld(text).into());
        }
        let begun = self.in_current_contents(|store| {
            try_begin(store, timeout).map_err(|error| self.map_error(error))
        });
        match begun? {
            Ok(open) => {
                self.transaction.set(Transaction {
                    open,
                    owner,
                    is_task,
                    thread: thread::current().id(),
                });
                Ok(BeginOutcome::Begun)
            }
            Err(not_begun) => Ok(not_begun),
        }
    }

    /// Ends the transaction of a task or thread, and wakes the next waiter for a transaction. Commits the changes if
    /// `is_kept` is true, and undoes them otherwise. Raises `NotHeld` if this task or thread is within no transaction.
    /// After an error of the commit the transaction is over, too, and has changed nothing, unless this process is
    /// fenced off.
    pub fn end_transaction(&self, owner: u64, is_kept: bool) -> Result<(), StoreRefused> {
        let store = self.store()?;
        let Some(Transaction { open, .. }) = self.transaction.take(owner) else {
            let text = "this task or thread is within no transaction";
            return Err(ObjectError::NotHeld(text).into());
        };
        let ended = match is_kept {
            true => store.commit(open),
            false => {
                store.abandon(open);
                Ok(())
            }
        };
        crash::point!(TransactionEnded);
        self.wake_next(TRANSACTIONS);
        if self.transaction.take_waiting_sibling() {
            self.wake_all(MESSAGES);
        }
        self.unpin_all();
        self.finish(ended)
    }

    /// Begins a savepoint in the transaction of a task or thread, and returns its number. Returns None outside of a
    /// transaction.
    pub fn begin_savepoint(&self, owner: u64) -> Option<u64> {
        self.with_open(owner, |store, open| store.begin_savepoint(open))
    }

    /// Ends a savepoint; does nothing if this task or thread has no transaction. Keeps the changes since the savepoint
    /// if `is_kept` is true, and undoes them otherwise.
    pub fn end_savepoint(&self, owner: u64, savepoint: u64, is_kept: bool) {
        self.with_open(owner, |store, open| {
            store.end_savepoint(open, savepoint, is_kept)
        });
    }

    /// Calls `operate` with the transaction of a task or thread. Returns None if it has begun none.
    fn with_open<R>(
        &self,
        owner: u64,
        operate: impl FnOnce(&ObjectStore, &mut OpenTransaction) -> R,
    ) -> Option<R> {
        let store = self.store().ok().filter(|_| self.transaction.is_open())?;
        let mut open = self.transaction.lock();
        let transaction = open.as_mut().filter(|open| open.owner == owner)?;
        Some(operate(store, &mut transaction.open))
    }

    /// Returns true if another task of this thread is within a transaction. The end of that transaction then wakes
    /// waiters for messages.
    pub fn waits_for_sibling(&self, owner: impl Fn() -> u64) -> bool {
        let is_beside = self.is_beside_sibling(owner);
        if is_beside {
            self.transaction.note_waiting_sibling();
        }
        is_beside
    }

    /// Returns true if another task of this thread is within a transaction.
    pub fn is_beside_sibling(&self, owner: impl Fn() -> u64) -> bool {
        self.transaction.is_of_sibling(owner)
    }

    /// Raises `NotHeld` if another task of this thread is within a transaction: a wait for the owner lock would block
    /// the thread in which that task has to release it.
    pub fn check_may_block(&self, owner: u64) -> Result<(), StoreRefused> {
        match self.is_beside_sibling(|| owner) {
            true => Err(beside_sibling_error()),
            false => Ok(()),
        }
    }
}

/// Begins a transaction. Returns as the inner error the outcome of an attempt that has not begun one.
fn try_begin(
    store: &ObjectStore,
    timeout: u64,
) -> Result<Result<OpenTransaction, BeginOutcome>, StoreError> {
    let (mut since, mut wait) = (None, 0);
    loop {
        let error = match store.begin_long(deadline_after(wait)) {
            Ok(open) => return Ok(Ok(open)),
            Err(error) => error,
        };
        let StoreError::Heap(HeapError::Busy { holder }) = error else {
            return Err(error);
        };
        // The transaction has begun after we looked for one, or its end wakes us.
        if store.is_long() {
            return Ok(Err(BeginOutcome::MustWait));
        }
        // Operations may follow each other without end, even of one process; a change of holder or sequence is
        // progress.
        let (now, found) = (clock::now(), (holder, store.sequence()));
        match since {
            Some((known, from)) if known == found => {
                if now.saturating_sub(from) >= timeout {
                    return Ok(Err(BeginOutcome::MustRetry));
                }
            }
            _ => since = Some((found, now)),
        }
        wait = OPERATION_TIMEOUT.min(timeout.max(1));
    }
}
