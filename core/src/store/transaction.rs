//! Transactions: of one operation, or of many that a program begins and ends.

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

/// Looks at a store by an expression that is the same for what the transaction that is open has made of it, and for what is
/// committed: those are of two types. The place is that of the container that is looked at, if it is known by that.
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

/// A transaction of many operations that a program has begun.
pub struct OpenTransaction {
    pub(super) pending: PendingTransaction,
    pub(super) notifications: PendingNotifications,
    /// Where the parts of it have begun that are under way, and may be undone alone.
    savepoints: Vec<Savepoint>,
    is_long: bool,
}

/// Where a part of a transaction began.
struct Savepoint {
    number: u64,
    log: redo_log::Savepoint,
    notified: NotificationMark,
}

impl<W: Words, M: Members> Store<W, M> {
    /// Begins a transaction of many operations: it holds the lease until it is ended.
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
            begun: self.reader_table().map_or(0, |readers| readers.begun()),
            ..PendingNotifications::default()
        };
        Ok(OpenTransaction {
            pending,
            notifications,
            savepoints: Vec::new(),
            is_long: false,
        })
    }

    /// Ends what a holder has left that has died: its memory, and the heads of containers that were never committed. Others may
    /// know these, if it has sent them, and their numbers are committed ones once later containers are.
    #[cold]
    pub(in crate::store) fn repair(&self, t: &mut Writer<'_, W, M>) -> Result<(), StoreError> {
        let committed = header::number(t.get(self.start + AT_COMMITTED_ID)?);
        let last = header::number(t.get(self.start + AT_LAST_ID)?);
        if last != committed {
            self.heap.scrub(t, |word| {
                let left = header::number(word).wrapping_sub(committed.wrapping_add(1));
                header::is_id(word) && left < last.wrapping_sub(committed)
            })?;
            crash::point!(LeftContainersGone);
        }
        Ok(self.heap.repair(t)?)
    }

    /// Begins a part of a transaction, which may be undone alone. Returns its number, which is not 0, and which no other part
    /// has had: one that is ended late ends no part of another transaction.
    pub fn begin_savepoint(&self, open: &mut OpenTransaction) -> u64 {
        static LAST: AtomicU64 = AtomicU64::new(0);
        // Relaxed: each caller gets another one.
        let number = LAST.fetch_add(1, Relaxed) + 1;
        let log = self.log.savepoint(&mut open.pending);
        let notified = open.notifications.notified();
        open.savepoints.push(Savepoint {
            number,
            log,
            notified,
        });
        number
    }

    /// Ends the part of this number, and those that have begun in it: what it has done stays in the transaction, or is undone.
    /// Does nothing if it has ended before.
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

    /// Begins one that a program goes on with: others can tell it from a single operation, which ends soon.
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

    /// Whether the lease is that of a transaction that a program goes on with.
    pub fn is_long(&self) -> bool {
        self.log.is_long()
    }

    pub(in crate::store) fn clear_long_held(&self, open: &OpenTransaction) {
        if open.is_long {
            self.log.set_long_held(false);
        }
    }

    /// Makes all that was done everybody's. On an error nothing was done.
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

    pub(in crate::store) fn queue_notice(&self, notice: CommitNotice) {
        // Relaxed, both: whoever looks for them does so after this, in this thread, or has done so in its own.
        if notice.changes {
            self.pending_changes.store(true, Relaxed);
        }
        if notice.messages > 0 {
            self.pending_messages.fetch_add(notice.messages, Relaxed);
        }
    }

    /// What was committed, of which others are to be told now. Ask after each change.
    #[inline]
    pub fn take_notice(&self) -> CommitNotice {
        // Relaxed, all: hints, and each is taken by somebody who tells of it.
        CommitNotice {
            changes: self.pending_changes.load(Relaxed)
                && self.pending_changes.swap(false, Relaxed),
            messages: match self.pending_messages.load(Relaxed) {
                0 => 0,
                _ => self.pending_messages.swap(0, Relaxed),
            },
            lease: self.log.take_held_long(),
        }
    }

    /// Ends it, and nothing was done.
    pub fn abandon(&self, open: OpenTransaction) {
        self.clear_long_held(&open);
        self.log.abandon(open.pending);
    }

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

    /// Changes a container, in the transaction that is open or in one of its own.
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
            let notified = notifications.notified();
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

    /// Looks at what the transaction that is open has made of the store, or at what is committed.
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
