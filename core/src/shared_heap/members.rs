//! The members that share the memory.

use std::sync::Arc;

/// Who shares the memory. The number of a member is its generation, in the high half, and its slot plus one, which is
/// less than 2^31, in the low half. 0 is nobody.
pub trait Members {
    /// The number of this process; 0 if it is no member any more.
    fn self_id(&self) -> u64;
    /// Whether the process of a member lives, as the kernel knows it. A number that no member has is a dead one's.
    fn is_alive(&self, member: u64) -> bool;
}

impl<M: Members> Members for Arc<M> {
    fn self_id(&self) -> u64 {
        (**self).self_id()
    }
    fn is_alive(&self, member: u64) -> bool {
        (**self).is_alive(member)
    }
}
