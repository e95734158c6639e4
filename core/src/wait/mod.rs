//! How a side waits for the other one: when it sleeps, on what, and who wakes it.

#[cfg(not(loom))]
pub mod bell;
pub mod closing;
#[cfg(not(loom))]
pub mod doorbell;
pub mod flags;
#[cfg(not(loom))]
mod futex;
#[cfg(not(loom))]
pub mod parker;
pub mod set;
pub mod spin;
