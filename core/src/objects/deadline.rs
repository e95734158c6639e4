//! Time limits of waits for another process that has the owner lock of a queue or a store.

use crate::clock;

/// The longest wait, in nanoseconds, of recovery, cleaning up and leaving: no user waits for these.
pub const RECOVERY_TIMEOUT: u64 = 1_000_000_000;
/// The longest wait, in nanoseconds, of an operation. A holder needs less than a thousandth of this, unless it is
/// stopped.
pub const OWNER_LOCK_TIMEOUT: u64 = 100_000_000;
/// The same after a recent wait timed out: the many tasks of a loop must not block the loop one after the other.
pub const SHORT_OWNER_LOCK_TIMEOUT: u64 = 1_000_000;
/// The time, in nanoseconds, for which operations use the short timeout after a wait has timed out.
pub const SHORT_TIMEOUT_PERIOD: u64 = 1_000_000_000;

/// Returns the deadline of a wait that begins now, in nanoseconds of CLOCK_MONOTONIC; 0, which never waits, for no
/// timeout.
pub fn deadline_after(timeout: u64) -> u64 {
    match timeout {
        0 => 0,
        timeout => clock::now().saturating_add(timeout),
    }
}
