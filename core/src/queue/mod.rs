//! A queue in memory that equals share: many put, many get, in one order for all, and nothing is lost when one dies.
//!
//! Items lie one behind the other in a chain of chunks, which are blocks of the [allocator](crate::shared::allocator).
//! All that changes the chain is a transaction. The bytes of a small item are copied within it, behind the end, where
//! they are nobody's until the end moves; those of a large one into a chunk of its own, before the transaction that links
//! it. So whoever dies while it fills leaves nothing, and holds up nobody.
//!
//! Whoever *takes* items copies them out in the transaction that moves the head. Whoever *claims* one gets its place, and
//! the item stays until the claim ends: dealt with, or back in its place, before all others, by the holder's own word or
//! by its death. A chunk goes once the head has passed it and no claim is in it.
//!
//! What stands in the memory is a claim as everywhere, see [`crate::shared`].

mod chain;
mod claims;
pub mod layout;
mod leftovers;
pub mod parcel;
#[cfg(all(test, not(loom)))]
mod tests;

pub use chain::Chunk;
pub use layout::{Form, Head, MOST_CLAIMS};

use crate::clock;
use crate::crash;
use crate::shared::allocator::{self, Allocator};
use crate::shared::growth::PAGE;
use crate::shared::journal::{Change, See, Transaction};
use crate::shared::{Field, Members, SharedError, Words, lie};
use claims::{BACK, Claims, DEAD_LETTERS, List, State};
use layout::*;
use leftovers::Leftovers;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Items of up to so many bytes, head and all, share chunks, and are copied within a transaction.
pub const SMALL: u64 = 16 << 10;
/// As many bytes are taken at once, unless the first item alone has more.
const TAKEN_AT_ONCE: usize = 256 << 10;
/// Bytes of the chunks that items share: the smallest, while there is little in the queue, and the largest.
const CHUNKS: (u64, u64) = (4 << 10, 64 << 10);
/// A transaction has room for so many claims, or chunks that become free.
const CLAIMS_AT_ONCE: usize = 4;

/// Memory of which bytes can be copied, as well as words.
pub trait Bytes: Words {
    /// Where these bytes lie in our memory, for as long as this lives; None if they are not within it.
    fn bytes(&self, at: u64, len: u64) -> Option<*mut u8>;
}

impl<B: Bytes> Bytes for Arc<B> {
    fn bytes(&self, at: u64, len: u64) -> Option<*mut u8> {
        (**self).bytes(at, len)
    }
}

impl Bytes for crate::memory::mapping::SharedMapping {
    #[inline]
    fn bytes(&self, at: u64, len: u64) -> Option<*mut u8> {
        let end = at.checked_add(len)?;
        (end <= self.size() as u64).then(|| self.address(at as usize, len as usize))
    }
}

/// What a queue may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Items that may wait; 0: any number.
    pub items: u64,
    /// Bytes of the chunks.
    pub memory: u64,
    /// How often an item is delivered before it is a dead letter; 0: any number.
    pub deliveries: u64,
}

/// What became of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The items are in the queue.
    Done,
    /// There is no room for them now.
    Full,
    /// Nothing is put any more.
    Shut,
}

/// What was found to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// So many items were copied.
    Items(usize),
    /// The first item is large: it is to be claimed.
    Large,
    /// There is none.
    Empty,
    /// There is none, and nothing will ever come: nothing is put any more, and nobody has claimed what may come back.
    Shut,
}

/// Where items come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The queue: what has come back, then the chain.
    Queue,
    /// The dead letters.
    DeadLetters,
}

/// An item that this member holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    index: u64,
    source: Source,
    /// Its place in the order in which all items were put.
    pub number: u64,
    /// How often it was delivered, this time among them.
    pub deliveries: u64,
    /// What its payload is.
    pub form: Form,
    /// Where its payload is, in bytes from the beginning of the memory.
    pub at: u64,
    /// The bytes of its payload.
    pub len: u64,
}

/// How a claim ends whose item does not come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its item was dealt with.
    Done,
    /// Its item is this member's, who deals with it.
    Gotten,
}

/// What a look for a claim has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// An item.
    Item(Claim),
    /// There is none.
    Empty,
    /// There is none, and nothing will ever come.
    Shut,
    /// There is one, and no place for another claim.
    Crowded,
}

/// Which writers that sleep are to look again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Room {
    /// None.
    #[default]
    No,
    /// One, which wakes the next if it has put something: there may be room for it too.
    One,
    /// All: memory is free, and it may be enough for any of them.
    All,
}

/// What an operation leaves for others to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Items wait.
    pub items: bool,
    /// For whom there is room that slept for it.
    pub room: Room,
    /// All items are done.
    pub done: bool,
    /// A chunk is free.
    pub freed: bool,
    /// Nothing will ever come.
    pub over: bool,
}

/// What is remembered from one look at the memory to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Items that were ever put.
    put: u64,
    /// Less than a quarter of the memory was in use.
    is_low: bool,
}

/// A claim that is held, as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The member that holds it.
    pub member: u64,
    /// For how long.
    pub age: Duration,
    /// How often its item was delivered.
    pub deliveries: u64,
}

/// An item that waits, as it was when somebody looked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its place in the order in which all items were put.
    pub number: u64,
    /// How often it was delivered, and came back.
    pub deliveries: u64,
    /// The bytes of its payload.
    pub len: u64,
    /// A [`Head`] and the payload, up to the next multiple of 8; nothing if it is large.
    pub copy: Vec<u8>,
}

/// What can be seen of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Items that wait.
    pub depth: u64,
    /// Items that were ever put.
    pub put: u64,
    /// Items that were put and not dealt with.
    pub unfinished: u64,
    /// Dead letters.
    pub dead: u64,
    /// Whether nothing more is put.
    pub shut: bool,
    /// Bytes of memory in use.
    pub used: u64,
    /// Bytes of memory that the queue has.
    pub memory: u64,
    /// Claims that are held.
    pub held: Vec<Holding>,
}

/// A queue, as one process has it.
pub struct Queue<W, M> {
    allocator: Allocator<W, M>,
    leftovers: Leftovers,
    start: u64,
    limits: Limits,
    claims: Claims,
}

/// Bytes of a queue's memory that it needs before there is an item, and of its whole file, if it begins at `start`.
pub fn sizes(start: u64, limits: Limits) -> (u64, u64) {
    let begin = start + SIZE;
    (begin, allocator::file_size(begin, limits.memory))
}

impl<W: Bytes, M: Members> Queue<W, M> {
    /// The queue that begins `start` bytes into `words`, which is all of `file`. All members say the same `limits`.
    ///
    /// # Panics
    /// If it does not begin with a page.
    pub fn new(
        words: W,
        file: Arc<OwnedFd>,
        start: u64,
        limits: Limits,
        members: M,
    ) -> io::Result<Self> {
        assert_eq!(start % PAGE, 0);
        let begin = start + SIZE;
        Ok(Queue {
            allocator: Allocator::new(words, file, begin, limits.memory, members)?,
            leftovers: Leftovers::default(),
            start,
            limits,
            claims: Claims { start },
        })
    }

    /// What it may hold.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Where bytes of a claim or a chunk lie in our memory.
    pub fn bytes(&self, at: u64, len: u64) -> Result<*mut u8, SharedError> {
        let found = self.words().bytes(at, len);
        found.ok_or_else(|| lie(Field::Item, at, len))
    }

    fn words(&self) -> &W {
        self.allocator.journal().words()
    }

    fn me(&self) -> u64 {
        self.allocator.journal().members().me()
    }

    fn get(&self, t: &impl See, at: u64) -> Result<u64, SharedError> {
        t.get(self.start + at)
    }

    fn set(&self, t: &mut impl Change, at: u64, value: u64) -> Result<(), SharedError> {
        t.set(self.start + at, value)
    }

    /// Items that wait in the chain.
    fn chained(&self, t: &impl See) -> Result<u64, SharedError> {
        let (put, taken) = (self.get(t, PUT)?, self.get(t, TAKEN)?);
        put.checked_sub(taken)
            .ok_or_else(|| lie(Field::Queue, self.start + TAKEN, taken))
    }

    fn unfinished(&self, t: &impl See) -> Result<u64, SharedError> {
        let (put, done) = (self.get(t, PUT)?, self.get(t, DONE)?);
        put.checked_sub(done)
            .ok_or_else(|| lie(Field::Queue, self.start + DONE, done))
    }

    fn depth(&self, t: &impl See) -> Result<u64, SharedError> {
        Ok(self.chained(t)?.saturating_add(self.get(t, RETURNED)?))
    }

    // --- putting ---

    /// Puts `count` items, each a [`Head`] and a payload up to the next multiple of 8, and no parcels among them: all of
    /// them, or none.
    pub fn put(&self, items: &[u8], count: u64, deadline: u64) -> Result<Put, SharedError> {
        let len = items.len() as u64;
        if len > SMALL {
            return self.put_aside(len, count, deadline, |to, _| {
                // SAFETY: the chunk has room for them, and is nobody else's.
                unsafe { std::ptr::copy_nonoverlapping(items.as_ptr(), to, items.len()) };
                len
            });
        }
        let (mut spare, mut has_told): (Option<Chunk>, bool) = (None, false);
        loop {
            let put = self.allocator.journal().transact(deadline, |t| {
                if let Some(why) = self.refusal(t, count)? {
                    return Ok(Some(why));
                }
                let Some(at) = self.room_for(t, len, &mut spare)? else {
                    return Ok(None);
                };
                let to = self.bytes(at, len)?;
                // SAFETY: it is within the mapping; nobody reads it before the tail has moved but one who breaks the
                // rules, and then it is bytes.
                unsafe { std::ptr::copy_nonoverlapping(items.as_ptr(), to, items.len()) };
                crash::point!(ItemsWritten);
                self.set(t, TAIL_AT, at + len)?;
                self.count_in(t, count)?;
                Ok(Some(Put::Done))
            });
            let needs_chunk = matches!(put, Ok(None));
            if let Some(unused) = spare.take() {
                self.let_fall(unused, deadline);
            }
            if !needs_chunk {
                crash::point!(ItemsPut);
                return put.map(|put| put.unwrap_or(Put::Full));
            }
            spare = self.next_chunk(len, deadline)?;
            if spare.is_none() && !self.waits_for_memory(&mut has_told, deadline)? {
                return Ok(Put::Full);
            }
        }
    }

    /// A chunk for items to share, with room for `len` bytes; None if there is none.
    fn next_chunk(&self, len: u64, deadline: u64) -> Result<Option<Chunk>, SharedError> {
        let least = (CHUNK_HEAD + len).next_multiple_of(PAGE);
        let wanted = self.chunk_size(deadline)?.max(least);
        match self.chunk(wanted, deadline)? {
            // A small one may fit where a large one does not.
            None if wanted > least => self.chunk(least, deadline),
            found => Ok(found),
        }
    }

    /// No chunk was to be had: tells whoever frees one. False if that was done before; else it is to be tried again,
    /// since one may have become free before we told.
    fn waits_for_memory(&self, has_told: &mut bool, deadline: u64) -> Result<bool, SharedError> {
        if std::mem::replace(has_told, true) {
            return Ok(false);
        }
        self.allocator.journal().transact(deadline, |t| {
            self.free_empty(t)?;
            self.say_full(t, OF_MEMORY)
        })?;
        Ok(true)
    }

    fn say_full(&self, t: &mut impl Change, of: u64) -> Result<(), SharedError> {
        let full = self.get(t, FULL)?;
        if full & of == 0 {
            self.set(t, FULL, full | of)?;
        }
        Ok(())
    }

    /// Puts items of `len` bytes together, with all heads and gaps, which `fill` writes into a chunk of their own. It
    /// gets where they go, in our memory and in the queue's, and says where they end.
    pub fn put_aside(
        &self,
        len: u64,
        count: u64,
        deadline: u64,
        fill: impl FnOnce(*mut u8, u64) -> u64,
    ) -> Result<Put, SharedError> {
        let refusal = self
            .allocator
            .journal()
            .transact(deadline, |t| self.refusal(t, count))?;
        if let Some(why) = refusal {
            return Ok(why);
        }
        let Some(chunk) = self.reserve_or_tell(len, deadline)? else {
            return Ok(Put::Full);
        };
        let used = fill(self.bytes(chunk.items(), len)?, chunk.items());
        let mut chunk = Some(chunk);
        let linked = self.link(&mut chunk, used, count, deadline);
        if let Some(unused) = chunk {
            self.let_fall(unused, deadline);
        }
        linked
    }

    /// A chunk for `len` bytes of items, to be filled; None if there is no room now, of which nobody is told.
    pub fn reserve(&self, len: u64, deadline: u64) -> Result<Option<Chunk>, SharedError> {
        self.chunk(CHUNK_HEAD + len, deadline)
    }

    /// As [`reserve`](Self::reserve); where there is no room, whoever makes some is told that somebody waits for it.
    pub fn reserve_or_tell(&self, len: u64, deadline: u64) -> Result<Option<Chunk>, SharedError> {
        let mut has_told = false;
        loop {
            let chunk = self.reserve(len, deadline)?;
            if chunk.is_some() || !self.waits_for_memory(&mut has_told, deadline)? {
                return Ok(chunk);
            }
        }
    }

    /// Puts the items of a chunk that was reserved: `used` bytes of it. It is there still if they were not put.
    pub fn link(
        &self,
        chunk: &mut Option<Chunk>,
        used: u64,
        count: u64,
        deadline: u64,
    ) -> Result<Put, SharedError> {
        let linked = self.allocator.journal().transact(deadline, |t| {
            if let Some(why) = self.refusal(t, count)? {
                return Ok(why);
            }
            if let Some(chunk) = chunk.take() {
                let at = chunk.items() + used;
                self.append(t, chunk)?;
                self.set(t, TAIL_AT, at)?;
                self.count_in(t, count)?;
            }
            Ok(Put::Done)
        });
        crash::point!(ItemsPut);
        linked
    }

    /// Whether nothing can be put now, whatever room there is in chunks.
    fn refusal(
        &self,
        t: &mut Transaction<'_, W, M>,
        count: u64,
    ) -> Result<Option<Put>, SharedError> {
        if self.get(t, SHUT)? != 0 {
            return Ok(Some(Put::Shut));
        }
        let items = self.limits.items;
        if items != 0 && self.depth(t)?.saturating_add(count) > items {
            self.say_full(t, OF_ITEMS)?;
            return Ok(Some(Put::Full));
        }
        Ok(None)
    }

    fn count_in(&self, t: &mut impl Change, count: u64) -> Result<(), SharedError> {
        let put = self.get(t, PUT)?;
        self.set(t, PUT, put.wrapping_add(count))
    }

    // --- taking ---

    /// Copies up to `most` items behind what is in `out`, each a [`Head`] and a payload up to the next multiple of 8, and
    /// takes them.
    pub fn take(
        &self,
        source: Source,
        most: usize,
        out: &mut Vec<u8>,
        deadline: u64,
    ) -> Result<(Taken, News), SharedError> {
        let before = out.len();
        let taken = self.allocator.journal().transact(deadline, |t| {
            let (mut got, mut freed) = (0, 0);
            let list = list_of(source);
            while got < most.min(CLAIMS_AT_ONCE) {
                let Some(index) = self.claims.first(t, list)? else {
                    break;
                };
                let item = self.item_of(t, index)?;
                if !self.copy(item, out, before)? {
                    return self.taken(t, got, freed, source);
                }
                self.claims.pop(t, list)?;
                freed += u64::from(self.forget(t, index)?);
                got += 1;
            }
            if source == Source::Queue && got < most && freed == 0 {
                let more = self.take_chained(t, most - got, out, before)?;
                (got, freed) = (got + more.0, freed + more.1);
            }
            self.taken(t, got, freed, source)
        });
        crash::point!(ItemsTaken);
        if taken.is_err() {
            out.truncate(before);
        }
        taken
    }

    /// Copies up to `most` items that are the next to be taken, and takes none. Fewer if they are many bytes.
    pub fn peek(&self, most: usize, deadline: u64) -> Result<Vec<Waiting>, SharedError> {
        // Under the lease: the memory of what others take meanwhile may be given back.
        self.allocator.journal().transact(deadline, |t| {
            let (mut found, mut left) = (Vec::new(), TAKEN_AT_ONCE);
            let mut seen = |(at, head): chain::Item, number: u64, deliveries: u64| {
                let mut copy = Vec::new();
                self.copy((at, head), &mut copy, 0)?;
                left = left.saturating_sub(copy.len().max(64));
                let len = head.size();
                found.push(Waiting {
                    number,
                    deliveries,
                    len,
                    copy,
                });
                Ok::<_, SharedError>(found.len() < most && left > 0)
            };
            let mut back = self.claims.first(t, BACK)?;
            let mut is_on = most > 0;
            while is_on && let Some(index) = back {
                let number = t.get(self.claims.at(index) + claims::NUMBER)?;
                let deliveries = self.claims.state(t, index)?.1;
                is_on = seen(self.item_of(t, index)?, number, deliveries)?;
                back = self.claims.following(t, index)?;
            }
            let chained = self.chained(t)?;
            if is_on && chained > 0 {
                let (mut cursor, first) = (self.head(t)?, self.get(t, TAKEN)?);
                for ahead in 0..chained {
                    let item = self.next_item(t, &mut cursor)?;
                    if !seen(item, first.wrapping_add(ahead), 0)? {
                        break;
                    }
                }
            }
            Ok(found)
        })
    }

    /// Takes from the chain: how many items, and how many chunks are free thereby.
    fn take_chained(
        &self,
        t: &mut Transaction<'_, W, M>,
        most: usize,
        out: &mut Vec<u8>,
        before: usize,
    ) -> Result<(usize, u64), SharedError> {
        let chained = self.chained(t)?;
        let most = most.min(usize::try_from(chained).unwrap_or(usize::MAX));
        let (mut got, mut freed) = (0, 0);
        if most == 0 {
            return Ok((0, 0));
        }
        let mut cursor = self.head(t)?;
        while got < most {
            if cursor.is_at_end() {
                // The items of one chunk after those of another: in few steps, for the journal's sake.
                if got > 0 && freed >= 2 {
                    break;
                }
                freed += u64::from(self.pass(t, &mut cursor)?);
                continue;
            }
            let (count, is_all) = self.copy_run(&mut cursor, most - got, out, before)?;
            got += count;
            if !is_all {
                break;
            }
        }
        if got > 0 {
            let taken = self.get(t, TAKEN)?;
            self.set(t, TAKEN, taken.wrapping_add(got as u64))?;
            freed += u64::from(self.move_head(t, cursor, got as u64 == chained)?);
        }
        Ok((got, freed))
    }

    fn taken(
        &self,
        t: &mut Transaction<'_, W, M>,
        got: usize,
        freed: u64,
        source: Source,
    ) -> Result<(Taken, News), SharedError> {
        if got > 0 && source == Source::Queue {
            self.count_gotten(t, got as u64)?;
        }
        let left = match source {
            Source::Queue => self.depth(t)?,
            Source::DeadLetters => self.get(t, DEAD)?,
        };
        let taken = match got {
            0 if left > 0 => Taken::Large,
            0 if source == Source::Queue && self.is_over(t)? => Taken::Shut,
            0 => Taken::Empty,
            got => Taken::Items(got),
        };
        let news = News {
            items: left > 0,
            room: self.has_made_room(t, freed > 0)?,
            freed: freed > 0,
            ..News::default()
        };
        Ok((taken, news))
    }

    /// Whether a writer that sleeps is to look again: there are half as many items as there may be, or a chunk is free.
    /// It says itself that it sleeps on.
    fn has_made_room(&self, t: &mut impl Change, has_freed: bool) -> Result<Room, SharedError> {
        let full = self.get(t, FULL)?;
        if full == 0 {
            return Ok(Room::No);
        }
        let depth = self.depth(t)?;
        let has_items = full & OF_ITEMS != 0 && depth <= self.limits.items / 2;
        let has_memory = full & OF_MEMORY != 0 && (has_freed || depth == 0);
        if !has_items && !has_memory {
            return Ok(Room::No);
        }
        self.set(t, FULL, 0)?;
        let is_for_all = full & OF_MEMORY != 0;
        Ok(if is_for_all { Room::All } else { Room::One })
    }

    /// Memory was freed otherwise than by taking items: those that wait for it are to look again.
    fn has_freed_memory(&self, deadline: u64) {
        if self.hint(FULL) & OF_MEMORY == 0 {
            return;
        }
        // What is wrong, whoever comes next reads too.
        let _ = self.allocator.journal().transact(deadline, |t| {
            let full = self.get(t, FULL)?;
            self.set(t, FULL, full & !OF_MEMORY)
        });
    }

    /// Where it says how many items a member has got.
    fn gotten(&self, slot: u64) -> u64 {
        GOTTEN + 8 * (slot % SLOTS)
    }

    fn slot(&self) -> u64 {
        slot_of(self.me())
    }

    fn count_gotten(&self, t: &mut impl Change, count: u64) -> Result<(), SharedError> {
        let at = self.gotten(self.slot());
        let gotten = self.get(t, at)?;
        self.set(t, at, gotten.wrapping_add(count))
    }

    // --- claims ---

    /// Claims the next item, for as long as it takes, or for `limit` nanoseconds if that is not 0.
    pub fn claim(
        &self,
        source: Source,
        limit: u64,
        deadline: u64,
    ) -> Result<(Claimed, News), SharedError> {
        let now = clock::now();
        let claimed = self.allocator.journal().transact(deadline, |t| {
            let index = match self.claims.pop(t, list_of(source))? {
                Some(index) => index,
                None if source == Source::Queue && self.chained(t)? > 0 => {
                    let Some(index) = self.claims.add(t)? else {
                        return Ok((Claimed::Crowded, News::default()));
                    };
                    self.pin_head(t, index)?;
                    index
                }
                None => {
                    let is_over = source == Source::Queue && self.is_over(t)?;
                    let found = if is_over {
                        Claimed::Shut
                    } else {
                        Claimed::Empty
                    };
                    return Ok((found, News::default()));
                }
            };
            let claim = self.hold(t, index, source, limit, now)?;
            let news = News {
                items: match source {
                    Source::Queue => self.depth(t)? > 0 || limit != 0,
                    Source::DeadLetters => false,
                },
                room: self.has_made_room(t, false)?,
                ..News::default()
            };
            Ok((Claimed::Item(claim), news))
        });
        crash::point!(ItemClaimed);
        claimed
    }

    fn hold(
        &self,
        t: &mut Transaction<'_, W, M>,
        index: u64,
        source: Source,
        limit: u64,
        now: u64,
    ) -> Result<Claim, SharedError> {
        let at = self.claims.at(index);
        let mut deliveries = self.claims.state(t, index)?.1;
        if source == Source::Queue {
            deliveries = deliveries.wrapping_add(1) & (u64::MAX >> 8);
        }
        self.claims
            .set_state(t, index, held_from(source), deliveries)?;
        t.set(at + claims::OWNER, self.me())?;
        t.set(at + claims::SINCE, now)?;
        let ends = if limit == 0 {
            0
        } else {
            now.saturating_add(limit)
        };
        t.set(at + claims::ENDS, ends)?;
        if ends != 0 {
            let expiry = self.get(t, EXPIRY)?;
            if expiry == 0 || ends < expiry {
                self.set(t, EXPIRY, ends)?;
            }
        }
        if source == Source::Queue {
            let held = self.get(t, HELD)?;
            self.set(t, HELD, held.wrapping_add(1))?;
        }
        let (at_item, head) = self.item_of(t, index)?;
        let form = head
            .form()
            .ok_or_else(|| lie(Field::Item, at_item, head.0))?;
        Ok(Claim {
            index,
            source,
            number: t.get(at + claims::NUMBER)?,
            deliveries,
            form,
            at: head.payload(at_item),
            len: head.size(),
        })
    }

    /// Whether this claim is this member's still.
    fn holds(&self, t: &impl See, claim: &Claim, state: State) -> Result<bool, SharedError> {
        let at = self.claims.at(claim.index);
        Ok(t.get(at + claims::OWNER)? == self.me()
            && t.get(at + claims::NUMBER)? == claim.number
            && self.claims.state(t, claim.index)? == (state, claim.deliveries))
    }

    /// Ends a claim whose item was dealt with, or is this member's now, who says so by [`task_done`](Self::task_done). With
    /// `keeps` its memory stays until [`let_go`](Self::let_go). None if the claim has ended before.
    pub fn acknowledge(
        &self,
        claim: &Claim,
        end: End,
        keeps: bool,
        deadline: u64,
    ) -> Result<Option<News>, SharedError> {
        let ended = self.allocator.journal().transact(deadline, |t| {
            if !self.holds(t, claim, held_from(claim.source))? {
                return Ok(None);
            }
            if claim.source == Source::Queue {
                self.count_out(t)?;
            }
            let mut freed = false;
            if keeps {
                let (index, deliveries) = (claim.index, claim.deliveries);
                self.claims.set_state(t, index, State::Over, deliveries)?;
            } else {
                freed = self.forget(t, claim.index)?;
            }
            let done = match (claim.source, end) {
                (Source::DeadLetters, _) => false, // It was done with when it died.
                (Source::Queue, End::Done) => self.finish(t, 1)?,
                (Source::Queue, End::Gotten) => {
                    self.count_gotten(t, 1)?;
                    false
                }
            };
            let room = self.has_made_room(t, freed)?;
            Ok(Some(News {
                items: false,
                room,
                done,
                freed,
                over: self.is_over(t)?,
            }))
        });
        crash::point!(ClaimEnded);
        ended
    }

    /// The memory of an item that was acknowledged is not looked at any more.
    pub fn let_go(&self, claim: &Claim, deadline: u64) -> Result<News, SharedError> {
        self.allocator.journal().transact(deadline, |t| {
            let mut news = News::default();
            if self.holds(t, claim, State::Over)? {
                news.freed = self.forget(t, claim.index)?;
                news.room = self.has_made_room(t, news.freed)?;
            }
            Ok(news)
        })
    }

    /// Ends a claim: its item is the first again, or a dead letter if it was delivered often enough. None if the claim
    /// has ended before.
    pub fn give_back(&self, claim: &Claim, deadline: u64) -> Result<Option<News>, SharedError> {
        let ended = self.allocator.journal().transact(deadline, |t| {
            if !self.holds(t, claim, held_from(claim.source))? {
                return Ok(None);
            }
            self.put_back(t, claim.index).map(Some)
        });
        crash::point!(ClaimEnded);
        ended
    }

    fn put_back(&self, t: &mut Transaction<'_, W, M>, index: u64) -> Result<News, SharedError> {
        let (state, deliveries) = self.claims.state(t, index)?;
        let most = self.limits.deliveries;
        let was_dead = state == State::Examined;
        if !was_dead && self.get(t, SHUT)? == AT_ONCE {
            self.count_out(t)?;
            let freed = self.forget(t, index)?;
            return Ok(News {
                room: self.has_made_room(t, freed)?,
                done: self.finish(t, 1)?,
                freed,
                over: self.is_over(t)?,
                ..News::default()
            });
        }
        let is_dead = was_dead || most != 0 && deliveries >= most;
        let list = if is_dead { DEAD_LETTERS } else { BACK };
        self.claims.insert(t, list, index, deliveries)?;
        if !was_dead {
            self.count_out(t)?;
        }
        Ok(News {
            items: !is_dead,
            done: is_dead && !was_dead && self.finish(t, 1)?,
            over: self.is_over(t)?,
            ..News::default()
        })
    }

    /// Whether nothing will ever come: no item waits, none is claimed that may come back, and none is put any more.
    fn is_over(&self, t: &impl See) -> Result<bool, SharedError> {
        let may_come_back = match self.get(t, SHUT)? {
            0 => return Ok(false),
            AT_ONCE => false,
            _ => self.get(t, HELD)? > 0,
        };
        Ok(!may_come_back && self.depth(t)? == 0)
    }

    fn count_out(&self, t: &mut impl Change) -> Result<(), SharedError> {
        let held = self.get(t, HELD)?;
        self.set(t, HELD, held.saturating_sub(1))
    }

    /// So many items were dealt with: whether that were all.
    fn finish(&self, t: &mut impl Change, count: u64) -> Result<bool, SharedError> {
        let left = self.unfinished(t)?;
        let done = self.get(t, DONE)?;
        self.set(t, DONE, done.wrapping_add(count.min(left)))?;
        Ok(left <= count)
    }

    /// Says of `count` items that this member has got that they were dealt with. None if it has not got so many.
    pub fn task_done(&self, count: u64, deadline: u64) -> Result<Option<News>, SharedError> {
        self.allocator.journal().transact(deadline, |t| {
            let slot = self.gotten(self.slot());
            let gotten = self.get(t, slot)?;
            if gotten < count {
                return Ok(None);
            }
            self.set(t, slot, gotten - count)?;
            Ok(Some(News {
                done: self.finish(t, count)?,
                ..News::default()
            }))
        })
    }

    /// Gives back what is held longer than it was claimed for. When the next claim ends by itself, if one does.
    pub fn expire(&self, deadline: u64) -> Result<(Option<u64>, News), SharedError> {
        let mut news = News::default();
        loop {
            let (next, some, more) = self.allocator.journal().transact(deadline, |t| {
                let expiry = self.get(t, EXPIRY)?;
                let now = clock::now();
                if expiry == 0 || now < expiry {
                    return Ok((expiry, News::default(), false));
                }
                let (mut next, mut some, mut ended) = (0, News::default(), 0);
                for index in 0..self.claims.high(t)? {
                    if self.claims.state(t, index)?.0 != State::Held {
                        continue;
                    }
                    let ends = t.get(self.claims.at(index) + claims::ENDS)?;
                    if ends != 0 && ends <= now && ended < CLAIMS_AT_ONCE {
                        some = some.and(self.put_back(t, index)?);
                        ended += 1;
                    } else if ends != 0 && (next == 0 || ends < next) {
                        next = ends;
                    }
                }
                self.set(t, EXPIRY, next)?;
                Ok((next, some, next != 0 && next <= now))
            })?;
            news = news.and(some);
            if !more {
                return Ok(((next != 0).then_some(next), news));
            }
        }
    }

    /// When the next claim ends by itself: a hint.
    pub fn expiry(&self) -> Option<u64> {
        let found = self.hint(EXPIRY);
        (found != 0).then_some(found)
    }

    // --- all of it ---

    /// Items that are in a queue of which only words can be read, or were claimed.
    pub fn lost_in(word: impl Fn(u64) -> u64) -> u64 {
        let others = word(RETURNED).saturating_add(word(HELD));
        word(PUT).saturating_sub(word(TAKEN)).saturating_add(others)
    }

    /// How many claims a member holds, as of now: a hint.
    pub fn held_by(&self, member: u64) -> usize {
        // Relaxed: a hint.
        let load = |at| {
            let word = self.words().word(at);
            word.map_or(0, |word| word.load(crate::sync::Ordering::Relaxed))
        };
        let holds = |&index: &u64| {
            let at = self.claims.at(index);
            let state = load(at + claims::STATE) & 0xff;
            let is_held = state == State::Held as u64 || state == State::Examined as u64;
            load(at + claims::OWNER) == member && is_held
        };
        let high = load(self.start + HIGH).min(MOST_CLAIMS);
        (0..high).filter(holds).count()
    }

    /// Whether there is no room for so many items, or no memory, and somebody was told so: a hint that is true until whoever
    /// makes room wakes a writer.
    pub fn is_known_full(&self, count: u64) -> bool {
        let full = self.hint(FULL);
        let items = self.limits.items;
        full & OF_MEMORY != 0
            || full & OF_ITEMS != 0 && items != 0 && self.len().saturating_add(count) > items
    }

    /// Lets nothing more be put. With `immediate` what waits is dropped, and what would come back.
    pub fn shut_down(&self, immediate: bool, deadline: u64) -> Result<(), SharedError> {
        let journal = self.allocator.journal();
        journal.transact(deadline, |t| {
            let how = if immediate { AT_ONCE } else { 1 };
            let before = self.get(t, SHUT)?;
            self.set(t, SHUT, before.max(how))
        })?;
        if !immediate {
            return Ok(());
        }
        while let (Claimed::Item(claim), _) = self.claim(Source::Queue, 0, deadline)? {
            let _ = self.acknowledge(&claim, End::Done, false, deadline)?;
        }
        Ok(())
    }

    /// How many items wait, as of now: a hint.
    pub fn len(&self) -> u64 {
        let taken = self.hint(TAKEN);
        self.hint(PUT)
            .saturating_sub(taken)
            .saturating_add(self.hint(RETURNED))
    }

    /// Bytes of memory that its file has.
    pub fn allocated(&self) -> io::Result<u64> {
        self.allocator.allocated()
    }

    /// Whether it is empty, as of now: a hint.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether nothing more is put.
    pub fn is_shut(&self) -> bool {
        self.hint(SHUT) != 0
    }

    /// Whether there is nothing, and nothing will ever come: a hint.
    pub fn may_be_over(&self) -> bool {
        match self.hint(SHUT) {
            0 => false,
            AT_ONCE => true,
            _ => self.hint(HELD) == 0,
        }
    }

    /// A word as it is now.
    fn hint(&self, at: u64) -> u64 {
        // Relaxed: a hint.
        let word = self.words().word(self.start + at);
        word.map_or(0, |word| word.load(crate::sync::Ordering::Relaxed))
    }

    /// Whether all items that were put were dealt with.
    pub fn is_done(&self, deadline: u64) -> Result<bool, SharedError> {
        let journal = self.allocator.journal();
        journal.read(deadline, |t| Ok(self.unfinished(t)? == 0))
    }

    /// What can be seen of it.
    pub fn stats(&self, deadline: u64) -> Result<Stats, SharedError> {
        let usage = self.allocator.usage(deadline)?;
        let now = clock::now();
        self.allocator.journal().read(deadline, |t| {
            let mut held = Vec::new();
            for index in 0..self.claims.high(t)? {
                let at = self.claims.at(index);
                if let Ok((State::Held, deliveries)) = self.claims.state(t, index) {
                    held.push(Holding {
                        member: t.get(at + claims::OWNER)?,
                        age: Duration::from_nanos(now.saturating_sub(t.get(at + claims::SINCE)?)),
                        deliveries,
                    });
                }
            }
            Ok(Stats {
                depth: self.depth(t)?,
                put: self.get(t, PUT)?,
                unfinished: self.unfinished(t)?,
                dead: self.get(t, DEAD)?,
                shut: self.get(t, SHUT)? != 0,
                used: usage.backed - usage.spare.min(usage.backed),
                memory: usage.backed,
                held,
            })
        })
    }

    /// Gives memory back of which there is more than there need be, unless that may be needed again soon: items were put
    /// since the `last` look, and it was not both times much more. What this look has seen; None if nothing is left to do.
    pub fn settle(&self, last: Look, deadline: u64) -> Option<Look> {
        let usage = self.allocator.usage(deadline).ok()?;
        let look = Look {
            put: self.hint(PUT),
            is_low: usage.backed.saturating_sub(usage.spare) < usage.backed / 4,
        };
        if look.put == last.put || look.is_low && last.is_low {
            self.allocator.settle(deadline);
            return None;
        }
        let has_excess = self.allocator.has_excess(deadline).unwrap_or(false);
        has_excess.then_some(look)
    }

    /// Gives back what members of this slot have left who are dead. The one that has it now may be this member.
    pub fn recover(&self, slot: u32, deadline: u64) -> Result<News, SharedError> {
        let (slot, me) = (u64::from(slot), self.me());
        self.give_back_all(
            slot,
            |owner| slot_of(owner) == slot && owner != me,
            deadline,
        )
    }

    /// Lets no other thread of this process change anything any more, and waits until none does.
    pub fn close(&self, deadline: u64) {
        self.allocator.journal().close(deadline);
    }

    /// Gives back all that this member holds, who does nothing any more.
    pub fn abandon(&self, deadline: u64) -> Result<News, SharedError> {
        self.leftovers.clear();
        self.allocator.abandon(deadline)?;
        let me = self.me();
        self.give_back_all(slot_of(me), |owner| owner == me, deadline)
    }

    fn give_back_all(
        &self,
        slot: u64,
        is_gone: impl Fn(u64) -> bool,
        deadline: u64,
    ) -> Result<News, SharedError> {
        let journal = self.allocator.journal();
        let mut news = News::default();
        let mut from = 0;
        loop {
            let step = journal.transact(deadline, |t| {
                for index in from..self.claims.high(t)? {
                    let owner = t.get(self.claims.at(index) + claims::OWNER)?;
                    if owner != 0 && is_gone(owner) {
                        return Ok(Some((index, self.take_from(t, index)?)));
                    }
                }
                Ok(None)
            })?;
            let Some((index, some)) = step else {
                break;
            };
            crash::point!(ClaimRecovered);
            news = news.and(some);
            from = index + 1;
        }
        let done = journal.transact(deadline, |t| {
            let at = self.gotten(slot);
            let gotten = self.get(t, at)?;
            if gotten == 0 {
                return Ok(false);
            }
            self.set(t, at, 0)?;
            self.finish(t, gotten)
        })?;
        self.allocator.recover(is_gone, deadline)?;
        self.has_freed_memory(deadline);
        Ok(news.and(News {
            room: Room::All,
            done,
            freed: true,
            ..News::default()
        }))
    }

    /// Ends a claim whose holder is gone.
    fn take_from(&self, t: &mut Transaction<'_, W, M>, index: u64) -> Result<News, SharedError> {
        match self.claims.state(t, index)?.0 {
            State::Held | State::Examined => self.put_back(t, index),
            State::Over => {
                let freed = self.forget(t, index)?;
                Ok(News {
                    room: self.has_made_room(t, freed)?,
                    ..News::default()
                })
            }
            state => Err(lie(Field::Claim, self.claims.at(index), state as u64)),
        }
    }
}

fn slot_of(member: u64) -> u64 {
    (member & 0xffff_ffff).wrapping_sub(1)
}

fn held_from(source: Source) -> State {
    match source {
        Source::Queue => State::Held,
        Source::DeadLetters => State::Examined,
    }
}

impl News {
    fn and(self, other: News) -> News {
        News {
            items: self.items || other.items,
            room: self.room.max(other.room),
            done: self.done || other.done,
            freed: self.freed || other.freed,
            over: self.over || other.over,
        }
    }
}

fn list_of(source: Source) -> List {
    match source {
        Source::Queue => BACK,
        Source::DeadLetters => DEAD_LETTERS,
    }
}
