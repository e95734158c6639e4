//! Time limits of waits for another process that has the owner lock of a queue or a store.

use crate::clock;

/// The longest wait, in nanoseconds, of recovery and of leaving, for which no user waits.
pub const RECOVERY_TIMEOUT: u64 = 1_000_000_000;
/// The longest wait, in nanoseconds, of an operation. A holder needs less than a thousandth of this, unless it is
/// stopped.
pub const OWNER_LOCK_TIMEOUT: u64 = 100_000_000;
/// The longest wait, in nanoseconds, of an operation soon after another wait timed out: otherwise the many tasks of an
/// event loop would block the loop one after the other.
pub const SHORT_OWNER_LOCK_TIMEOUT: u64 = 1_000_000;
/// The time, in nanoseconds, for which operations use the short timeout after a wait has timed out.
pub const SHORT_TIMEOUT_PERIOD: u64 = 1_000_000_000;

/// Returns the deadline of a wait that begins now, in nanoseconds of CLOCK_MONOTONIC. Returns 0, which means not to
/// wait, for a timeout of 0.
pub fn deadline_after(timeout: u64) -> u64 {
    match timeout {
        0 => 0,
        timeout => clock::now().saturating_add(timeout),
    }
}
