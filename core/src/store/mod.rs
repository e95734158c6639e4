//! A store: values in shared memory, which members change in place.
//!
//! What a program puts in becomes a tree of containers, whose leaves are [`cell`]s and blobs. A container is known by
//! its [`Place`], and gone once it was taken out. All changes are transactions of a [`redo_log`](crate::shared_heap::redo_log), of one
//! operation or of many; readers take no lease.
//!
//! Offsets in bytes, from where it begins, a multiple of the page:
//!
//! ```text
//!      0  last id  u64     the number of the last container that was begun. It is stored at once, and no number comes again:
//!                          a reference to a container of an undone transaction never finds another container
//!      8  root     u64     the cell of the dict that is the store
//!         classes  u64     that of the dict of the classes: the number of a class is that of its entry
//!         inbox    u64     that of the list of messages
//!         owned    3 u64   of a store with an owner: see `single_writer.rs`
//!         committed id u64 the number of the last container that was committed: those above it are of a transaction that is
//!                          under way, and of others gone
//!     64  pins     see `format/pins.rs`; its second word says how many numbers were passed over
//!         watches  see `format/versions.rs`
//!         heap     from the next whole page on: see `shared_heap/heap.rs`
//!         log      the last 16 MiB, of whole pages: see `shared_heap/log.rs`
//! ```
//!
//! # Whom to trust
//!
//! As in [`shared_heap`](crate::shared_heap): what is read may be anything. What cannot be true poisons the store, and no operation
//! looks at more cells than there is room for.

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
