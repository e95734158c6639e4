//! Memory that processes share: mapped files, protection against hostile changes of them, and the allocation of blocks
//! that are lent.

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
