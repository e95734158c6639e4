//! A store: values in shared memory that members change in place.
//!
//! A value that a program inserts becomes a tree of containers, whose leaves are [`Cell`]s and blobs. A
//! [`ContainerRef`] identifies a container; it is invalid once the container was removed. Each change is a transaction
//! of a [`redo_log`](crate::shared_heap::redo_log), of one operation or of many. Readers take no lock.
//!
//! `format` reads and writes the structures in shared memory, and `operations` are the calls of a program upon them.
//! `handle`, `transaction` and `notifications` join the two; `single_writer` and `failover` are special ways to own a
//! store.
//!
//! Offsets in bytes from its beginning, a multiple of the page size:
//!
//! ```text
//!      0  last id  u64     the number of the last container that was created. It is stored at once, and no number is
//!                          reused: a reference to a container of a transaction that was rolled back never finds
//!                          another container
//!      8  root     u64     the cell of the dict that is the store
//!         classes  u64     the cell of the dict of the classes: the number of a class is that of its entry
//!         inbox    u64     the cell of the list of messages
//!         owned    3 u64   of a store with an owner: see `single_writer.rs`
//!     56  last committed id
//!                  u64     the number of the last committed container: higher ones belong to a transaction that is
//!                          running, or are deleted
//!     64  pins     see `format/pins.rs`; its second word counts the numbers that were skipped
//!         watches  see `format/versions.rs`
//!         heap     from the next whole page on: see `shared_heap/heap`
//!         log      the last 16 MiB, of whole pages: see `shared_heap/redo_log`
//! ```
//!
//! # Trust
//!
//! As in [`shared_heap`](crate::shared_heap), all that is read is untrusted. A corrupt value poisons the store, and no
//! operation reads more cells than fit into the memory.

pub mod encoding;
mod error;
pub mod failover;
mod format;
mod handle;
mod notifications;
mod operations;
mod proxies;
mod reader_notifications;
pub mod reader_table;
mod recovery;
pub mod single_writer;
mod transaction;

#[cfg(test)]
mod tests;

pub use error::StoreError;
pub use format::budget::DEPTH;
pub use format::cell::{Cell, Content, Type};
pub use format::roots::Root;
pub use format::value::{Bytes, ContainerRef, Key, StoredValue, Value, trim};
pub use handle::{Store, sizes};
pub use notifications::CommitNotice;
pub use operations::buffers::Buffer;
pub use operations::items::{Item, Number};
pub use transaction::OpenTransaction;
