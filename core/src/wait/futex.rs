//! The kernel's futex: a thread sleeps as long as a word holds a value, until another thread wakes it.
//!
//! The result of the system call does not matter: after a wake-up, a changed word, a signal or a truncated file the
//! caller checks again. The kernel accepts any address, and returns an error if nothing is mapped there.

use std::ptr::null;
use std::time::Duration;

/// The threads that may wake each other.
#[derive(Clone, Copy)]
pub(crate) enum Reach {
    /// Threads of this process.
    Process = libc::FUTEX_PRIVATE_FLAG as isize,
    /// Threads of all processes that have mapped the word.
    Host = 0,
}

/// Maximum length of a sleep, in seconds, that the kernel accepts.
const LONGEST: u64 = i32::MAX as u64;

/// Sleep while `word` holds `value`, until a wake-up or a signal comes or `limit` has passed. Return at once if the
/// word holds another value. The sleep may also end for no reason, and errors are ignored: the caller checks again.
pub(crate) fn wait(word: *const u32, value: u32, limit: Duration, reach: Reach) {
    let limit = libc::timespec {
        tv_sec: limit.as_secs().min(LONGEST) as libc::time_t,
        tv_nsec: libc::c_long::from(limit.subsec_nanos()),
    };
    call(word, libc::FUTEX_WAIT, value, &limit, reach);
}

/// Wake one thread that sleeps on `word`. Return true if one did.
pub(crate) fn wake(word: *const u32, reach: Reach) -> bool {
    call(word, libc::FUTEX_WAKE, 1, null(), reach) == 1
}

/// Return the address of the low half of a word of eight bytes, because a futex has four.
pub(crate) fn low_half(word: *const u64) -> *const u32 {
    let halves = word.cast::<u32>();
    if cfg!(target_endian = "big") {
        halves.wrapping_add(1)
    } else {
        halves
    }
}

/// Make the system call, and return its result.
fn call(
    word: *const u32,
    operation: libc::c_int,
    value: u32,
    limit: *const libc::timespec,
    reach: Reach,
) -> libc::c_long {
    let operation = operation | reach as libc::c_int;
    // SAFETY: the kernel reads the word, if it is mapped, and writes nothing; `limit` is null, or valid for reads.
    unsafe { libc::syscall(libc::SYS_futex, word, operation, value, limit) }
}
