//! Helpers of the tests: forked processes, pseudo-random numbers, deadlines and files.

use std::fs::File;
use std::os::fd::FromRawFd;

/// More than any operation takes, in nanoseconds.
pub(crate) const LONG: u64 = 30_000_000_000;

/// Return a deadline that no operation reaches, [`LONG`] from now, in nanoseconds of CLOCK_MONOTONIC.
pub(crate) fn soon() -> u64 {
    crate::clock::now() + LONG
}

/// Return `long` if the environment variable SHMRPC_TORTURE is 1, for the long form of the tests, and else `short`.
pub(crate) fn scaled(short: u64, long: u64) -> u64 {
    let is_long = std::env::var("SHMRPC_TORTURE").is_ok_and(|value| value == "1");
    if is_long { long } else { short }
}

/// Create an empty file in memory.
pub(crate) fn file_in_memory() -> File {
    // SAFETY: a valid C string; the new descriptor is owned here alone.
    unsafe {
        let made = libc::memfd_create(c"shmrpc-test".as_ptr(), libc::MFD_CLOEXEC);
        assert!(made >= 0);
        File::from_raw_fd(made)
    }
}

/// Fork a process that runs `work` and exits with 0, or with 1 after a panic.
pub(crate) fn fork(work: impl FnOnce()) -> Child {
    // SAFETY: the child uses only `work` and the allocator, which glibc keeps usable.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: no memory is involved.
        unsafe { libc::_exit(i32::from(ended.is_err())) };
    }
    Child(pid)
}

/// A forked process, which is killed when dropped.
pub(crate) struct Child(libc::pid_t);

impl Child {
    /// Send a signal to the process.
    pub(crate) fn signal(&self, signal: libc::c_int) {
        // SAFETY: no memory is involved; the child was not waited for.
        assert_eq!(unsafe { libc::kill(self.0, signal) }, 0);
    }

    /// Return the id of the process.
    pub(crate) fn id(&self) -> libc::pid_t {
        self.0
    }

    /// Return true if the process sleeps in the kernel.
    pub(crate) fn is_asleep(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap();
        let state = stat.rsplit(") ").next().unwrap();
        state.starts_with('S')
    }

    /// Return true if the process has ended. It can still be waited for.
    pub(crate) fn has_ended(&self) -> bool {
        // SAFETY: zeros are a valid `siginfo_t`, which is written. The child can be waited for again.
        unsafe {
            let mut ended: libc::siginfo_t = std::mem::zeroed();
            let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            let done = libc::waitid(libc::P_PID, self.0 as libc::id_t, &raw mut ended, how);
            assert_eq!(done, 0);
            ended.si_pid() != 0
        }
    }

    /// Wait for the process. Return its signal, or 256 times its exit code.
    pub(crate) fn wait(self) -> libc::c_int {
        let mut status = 0;
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, 0) }, self.0);
        std::mem::forget(self);
        status
    }

    /// Kill the process and wait for its end. Panics if it has failed before.
    pub(crate) fn kill(self) {
        self.signal(libc::SIGKILL);
        assert_eq!(self.wait(), libc::SIGKILL, "it failed before it was killed");
    }

    /// Stop the process, and return once it is stopped.
    pub(crate) fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: `status` is writable.
        unsafe { libc::waitpid(self.0, &raw mut status, libc::WUNTRACED) };
        assert!(libc::WIFSTOPPED(status));
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: no memory is involved; the child was not waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// A generator of pseudo-random numbers, the same at each run (xorshift64).
pub(crate) struct TestRng(pub(crate) u64);

impl TestRng {
    /// Return the next number of 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Return a number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    /// Return a number from `least` to `most`, both included.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// Return a number from 1 to 2^(most + 1) - 1, with each number of bits equally likely.
    pub(crate) fn any_size(&mut self, most: u64) -> u64 {
        let power = self.below(most + 1);
        (1 << power) | self.below(1 << power)
    }
}
