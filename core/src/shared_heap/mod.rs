//! A heap in memory that several processes share: transactions survive the death of any process in the middle of one.
//!
//! * [`owner_lock`] is one word that names the member that may change the memory now. The kernel says whether the
//!   holder is alive; another member takes the lock over from a dead holder.
//! * [`undo_log`] stores the old values of the words that the holder has changed. If the holder dies within a
//!   transaction, the next holder restores them. Readers take no lock.
//! * [`redo_log`] stores the new values instead; the next holder writes them again.
//! * `seqlock` joins the lock to a sequence number, by which readers detect concurrent changes.
//! * [`backing_file`] is the file behind the memory: it gets pages when they are needed and returns them when they are
//!   free. Nothing is moved.
//! * [`allocator`] hands out blocks of any size. Its metadata lie in the shared memory and change only within
//!   transactions: [`pages`] manages runs of pages, [`slabs`] small blocks, and [`unfinished_allocs`] the blocks that a
//!   member has reserved and not yet committed.
//! * [`heap`] allocates within the transactions of a redo log.
//!
//! # Trust
//!
//! Every member can write all of the memory, so its contents are untrusted. Each offset, length and count is copied and
//! checked before it is used. A value that no correct member writes is a [`Corruption`]: it *poisons* the memory for
//! all members, and each later operation fails with an error that names the value. A corrupt value that is plausible
//! makes results wrong and does nothing else to this process: no access leaves the mapping, each loop is bounded, and
//! the memory never grows beyond `max_memory`.
//!
//! # After a fork
//!
//! A forked child has the mapping and is no member. Each of its operations returns [`HeapError::Detached`].

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
pub use error::{HeapError, TransactionError};
pub use members::Members;
pub use words::{VecWords, Words};
