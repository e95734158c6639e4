//! The members of a name, as its memory says, and which of them live, as the kernel says.
//!
//! ```text
//!      0  entry     u64   generation in the high half; bit 0: it is in use, bit 1: it watches the others
//!      8  since     u64   when it joined, in nanoseconds of CLOCK_REALTIME
//! ```
//!
//! An entry is changed by whoever has the byte of its slot in the lock file: its member, or, once that is dead, whoever
//! takes the byte to recover it.

use crate::shared_heap::{self, Corruption, Field, Words};
use crate::sync::{AtomicU64, Ordering, fence};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

/// How many members a name may have.
pub const SLOTS: u32 = 256;
/// Bytes of a member.
pub const MEMBER_SIZE: usize = 32;

const USED: u64 = 1;
const WATCHES: u64 = 2;

/// A member's number in shared words: its generation in the high half, its slot and one in the low half. 0 is nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number(pub u64);

impl Number {
    fn new(generation: u64, slot: u32) -> Self {
        Number(generation << 32 | u64::from(slot + 1))
    }

    /// Its slot; None of a number that no member can have.
    pub fn slot(self) -> Option<u32> {
        (self.0 as u32).checked_sub(1).filter(|&slot| slot < SLOTS)
    }
}

/// Who has the byte of a member, as far as this process can see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The process of this id.
    Process(i32),
    /// A process of another pid namespace.
    Elsewhere,
}

/// The bytes that prove that members live. The kernel gives one back when its holder dies.
pub trait Proofs {
    /// Takes the byte of a member. False if another process has it.
    fn take(&self, slot: u32) -> io::Result<bool>;
    /// Gives the byte of a member back.
    fn give_back(&self, slot: u32) -> io::Result<()>;
    /// Which other process has the byte of a member, if any.
    fn holder(&self, slot: u32) -> io::Result<Option<Holder>>;
}

impl<P: Proofs> Proofs for Arc<P> {
    fn take(&self, slot: u32) -> io::Result<bool> {
        (**self).take(slot)
    }
    fn give_back(&self, slot: u32) -> io::Result<()> {
        (**self).give_back(slot)
    }
    fn holder(&self, slot: u32) -> io::Result<Option<Holder>> {
        (**self).holder(slot)
    }
}

/// What is known of a member.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its number in shared words.
    pub number: Number,
    /// Its process, as the kernel says; None if it is dead, or is this process.
    pub holder: Option<Holder>,
    /// When it joined, in nanoseconds of CLOCK_REALTIME.
    pub since: u64,
}

/// All members, as one of them sees them.
pub struct Members<W, P> {
    words: W,
    /// Where their entries begin.
    start: usize,
    proofs: P,
    /// Our slot and number.
    slot: u32,
    us: Number,
    watches: AtomicBool,
}

impl<W: Words, P: Proofs> Members<W, P> {
    /// Joins those whose entries begin at byte `start`: takes a slot, one without remains of the dead if there is one.
    /// None if each has a member that lives.
    ///
    /// The second result says whether the slot has remains, which are to be recovered.
    pub fn join(words: W, start: usize, proofs: P) -> io::Result<Option<(Self, bool)>> {
        let mut members = Members::visit(words, start, proofs);
        for with_remains in [false, true] {
            for slot in 0..SLOTS {
                // Relaxed: whoever has the byte is after the last change of the entry; it is asked again below.
                let is_used = members.entry(slot).load(Ordering::Relaxed) & USED != 0;
                if is_used != with_remains || !members.proofs.take(slot)? {
                    continue;
                }
                // What the last holder of the byte has stored. The kernel orders it too.
                let found = members.state(slot);
                members.slot = slot;
                members.us = Number::new((found >> 32).wrapping_add(1) & 0xffff_ffff, slot);
                return Ok(Some((members, found & USED != 0)));
            }
        }
        Ok(None)
    }

    /// Looks at them without being one: as one of slot [`SLOTS`], which nobody has.
    pub fn visit(words: W, start: usize, proofs: P) -> Self {
        Members {
            words,
            start,
            proofs,
            slot: SLOTS,
            us: Number(0),
            watches: AtomicBool::new(false),
        }
    }

    /// Says that we are a member: once the remains in our slot are recovered.
    pub fn enter(&self) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let since = since.map_or(0, |since| since.as_nanos() as u64);
        // Relaxed: covered by the entry.
        self.since(self.slot).store(since, Ordering::Relaxed);
        // Release: whoever sees that the slot is in use sees whose it is.
        let used = self.us.0 & 0xffff_ffff_0000_0000 | USED;
        self.entry(self.slot).store(used, Ordering::Release);
        // SeqCst: our entry is before our look at who watches, in the order of `watch`.
        fence(Ordering::SeqCst);
    }

    /// Says that this member watches the others: look who they are afterwards.
    pub fn watch(&self) {
        self.entry(self.slot).fetch_or(WATCHES, Ordering::Relaxed);
        // Release: whoever sees it sees the bit.
        self.watches.store(true, Ordering::Release);
        // SeqCst: our word is before our look at the members, in the order of `enter`: of a member that joins now and one
        // that begins to watch, one sees the other.
        fence(Ordering::SeqCst);
    }

    /// Our number.
    pub fn us(&self) -> Number {
        self.us
    }

    /// Our slot.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Whether a slot is in use.
    pub fn is_used(&self, slot: u32) -> bool {
        slot < SLOTS && self.state(slot) & USED != 0
    }

    /// The slots that are in use, ours among them.
    pub fn used(&self) -> impl Iterator<Item = u32> {
        (0..SLOTS).filter(|&slot| self.is_used(slot))
    }

    /// The slots of the others that watch.
    pub fn watching(&self) -> impl Iterator<Item = u32> {
        let watches = |slot: &u32| self.state(*slot) & (USED | WATCHES) == USED | WATCHES;
        (0..SLOTS).filter(watches).filter(|&slot| slot != self.slot)
    }

    /// The number that the member of a slot has now.
    pub fn number(&self, slot: u32) -> Number {
        Number::new(self.state(slot) >> 32, slot)
    }

    /// Whether the member of this slot lives. If that cannot be known, it does.
    pub fn lives(&self, slot: u32) -> bool {
        let is_held = |slot| self.proofs.holder(slot).map_or(true, |who| who.is_some());
        slot == self.slot || slot < SLOTS && is_held(slot)
    }

    /// What is known of the member of a slot.
    pub fn member(&self, slot: u32) -> io::Result<Member> {
        Ok(Member {
            number: self.number(slot),
            holder: self.proofs.holder(slot)?,
            // Relaxed: covered by the entry, which was read before.
            since: self.since(slot).load(Ordering::Relaxed),
        })
    }

    /// What stands in our entry, if it is not what we have left there: others would not hear of our death then.
    pub fn corruption(&self) -> Option<Corruption> {
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
        let is_ours = self.number(self.slot) == self.us && found & wanted == wanted;
        (!is_ours).then(|| Corruption {
            field: Field::Member,
            at: self.offset(self.slot),
            found,
        })
    }

    /// Whether this is the number of a member, whether it lives or is to be recovered.
    pub fn is_member(&self, number: Number) -> bool {
        let is_slot_of = |slot| self.is_used(slot) && self.number(slot) == number;
        number.slot().is_some_and(is_slot_of)
    }

    /// Takes the byte of a dead member, so that we alone recover it. False if another process has it, or nobody needs to.
    pub fn begin_recovery(&self, slot: u32) -> io::Result<bool> {
        if slot == self.slot || !self.proofs.take(slot)? {
            return Ok(false);
        }
        if self.state(slot) & USED == 0 {
            self.proofs.give_back(slot)?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Says that nothing is left of a member that was recovered.
    pub fn end_recovery(&self, slot: u32) -> io::Result<()> {
        self.clear(slot);
        self.proofs.give_back(slot)
    }

    /// Leaves what is left of a dead member for later.
    pub fn put_off_recovery(&self, slot: u32) -> io::Result<()> {
        self.proofs.give_back(slot)
    }

    /// Says that nothing is left of us.
    pub fn leave(&self) -> io::Result<()> {
        self.clear(self.slot);
        self.proofs.give_back(self.slot)
    }

    fn clear(&self, slot: u32) {
        let free = self.state(slot) & 0xffff_ffff_0000_0000;
        // Release: whoever finds the slot free finds it without remains.
        self.entry(slot).store(free, Ordering::Release);
    }

    fn state(&self, slot: u32) -> u64 {
        // Acquire: pairs with the Release of `enter` and of `clear`.
        self.entry(slot).load(Ordering::Acquire)
    }

    fn entry(&self, slot: u32) -> &AtomicU64 {
        self.word(slot, 0)
    }

    fn since(&self, slot: u32) -> &AtomicU64 {
        self.word(slot, 8)
    }

    fn word(&self, slot: u32, at: u64) -> &AtomicU64 {
        let word = self.words.word(self.offset(slot) + at);
        word.expect("the layout has this many members")
    }

    /// Where a member's entry is, in bytes from the beginning of the memory.
    fn offset(&self, slot: u32) -> u64 {
        (self.start + slot as usize * MEMBER_SIZE) as u64
    }
}

impl<W: Words, P: Proofs> shared_heap::Members for Members<W, P> {
    #[inline]
    fn self_id(&self) -> u64 {
        self.us.0
    }

    fn is_alive(&self, member: u64) -> bool {
        let number = Number(member);
        let is_current = |slot: u32| self.number(slot) == number && self.lives(slot);
        number == self.us || number.slot().is_some_and(is_current)
    }
}
