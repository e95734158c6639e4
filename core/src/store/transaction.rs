//! Transactions: of one operation, or of many that a program begins and ends.

use super::error::StoreError;
use super::format::head;
use super::format::mutator::Hand;
use super::format::value::Place;
use super::format::versions::Watches;
use super::handle::{AT_COMMITTED_ID, AT_LAST_ID, Store};
use super::notices::{News, Seen, Tidings};
use crate::crash;
use crate::shared_heap::redo_log::{Mark, Pending, Writer};
use crate::shared_heap::undo_log::{Look, See};
use crate::shared_heap::{Members, Words};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Looks at a store by an expression that is the same for what the transaction that is open has made of it, and for what is
/// committed: those are of two types. The place is that of the container that is looked at, if it is known by that.
macro_rules! look {
    ($store:expr, $open:expr, $deadline:expr, $place:expr, |$t:ident| $found:expr) => {
        $store.look(
            $open,
            $deadline,
            |$t| $found,
            |$t| {
                $store.check_committed($t, $place)?;
                $found
            },
        )
    };
}

pub(super) use look;

/// A transaction of many operations that a program has begun.
pub struct Open {
    pub(super) pending: Pending,
    pub(super) tidings: Tidings,
    /// Where the parts of it have begun that are under way, and may be undone alone.
    parts: Vec<Part>,
    is_long: bool,
}

/// Where a part of a transaction began.
struct Part {
    number: u64,
    mark: Mark,
    seen: Seen,
}

impl<W: Words, M: Members> Store<W, M> {
    /// Begins a transaction of many operations: it holds the lease until it is ended.
    pub fn begin(&self, deadline: u64) -> Result<Open, StoreError> {
        let mut pending = self.log.begin(deadline)?;
        if pending.is_taken_over() {
            let repaired = self.repair(&mut self.log.writer(&mut pending));
            if let Err(error) = repaired {
                self.log.abandon(pending);
                return self.log.exclusive().settled(Err(error));
            }
        }
        let tidings = Tidings {
            begun: self.readers().map_or(0, |readers| readers.begun()),
            ..Tidings::default()
        };
        Ok(Open {
            pending,
            tidings,
            parts: Vec::new(),
            is_long: false,
        })
    }

    /// Ends what a holder has left that has died: its memory, and the heads of containers that were never committed. Others may
    /// know these, if it has sent them, and their numbers are committed ones once later containers are.
    #[cold]
    pub(in crate::store) fn repair(&self, t: &mut Writer<'_, W, M>) -> Result<(), StoreError> {
        let committed = head::number(t.get(self.start + AT_COMMITTED_ID)?);
        let last = head::number(t.get(self.start + AT_LAST_ID)?);
        if last != committed {
            self.heap.scrub(t, |word| {
                let left = head::number(word).wrapping_sub(committed.wrapping_add(1));
                head::is_id(word) && left < last.wrapping_sub(committed)
            })?;
            crash::point!(LeftContainersGone);
        }
        Ok(self.heap.repair(t)?)
    }

    /// Begins a part of a transaction, which may be undone alone. Returns its number, which is not 0, and which no other part
    /// has had: one that is ended late ends no part of another transaction.
    pub fn begin_part(&self, open: &mut Open) -> u64 {
        static LAST: AtomicU64 = AtomicU64::new(0);
        // Relaxed: each caller gets another one.
        let number = LAST.fetch_add(1, Relaxed) + 1;
        let mark = self.log.mark(&mut open.pending);
        let seen = open.tidings.seen();
        open.parts.push(Part { number, mark, seen });
        number
    }

    /// Ends the part of this number, and those that have begun in it: what it has done stays in the transaction, or is undone.
    /// Does nothing if it has ended before.
    pub fn end_part(&self, open: &mut Open, number: u64, is_kept: bool) {
        let is_meant = |part: &Part| part.number == number;
        let Some(first) = open.parts.iter().position(is_meant) else {
            return;
        };
        while open.parts.len() > first
            && let Some(Part { mark, seen, .. }) = open.parts.pop()
        {
            self.log.end_mark(&mut open.pending, &mark, is_kept);
            if !is_kept {
                open.tidings.go_back(seen);
            }
        }
    }

    /// Begins one that a program goes on with: others can tell it from a single operation, which ends soon.
    pub fn begin_long(&self, deadline: u64) -> Result<Open, StoreError> {
        let open = self.begin(deadline)?;
        crash::point!(TransactionBegun);
        self.log.mark_long(true);
        crash::point!(TransactionMarked);
        Ok(Open {
            is_long: true,
            ..open
        })
    }

    /// Whether the lease is that of a transaction that a program goes on with.
    pub fn is_long(&self) -> bool {
        self.log.is_long()
    }

    pub(in crate::store) fn ends(&self, open: &Open) {
        if open.is_long {
            self.log.mark_long(false);
        }
    }

    /// Makes all that was done everybody's. On an error nothing was done.
    pub fn commit(&self, open: Open) -> Result<(), StoreError> {
        self.ends(&open);
        let Open {
            mut pending,
            tidings,
            ..
        } = open;
        let finished = self.heap.finish(&mut self.log.writer(&mut pending));
        if let Err(error) = finished {
            self.log.abandon(pending);
            return Err(self
                .log
                .exclusive()
                .settled::<(), _>(Err(error))
                .unwrap_err()
                .into());
        }
        self.log.commit(pending)?;
        for (id, found) in &tidings.kept {
            self.held.keep(*id, found.clone());
        }
        self.spread(tidings.news);
        self.tell_readers(&tidings);
        Ok(())
    }

    pub(in crate::store) fn spread(&self, news: News) {
        // Relaxed, both: whoever looks for them does so after this, in this thread, or has done so in its own.
        if news.changes {
            self.changes.store(true, Relaxed);
        }
        if news.messages > 0 {
            self.messages.fetch_add(news.messages, Relaxed);
        }
    }

    /// What was committed, of which others are to be told now. Ask after each change.
    #[inline]
    pub fn take_news(&self) -> News {
        // Relaxed, all: hints, and each is taken by somebody who tells of it.
        News {
            changes: self.changes.load(Relaxed) && self.changes.swap(false, Relaxed),
            messages: match self.messages.load(Relaxed) {
                0 => 0,
                _ => self.messages.swap(0, Relaxed),
            },
            lease: self.log.take_held_long(),
        }
    }

    /// Ends it, and nothing was done.
    pub fn abandon(&self, open: Open) {
        self.ends(&open);
        self.log.abandon(open.pending);
    }

    pub(in crate::store) fn hand<'t, 'w>(
        &'t self,
        t: &'t mut Writer<'w, W, M>,
    ) -> Hand<'t, 'w, W, M> {
        Hand {
            heap: &self.heap,
            t,
            last_id: self.start + AT_LAST_ID,
            committed_id: self.start + AT_COMMITTED_ID,
            held: &self.held,
            kept: Vec::new(),
            pins: self.pins(),
            dooms: self.readers_at.is_some().then_some(&self.dooms),
            bound: self.bound,
        }
    }

    /// Changes a container, in the transaction that is open or in one of its own.
    #[inline]
    pub(in crate::store) fn change<R>(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        operate: impl FnOnce(&mut Hand<'_, '_, W, M>) -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        let watches = self.watches();
        self.operate(open, deadline, |hand, tidings| {
            let frees = hand.frees();
            let done = operate(hand)?;
            if !watches.is_empty(hand.t)? {
                let is_seen = watches.note(hand.t, place.at)? || hand.frees() > frees;
                tidings.news.changes |= is_seen;
            }
            if self.has_watching_readers() {
                Watches::chain(hand.t, place.at, &mut tidings.touched)?;
                tidings.news.changes |= hand.frees() > frees;
            }
            Ok(done)
        })
    }

    pub(in crate::store) fn operate<R>(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        operate: impl FnOnce(&mut Hand<'_, '_, W, M>, &mut Tidings) -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        if let Some(Open {
            pending, tidings, ..
        }) = open
        {
            let seen = tidings.seen();
            let done = self.log.operate(pending, |t| {
                let hand = &mut self.hand(t);
                let done = operate(hand, tidings);
                tidings.kept.append(&mut hand.kept);
                done
            });
            return done.inspect_err(|_| tidings.go_back(seen));
        }
        let mut open = self.begin(deadline)?;
        let t = &mut self.log.writer(&mut open.pending);
        let hand = &mut self.hand(t);
        let done = operate(hand, &mut open.tidings);
        open.tidings.kept.append(&mut hand.kept);
        match done {
            Ok(done) => self.commit(open).map(|()| done),
            Err(error) => {
                self.abandon(open);
                self.log.exclusive().settled(Err(error))
            }
        }
    }

    /// Looks at what the transaction that is open has made of the store, or at what is committed.
    #[inline]
    pub(in crate::store) fn look<R>(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        in_open: impl FnOnce(&Writer<'_, W, M>) -> Result<R, StoreError>,
        committed: impl FnMut(&Look<'_, W>) -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        match open {
            Some(Open { pending, .. }) => {
                self.log.exclusive().check()?;
                let done = in_open(&self.log.writer(pending));
                self.log.exclusive().settled(done)
            }
            None => self.log.read(deadline, committed),
        }
    }
}
