//! Sizes of a wait set.

/// Maximum number of slots of a set: their bits fill one cache line.
pub const MAX_SLOTS: usize = 512;

/// Highest number of a member.
pub const MAX_MEMBER: u32 = (1 << 24) - 1;

pub(super) const BITS: usize = u64::BITS as usize;

pub(super) const WORDS: usize = MAX_SLOTS / BITS;
