//! Time slices of the kernel's scheduler, and the current CPU.
//!
//! Since Linux 6.12 a thread may request a time slice of its own, without any rights. Its share of the CPU stays the
//! same, but of two runnable threads the kernel takes the one whose slice ends first. So a thread with short slices
//! need not wait for threads that compute.

use crate::os::check_syscall;
use std::io;
use std::mem::{self, size_of};

const SIZE: u32 = size_of::<libc::sched_attr>() as u32;

/// Request time slices of `nanoseconds` for the calling thread. Return true if it has them now.
///
/// Return false, without a change, if the kernel has no slices for threads, if the slice of this thread is as short
/// already, or if the thread was given a priority. Threads and processes that it starts later have the usual slice.
/// Fails if the kernel refuses a system call.
pub fn shorten_time_slice(nanoseconds: u64) -> io::Result<bool> {
    let mut attributes = attributes()?;
    // Older kernels report 0.
    if has_priority(&attributes) || attributes.sched_runtime <= nanoseconds {
        return Ok(false);
    }
    attributes.size = SIZE;
    attributes.sched_flags |= libc::SCHED_FLAG_RESET_ON_FORK as u64;
    attributes.sched_runtime = nanoseconds;
    // SAFETY: the kernel reads as many bytes as the struct has.
    check_syscall(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) })?;
    Ok(true)
}

/// Return the number of the current CPU, which may change at any time; None if unknown.
#[inline]
pub fn current_cpu() -> Option<u32> {
    // SAFETY: no memory is involved. glibc reads it from the thread's kernel data, without a system call.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Return true if the thread was given a priority of any kind.
fn has_priority(attributes: &libc::sched_attr) -> bool {
    attributes.sched_policy != libc::SCHED_OTHER as u32 || attributes.sched_nice != 0
}

/// Return the scheduling attributes of the calling thread.
fn attributes() -> io::Result<libc::sched_attr> {
    // SAFETY: all zeros are a valid value of this plain struct.
    let mut attributes: libc::sched_attr = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes at most `SIZE` bytes, and the struct has as many. Thread 0 is the calling one.
    check_syscall(unsafe {
        libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, SIZE, 0)
    })?;
    Ok(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Return the time slice of the calling thread, in nanoseconds; 0 if the kernel has none.
    fn slice() -> u64 {
        attributes().unwrap().sched_runtime
    }

    /// Run a test on a thread of its own, so that other tests keep their attributes.
    fn on_a_thread<T: Send>(test: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| scope.spawn(test).join().unwrap())
    }

    #[test]
    fn a_shorter_slice_is_not_inherited() {
        on_a_thread(|| {
            let usual = slice();
            // All tests may run with a priority, under nice(1).
            let is_longer = usual > 300_000 && !has_priority(&attributes().unwrap());
            assert_eq!(shorten_time_slice(300_000).unwrap(), is_longer);
            if is_longer {
                assert_eq!(slice(), 300_000);
                assert_eq!(on_a_thread(slice), usual);
            }
        });
    }

    #[test]
    fn a_slice_that_is_shorter_already_is_kept() {
        on_a_thread(|| {
            shorten_time_slice(200_000).unwrap();
            let short = slice();
            assert!(!shorten_time_slice(300_000).unwrap());
            assert_eq!(slice(), short);
        });
    }

    #[test]
    fn a_thread_with_a_priority_keeps_its_slice() {
        on_a_thread(|| {
            let usual = slice();
            // The lowest priority, which any process may take. SAFETY: no memory is involved; 0 is the calling thread.
            assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) }, 0);
            assert!(!shorten_time_slice(300_000).unwrap());
            assert_eq!(slice(), usual);
        });
    }
}
