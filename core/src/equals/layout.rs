//! What lies where in the memory of a name. Offsets in bytes, behind the header that every region has:
//!
//! ```text
//!     64  poison        3 u64  what was found that cannot be true, see `shared/lie.rs`; then nobody uses it any more
//!     88  amount        u64    permits of a semaphore; bytes of a memory
//!     96  event         u64    how often it was set, times two; plus one while it is set
//!    104  signals       u64    those that nobody has waited for
//!    128  members       256 of them, 32 bytes each: see `members.rs`
//!   8320  the wait set of permits, or of an event: 256 slots
//!  12544  the wait set of signals: 256 slots
//!  16768  permits       u64 each: the member that has it, or 0
//!         data          from the next multiple of 64 KiB on: the bytes of a memory
//! ```

use super::members::{MEMBER_SIZE, SLOTS};
use crate::memory::region::{Kind, Layout, signature};
use crate::wait::set::mapped::size_for;

/// Slots of each wait set.
pub const SLEEPERS: usize = 256;
/// The most permits of a semaphore.
pub const MOST_PERMITS: u64 = 1 << 16;
/// The most bytes of a memory: what one range of the guard against SIGBUS counts, without the pages before it.
pub const MOST_BYTES: u64 = (1 << 36) - (1 << 20);

pub const AT_POISON: usize = 64;
pub const AT_AMOUNT: usize = 88;
pub const AT_EVENT: usize = 96;
pub const AT_SIGNALS: usize = 104;
pub const AT_MEMBERS: usize = 128;
/// Where the wait sets begin.
pub const AT_SETS: [usize; 2] = {
    let first = AT_MEMBERS + SLOTS as usize * MEMBER_SIZE;
    [first, first + size_for(SLEEPERS)]
};
pub const AT_PERMITS: usize = AT_SETS[1] + size_for(SLEEPERS);
/// Bytes of a name without permits and data.
pub const LEAST_BYTES: u64 = AT_PERMITS as u64;
/// Data begins at a page of any machine.
const PAGE: usize = 64 << 10;

/// What is opened: a kind, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// What the name is for.
    pub kind: Kind,
    /// Permits of a semaphore, bytes of a memory, 1 of a lock, 0 of an event.
    pub amount: u64,
}

impl Shape {
    /// The shape, if there can be one such.
    pub fn new(kind: Kind, amount: u64) -> Option<Self> {
        let fits = match kind {
            Kind::Connection => false,
            Kind::Memory => (1..=MOST_BYTES).contains(&amount),
            Kind::Semaphore => (1..=MOST_PERMITS).contains(&amount),
            Kind::Lock => amount == 1,
            Kind::Event => amount == 0,
        };
        fits.then_some(Shape { kind, amount })
    }

    /// How many permits it has.
    pub fn permits(self) -> usize {
        match self.kind {
            Kind::Semaphore => self.amount as usize,
            Kind::Memory | Kind::Lock => 1,
            Kind::Connection | Kind::Event => 0,
        }
    }

    /// Where its data begin.
    pub fn data(self) -> usize {
        (AT_PERMITS + 8 * self.permits()).next_multiple_of(PAGE)
    }

    /// Its region.
    pub fn layout(self) -> Layout {
        let size = match self.kind {
            Kind::Memory => self.data() + self.amount as usize,
            _ => AT_PERMITS + 8 * self.permits(),
        };
        Layout {
            kind: self.kind,
            size,
            signature: signature(&[
                AT_POISON, AT_AMOUNT, AT_EVENT, AT_SIGNALS, AT_MEMBERS, AT_SETS[0], AT_SETS[1],
                AT_PERMITS, PAGE,
            ]),
        }
    }
}
