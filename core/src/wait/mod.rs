//! How a side waits for the other one: when it sleeps, on what, and who wakes it.

#[cfg(not(loom))]
pub mod bell;
pub mod closing;
pub mod flags;
#[cfg(not(loom))]
pub mod parker;
pub mod spin;
