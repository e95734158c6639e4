//! A store: values in shared memory, which members change in place.
//!
//! What a program puts in becomes a tree of containers, whose leaves are [`cell`]s and blobs. A container is known by
//! its [`Place`], and gone once it was taken out. All changes are transactions of a [`redo_log`](crate::shared_heap::redo_log), of one
//! operation or of many; readers take no lease.
//!
//! Offsets in bytes, from where it begins, a multiple of the page:
//!
//! ```text
//!      0  last id  u64     the number of the last container that was begun. It is stored at once, and no number comes again:
//!                          a reference to a container of an undone transaction never finds another container
//!      8  root     u64     the cell of the dict that is the store
//!         classes  u64     that of the dict of the classes: the number of a class is that of its entry
//!         inbox    u64     that of the list of messages
//!         owned    3 u64   of a store with an owner: see `owned.rs`
//!         committed id u64 the number of the last container that was committed: those above it are of a transaction that is
//!                          under way, and of others gone
//!     64  pins     see `pins.rs`; its second word says how many numbers were passed over
//!         watches  see `watches.rs`
//!         heap     from the next whole page on: see `shared_heap/heap.rs`
//!         log      the last 16 MiB, of whole pages: see `shared_heap/log.rs`
//! ```
//!
//! # Whom to trust
//!
//! As in [`shared_heap`](crate::shared_heap): what is read may be anything. What cannot be true poisons the store, and no operation
//! looks at more cells than there is room for.

mod blob;
pub mod cell;
pub mod copying;
mod error;
mod head;
pub mod held;
mod list;
pub mod owned;
pub mod pins;
pub mod readers;
pub mod saved;
mod table;
pub mod tree;
pub mod value;
pub mod watches;

#[cfg(test)]
mod tests;

pub use error::StoreError;

use crate::crash;
use crate::shared_heap::backing_file::{BackingFile, PAGE};
use crate::shared_heap::heap::{self, Heap, HeapUsage};
use crate::shared_heap::redo_log::{self, Mark, Pending, RedoLog, Writer};
use crate::shared_heap::undo_log::{Change, Look, See};
use crate::shared_heap::{HeapError, Members, Words};
use cell::{Cell, Content, Type};
use error::no_container;
use head::{Head, Owner};
use held::Held;
use list::Cells;
use pins::Pins;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use table::Table;
use tree::{Bound, Hand, Kept};
use value::{Found, Key, Place, Value};
use watches::Watches;

const AT_LAST_ID: u64 = 0;
const AT_ROOTS: u64 = 8;
const AT_COMMITTED_ID: u64 = 56;
const AT_PINS: u64 = 64;
const AT_PASSED_OVER: u64 = 72;
const AT_WATCHES: u64 = AT_PINS + pins::SIZE;

/// The store that begins `start` bytes into a file: the bytes that it has, and those of them that need memory from the
/// beginning.
pub fn sizes(start: u64, max_memory: u64) -> (u64, u64) {
    let heap = heap_at(start);
    let size = heap::file_size(heap, max_memory) + redo_log::SIZE;
    (size, heap + heap::BOOKS_SIZE)
}

fn heap_at(start: u64) -> u64 {
    (start + AT_WATCHES + watches::SIZE).next_multiple_of(PAGE)
}

/// The containers that a store begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Root {
    /// What a program sees as the store.
    Store = 0,
    /// The classes of records.
    Classes = 1,
    /// The messages.
    Inbox = 2,
}

impl Root {
    const ALL: [Root; 3] = [Root::Store, Root::Classes, Root::Inbox];
}

/// Which item of a container.
#[derive(Debug)]
pub enum Item<'i> {
    /// A field of a record.
    Field(u64),
    /// An item of a list, which may be counted from the end.
    Index(i64),
    /// That of a key, of a dict.
    Key(&'i Key<'i>),
    /// That of a key, of what a record has beyond its fields.
    Extra(&'i Key<'i>),
}

/// What adds to a number.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// An int.
    Int(i64),
    /// A float.
    Float(f64),
}

/// Where the bytes of a buffer lie, how many, and what a program says of them.
pub type Buffer = (u64, u64, Vec<u8>);

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

/// What members may wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// A container was changed that somebody watches, or one has gone.
    pub changes: bool,
    /// This many more messages are there.
    pub messages: u32,
    /// The lease is free, which was held for long.
    pub lease: bool,
}

/// A transaction of many operations that a program has begun.
pub struct Open {
    pending: Pending,
    tidings: Tidings,
    /// Where the parts of it have begun that are under way, and may be undone alone.
    parts: Vec<Part>,
    is_long: bool,
}

/// Of what others are to be told at the end of a transaction, and this process is to know.
#[derive(Default)]
struct Tidings {
    news: News,
    /// The contents of removed containers of which this process has proxies.
    kept: Vec<Kept>,
    /// Of a store with an owner: the containers that it has changed, if readers may watch some; and how many watches readers
    /// had begun before it.
    touched: Vec<u64>,
    begun: u64,
}

/// Where a part of a transaction began.
struct Part {
    number: u64,
    mark: Mark,
    seen: Seen,
}

/// The amount of news at some moment.
#[derive(Clone, Copy)]
struct Seen {
    news: News,
    kept: usize,
    touched: usize,
}

impl Tidings {
    fn seen(&self) -> Seen {
        Seen {
            news: self.news,
            kept: self.kept.len(),
            touched: self.touched.len(),
        }
    }

    /// Forgets what has come since.
    fn go_back(&mut self, seen: Seen) {
        self.news = seen.news;
        self.kept.truncate(seen.kept);
        self.touched.truncate(seen.touched);
    }
}

/// A store, as one process has it.
pub struct Store<W, M> {
    log: RedoLog<W, M>,
    heap: Heap,
    start: u64,
    bound: Bound,
    held: Held,
    /// Of a store with an owner: where its readers say what they look at.
    readers_at: Option<u64>,
    /// Something was taken out of such a store that a reader may look at.
    dooms: AtomicBool,
    /// What was committed, of which nobody was told so far.
    changes: AtomicBool,
    messages: AtomicU32,
}

impl<W: Words, M: Members> Store<W, M> {
    /// The store that begins `start` bytes into `words`, which is all of `file`, of [`sizes`].
    ///
    /// # Panics
    /// If it does not begin with a page.
    pub fn new(
        words: W,
        file: &Arc<OwnedFd>,
        start: u64,
        max_memory: u64,
        members: M,
    ) -> io::Result<Self> {
        let size = words.size() as u64;
        let backing_file = BackingFile::new(file);
        let log_at = size.saturating_sub(redo_log::SIZE) / PAGE * PAGE;
        let heap = Heap::new(file, heap_at(start), log_at, max_memory)?;
        Ok(Store {
            log: RedoLog::new(words, backing_file, log_at, members)?,
            heap,
            start,
            bound: Bound::of(size),
            held: Held::default(),
            readers_at: None,
            dooms: AtomicBool::new(false),
            changes: AtomicBool::new(false),
            messages: AtomicU32::new(0),
        })
    }

    /// Makes what it begins with, unless it is there.
    pub fn found(&self, deadline: u64) -> Result<(), StoreError> {
        // It may be open while somebody else is within a transaction.
        let is_founded = self.log.read(deadline, |t| -> Result<bool, StoreError> {
            for root in Root::ALL {
                if t.get(self.root_at(root))? == 0 {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        if is_founded {
            return Ok(());
        }
        self.operate(None, deadline, |hand, _| {
            for root in Root::ALL {
                let at = self.root_at(root);
                if hand.t.get(at)? == 0 {
                    let kind = match root {
                        Root::Inbox => Type::List,
                        Root::Store | Root::Classes => Type::Dict,
                    };
                    let head = hand.make_head(kind, 0, 0, Owner::NONE)?;
                    hand.t.set(at, Cell::at(kind, head.at).0)?;
                }
            }
            Ok(())
        })
    }

    fn root_at(&self, root: Root) -> u64 {
        self.start + AT_ROOTS + 8 * root as u64
    }

    /// One of the containers that it begins with.
    pub fn root(&self, root: Root, deadline: u64) -> Result<Place, StoreError> {
        self.log.read(deadline, |t| self.place_of(t, root))
    }

    fn place_of(&self, t: &impl See, root: Root) -> Result<Place, StoreError> {
        tree::place_of(t, Cell(t.get(self.root_at(root))?))
    }

    /// The memory.
    pub fn words(&self) -> &W {
        self.log.exclusive().words()
    }

    /// The member that changes it just now; 0 if none does.
    pub fn holder(&self) -> u64 {
        self.log.exclusive().holder()
    }

    /// A number that is another one after each change.
    pub fn sequence(&self) -> u64 {
        self.log.exclusive().sequence()
    }

    /// How much memory it has.
    pub fn usage(&self, deadline: u64) -> Result<HeapUsage, StoreError> {
        self.log.read(deadline, |t| Ok(self.heap.usage(t)?))
    }

    /// Bytes of memory that its file has.
    pub fn allocated(&self) -> io::Result<u64> {
        self.heap.allocated()
    }

    /// Returns the number of containers ever made, also in transactions that were undone.
    pub fn made(&self, deadline: u64) -> Result<u64, StoreError> {
        self.log.read(deadline, |t| {
            let passed_over = t.get(self.start + AT_PASSED_OVER)?;
            Ok(t.get(self.start + AT_LAST_ID)?.wrapping_sub(passed_over))
        })
    }

    /// The containers that this process has proxies of.
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// An error for a container that was not committed so far: others see nothing of it.
    #[inline]
    fn check_committed(&self, t: &Look<'_, W>, place: Option<Place>) -> Result<(), StoreError> {
        let Some(place) = place else {
            return Ok(());
        };
        let committed = t.get(self.start + AT_COMMITTED_ID)?;
        match head::number(place.id) <= head::number(committed) {
            true => Ok(()),
            false => Err(StoreError::Gone),
        }
    }

    /// Skips numbers that another copy of this store may have given out after the two parted, and of which nothing was kept:
    /// other processes may still know the containers of that copy by them. Skips a small part of the numbers that are left,
    /// so copies alone never use them up.
    fn pass_numbers_over(&self, count: u64) {
        let last = self.words().word(self.start + AT_LAST_ID);
        // Relaxed: no other process knows this memory.
        let last = last.map_or(0, |word| word.load(Relaxed));
        let left = head::NUMBERS - head::number(last);
        let count = count % (left >> 12).max(1);
        for at in [AT_LAST_ID, AT_PASSED_OVER] {
            if let Some(word) = self.words().word(self.start + at) {
                // Relaxed: no other process knows this memory.
                word.store(word.load(Relaxed).wrapping_add(count), Relaxed);
            }
        }
    }

    /// Lets no other thread of this process change anything any more: it is to be no member soon.
    pub fn close(&self, deadline: u64) {
        self.log.exclusive().close(deadline);
    }

    // --- transactions ---

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
    fn repair(&self, t: &mut Writer<'_, W, M>) -> Result<(), StoreError> {
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

    fn ends(&self, open: &Open) {
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

    fn spread(&self, news: News) {
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

    fn hand<'t, 'w>(&'t self, t: &'t mut Writer<'w, W, M>) -> Hand<'t, 'w, W, M> {
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

    fn watches(&self) -> Watches {
        Watches(self.start + AT_WATCHES)
    }

    fn pins(&self) -> Pins {
        Pins(self.start + AT_PINS)
    }

    /// Changes a container, in the transaction that is open or in one of its own.
    #[inline]
    fn change<R>(
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

    fn operate<R>(
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
    fn look<R>(
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

    // --- single items ---

    /// Where the cell of an item lies; an error if there is no such item.
    #[inline]
    fn cell_at(&self, t: &impl See, place: Place, item: &Item<'_>) -> Result<u64, StoreError> {
        let head = Head::of(t, place)?;
        match item {
            Item::Field(number) => head.is(Type::Record)?.field(*number),
            Item::Index(index) => list::find(t, head.is(Type::List)?, *index),
            Item::Key(key) => {
                let table = Table::of(t, head.is(Type::Dict)?)?;
                let number = table.find(t, key)?.ok_or(StoreError::NoKey)?;
                Ok(table.entry(number) + 8)
            }
            Item::Extra(key) => {
                let extra = extra_of(t, head.is(Type::Record)?)?.ok_or(StoreError::NoKey)?;
                let table = Table::of(t, extra)?;
                let number = table.find(t, key)?.ok_or(StoreError::NoKey)?;
                Ok(table.entry(number) + 8)
            }
        }
    }

    /// What an item is. A container is not copied.
    #[inline]
    pub fn get(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        item: &Item<'_>,
    ) -> Result<Found, StoreError> {
        look!(self, open, deadline, Some(place), |t| {
            let at = self.cell_at(t, place, item)?;
            tree::copy(t, Cell(t.get(at)?), false, &mut { self.bound })
        })
    }

    /// Returns an item, copied with all that is in it, together with its buffers, as [`remove`](Self::remove) does.
    pub fn get_whole(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        item: &Item<'_>,
    ) -> Result<(Found, Found), StoreError> {
        look!(self, open, deadline, Some(place), |t| {
            let at = self.cell_at(t, place, item)?;
            self.whole(t, Cell(t.get(at)?))
        })
    }

    fn whole(&self, t: &impl See, cell: Cell) -> Result<(Found, Found), StoreError> {
        Ok((
            tree::copy(t, cell, true, &mut { self.bound })?,
            tree::copy(t, cell, true, &mut self.bound.naming_buffers())?,
        ))
    }

    /// Puts a value in the place of an item. A dict, and what a record has beyond its fields, get a new one if there is no
    /// such key. Whether there was one.
    pub fn set(
        &self,
        mut open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        item: &Item<'_>,
        value: &Value<'_>,
    ) -> Result<bool, StoreError> {
        if let (None, Value::Immediate(new)) = (&mut open, value) {
            let begun = self.begun_by_readers();
            let stored: Result<_, StoreError> = self.log.store(deadline, |t| {
                if !self.watches().is_empty(t)? || self.has_watching_readers() {
                    return Ok((None, false));
                }
                let at = match self.cell_at(t, place, item) {
                    Err(StoreError::NoKey) => return Ok((None, false)),
                    at => at?,
                };
                let is_immediate = Cell(t.get(at)?).is_immediate();
                Ok((is_immediate.then_some((at, new.0)), is_immediate))
            });
            if stored? {
                self.tell_of_word(begun);
                return Ok(true);
            }
        }
        self.change(open, deadline, place, |hand| {
            match self.cell_at(hand.t, place, item) {
                Ok(at) => {
                    let old = Cell(hand.t.get(at)?);
                    let owner = match item {
                        Item::Extra(_) => hand.extra(Head::of(hand.t, place)?)?.at,
                        _ => place.at,
                    };
                    let owner = Owner::of(hand.t, owner)?;
                    let new = hand.put(value, owner)?;
                    hand.t.set(at, new.0)?;
                    hand.free_all(old)?;
                    Ok(true)
                }
                Err(StoreError::NoKey) => {
                    let (head, key) = match item {
                        Item::Key(key) => (Head::of(hand.t, place)?, key),
                        Item::Extra(key) => (hand.extra(Head::of(hand.t, place)?)?, key),
                        _ => return Err(StoreError::NoKey),
                    };
                    let table = Table::of(hand.t, head)?;
                    let cell = hand.put_key_cell(key)?;
                    let owner = Owner::of(hand.t, head.at)?;
                    let value = hand.put(value, owner)?;
                    hand.add_entry(table, key, cell, value)?;
                    Ok(false)
                }
                Err(error) => Err(error),
            }
        })
    }

    /// Adds to a number, and returns the sum. [`StoreError::NoNumber`] if one of them does not fit into a cell.
    pub fn add(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        item: &Item<'_>,
        by: Number,
    ) -> Result<Cell, StoreError> {
        let sum = |t: &dyn Fn(u64) -> Result<u64, HeapError>, at| {
            let old = Cell(t(at)?).content();
            let sum = match (old, by) {
                (Some(Content::Int(old)), Number::Int(by)) => {
                    old.checked_add(by).and_then(Cell::int)
                }
                (Some(Content::Float(old)), Number::Float(by)) => Some(Cell::float(old + by)),
                (Some(Content::Float(old)), Number::Int(by)) => Some(Cell::float(old + by as f64)),
                (Some(Content::Int(old)), Number::Float(by)) => Some(Cell::float(old as f64 + by)),
                _ => None,
            };
            sum.ok_or(StoreError::NoNumber)
        };
        if open.is_none() {
            let begun = self.begun_by_readers();
            let stored: Result<_, StoreError> = self.log.store(deadline, |t| {
                if !self.watches().is_empty(t)? || self.has_watching_readers() {
                    return Ok((None, None));
                }
                let at = self.cell_at(t, place, item)?;
                let sum = sum(&|at| t.get(at), at)?;
                Ok((Some((at, sum.0)), Some(sum)))
            });
            if let Some(sum) = stored? {
                self.tell_of_word(begun);
                return Ok(sum);
            }
        }
        self.change(open, deadline, place, |hand| {
            let at = self.cell_at(hand.t, place, item)?;
            let sum = sum(&|at| hand.t.get(at), at)?;
            hand.t.set(at, sum.0)?;
            Ok(sum)
        })
    }

    /// Removes an item, however deep what is in it is nested.
    pub fn delete(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        item: &Item<'_>,
    ) -> Result<(), StoreError> {
        self.change(open, deadline, place, |hand| {
            let old = hand.take_out(place, item)?;
            hand.free_all(old)
        })
    }

    /// Removes an item, and returns what it was, copied with all that was in it, but for buffers: of these, which they were.
    /// [`StoreError::Other`], and nothing is changed, if it is not `wanted`: one that could not make a value of it would lose it.
    pub fn remove(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        item: &Item<'_>,
        wanted: impl Fn(&Found) -> bool,
    ) -> Result<Found, StoreError> {
        self.change(open, deadline, place, |hand| {
            let old = hand.take_out(place, item)?;
            let found = tree::copy(hand.t, old, true, &mut self.bound.naming_buffers())?;
            if !wanted(&found) {
                return Err(StoreError::Other);
            }
            hand.free_all(old)?;
            Ok(found)
        })
    }

    // --- whole containers ---

    /// How many items a container has; of a buffer, how many bytes.
    #[inline]
    pub fn len(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
    ) -> Result<u64, StoreError> {
        fn len(t: &impl See, place: Place) -> Result<u64, StoreError> {
            let head = Head::of(t, place)?;
            match head.kind {
                Type::Buffer => Ok(t.get(head.payload(t)?)?),
                _ => Ok(head.len),
            }
        }
        look!(self, open, deadline, Some(place), |t| len(t, place))
    }

    /// Whether a dict or a set has a key.
    #[inline]
    pub fn contains(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        key: &Key<'_>,
    ) -> Result<bool, StoreError> {
        look!(self, open, deadline, Some(place), |t| {
            let table = Table::of(t, with_keys(t, place)?)?;
            Ok(table.find(t, key)?.is_some())
        })
    }

    /// The keys of a dict or a set, in the order in which they came.
    pub fn keys(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
    ) -> Result<Vec<Found>, StoreError> {
        look!(self, open, deadline, Some(place), |t| tree::copy_keys(
            t,
            with_keys(t, place)?,
            &mut { self.bound }
        ))
    }

    /// The items of a dict, or what a record has beyond its fields. Containers are not copied.
    pub fn items(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
    ) -> Result<Vec<(Found, Found)>, StoreError> {
        fn items(
            t: &impl See,
            place: Place,
            mut bound: Bound,
        ) -> Result<Vec<(Found, Found)>, StoreError> {
            let head = Head::of(t, place)?;
            let head = match head.kind {
                Type::Dict => head,
                Type::Record => match extra_of(t, head)? {
                    Some(extra) => extra,
                    None => return Ok(Vec::new()),
                },
                _ => return Err(StoreError::OtherType),
            };
            tree::copy_dict(t, head, false, &mut bound)
        }
        look!(self, open, deadline, Some(place), |t| items(
            t, place, self.bound
        ))
    }

    /// The items of a list from one index up to another. Containers are not copied.
    pub fn range(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        from: u64,
        to: u64,
    ) -> Result<Vec<Found>, StoreError> {
        fn range(
            t: &impl See,
            place: Place,
            (from, to): (u64, u64),
            mut bound: Bound,
        ) -> Result<Vec<Found>, StoreError> {
            let cells = Cells::of(t, Head::of(t, place)?.is(Type::List)?)?;
            let (from, to) = (from.min(cells.len()), to.min(cells.len()));
            let count = to.saturating_sub(from);
            tree::copy_cells(t, cells.at(from), count, false, &mut bound)
        }
        look!(self, open, deadline, Some(place), |t| range(
            t,
            place,
            (from, to),
            self.bound
        ))
    }

    /// Copies a container with all that is in it, as it was at one moment.
    pub fn copy(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
    ) -> Result<Found, StoreError> {
        self.copy_of(open, deadline, place, u64::MAX)
    }

    /// The same; [`StoreError::TooMuch`] if that is more words than `most`.
    pub fn copy_of(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        most: u64,
    ) -> Result<Found, StoreError> {
        look!(self, open, deadline, Some(place), |t| tree::copy_container(
            t,
            Head::of(t, place)?,
            &mut self.bound.at_most(most)
        ))
    }

    /// Copies a container that is to be put elsewhere: if this process has removed it and has a proxy of it, as it was then.
    pub fn copy_to_put(
        &self,
        mut open: Option<&mut Open>,
        deadline: u64,
        place: Place,
    ) -> Result<Found, StoreError> {
        let copied = self.copy(open.as_deref_mut(), deadline, place);
        let Err(StoreError::Gone) = copied else {
            return copied;
        };
        let kept = open.iter().flat_map(|open| open.tidings.kept.iter().rev());
        let mut kept = kept.filter(|(id, _)| *id == place.id);
        let last = kept.next().map(|(_, found)| found.clone());
        let last = last.or_else(|| self.held.last(place.id));
        last.map_or(copied, |found| Ok(Found::clone(&found)))
    }

    /// Copies all classes, and what a program sees as the store, as both were at one moment.
    pub fn snapshot(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
    ) -> Result<(Found, Found), StoreError> {
        look!(self, open, deadline, None, |t| {
            let copy = |root| {
                let cell = Cell(t.get(self.root_at(root))?);
                tree::copy(t, cell, true, &mut { self.bound })
            };
            Ok((copy(Root::Classes)?, copy(Root::Store)?))
        })
    }

    /// Puts these items in the place of all that a dict has.
    pub fn refill(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        items: &[(Key<'_>, Value<'_>)],
    ) -> Result<(), StoreError> {
        self.change(open, deadline, place, |hand| {
            let head = Head::of(hand.t, place)?.is(Type::Dict)?;
            hand.empty(head)?;
            hand.t.set(head.payload_at(), 0)?;
            let (at, form) = Head { len: 0, ..head }.form();
            hand.t.set(at, form)?;
            let owner = Owner::of(hand.t, head.at)?;
            for (key, value) in items {
                let cell = hand.put_key_cell(key)?;
                let value = hand.put(value, owner)?;
                let head = Head::of(hand.t, place)?;
                let table = Table::of(hand.t, head)?;
                if table.find(hand.t, key)?.is_some() {
                    return Err(StoreError::OtherType);
                }
                hand.add_entry(table, key, cell, value)?;
            }
            Ok(())
        })
    }

    /// Puts values in the place of those from one index of a list up to another.
    pub fn splice(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        from: u64,
        to: u64,
        values: &[Value<'_>],
    ) -> Result<(), StoreError> {
        self.change(open, deadline, place, |hand| {
            let head = Head::of(hand.t, place)?.is(Type::List)?;
            let (from, to) = (from.min(head.len), to.min(head.len));
            let owner = Owner::of(hand.t, head.at)?;
            let new: Result<Vec<_>, _> =
                values.iter().map(|value| hand.put(value, owner)).collect();
            let old = hand.splice(head, from, to.max(from), &new?)?;
            hand.free_each(old, hand.bound)
        })
    }

    /// Puts the items of a list into another order: which one becomes the first, and so on. False if they are others by
    /// now.
    pub fn permute(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        order: &[u32],
    ) -> Result<bool, StoreError> {
        self.change(open, deadline, place, |hand| {
            let head = Head::of(hand.t, place)?.is(Type::List)?;
            hand.permute(head, order)
        })
    }

    /// Adds a key to a set. Whether it was not there.
    pub fn insert(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        key: &Key<'_>,
    ) -> Result<bool, StoreError> {
        self.change(open, deadline, place, |hand| {
            let table = Table::of(hand.t, Head::of(hand.t, place)?.is(Type::Set)?)?;
            if table.find(hand.t, key)?.is_some() {
                return Ok(false);
            }
            let cell = hand.put_key_cell(key)?;
            hand.add_entry(table, key, cell, Cell::NOTHING)?;
            Ok(true)
        })
    }

    /// Removes a key from a set. Whether it was there.
    pub fn discard(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
        key: &Key<'_>,
    ) -> Result<bool, StoreError> {
        self.change(open, deadline, place, |hand| {
            let table = Table::of(hand.t, Head::of(hand.t, place)?.is(Type::Set)?)?;
            match hand.remove_entry(&table, key)? {
                Some((cell, _)) => hand.free_all(cell).map(|()| true),
                None => Ok(false),
            }
        })
    }

    /// Takes all out of a container.
    pub fn clear(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        place: Place,
    ) -> Result<(), StoreError> {
        self.change(open, deadline, place, |hand| {
            let head = Head::of(hand.t, place)?;
            if !matches!(head.kind, Type::List | Type::Dict | Type::Set) {
                return Err(StoreError::OtherType);
            }
            hand.empty(head)?;
            hand.t.set(head.payload_at(), 0)?;
            let (at, form) = Head { len: 0, ..head }.form();
            Ok(hand.t.set(at, form)?)
        })
    }

    // --- buffers ---

    /// Where the bytes of a buffer lie, how many, and what a program says of them; for this process to look at until
    /// [`unpin`](Self::unpin).
    pub fn pin(&self, deadline: u64, place: Place) -> Result<Buffer, StoreError> {
        if self.is_reading() {
            return self.pin_as_reader(deadline, place);
        }
        let pinned = self.operate(None, deadline, |hand, _| {
            let found = self.buffer(hand.t, place)?;
            match self.pins().add(hand.t, found.0)? {
                true => Ok(found),
                false => Err(StoreError::TooLong),
            }
        });
        crash::point!(BufferPinned);
        pinned
    }

    fn buffer(&self, t: &impl See, place: Place) -> Result<Buffer, StoreError> {
        let head = Head::of(t, place)?.is(Type::Buffer)?;
        let block = head.payload(t)?;
        let len = t.get(block)?;
        let mut meta = Vec::new();
        blob::bytes(t, Type::Bytes, t.get(block + 8)?, &mut meta)?;
        let end = block.checked_add(64).and_then(|at| at.checked_add(len));
        match end.is_some_and(|end| end <= self.words().size() as u64) {
            true => Ok((block, len, meta)),
            false => Err(no_container(block, len)),
        }
    }

    /// Ends what [`pin`](Self::pin) began, for a block.
    pub fn unpin(&self, deadline: u64, block: u64) -> Result<(), StoreError> {
        if self.unpin_as_reader(block) {
            return Ok(());
        }
        let unpinned = self.operate(None, deadline, |hand, _| {
            let (me, ended) = (hand.t.me(), std::cell::Cell::new(false));
            let is_it = |member, at| member == me && at == block && !ended.replace(true);
            let orphans = self.pins().remove(hand.t, is_it)?;
            self.free_orphans(hand, orphans)
        });
        crash::point!(BufferUnpinned);
        unpinned
    }

    /// Ends what members who are gone looked at.
    pub fn recover(&self, is_gone: impl Fn(u64) -> bool, deadline: u64) -> Result<(), StoreError> {
        self.forget_readers(&is_gone);
        match self.is_reading() {
            true => Ok(()),
            false => self.recover_contents(&is_gone, deadline),
        }
    }

    fn recover_contents(
        &self,
        is_gone: &dyn Fn(u64) -> bool,
        deadline: u64,
    ) -> Result<(), StoreError> {
        self.operate(None, deadline, |hand, _| {
            let orphans = self.pins().remove(hand.t, |member, _| is_gone(member))?;
            self.free_orphans(hand, orphans)?;
            self.watches().remove(hand.t, |member, _| is_gone(member))
        })
    }

    // --- waiting ---

    /// Begins to watch a container, for this process: the number of the watch, to be ended by [`unwatch`](Self::unwatch).
    pub fn watch(&self, deadline: u64, place: Place) -> Result<u64, StoreError> {
        if self.is_reading() {
            return self.watch_as_reader(deadline, place);
        }
        let watch = self.operate(None, deadline, |hand, _| {
            Head::of(hand.t, place)?;
            let number = self.watches().add(hand.t, place.id)?;
            number.ok_or(StoreError::TooLong)
        });
        crash::point!(WatchBegun);
        watch
    }

    /// Whether the container was changed since, or is gone.
    pub fn has_changed(&self, deadline: u64, place: Place, watch: u64) -> Result<bool, StoreError> {
        self.log.read(deadline, |t| {
            let is_gone = t.get(place.at)? != place.id;
            Ok(is_gone
                || match self.readers_of(watch) {
                    Some((readers, number)) => readers.has_changed(number),
                    None => self.watches().has_changed(t, watch)?,
                })
        })
    }

    /// Ends a watch.
    pub fn unwatch(&self, deadline: u64, watch: u64) -> Result<(), StoreError> {
        if let Some((readers, number)) = self.readers_of(watch) {
            readers.unwatch(self.me(), number);
            return Ok(());
        }
        let ended = self.operate(None, deadline, |hand, _| {
            let me = hand.t.me();
            self.watches()
                .remove(hand.t, |member, number| member == me && number == watch)
        });
        crash::point!(WatchEnded);
        ended
    }

    // --- messages ---

    /// Puts a message behind the others, or before them: one that was taken is given back.
    pub fn send(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        value: &Value<'_>,
        is_back: bool,
    ) -> Result<(), StoreError> {
        self.operate(open, deadline, |hand, tidings| {
            let head = self.inbox(hand.t)?;
            let owner = Owner::of(hand.t, head.at)?;
            let cell = hand.put(value, owner)?;
            let index = if is_back { 0 } else { head.len };
            hand.splice(head, index, index, &[cell])?;
            tidings.news.messages += 1;
            Ok(())
        })
    }

    /// Takes the first message, copied as [`remove`](Self::remove) does, if it is `wanted`; None if there is none.
    pub fn receive(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        wanted: impl Fn(&Found) -> bool,
    ) -> Result<Option<Found>, StoreError> {
        let received = self.operate(open, deadline, |hand, _| {
            let head = self.inbox(hand.t)?;
            if head.len == 0 {
                return Ok(None);
            }
            let cell = Cells::of(hand.t, head)?.cell(hand.t, 0)?;
            let found = tree::copy(hand.t, cell, true, &mut self.bound.naming_buffers())?;
            if !wanted(&found) {
                return Err(StoreError::Other);
            }
            hand.splice(head, 0, 1, &[])?;
            hand.free_all(cell)?;
            Ok(Some(found))
        });
        crash::point!(MessageTaken);
        received
    }

    /// The first message, copied as [`get_whole`](Self::get_whole) does; it stays. None if there is none.
    pub fn first_message(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
    ) -> Result<Option<(Found, Found)>, StoreError> {
        look!(self, open, deadline, None, |t| self.peek(t))
    }

    fn peek(&self, t: &impl See) -> Result<Option<(Found, Found)>, StoreError> {
        let head = self.inbox(t)?;
        if head.len == 0 {
            return Ok(None);
        }
        let cell = Cells::of(t, head)?.cell(t, 0)?;
        self.whole(t, cell).map(Some)
    }

    /// Whether there are messages.
    pub fn has_messages(&self, deadline: u64) -> Result<bool, StoreError> {
        self.log.read(deadline, |t| Ok(self.inbox(t)?.len > 0))
    }

    fn inbox(&self, t: &impl See) -> Result<Head, StoreError> {
        let head = Head::of(t, self.place_of(t, Root::Inbox)?)?;
        match head.kind {
            Type::List => Ok(head),
            // It is the store's own: no program has said so.
            _ => Err(no_container(head.form().0, head.form().1)),
        }
    }

    // --- classes ---

    /// The number of a class by its name; if there is none, it is made, and this is said of it.
    pub fn class(
        &self,
        open: Option<&mut Open>,
        deadline: u64,
        name: &Key<'_>,
        said: &Value<'_>,
    ) -> Result<u32, StoreError> {
        self.operate(open, deadline, |hand, _| {
            let head = Head::of(hand.t, self.place_of(hand.t, Root::Classes)?)?;
            let table = Table::of(hand.t, head)?;
            if let Some(number) = table.find(hand.t, name)? {
                return Ok(number as u32);
            }
            if table.used >= u64::from(head::CLASSES) {
                return Err(StoreError::TooLong);
            }
            let cell = hand.put_key_cell(name)?;
            let owner = Owner::of(hand.t, head.at)?;
            let value = hand.put(said, owner)?;
            hand.add_entry(table, name, cell, value)?;
            Ok(table.used as u32)
        })
    }

    /// Returns true if the class of this number is committed: other processes know it.
    pub fn has_class(&self, deadline: u64, number: u32) -> Result<bool, StoreError> {
        self.log.read(deadline, |t| {
            let head = Head::of(t, self.place_of(t, Root::Classes)?)?;
            Ok(u64::from(number) < Table::of(t, head)?.used)
        })
    }

    /// All classes, copied, in the order of their numbers.
    pub fn classes(&self, open: Option<&mut Open>, deadline: u64) -> Result<Found, StoreError> {
        look!(self, open, deadline, None, |t| {
            let cell = Cell(t.get(self.root_at(Root::Classes))?);
            tree::copy(t, cell, true, &mut { self.bound })
        })
    }
}

/// The head of a dict or a set.
fn with_keys(t: &impl See, place: Place) -> Result<Head, StoreError> {
    match Head::of(t, place)? {
        head if matches!(head.kind, Type::Dict | Type::Set) => Ok(head),
        _ => Err(StoreError::OtherType),
    }
}

/// The dict of what a record has beyond its fields, if there is one.
fn extra_of(t: &impl See, head: Head) -> Result<Option<Head>, StoreError> {
    let cell = head.extra(t)?;
    match cell.content() {
        Some(Content::Nothing) => Ok(None),
        Some(Content::At(Type::Dict, at)) => match Head::at(t, at)? {
            extra if extra.kind == Type::Dict => Ok(Some(extra)),
            _ => Err(no_container(at, cell.0)),
        },
        _ => Err(no_container(head.at, cell.0)),
    }
}

impl<W: Words, M: Members> Hand<'_, '_, W, M> {
    /// Takes an item out of its container: its cell, which is still to be freed.
    fn take_out(&mut self, place: Place, item: &Item<'_>) -> Result<Cell, StoreError> {
        let head = Head::of(self.t, place)?;
        match item {
            Item::Field(_) => Err(StoreError::OtherType),
            Item::Index(index) => {
                let head = head.is(Type::List)?;
                let at = list::find(self.t, head, *index)?;
                let first = Cells::of(self.t, head)?.at(0);
                let index = (at - first) / 8;
                Ok(self.splice(head, index, index + 1, &[])?[0])
            }
            Item::Key(key) | Item::Extra(key) => {
                let head = match item {
                    Item::Key(_) => head.is(Type::Dict)?,
                    _ => extra_of(self.t, head.is(Type::Record)?)?.ok_or(StoreError::NoKey)?,
                };
                let table = Table::of(self.t, head)?;
                let (key, old) = self.remove_entry(&table, key)?.ok_or(StoreError::NoKey)?;
                self.free_all(key)?;
                Ok(old)
            }
        }
    }

    /// The same, made if there is none.
    fn extra(&mut self, head: Head) -> Result<Head, StoreError> {
        let head = head.is(Type::Record)?;
        if let Some(extra) = extra_of(self.t, head)? {
            return Ok(extra);
        }
        let owner = Owner::of(self.t, head.at)?;
        let extra = self.make_head(Type::Dict, 0, 0, owner)?;
        self.t
            .set(head.payload_at(), Cell::at(Type::Dict, extra.at).0)?;
        Ok(extra)
    }
}
