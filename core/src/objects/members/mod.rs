//! The members of an object: their identity, the proof that they are alive, and the thread that learns of their deaths.

mod holder;
#[cfg(not(loom))]
pub mod lock_file;
mod table;
#[cfg(not(loom))]
pub mod watcher;

pub use holder::Holder;
pub use table::{MEMBER_SIZE, Member, MemberId, MemberLocks, Members, SLOTS};
