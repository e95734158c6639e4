//! Operations on a store: within the transaction of the caller, or in a transaction of their own.

use super::copies::{MOVE_ATTEMPTS, replaced_too_often};
use super::error::StoreRefused;
use super::membership::{CHANGES, MESSAGES, ObjectStore, StoreMembership, TRANSACTIONS};
use crate::crash;
use crate::objects::deadline::{RECOVERY_TIMEOUT, deadline_after};
use crate::objects::error::ObjectError;
use crate::shared_heap::HeapError;
use crate::store::ContainerRef;
use crate::store::{CommitNotice, OpenTransaction, Root, StoreError};
use crate::sync::lock;
use std::thread;

/// The transaction to which an operation belongs.
enum Scope<'o> {
    /// A transaction of its own.
    Own,
    /// The transaction that the task or thread has begun.
    Begun(&'o mut OpenTransaction),
    /// No transaction: another task of this thread has begun one, which cannot end before this operation does.
    BesideSibling,
}

/// Makes the error `NotHeld` for an operation that cannot wait for the transaction of another task of its thread.
#[cold]
pub fn beside_sibling_error() -> StoreRefused {
    let text = "another task of this thread is within a transaction, which cannot end before this operation; begin one \
                with 'async with'";
    ObjectError::NotHeld(text).into()
}

impl StoreMembership {
    /// Initializes the store unless that is done, and returns the root container. Waits for the owner lock for at most
    /// `RECOVERY_TIMEOUT`. Raises `Changing` if another process holds the lock longer.
    pub fn initialize(&self) -> Result<ContainerRef, StoreRefused> {
        self.in_current_contents(|store| {
            let deadline = deadline_after(RECOVERY_TIMEOUT);
            let initialized = store.initialize(deadline);
            crash::point!(StoreInitialized);
            let root = initialized.and_then(|()| store.root(Root::Store, deadline));
            root.map_err(|error| self.map_error(error))
        })
    }

    /// Calls `operate` with the store, and again, at most `MOVE_ATTEMPTS` times, as long as it raises `Replaced`: this
    /// process then moves to the newer contents first. Returns the result of `operate`. Raises EBUSY if the contents
    /// are replaced again and again, and the errors of the move.
    #[inline]
    pub(super) fn in_current_contents<R>(
        &self,
        operate: impl Fn(&ObjectStore) -> Result<R, StoreRefused>,
    ) -> Result<R, StoreRefused> {
        for _ in 0..MOVE_ATTEMPTS {
            match operate(self.store()?) {
                Err(StoreRefused::Replaced) => self.move_to_current_contents()?,
                done => return done,
            }
        }
        Err(replaced_too_often().into())
    }

    /// Moves this process to the contents of a new owner, or to a copy.
    #[cold]
    fn move_to_current_contents(&self) -> Result<(), StoreRefused> {
        match self.shape().has_single_writer() {
            true => self.follow_owner(RECOVERY_TIMEOUT),
            false => self.follow_copy(),
        }
    }

    /// Does an operation in the transaction that `owner` has begun, or in a transaction of its own. Waits for the owner
    /// lock for at most `timeout` nanoseconds. With a timeout of 0 does not move to newer contents either, and raises
    /// `Replaced`. Returns the result of `operate`, which takes the store, the open transaction if there is one, and a
    /// deadline.
    ///
    /// `operate` may run several times. `owner`, which returns the number of the running task or thread, runs only if a
    /// task of this thread is within a transaction; no lock is held then. Raises `NotHeld` if that task is another one
    /// and holds the owner lock that the operation needs.
    #[inline]
    pub fn with_store<R>(
        &self,
        owner: impl Fn() -> u64,
        timeout: u64,
        operate: impl Fn(&ObjectStore, Option<&mut OpenTransaction>, u64) -> Result<R, StoreError>,
    ) -> Result<R, StoreRefused> {
        if timeout == 0 {
            return self.operate_once(self.store()?, owner, 0, operate);
        }
        self.in_current_contents(|store| self.operate_once(store, &owner, timeout, &operate))
    }

    /// Does an operation in the contents that are mapped now. Raises `Replaced` if there are newer contents.
    #[inline]
    fn operate_once<R>(
        &self,
        store: &ObjectStore,
        owner: impl Fn() -> u64,
        timeout: u64,
        operate: impl Fn(&ObjectStore, Option<&mut OpenTransaction>, u64) -> Result<R, StoreError>,
    ) -> Result<R, StoreRefused> {
        if store.is_read_only() {
            if self.is_behind() {
                return Err(StoreRefused::Replaced);
            }
            return self.read_contents(timeout, |deadline| {
                operate(store, None, deadline).map_err(|error| self.map_error(error))
            });
        }
        if !self.transaction.is_open() {
            return self.operate_alone(store, timeout, operate);
        }
        let current = self.transaction.is_of_task_in_this_thread().then(owner);
        let mut open = self.transaction.lock();
        let scope = match &mut *open {
            Some(transaction) if transaction.thread == thread::current().id() => {
                match !transaction.is_task || current == Some(transaction.owner) {
                    true => Scope::Begun(&mut transaction.open),
                    false => Scope::BesideSibling,
                }
            }
            _ => Scope::Own,
        };
        match scope {
            Scope::Begun(open) => {
                let done = operate(store, Some(open), deadline_after(timeout));
                done.map_err(|error| self.map_error(error))
            }
            // The operation can read what is committed, and cannot wait for the owner lock.
            Scope::BesideSibling => {
                drop(open);
                match operate(store, None, deadline_after(0)) {
                    Err(StoreError::Heap(HeapError::Busy { .. })) => Err(beside_sibling_error()),
                    done => self.finish(done),
                }
            }
            Scope::Own => {
                drop(open);
                self.operate_alone(store, timeout, operate)
            }
        }
    }

    /// Does an operation in a transaction of its own, and wakes sleepers. Without room in a single-writer store, does
    /// the operation once more after the memory that readers had kept is freed.
    #[inline]
    fn operate_alone<R>(
        &self,
        store: &ObjectStore,
        timeout: u64,
        operate: impl Fn(&ObjectStore, Option<&mut OpenTransaction>, u64) -> Result<R, StoreError>,
    ) -> Result<R, StoreRefused> {
        let mut done = operate(store, None, deadline_after(timeout));
        // There may be room that readers have kept so far.
        if let Err(StoreError::Heap(HeapError::Limit { .. })) = done
            && self.shape().has_single_writer()
            && store.free_deferred(deadline_after(timeout)).is_ok()
        {
            done = operate(store, None, deadline_after(timeout));
        }
        self.finish(done)
    }

    /// Wakes the sleepers that wait for what the last commit of this process has changed, and converts the error of the
    /// operation. Each change of the store ends with it.
    #[inline]
    pub(super) fn finish<R>(&self, done: Result<R, StoreError>) -> Result<R, StoreRefused> {
        let notice = self.unchecked_store().take_notice();
        if notice != CommitNotice::default() {
            crash::point!(StoreChanged);
            self.wake_for(notice);
        }
        done.map_err(|error| self.map_error(error))
    }

    /// Wakes the sleepers that wait for what a commit has changed.
    #[cold]
    fn wake_for(&self, notice: CommitNotice) {
        if notice.changes {
            self.wake_all(CHANGES);
        }
        for _ in 0..notice.messages {
            if !self.wake_next(MESSAGES) {
                break;
            }
        }
        if notice.lock_released {
            self.wake_next(TRANSACTIONS);
        }
    }

    /// Wakes the next member that waits for a message, because the woken member has not taken the message.
    pub fn pass_message_on(&self) {
        self.wake_next(MESSAGES);
    }

    // --- containers and buffers ---

    /// Notes that this process has another proxy of a container. Does nothing if the store cannot be used.
    pub fn add_proxy(&self, id: u64) {
        if let Ok(store) = self.store() {
            store.proxies().add(id);
        }
    }

    /// Notes that a proxy of a container was dropped. Does nothing if the store cannot be used.
    pub fn remove_proxy(&self, id: u64) {
        // Not in a forked child, where another thread of the parent may have locked the counts.
        if let Ok(store) = self.store() {
            store.proxies().remove(id);
        }
    }

    /// Unpins a block that this process no longer reads: later, if the owner lock is not free now. Errors are ignored.
    pub fn unpin(&self, block: u64) {
        if self.check().is_ok() {
            lock(&self.unpinned).push(block);
            self.unpin_all();
        }
    }

    /// Unpins the blocks of [`unpin`](Self::unpin) in the store, if the owner lock is free now.
    pub(super) fn unpin_all(&self) {
        loop {
            let Some(block) = lock(&self.unpinned).pop() else {
                return;
            };
            let store = self.unchecked_store();
            if self.transaction.is_open() || store.unpin(deadline_after(1), block).is_err() {
                // With the next one, or when this process leaves.
                lock(&self.unpinned).push(block);
                return;
            }
        }
    }
}
