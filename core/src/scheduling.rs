//! For how long the kernel lets a thread run in one go, and so how soon it has its turn; and where it runs.
//!
//! Since Linux 6.12 a thread may ask for a time slice of its own, without any rights. Its share of the CPU stays what
//! it was; but of two that may run the kernel takes the one whose slice ends first, and so one that asks for little at
//! a time need not wait until others, which compute, have had theirs.

use crate::os::done;
use std::io;
use std::mem::{self, size_of};

const SIZE: u32 = size_of::<libc::sched_attr>() as u32;

/// Lets the calling thread ask for `nanoseconds` at a time; true if it does so now.
///
/// False, and nothing has changed, if the kernel knows no slices of threads, if this one's is as short already, or if
/// the thread was given a priority. Threads and processes that it starts later have the usual slice.
pub fn shorten(nanoseconds: u64) -> io::Result<bool> {
    let mut attributes = attributes()?;
    // Older kernels say 0.
    if has_priority(&attributes) || attributes.sched_runtime <= nanoseconds {
        return Ok(false);
    }
    attributes.size = SIZE;
    attributes.sched_flags |= libc::SCHED_FLAG_RESET_ON_FORK as u64;
    attributes.sched_runtime = nanoseconds;
    // SAFETY: the kernel reads as many bytes as the struct says it has.
    done(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) })?;
    Ok(true)
}

/// The CPU that the calling thread runs on, as far as it is known; it may be another one a moment later.
#[inline]
pub fn cpu() -> Option<u32> {
    // SAFETY: no memory is involved. glibc reads it from what the kernel keeps for each thread: no system call.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Whether the thread was given a priority, of whatever kind.
fn has_priority(attributes: &libc::sched_attr) -> bool {
    attributes.sched_policy != libc::SCHED_OTHER as u32 || attributes.sched_nice != 0
}

/// What the calling thread asks of the scheduler.
fn attributes() -> io::Result<libc::sched_attr> {
    // SAFETY: all zeros are a valid value of this plain struct.
    let mut attributes: libc::sched_attr = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes at most `SIZE` bytes, and the struct has as many. Thread 0 is the calling one.
    done(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, SIZE, 0) })?;
    Ok(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// The slice of the calling thread, in nanoseconds; 0 if the kernel knows none.
    fn slice() -> u64 {
        attributes().unwrap().sched_runtime
    }

    /// On a thread of its own: the others keep what they have.
    fn on_a_thread<T: Send>(test: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| scope.spawn(test).join().unwrap())
    }

    #[test]
    fn it_is_shorter_here_and_as_ever_in_what_is_started() {
        on_a_thread(|| {
            let usual = slice();
            // All tests may run with a priority, under nice(1).
            let is_longer = usual > 300_000 && !has_priority(&attributes().unwrap());
            assert_eq!(shorten(300_000).unwrap(), is_longer);
            if is_longer {
                assert_eq!(slice(), 300_000);
                assert_eq!(on_a_thread(slice), usual);
            }
        });
    }

    #[test]
    fn a_shorter_one_is_kept() {
        on_a_thread(|| {
            shorten(200_000).unwrap();
            let short = slice();
            assert!(!shorten(300_000).unwrap());
            assert_eq!(slice(), short);
        });
    }

    #[test]
    fn a_priority_that_somebody_gave_is_theirs() {
        on_a_thread(|| {
            let usual = slice();
            // The last one, which everybody may take. SAFETY: no memory is involved; 0 is the calling thread.
            assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) }, 0);
            assert!(!shorten(300_000).unwrap());
            assert_eq!(slice(), usual);
        });
    }
}
