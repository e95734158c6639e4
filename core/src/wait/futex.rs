//! The kernel's futex: a thread sleeps as long as a word holds a value, until another one wakes it.
//!
//! A system call that fails means no more than one that succeeds: woken, too late, interrupted by a signal, cut off or
//! not to be had, the caller looks again. The kernel takes any address, and says so if nothing is there.

use std::ptr::null;
use std::time::Duration;

/// Which threads may wake each other.
#[derive(Clone, Copy)]
pub(crate) enum Reach {
    /// Threads of this process.
    Process = libc::FUTEX_PRIVATE_FLAG as isize,
    /// All processes that have mapped the word.
    Host = 0,
}

/// The longest sleep, in seconds: the kernel refuses what its clock cannot count.
const LONGEST: u64 = i32::MAX as u64;

/// Sleeps if `word` holds `value`, until it is woken, a signal comes, or `limit` has passed.
pub(crate) fn wait(word: *const u32, value: u32, limit: Duration, reach: Reach) {
    let limit = libc::timespec {
        tv_sec: limit.as_secs().min(LONGEST) as libc::time_t,
        tv_nsec: libc::c_long::from(limit.subsec_nanos()),
    };
    call(word, libc::FUTEX_WAIT, value, &limit, reach);
}

/// Wakes one thread that sleeps on `word`; whether one did.
pub(crate) fn wake(word: *const u32, reach: Reach) -> bool {
    call(word, libc::FUTEX_WAKE, 1, null(), reach) == 1
}

/// Where the low half of a word of eight bytes lies: the kernel looks at four.
pub(crate) fn low_half(word: *const u64) -> *const u32 {
    let halves = word.cast::<u32>();
    if cfg!(target_endian = "big") {
        halves.wrapping_add(1)
    } else {
        halves
    }
}

fn call(
    word: *const u32,
    operation: libc::c_int,
    value: u32,
    limit: *const libc::timespec,
    reach: Reach,
) -> libc::c_long {
    let operation = operation | reach as libc::c_int;
    // SAFETY: the kernel reads the word, if it is there, and writes nothing; `limit` is null, or valid for reads.
    unsafe { libc::syscall(libc::SYS_futex, word, operation, value, limit) }
}
