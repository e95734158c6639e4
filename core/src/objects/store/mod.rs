//! Stores as shared objects: what members do with a store, and which sleepers they wake.
//!
//! * `membership` has the mapped contents, and `local_transaction` the transaction that this process has begun.
//! * `copies` and `migration` move this process to a copy of the contents, which others have made without a member that
//!   has stopped; `failover` makes such a copy.
//! * `owner_contents` and `single_writer` are for stores that one member alone changes.
//! * `operations` and `transactions` are the interface for users.

mod copies;
mod error;
mod failover;
mod local_transaction;
mod membership;
mod migration;
mod object;
mod operations;
mod owner_contents;
mod single_writer;
mod transactions;

pub(super) use copies::copy_of;
pub use error::StoreRefused;
pub use membership::{CHANGES, MESSAGES, ObjectStore, StoreMembership, TRANSACTIONS};
pub use transactions::{BeginOutcome, OPERATION_TIMEOUT};
