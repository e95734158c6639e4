//! Compound changes in memory that equals share: done whole or not at all, whoever dies in the middle of one.
//!
//! * A [`owner_lock`] is one word: the member that may change things now. It is a claim; whether its holder lives, the
//!   kernel says, and what a dead one held is taken over.
//! * A [`undo_log`] has the old values of what the holder has changed so far. The next holder puts them back if the last
//!   one died before its transaction was over. Readers take no lease.
//! * [`seqlock`] memory has both words, and a sequence for readers.
//! * A [`backing_file`] is the file: what is in use has memory, what is free again gives it back. Nothing moves.
//! * An [`allocator`] has blocks of any size in it. All it knows lies in the shared memory and is changed by
//!   transactions alone: [`pages`] has runs of pages, [`slabs`] the small blocks, [`unfinished_allocs`] the blocks that a member
//!   was given and has not yet finished.
//!
//! # Whom to trust
//!
//! The members can write all of the memory, so what stands there is a claim. Each offset, length and count is copied
//! and checked before it is used. What cannot be true is a [`Corruption`]: it *poisons* this memory, for all members, and each
//! later operation ends with an error that says what was found. A lie that could be true makes values wrong, and does
//! nothing to this process: no access leaves the mapping, no loop is without a bound, and no more memory is asked for
//! than `max_memory`.
//!
//! # A forked child
//!
//! It has the mapping, and is no member. All it gets is [`HeapError::Detached`].

pub mod access;
#[cfg(not(loom))]
pub mod allocator;
#[cfg(not(loom))]
pub mod backing_file;
#[cfg(not(loom))]
mod blocks;
mod corruption;
mod error;
#[cfg(not(loom))]
pub mod heap;
mod members;
pub mod owner_lock;
#[cfg(not(loom))]
pub mod pages;
#[cfg(not(loom))]
pub mod redo_log;
mod seqlock;
#[cfg(not(loom))]
pub mod slabs;
pub mod undo_log;
#[cfg(not(loom))]
pub mod unfinished_allocs;
mod words;

#[cfg(all(test, not(loom)))]
pub(crate) mod tests;

pub(crate) use corruption::Poison;

pub use corruption::{Corruption, Field};
#[cfg(not(loom))]
pub(crate) use error::corrupt;
pub use error::{Failure, HeapError};
pub use members::Members;
pub use words::{VecWords, Words};
