//! Operations of a program on the contents of a store.

pub mod buffers;
mod classes;
mod containers;
mod dicts;
pub mod items;
mod lists;
mod messages;
mod sets;
mod watching;
