//! Stores: handles, containers and transactions.

pub(crate) mod containers;
mod converters;
mod error;
mod items;
mod native_values;
pub(crate) mod open_store;
pub(crate) mod proxy;
pub(crate) mod store;
pub(crate) mod transaction;
