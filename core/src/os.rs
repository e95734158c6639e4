//! What system calls return.

use std::io;

/// The result of a system call, or its error.
pub(crate) fn done<T: Default + PartialOrd>(result: T) -> io::Result<T> {
    if result < T::default() {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// Repeats a call for as long as signals interrupt it.
pub(crate) fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(result) => return Ok(result),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}
