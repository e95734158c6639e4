//! CLOCK_MONOTONIC, which all processes of a host share.

/// Return the nanoseconds since an arbitrary point, which is the same for every process of the host.
#[cfg_attr(loom, allow(dead_code))]
#[inline]
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid timespec to write to; the clock always exists on Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
