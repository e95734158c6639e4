//! The transaction that a task or a thread of this process has begun.
//!
//! The number of an owner, a task or a thread, is unique in this process.

use crate::store::OpenTransaction;
use crate::sync::lock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard};
use std::thread::{self, ThreadId};

/// A transaction of this process.
pub struct Transaction {
    pub open: OpenTransaction,
    /// The number of the task or thread.
    pub owner: u64,
    /// True for a transaction of a task; false for one of a thread, which includes all operations of the thread.
    pub is_task: bool,
    /// The thread.
    pub thread: ThreadId,
}

/// The transaction of this process, if it has begun one.
#[derive(Default)]
pub struct LocalTransaction {
    transaction: Mutex<Option<Transaction>>,
    is_open: AtomicBool,
    /// True if a task waits for messages, which it cannot take before the transaction of another task ends.
    has_waiting_sibling: AtomicBool,
}

impl LocalTransaction {
    /// Returns true if this process has begun a transaction.
    #[inline]
    pub fn is_open(&self) -> bool {
        // Relaxed: the thread that has begun it sees it; others need the owner lock anyway.
        self.is_open.load(Relaxed)
    }

    /// Returns true if a task of this thread has begun the transaction.
    ///
    /// The caller looks up the running task afterwards, without the lock: that calls Python, whose garbage collector
    /// may end a transaction, which takes the lock.
    pub fn is_of_task_in_this_thread(&self) -> bool {
        let is_here = |open: &Transaction| open.is_task && open.thread == thread::current().id();
        self.lock().as_ref().is_some_and(is_here)
    }

    /// Returns true if another task of this thread has begun the transaction. `owner` returns the number of the running
    /// task.
    pub fn is_of_sibling(&self, owner: impl Fn() -> u64) -> bool {
        if !self.is_open() || !self.is_of_task_in_this_thread() {
            return false;
        }
        let owner = owner();
        let is_sibling = |open: &Transaction| {
            open.is_task && open.thread == thread::current().id() && open.owner != owner
        };
        self.lock().as_ref().is_some_and(is_sibling)
    }

    /// Returns true if this task or thread has begun the transaction.
    pub fn is_of(&self, owner: u64) -> bool {
        self.is_open()
            && self
                .lock()
                .as_ref()
                .is_some_and(|transaction| transaction.owner == owner)
    }

    /// Locks the transaction; the guard has None if there is none. Blocks while another thread has it.
    pub fn lock(&self) -> MutexGuard<'_, Option<Transaction>> {
        lock(&self.transaction)
    }

    /// Notes a transaction that was begun. The caller ensures that no other is open.
    pub fn set(&self, transaction: Transaction) {
        *self.lock() = Some(transaction);
        self.is_open.store(true, Relaxed);
    }

    /// Removes and returns the transaction of this task or thread; returns None if it has begun none.
    pub fn take(&self, owner: u64) -> Option<Transaction> {
        let mut open = self.lock();
        let is_ours = open.as_ref().is_some_and(|open| open.owner == owner);
        self.is_open.store(open.is_some() && !is_ours, Relaxed);
        if is_ours { open.take() } else { None }
    }

    /// Notes that a task waits for messages until the transaction of another task ends.
    pub fn note_waiting_sibling(&self) {
        // Relaxed, here and below: in the same thread.
        self.has_waiting_sibling.store(true, Relaxed);
    }

    /// Returns true if a task waits for messages until the transaction ends; false from then on.
    pub fn take_waiting_sibling(&self) -> bool {
        self.has_waiting_sibling.swap(false, Relaxed)
    }
}
