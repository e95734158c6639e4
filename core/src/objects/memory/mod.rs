//! The memory of an object: its shape, its layout, and the file in which it lies.

pub(super) mod layout;
mod object_memory;
pub mod shape;

pub use object_memory::{ObjectAddress, ObjectMemory};
pub(in crate::objects) use object_memory::{find_poison, memory_name, poison_words};
