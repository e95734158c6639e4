//! The processes that share the memory.

use std::sync::Arc;

/// The processes that share the memory. A member's number has its generation in the high half and its slot plus one,
/// which is less than 2^31, in the low half. 0 is no member.
pub trait Members {
    /// Returns the number of this process; 0 if it is no member or has left, so that it can change nothing.
    fn self_id(&self) -> u64;
    /// Returns true if the kernel says that the process of this member is alive, or cannot tell. False for a number
    /// that no member has.
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
