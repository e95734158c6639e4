//! Stores, their containers and transactions.

pub(crate) mod convert;
pub(crate) mod store;
pub(crate) mod transaction;
