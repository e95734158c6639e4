//! Transactions: of one operation, or of many between the `begin` and the `commit` of a program.

use super::error::StoreError;
use super::format::header;
use super::format::mutator::Mutator;
use super::format::value::ContainerRef;
use super::format::versions::Versions;
use super::handle::{AT_COMMITTED_ID, AT_LAST_ID, Store};
use super::notifications::{CommitNotice, NotificationMark, PendingNotifications};
use crate::crash;
use crate::shared_heap::access::{OptimisticView, ReadWords};
use crate::shared_heap::redo_log::{self, PendingTransaction, Writer};
use crate::shared_heap::{Members, Words};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Reads a store by one expression, from the open transaction or from the committed state: those are of two types.
/// `$container` is the container that is read, unless it is one of the store's own.
macro_rules! read {
    ($store:expr, $open:expr, $deadline:expr, $container:expr, |$t:ident| $found:expr) => {
        $store.read_with(
            $open,
            $deadline,
            |$t| $found,
            |$t| {
                $store.check_committed($t, $container)?;
                $found
            },
        )
    };
}

pub(super) use read;

/// A transaction that is not yet committed.
pub struct OpenTransaction {
    pub(super) pending: PendingTransaction,
    pub(super) notifications: PendingNotifications,
    /// The open savepoints, the first one first.
    savepoints: Vec<Savepoint>,
    is_long: bool,
}

/// A state of a transaction to which it can be rolled back.
struct Savepoint {
    number: u64,
    log: redo_log::Savepoint,
    notified: NotificationMark,
}

impl<W: Words, M: Members> Store<W, M> {
    /// Begins a transaction of many operations, which holds the lock until it ends by [`commit`](Self::commit) or
    /// [`abandon`](Self::abandon): a drop does not release the lock. Cleans up first after a holder that has died.
    /// Waits for the lock until `deadline`, then fails with `HeapError::Busy`; holds no lock after an error.
    pub fn begin(&self, deadline: u64) -> Result<OpenTransaction, StoreError> {
        let mut pending = self.log.begin(deadline)?;
        if pending.is_taken_over() {
            let repaired = self.repair(&mut self.log.writer(&mut pending));
            if let Err(error) = repaired {
                self.log.abandon(pending);
                return self.log.seqlock().poison_if_corrupt(Err(error));
            }
        }
        let notifications = PendingNotifications {
            begun: self
                .reader_table()
                .map_or(0, |readers| readers.watch_count()),
            ..PendingNotifications::default()
        };
        Ok(OpenTransaction {
            pending,
            notifications,
            savepoints: Vec::new(),
            is_long: false,
        })
    }

    /// Cleans up after a holder that has died: deletes the containers of its uncommitted transaction, and returns its
    /// pages. Other processes may know these containers if it has sent references, and their numbers would count as
    /// committed once later containers are.
    #[cold]
    pub(in crate::store) fn repair(&self, t: &mut Writer<'_, W, M>) -> Result<(), StoreError> {
        let committed = header::number(t.get(self.start + AT_COMMITTED_ID)?);
        let last = header::number(t.get(self.start + AT_LAST_ID)?);
        if last != committed {
            self.heap.scrub(t, |word| {
                let left = header::number(word).wrapping_sub(committed.wrapping_add(1));
                header::is_id(word) && left < last.wrapping_sub(committed)
            })?;
            crash::point!(DeadContainersRemoved);
        }
        Ok(self.heap.repair(t)?)
    }

    /// Sets a savepoint. Returns its number, which is not 0 and unique in this process, so that ending a savepoint late
    /// never affects another transaction.
    pub fn begin_savepoint(&self, open: &mut OpenTransaction) -> u64 {
        static LAST: AtomicU64 = AtomicU64::new(0);
        // Relaxed: each caller gets another one.
        let number = LAST.fetch_add(1, Relaxed) + 1;
        let log = self.log.savepoint(&mut open.pending);
        let notified = open.notifications.mark();
        open.savepoints.push(Savepoint {
            number,
            log,
            notified,
        });
        number
    }

    /// Ends a savepoint and those set after it. The changes since then stay in the transaction if `is_kept` is true, or
    /// are undone. Does nothing if the savepoint has ended already.
    pub fn end_savepoint(&self, open: &mut OpenTransaction, number: u64, is_kept: bool) {
        let is_meant = |part: &Savepoint| part.number == number;
        let Some(first) = open.savepoints.iter().position(is_meant) else {
            return;
        };
        while open.savepoints.len() > first
            && let Some(Savepoint { log, notified, .. }) = open.savepoints.pop()
        {
            self.log.end_savepoint(&mut open.pending, &log, is_kept);
            if !is_kept {
                open.notifications.roll_back_to(notified);
            }
        }
    }

    /// Begins a transaction that a program keeps open, as [`begin`](Self::begin) does. Sets a flag for it, because
    /// other processes expect the transaction of a single operation to end soon.
    pub fn begin_long(&self, deadline: u64) -> Result<OpenTransaction, StoreError> {
        let open = self.begin(deadline)?;
        crash::point!(TransactionBegun);
        self.log.set_long_held(true);
        crash::point!(TransactionMarked);
        Ok(OpenTransaction {
            is_long: true,
            ..open
        })
    }

    /// Returns true if a program keeps the current transaction open.
    pub fn is_long(&self) -> bool {
        self.log.is_long_held()
    }

    /// Clears the flag that the lock is held for long, if a program has kept this transaction open.
    pub(in crate::store) fn clear_long_held(&self, open: &OpenTransaction) {
        if open.is_long {
            self.log.set_long_held(false);
        }
    }

    /// Commits the transaction and releases the lock. If it fails, nothing has changed, except with
    /// `HeapError::Replaced` or for truncated memory, and the transaction has ended. The caller then notifies others by
    /// [`take_notice`](Self::take_notice).
    pub fn commit(&self, open: OpenTransaction) -> Result<(), StoreError> {
        self.clear_long_held(&open);
        let OpenTransaction {
            mut pending,
            notifications,
            ..
        } = open;
        let finished = self.heap.finish_frees(&mut self.log.writer(&mut pending));
        if let Err(error) = finished {
            self.log.abandon(pending);
            return Err(self
                .log
                .seqlock()
                .poison_if_corrupt::<(), _>(Err(error))
                .unwrap_err()
                .into());
        }
        self.log.commit(pending)?;
        for (id, found) in &notifications.removed {
            self.proxies.set_removed(*id, found.clone());
        }
        self.queue_notice(notifications.notice);
        self.notify_readers(&notifications);
        Ok(())
    }

    /// Adds to the notice about committed changes that [`take_notice`](Self::take_notice) returns.
    pub(in crate::store) fn queue_notice(&self, notice: CommitNotice) {
        // Relaxed, both: the thread that notifies reads them after this, or has stored its own notice before.
        if notice.changes {
            self.pending_changes.store(true, Relaxed);
        }
        if notice.messages > 0 {
            self.pending_messages.fetch_add(notice.messages, Relaxed);
        }
    }

    /// Returns and clears the notice about committed changes, for the caller to notify others. Called after each
    /// change.
    #[inline]
    pub fn take_notice(&self) -> CommitNotice {
        // Relaxed, all: hints; the thread that takes one notifies.
        CommitNotice {
            changes: self.pending_changes.load(Relaxed)
                && self.pending_changes.swap(false, Relaxed),
            messages: match self.pending_messages.load(Relaxed) {
                0 => 0,
                _ => self.pending_messages.swap(0, Relaxed),
            },
            lock_released: self.log.take_held_long(),
        }
    }

    /// Rolls the transaction back and releases the lock. Does nothing in a forked child, whose parent ends the
    /// transaction.
    pub fn abandon(&self, open: OpenTransaction) {
        self.clear_long_held(&open);
        self.log.abandon(open.pending);
    }

    /// Returns a mutator for one operation of this transaction.
    pub(in crate::store) fn mutator<'t, 'w>(
        &'t self,
        t: &'t mut Writer<'w, W, M>,
    ) -> Mutator<'t, 'w, W, M> {
        Mutator {
            heap: &self.heap,
            t,
            last_id: self.start + AT_LAST_ID,
            committed_id: self.start + AT_COMMITTED_ID,
            proxies: &self.proxies,
            removed: Vec::new(),
            pins: self.pins(),
            has_deferred_frees: self
                .readers_at
                .is_some()
                .then_some(&self.has_deferred_frees),
            budget: self.budget,
        }
    }

    /// Runs `operate`, which changes a container, as [`operate`](Self::operate) does, and notes the change for
    /// watchers.
    #[inline]
    pub(in crate::store) fn change_container<R>(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        container: ContainerRef,
        operate: impl FnOnce(&mut Mutator<'_, '_, W, M>) -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        let versions = self.versions();
        self.operate(open, deadline, |mutator, notifications| {
            let frees_before = mutator.pending_frees();
            let done = operate(mutator)?;
            if !versions.is_empty(mutator.t)? {
                let is_seen = versions.bump(mutator.t, container.at)?
                    || mutator.pending_frees() > frees_before;
                notifications.notice.changes |= is_seen;
            }
            if self.has_watching_readers() {
                Versions::ancestor_ids(mutator.t, container.at, &mut notifications.touched)?;
                notifications.notice.changes |= mutator.pending_frees() > frees_before;
            }
            Ok(done)
        })
    }

    /// Runs an operation in the open transaction, or else in a transaction of its own, for which `deadline` bounds the
    /// wait for the lock. A failed operation changes nothing, and the open transaction continues; a corruption poisons
    /// the store.
    pub(in crate::store) fn operate<R>(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        operate: impl FnOnce(
            &mut Mutator<'_, '_, W, M>,
            &mut PendingNotifications,
        ) -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        if let Some(OpenTransaction {
            pending,
            notifications,
            ..
        }) = open
        {
            let notified = notifications.mark();
            let done = self.log.operate(pending, |t| {
                let mutator = &mut self.mutator(t);
                let done = operate(mutator, notifications);
                notifications.removed.append(&mut mutator.removed);
                done
            });
            return done.inspect_err(|_| notifications.roll_back_to(notified));
        }
        let mut open = self.begin(deadline)?;
        let t = &mut self.log.writer(&mut open.pending);
        let mutator = &mut self.mutator(t);
        let done = operate(mutator, &mut open.notifications);
        open.notifications.removed.append(&mut mutator.removed);
        match done {
            Ok(done) => self.commit(open).map(|()| done),
            Err(error) => {
                self.abandon(open);
                self.log.seqlock().poison_if_corrupt(Err(error))
            }
        }
    }

    /// Runs `in_open` to read from the open transaction, or else `committed` to read the committed state. Reads of the
    /// committed state may run several times; `deadline` bounds the wait for the lock.
    #[inline]
    pub(in crate::store) fn read_with<R>(
        &self,
        open: Option<&mut OpenTransaction>,
        deadline: u64,
        in_open: impl FnOnce(&Writer<'_, W, M>) -> Result<R, StoreError>,
        committed: impl FnMut(&OptimisticView<'_, W>) -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        match open {
            Some(OpenTransaction { pending, .. }) => {
                self.log.seqlock().check()?;
                let done = in_open(&self.log.writer(pending));
                self.log.seqlock().poison_if_corrupt(done)
            }
            None => self.log.read(deadline, committed),
        }
    }
}
