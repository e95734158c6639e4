//! Sealed files, which one process writes and no other can: memfds, sealed once their writer has mapped them.
//!
//! With `F_SEAL_FUTURE_WRITE` no process can map such a file writable, write to it, or change its size; the existing
//! mapping stays writable. Holes cannot be punched in it, so allocated memory stays until the last mapping is gone.
//! Other processes open it by the descriptor of its writer.

use crate::os::check_syscall;
use std::ffi::CStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

/// Seal against writes by new mappings; libc does not define it for each target.
const F_SEAL_FUTURE_WRITE: libc::c_int = 0x10;
const SEALS: libc::c_int =
    F_SEAL_FUTURE_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Create a file of this size, all zeros and without memory, for the caller to map and then seal. `name` is for
/// diagnosis only. Fails if the system refuses a call.
pub fn create(name: &CStr, size: u64) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a valid C string.
    let made = |flags| check_syscall(unsafe { libc::memfd_create(name.as_ptr(), flags) });
    // Some hosts require the flag against execution; older kernels do not know it.
    let fd = made(flags | libc::MFD_NOEXEC_SEAL).or_else(|_| made(flags))?;
    // SAFETY: the new descriptor is owned here alone.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the descriptor is open; no memory is involved.
    check_syscall(unsafe { libc::ftruncate(fd, size as libc::off_t) })?;
    Ok(file)
}

/// Seal a file of [`create`]: existing writable mappings stay writable, and no process can write it otherwise or change
/// its size. Fails with EPERM if it is sealed already.
pub fn seal(file: &impl AsFd) -> io::Result<()> {
    // SAFETY: the descriptor is open; no memory is involved.
    check_syscall(unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_ADD_SEALS, SEALS) })
        .map(drop)
}

/// Return true if the file has all the seals of [`seal`]; false for a file that cannot be sealed.
pub fn is_sealed(file: &impl AsFd) -> bool {
    // SAFETY: the descriptor is open; no memory is involved.
    let seals = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & SEALS == SEALS
}

/// Return the path of a descriptor of a process.
pub fn path(process: libc::pid_t, descriptor: RawFd) -> String {
    format!("/proc/{process}/fd/{descriptor}")
}

/// Open the file under a descriptor of a process for reading, without blocking. The caller checks what it is: see
/// [`is_sealed`]. Fails with `NotFound` if the process or its descriptor is gone, and if this process may not read it.
pub fn open(process: libc::pid_t, descriptor: RawFd) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // Non-blocking, because the file may be anything, and the open must not wait for another process.
    options.read(true).custom_flags(libc::O_NONBLOCK);
    options.open(path(process, descriptor))
}

/// Flag of a thread, as /proc shows it: it has begun to end.
const EXITING: u64 = 0x4;

/// Return true if a process has begun to end, or is gone. Its descriptors can no longer be opened then, although the
/// kernel may need a long time to close them and to release their locks. Return false if /proc is not available.
pub fn is_ending(process: libc::pid_t) -> bool {
    match fs::read_to_string(format!("/proc/{process}/stat")) {
        Ok(status) => has_ending_flags(&status),
        // The process is gone, or /proc is not available.
        Err(_) => fs::exists("/proc/self/stat").unwrap_or(false),
    }
}

/// Parse the state, the first word behind the program's name, which may have any characters, and the flags, the
/// seventh.
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
    fn a_process_that_ends_has_a_state_or_a_flag_for_it() {
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
