//! The member table of an object: identity and liveness of its members. The table lies in the object's memory; the
//! kernel tells which members are alive.
//!
//! ```text
//!      0  entry     u64   generation in the high half; bit 0: it is in use, bit 1: it watches the others
//!      8  since     u64   when it joined, in nanoseconds of CLOCK_REALTIME
//! ```
//!
//! The holder of a slot's lock in the lock file changes the slot's entry: the member itself, or, once the member is
//! dead, the process that takes the lock to recover the slot.

use super::holder::Holder;
use crate::shared_heap::{self, Corruption, Field, Words};
use crate::sync::{AtomicU64, Ordering, fence};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

/// The maximum number of members of an object.
pub const SLOTS: u32 = 256;
/// Bytes of an entry.
pub const MEMBER_SIZE: usize = 32;

const USED: u64 = 1;
const WATCHES: u64 = 2;
const GENERATION: u64 = 0xffff_ffff_0000_0000;

/// The identity of a member in shared words: its generation in the high half, its slot plus one in the low half. 0
/// means no member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberId(pub u64);

impl MemberId {
    /// Combines a generation below 2^32 and a slot into an identity.
    fn new(generation: u64, slot: u32) -> Self {
        MemberId(generation << 32 | u64::from(slot + 1))
    }

    /// Returns the slot, or None for an id that no member can have.
    pub fn slot(self) -> Option<u32> {
        (self.0 as u32).checked_sub(1).filter(|&slot| slot < SLOTS)
    }
}

/// The locks that prove that members are alive: the kernel releases a process's locks when the process dies.
pub trait MemberLocks {
    /// Takes the lock of a slot, without waiting. Returns false if another process holds it; true also if this process
    /// had it already.
    fn try_lock_slot(&self, slot: u32) -> io::Result<bool>;
    /// Releases the lock of a slot.
    fn unlock_slot(&self, slot: u32) -> io::Result<()>;
    /// Returns the other process that holds the lock of a slot; None if the lock is free or if this process holds it.
    fn slot_holder(&self, slot: u32) -> io::Result<Option<Holder>>;
}

impl<L: MemberLocks> MemberLocks for Arc<L> {
    fn try_lock_slot(&self, slot: u32) -> io::Result<bool> {
        (**self).try_lock_slot(slot)
    }
    fn unlock_slot(&self, slot: u32) -> io::Result<()> {
        (**self).unlock_slot(slot)
    }
    fn slot_holder(&self, slot: u32) -> io::Result<Option<Holder>> {
        (**self).slot_holder(slot)
    }
}

/// A member as others see it.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its identity in shared words.
    pub id: MemberId,
    /// Its process, as the kernel reports it; None for a dead member, and for this process.
    pub holder: Option<Holder>,
    /// When it joined, in nanoseconds of CLOCK_REALTIME.
    pub since: u64,
}

/// The members of an object, as one of them sees the table.
pub struct Members<W, L> {
    words: W,
    /// Where the entries begin, in bytes from the beginning of the memory.
    start: usize,
    locks: L,
    slot: u32,
    self_id: MemberId,
    /// True once this member watches the others.
    watches: AtomicBool,
    /// True once this process is no member for the contents.
    is_detached: AtomicBool,
}

impl<W: Words, L: MemberLocks> Members<W, L> {
    /// Takes a slot of the table that begins at byte `start`, preferably a slot that no dead member has left.
    ///
    /// Returns the members, and true if a dead member has left the slot, which the caller must recover before
    /// [`register`](Self::register). Returns None if each slot belongs to a living member. Other members do not count
    /// this one as a member before it has registered. Waits for no lock.
    pub fn attach(words: W, start: usize, locks: L) -> io::Result<Option<(Self, bool)>> {
        let mut members = Members::inspect(words, start, locks);
        for with_remains in [false, true] {
            for slot in 0..SLOTS {
                // Relaxed: the holder of the lock comes after the last change of the entry; it is read again below.
                let is_used = members.entry(slot).load(Ordering::Relaxed) & USED != 0;
                if is_used != with_remains || !members.locks.try_lock_slot(slot)? {
                    continue;
                }
                // The state that the last holder of the lock has stored. The kernel orders it, too.
                let found = members.state(slot);
                members.slot = slot;
                members.self_id = MemberId::new((found >> 32).wrapping_add(1) & 0xffff_ffff, slot);
                return Ok(Some((members, found & USED != 0)));
            }
        }
        Ok(None)
    }

    /// Reads the table without taking a slot: as a member of slot [`SLOTS`], which no member has.
    pub fn inspect(words: W, start: usize, locks: L) -> Self {
        Members {
            words,
            start,
            locks,
            slot: SLOTS,
            self_id: MemberId(0),
            watches: AtomicBool::new(false),
            is_detached: AtomicBool::new(false),
        }
    }

    /// Marks the slot of this member as used. The caller has recovered what a dead member left in the slot.
    pub fn register(&self) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let since = since.map_or(0, |since| since.as_nanos() as u64);
        // Relaxed: covered by the entry.
        self.since(self.slot).store(since, Ordering::Relaxed);
        // Release: a process that sees the slot in use sees which member has it.
        let used = self.self_id.0 & GENERATION | USED;
        self.entry(self.slot).store(used, Ordering::Release);
        // SeqCst: our entry is before our look for watching members, in the order of `watch`.
        fence(Ordering::SeqCst);
    }

    /// Marks this member as one that watches the others. The caller reads the other slots afterwards.
    pub fn watch(&self) {
        self.entry(self.slot).fetch_or(WATCHES, Ordering::Relaxed);
        // Release: a thread that sees this sees the bit.
        self.watches.store(true, Ordering::Release);
        // SeqCst: our bit is before our look at the members, in the order of `register`: of a member that joins now and
        // one that begins to watch, one sees the other.
        fence(Ordering::SeqCst);
    }

    /// Returns the identity of this member.
    pub fn self_id(&self) -> MemberId {
        self.self_id
    }

    /// Returns the slot of this member.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Returns true if a slot is in use, by a living member or by a dead one that awaits recovery.
    pub fn is_used(&self, slot: u32) -> bool {
        slot < SLOTS && self.state(slot) & USED != 0
    }

    /// Returns the slots that are in use, including the slot of this member.
    pub fn used_slots(&self) -> impl Iterator<Item = u32> {
        (0..SLOTS).filter(|&slot| self.is_used(slot))
    }

    /// Returns the slots of the other members that watch, living or dead.
    pub fn watching_slots(&self) -> impl Iterator<Item = u32> {
        let watches = |slot: &u32| self.state(*slot) & (USED | WATCHES) == USED | WATCHES;
        (0..SLOTS).filter(watches).filter(|&slot| slot != self.slot)
    }

    /// Returns the id that the member of a slot has now; the last member's id for a free slot.
    pub fn id_at(&self, slot: u32) -> MemberId {
        MemberId::new(self.state(slot) >> 32, slot)
    }

    /// Returns true if the member of a slot is alive, or if that cannot be known.
    pub fn is_alive(&self, slot: u32) -> bool {
        let is_locked = |slot| {
            self.locks
                .slot_holder(slot)
                .map_or(true, |holder| holder.is_some())
        };
        slot == self.slot || slot < SLOTS && is_locked(slot)
    }

    /// Returns the member of a slot, which is below `SLOTS`: the last one if the slot is free. Raises an error if the
    /// lock file cannot be read.
    pub fn member_at(&self, slot: u32) -> io::Result<Member> {
        Ok(Member {
            id: self.id_at(slot),
            holder: self.locks.slot_holder(slot)?,
            // Relaxed: covered by the entry, which was read before.
            since: self.since(slot).load(Ordering::Relaxed),
        })
    }

    /// Returns the process of a member. Returns None if the member is gone, or if its lock cannot be read.
    pub fn holder_of(&self, id: MemberId) -> Option<Holder> {
        if id == self.self_id {
            return Some(Holder::this_process());
        }
        let is_current = |&slot: &u32| self.id_at(slot) == id;
        let member = self.member_at(id.slot().filter(is_current)?);
        member.ok()?.holder
    }

    /// Returns the corruption of this member's entry, if another process has overwritten the entry: other members would
    /// not learn of the death of this one.
    pub fn find_corruption(&self) -> Option<Corruption> {
        if self.slot == SLOTS {
            return None;
        }
        // Acquire: pairs with the Release in `watch`.
        let wanted = if self.watches.load(Ordering::Acquire) {
            USED | WATCHES
        } else {
            USED
        };
        let found = self.state(self.slot);
        let is_intact = self.id_at(self.slot) == self.self_id && found & wanted == wanted;
        (!is_intact).then(|| Corruption {
            field: Field::Member,
            at: self.offset(self.slot),
            found,
        })
    }

    /// Returns true if a slot in use has this id, whether its member is alive or awaits recovery.
    pub fn is_member(&self, id: MemberId) -> bool {
        let is_slot_of = |slot| self.is_used(slot) && self.id_at(slot) == id;
        id.slot().is_some_and(is_slot_of)
    }

    /// Takes the lock of a dead member, so that this process alone recovers the slot. The caller calls `end_recovery`
    /// or `postpone_recovery` afterwards, and lets one thread of the process recover at a time: the lock does not
    /// exclude threads. Returns false if another process has the lock, if the slot is free, or if it is the slot of
    /// this member.
    pub fn begin_recovery(&self, slot: u32) -> io::Result<bool> {
        if slot == self.slot || !self.locks.try_lock_slot(slot)? {
            return Ok(false);
        }
        if self.state(slot) & USED == 0 {
            self.locks.unlock_slot(slot)?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Frees the slot of a member that was recovered, and releases its lock.
    pub fn end_recovery(&self, slot: u32) -> io::Result<()> {
        self.clear(slot);
        self.locks.unlock_slot(slot)
    }

    /// Releases the lock of a dead member whose recovery must be tried again.
    pub fn postpone_recovery(&self, slot: u32) -> io::Result<()> {
        self.locks.unlock_slot(slot)
    }

    /// Notes that this process is no member for the contents from now on
    /// ([`self_id`](shared_heap::Members::self_id) is 0), because other processes may take its owner locks over.
    pub fn detach(&self) {
        // Release: a thread that acquires what a later holder of an owner lock has written sees this.
        self.is_detached.store(true, Ordering::Release);
    }

    /// Frees the slot of this member, and releases its lock: other processes then count it as gone.
    pub fn leave(&self) -> io::Result<()> {
        self.detach();
        self.clear(self.slot);
        self.locks.unlock_slot(self.slot)
    }

    /// Marks a slot as free, and keeps its generation. The caller has the lock of the slot.
    fn clear(&self, slot: u32) {
        let free = self.state(slot) & GENERATION;
        // Release: a process that finds the slot free finds it without remains.
        self.entry(slot).store(free, Ordering::Release);
    }

    /// Returns the value of a slot's entry: generation and flags.
    fn state(&self, slot: u32) -> u64 {
        // Acquire: pairs with the Release of `register` and of `clear`.
        self.entry(slot).load(Ordering::Acquire)
    }

    /// Returns the entry of a slot.
    fn entry(&self, slot: u32) -> &AtomicU64 {
        self.word(slot, 0)
    }

    /// Returns the word with the time when the member of a slot joined.
    fn since(&self, slot: u32) -> &AtomicU64 {
        self.word(slot, 8)
    }

    /// Returns the word at byte `at` of a slot's entry.
    fn word(&self, slot: u32, at: u64) -> &AtomicU64 {
        let word = self.words.word(self.offset(slot) + at);
        word.expect("the layout has this many members")
    }

    /// Returns where the entry of a slot is, in bytes from the beginning of the memory.
    fn offset(&self, slot: u32) -> u64 {
        (self.start + slot as usize * MEMBER_SIZE) as u64
    }
}

impl<W: Words, L: MemberLocks> shared_heap::Members for Members<W, L> {
    /// Returns the id of this member; 0 once it has left, and for a process that only inspects.
    #[inline]
    fn self_id(&self) -> u64 {
        // Relaxed: a mark alone, which is stored long after a thread of this process has acquired an owner lock.
        match self.is_detached.load(Ordering::Relaxed) {
            true => 0,
            false => self.self_id.0,
        }
    }

    /// Returns true for this member, and for a member whose id its slot still has and whose lock is held or cannot be
    /// read.
    fn is_alive(&self, member: u64) -> bool {
        let id = MemberId(member);
        let is_current = |slot: u32| self.id_at(slot) == id && self.is_alive(slot);
        id == self.self_id || id.slot().is_some_and(is_current)
    }
}
