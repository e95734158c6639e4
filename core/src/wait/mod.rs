//! How threads and loops wait for other processes: when they sleep, on what, and what wakes them.

#[cfg(not(loom))]
pub mod bell;
pub mod closing;
#[cfg(not(loom))]
pub mod doorbell;
pub mod flags;
#[cfg(not(loom))]
pub(crate) mod futex;
#[cfg(not(loom))]
pub mod parker;
pub mod set;
pub mod spin;
