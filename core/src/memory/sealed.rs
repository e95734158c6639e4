//! Files that one process writes, and that no other can: memfds, sealed once their writer has mapped them.
//!
//! With `F_SEAL_FUTURE_WRITE` nobody can map such a file writable any more, write to it, or change its size; the mapping
//! that was there before stays writable. Holes cannot be punched in it, so memory that was set aside stays until the last
//! mapping goes. Others open it by the descriptor of the process that has it.

use crate::os::done;
use std::ffi::CStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

/// The seal against writes by new mappings; libc does not name it for each target.
const F_SEAL_FUTURE_WRITE: libc::c_int = 0x10;
const SEALS: libc::c_int =
    F_SEAL_FUTURE_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Makes a file of this size, all zeros, to be mapped and then sealed.
pub fn create(name: &CStr, size: u64) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a valid C string.
    let made = |flags| done(unsafe { libc::memfd_create(name.as_ptr(), flags) });
    // Some hosts require the flag that it is never executed; older kernels do not know it.
    let fd = made(flags | libc::MFD_NOEXEC_SEAL).or_else(|_| made(flags))?;
    // SAFETY: it is new, so it is ours alone.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the descriptor is open; no memory is involved.
    done(unsafe { libc::ftruncate(fd, size as libc::off_t) })?;
    Ok(file)
}

/// Seals it: what is mapped writable stays so, and nobody else can write it.
pub fn seal(file: &impl AsFd) -> io::Result<()> {
    // SAFETY: the descriptor is open; no memory is involved.
    done(unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_ADD_SEALS, SEALS) }).map(drop)
}

/// Whether it is sealed.
pub fn is_sealed(file: &impl AsFd) -> bool {
    // SAFETY: the descriptor is open; no memory is involved.
    let seals = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & SEALS == SEALS
}

/// What a process has under a descriptor.
pub fn path(process: libc::pid_t, descriptor: RawFd) -> String {
    format!("/proc/{process}/fd/{descriptor}")
}

/// Opens that for reading.
pub fn open(process: libc::pid_t, descriptor: RawFd) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // Whatever it is that stands there: to open it must not wait for anybody.
    options.read(true).custom_flags(libc::O_NONBLOCK);
    options.open(path(process, descriptor))
}

/// In the flags of a thread, as /proc shows them: it has begun to end.
const EXITING: u64 = 0x4;

/// Returns true if a process has begun to end. Its descriptors can no longer be opened then, although the kernel may need
/// a long time to close them and to release their locks.
pub fn is_ending(process: libc::pid_t) -> bool {
    match fs::read_to_string(format!("/proc/{process}/stat")) {
        Ok(status) => has_ending_flags(&status),
        // It is gone; or nothing can be told of any process.
        Err(_) => fs::exists("/proc/self/stat").unwrap_or(false),
    }
}

/// The state is the first word behind the name of the program, which may have any characters; the flags are the seventh.
fn has_ending_flags(status: &str) -> bool {
    let mut words = status
        .rsplit_once(')')
        .map_or("", |(_, rest)| rest)
        .split_whitespace();
    let is_dead = matches!(words.next(), Some("Z" | "X"));
    let flags = words.nth(5).and_then(|word| word.parse::<u64>().ok());
    is_dead || flags.is_some_and(|flags| flags & EXITING != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_ends_is_told_by_its_state_or_its_flags() {
        let status =
            |state: &str, flags: u64| format!("7 (a) Z (b) {state} 1 7 7 0 -1 {flags} 90 0");
        assert!(!has_ending_flags(&status("S", 0x40_0040)));
        assert!(has_ending_flags(&status("R", 0x40_0044)));
        assert!(has_ending_flags(&status("Z", 0x40_0040)));
        assert!(!has_ending_flags("no status"));
        assert!(!is_ending(std::process::id() as libc::pid_t));
        assert!(is_ending(libc::pid_t::MAX));
    }
}
