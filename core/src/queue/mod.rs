//! A queue in shared memory: many processes put items, many get them, in one order, and the death of a process loses no
//! item.
//!
//! Items lie one behind the other in a list of chunks, which are blocks of the
//! [allocator](crate::shared_heap::allocator). Every change of the list is a transaction. The bytes of a small item are
//! copied within the transaction, behind the end of the list, where no process reads them before the end moves. A large
//! item is copied into a chunk of its own before the transaction that links the chunk. So a process that dies while it
//! copies leaves nothing behind and blocks no other process.
//!
//! A *pop* copies items out in the transaction that moves the head. A *claim* gets the position of an item, and the
//! item stays until the claim ends: it was processed, or it returns to the front of the queue because its holder gives
//! it back or dies. A chunk is freed once the head has passed it and no claim pins it.
//!
//! Every word in the memory is an untrusted value: see [`crate::shared_heap`].

mod backpressure;
mod chunk;
mod chunk_list;
mod claim;
mod claim_table;
mod claiming;
mod completion;
mod deferred;
pub mod layout;
mod outcome;
pub mod parcel;
mod popping;
mod putting;
mod recovery;
mod release;
mod shutdown;
mod stats;
#[cfg(all(test, not(loom)))]
mod tests;

pub use chunk::Chunk;
pub use claim::{Claim, ClaimEnd, Source};
pub use layout::{Form, Head, MAX_CLAIMS};
pub use outcome::{ClaimOutcome, PopOutcome, PutOutcome, Wakeups, WritersToWake};
pub use stats::{HeldClaim, QueueStats, TrimState, WaitingItem};

use crate::clock;
use crate::shared_heap::access::{ReadWords, WriteWords};
use crate::shared_heap::allocator::{self, Allocator};
use crate::shared_heap::backing_file::PAGE;
use crate::shared_heap::{Field, HeapError, Members, Words, corrupt};
use claim_table::{ClaimState, ClaimTable};
use deferred::Deferred;
use layout::*;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Items of up to this many bytes, head included, share chunks and are copied within a transaction.
pub const SMALL: u64 = 16 << 10;
/// Maximum number of bytes that one pop copies, unless the first item alone has more.
const MAX_POP_BYTES: usize = 256 << 10;
/// Bytes of a chunk that items share: the smallest, for a queue with few items, and the largest.
const CHUNK_SIZES: (u64, u64) = (4 << 10, 64 << 10);
/// Number of claims, or of chunks to free, for which a transaction has room.
const MAX_CLAIMS_PER_TRANSACTION: usize = 4;

/// Memory whose bytes can be copied, as well as its words.
pub trait ByteMemory: Words {
    /// Return the address of the `len` bytes from `at` on, valid as long as `self`; None if they are not within the
    /// memory. Other processes may write them at any time.
    fn bytes(&self, at: u64, len: u64) -> Option<*mut u8>;
}

impl<B: ByteMemory> ByteMemory for Arc<B> {
    fn bytes(&self, at: u64, len: u64) -> Option<*mut u8> {
        (**self).bytes(at, len)
    }
}

impl ByteMemory for crate::memory::mapping::SharedMapping {
    #[inline]
    fn bytes(&self, at: u64, len: u64) -> Option<*mut u8> {
        let end = at.checked_add(len)?;
        (end <= self.size() as u64).then(|| self.address(at as usize, len as usize))
    }
}

/// The limits of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Number of items that may wait; 0: no limit.
    pub items: u64,
    /// Bytes of the chunks.
    pub memory: u64,
    /// Number of deliveries of an item before it becomes a dead letter; 0: no limit.
    pub deliveries: u64,
}

/// A queue, as one process has it open. Its methods may be called by several threads.
///
/// A `deadline`, in nanoseconds of CLOCK_MONOTONIC, bounds the wait for the owner lock, and then the method fails with
/// [`HeapError::Busy`]; no method waits for items or for room. Each of them fails with [`HeapError::Poisoned`] if the
/// memory is corrupt, and with [`HeapError::Detached`] in a forked child and after this member has left. A method that
/// gives a hint takes no lock, never fails, and may be wrong a moment later.
pub struct Queue<W, M> {
    allocator: Allocator<W, M>,
    deferred: Deferred,
    start: u64,
    limits: Limits,
    claims: ClaimTable,
}

/// Return the number of bytes, from the beginning of its file on, that an empty queue at `start` needs, and the size of
/// the whole file.
pub fn sizes(start: u64, limits: Limits) -> (u64, u64) {
    let begin = start + SIZE;
    (begin, allocator::file_size(begin, limits.memory))
}

impl<W: ByteMemory, M: Members> Queue<W, M> {
    /// Open the queue that begins `start` bytes into `words`, which maps all of `file`; zeros are a valid, empty queue.
    /// All members give the same `limits`. The caller keeps `file` open. Fails if the system has no memory for the
    /// metadata, or no page to identify this process by.
    ///
    /// # Panics
    /// If `start` is not a multiple of the page.
    pub fn new(
        words: W,
        file: &Arc<OwnedFd>,
        start: u64,
        limits: Limits,
        members: M,
    ) -> io::Result<Self> {
        assert_eq!(start % PAGE, 0);
        let begin = start + SIZE;
        Ok(Queue {
            allocator: Allocator::new(words, file, begin, limits.memory, members)?,
            deferred: Deferred::default(),
            start,
            limits,
            claims: ClaimTable { start },
        })
    }

    /// Return the limits of the queue.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Return the address of `len` bytes from the offset `at` on, of a claim or a chunk that this member has, or a
    /// corruption if they are not within the memory.
    pub fn bytes(&self, at: u64, len: u64) -> Result<*mut u8, HeapError> {
        let found = self.words().bytes(at, len);
        found.ok_or_else(|| corrupt(Field::Item, at, len))
    }

    /// Return the memory.
    fn words(&self) -> &W {
        self.allocator.undo_log().words()
    }

    /// Return the number of this member; 0 after it has left.
    fn self_id(&self) -> u64 {
        self.allocator.undo_log().members().self_id()
    }

    /// Read the word at the offset `at` from the beginning of the queue, an untrusted value.
    fn get(&self, t: &impl ReadWords, at: u64) -> Result<u64, HeapError> {
        t.get(self.start + at)
    }

    /// Store the word at the offset `at` from the beginning of the queue.
    fn set(&self, t: &mut impl WriteWords, at: u64, value: u64) -> Result<(), HeapError> {
        t.set(self.start + at, value)
    }

    /// Return the number of items in the list of chunks, without returned ones. Fails with a corruption if it is
    /// negative.
    fn items_in_list(&self, t: &impl ReadWords) -> Result<u64, HeapError> {
        let (put, taken) = (self.get(t, PUT)?, self.get(t, TAKEN)?);
        put.checked_sub(taken)
            .ok_or_else(|| corrupt(Field::Queue, self.start + TAKEN, taken))
    }

    /// Return the number of items that were put and not processed. Fails with a corruption if it is negative.
    fn unfinished(&self, t: &impl ReadWords) -> Result<u64, HeapError> {
        let (put, done) = (self.get(t, PUT)?, self.get(t, DONE)?);
        put.checked_sub(done)
            .ok_or_else(|| corrupt(Field::Queue, self.start + DONE, done))
    }

    /// Return the number of items that wait, returned ones included.
    fn depth(&self, t: &impl ReadWords) -> Result<u64, HeapError> {
        Ok(self
            .items_in_list(t)?
            .saturating_add(self.get(t, RETURNED)?))
    }

    /// Return the number of items that wait. A hint.
    pub fn len(&self) -> u64 {
        let taken = self.hint(TAKEN);
        self.hint(PUT)
            .saturating_sub(taken)
            .saturating_add(self.hint(RETURNED))
    }

    /// Return true if no items wait. A hint.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Return the current value of the word at the offset `at` from the beginning of the queue, without a lock.
    fn hint(&self, at: u64) -> u64 {
        // Relaxed: a hint.
        let word = self.words().word(self.start + at);
        word.map_or(0, |word| word.load(crate::sync::Ordering::Relaxed))
    }

    /// Return the number of waiting and claimed items of a queue that need not be open: `word` returns its word at an
    /// offset from its beginning. A hint.
    pub fn count_items_in(word: impl Fn(u64) -> u64) -> u64 {
        let others = word(RETURNED).saturating_add(word(HELD));
        word(PUT).saturating_sub(word(TAKEN)).saturating_add(others)
    }

    /// Return the number of claims that a member holds, of dead letters too, without acknowledged ones. A hint.
    pub fn claims_held_by(&self, member: u64) -> usize {
        // Relaxed: a hint.
        let load = |at| {
            let word = self.words().word(at);
            word.map_or(0, |word| word.load(crate::sync::Ordering::Relaxed))
        };
        let holds = |&index: &u64| {
            let at = self.claims.at(index);
            let state = load(at + claim_table::STATE) & 0xff;
            let is_held =
                state == ClaimState::Active as u64 || state == ClaimState::Examined as u64;
            load(at + claim_table::OWNER) == member && is_held
        };
        let high = load(self.start + HIGH).min(MAX_CLAIMS);
        (0..high).filter(holds).count()
    }

    /// Return the bytes of memory that the file has, as the kernel counts them. Fails with EBADF once the file is
    /// closed.
    pub fn allocated(&self) -> io::Result<u64> {
        self.allocator.allocated()
    }

    /// Return a snapshot of the queue. Claims of dead letters are not among the held ones.
    pub fn stats(&self, deadline: u64) -> Result<QueueStats, HeapError> {
        let usage = self.allocator.usage(deadline)?;
        let now = clock::now();
        self.allocator.undo_log().read(deadline, |t| {
            let (mut held, mut viewed) = (Vec::new(), 0);
            for index in 0..self.claims.high(t)? {
                let at = self.claims.at(index);
                match self.claims.state(t, index) {
                    Ok((ClaimState::Active, deliveries)) => held.push(HeldClaim {
                        member: t.get(at + claim_table::OWNER)?,
                        age: Duration::from_nanos(
                            now.saturating_sub(t.get(at + claim_table::SINCE)?),
                        ),
                        deliveries,
                    }),
                    Ok((ClaimState::Acknowledged, _)) => viewed += 1,
                    _ => {}
                }
            }
            Ok(QueueStats {
                depth: self.depth(t)?,
                put: self.get(t, PUT)?,
                unfinished: self.unfinished(t)?,
                dead: self.get(t, DEAD)?,
                shut: self.get(t, SHUT)? != 0,
                used: usage.backed - usage.spare.min(usage.backed),
                memory: usage.backed,
                held,
                viewed,
            })
        })
    }
}

/// Return the slot in the number of a member: its low half minus one.
fn slot_of(member: u64) -> u64 {
    (member & 0xffff_ffff).wrapping_sub(1)
}
