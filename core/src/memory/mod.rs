//! Memory that processes share: mapped files, what a peer can do to them, which parts of them are free, and who holds
//! the others.

pub mod arena;
#[cfg(not(loom))]
pub mod buffer_allocator;
#[cfg(not(loom))]
pub mod bytes;
#[cfg(not(loom))]
pub mod copier;
#[cfg(not(loom))]
pub mod extent;
#[cfg(not(loom))]
pub mod extent_update;
#[cfg(not(loom))]
pub mod mapping;
#[cfg(not(loom))]
pub mod named;
#[cfg(not(loom))]
pub mod region;
#[cfg(not(loom))]
pub mod sealed;
#[cfg(not(loom))]
pub mod sigbus;
#[cfg(not(loom))]
pub mod view;
