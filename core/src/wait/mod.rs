//! Waiting for other processes: spinning, sleeping in threads and in event loops, and waking sleepers.

pub mod cpu_contention;
#[cfg(not(loom))]
pub mod doorbell;
pub mod flags;
#[cfg(not(loom))]
pub(crate) mod futex;
#[cfg(not(loom))]
pub mod parker;
pub mod shutdown_flag;
pub mod spin;
pub mod wait_set;
#[cfg(not(loom))]
pub mod waker;
