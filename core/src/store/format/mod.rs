//! The structures in the memory of a store: containers and their values, and the tables beside them.

pub(super) mod blob;
pub mod budget;
pub mod cell;
pub(super) mod copy;
pub(super) mod free;
pub(super) mod header;
pub(super) mod list;
pub(super) mod mutator;
pub(super) mod pins;
pub(super) mod record;
pub(super) mod roots;
pub(super) mod table;
pub mod value;
pub(super) mod versions;
pub(super) mod write;
