//! Semaphores, locks and memories: objects with permits.
//!
//! A lock is a semaphore of one permit. A memory has a lock of its own.

#[cfg(not(loom))]
mod abandoned;
#[cfg(not(loom))]
mod fairness;
#[cfg(not(loom))]
mod lock_owner;
#[cfg(not(loom))]
mod membership;
#[cfg(not(loom))]
mod object;
pub mod permits;

#[cfg(not(loom))]
pub use lock_owner::Reentry;
#[cfg(not(loom))]
pub use membership::{PERMITS, SemaphoreMembership};
