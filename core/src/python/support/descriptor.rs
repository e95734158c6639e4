//! File descriptors that belong to an object.
//!
//! If the handler of a signal raises between two instructions, the object is dropped, which closes the file.

use crate::own_fd::OwnFd;
use crate::packet;
use crate::python::support::errors::os_error;
use crate::sync::lock;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};

/// Returns the OSError with EBADF for a closed file.
fn closed_error() -> PyErr {
    os_error(&io::Error::from_raw_os_error(libc::EBADF))
}

/// An open file of this process, which is closed when this object is dropped.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Descriptor(Mutex<Option<OwnFd>>);

impl Descriptor {
    pub(crate) fn new(file: OwnedFd) -> Self {
        Descriptor(Mutex::new(Some(file.into())))
    }

    /// Locks the file.
    fn file(&self) -> MutexGuard<'_, Option<OwnFd>> {
        lock(&self.0)
    }

    /// Calls `operate` with the file, under its lock, and returns the result. Raises OSError if that fails or if the
    /// file is closed.
    pub(crate) fn with<T>(
        &self,
        operate: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
    ) -> PyResult<T> {
        let file = self.file();
        let file = file.as_ref().ok_or_else(closed_error)?;
        operate(file.as_fd()).map_err(|error| os_error(&error))
    }

    /// Returns the file itself, and closes this object. Raises OSError if the file is closed.
    pub(crate) fn take(&self) -> PyResult<OwnedFd> {
        self.file()
            .take()
            .map(OwnFd::into_inner)
            .ok_or_else(closed_error)
    }
}

#[pymethods]
impl Descriptor {
    /// Returns the two ends of a pair of local packet sockets.
    #[staticmethod]
    fn pair() -> PyResult<(Self, Self)> {
        let [one, other] = packet::pair().map_err(|error| os_error(&error))?;
        Ok((Descriptor::new(one), Descriptor::new(other)))
    }

    /// Returns the number of the descriptor; -1 once it is closed.
    fn fileno(&self) -> i32 {
        self.file().as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Closes the file. Idempotent.
    fn close(&self) {
        let file = self.file().take();
        drop(file);
    }
}

/// Receives the next packet of up to ``size`` bytes from a socket.
///
/// Returns the bytes of the packet, empty at the end of the stream; at least the first eight descriptors; True if there
/// were more descriptors, or this process could not take them; and the id of the process that sent the packet, 0 if
/// that process has no id here or the socket does not have SO_PASSCRED. Raises OSError if no packet comes in time. A
/// signal ends the wait early: without a packet, OSError with EAGAIN is raised then too. A packet longer than ``size``
/// is truncated without notice.
///
/// ``timeout`` is the time in nanoseconds for which the call waits for a packet, and ``spin`` the part of this time for
/// which the call spins. The caller keeps ``socket`` open.
#[pyfunction]
#[pyo3(signature = (socket, size, timeout=0, spin=0, /))]
pub fn receive_packet(
    py: Python<'_>,
    socket: i32,
    size: usize,
    timeout: u64,
    spin: u64,
) -> PyResult<(Bound<'_, PyBytes>, Vec<Descriptor>, bool, i32)> {
    // SAFETY: the caller keeps `socket` open during the call; a closed one is an error.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    if timeout > 0 {
        py.detach(|| packet::wait(socket, spin, timeout));
    }
    // Most packets are small, and a large buffer would have to be filled with zeros first.
    let len = packet::next_len(socket).map_err(|error| os_error(&error))?;
    let (mut bytes, mut room) = (vec![0; len.min(size)], [0; packet::ROOM]);
    let packet =
        packet::receive(socket, &mut bytes, &mut room, 0).map_err(|error| os_error(&error))?;
    let files = packet.files.into_iter().map(Descriptor::new).collect();
    let bytes = PyBytes::new(py, &bytes[..packet.len]);
    Ok((bytes, files, packet.cut, packet.sender))
}

/// Sends a packet with descriptors, without a wait: the whole packet, or nothing. Raises OSError if that fails.
///
/// ``files``: different objects, because each stays locked during the call. Raises OSError with EBADF if one is closed,
/// and then sends nothing. The caller keeps ``socket`` open.
#[pyfunction]
pub fn send_packet(socket: i32, bytes: &[u8], files: Vec<PyRef<'_, Descriptor>>) -> PyResult<()> {
    let held: Vec<_> = files.iter().map(|each| each.file()).collect();
    let files: Option<Vec<_>> = held
        .iter()
        .map(|each| Some(each.as_ref()?.as_fd()))
        .collect();
    // SAFETY: the caller keeps `socket` open during the call; a closed one is an error.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    let files = files.ok_or_else(closed_error)?;
    packet::send(socket, bytes, &files).map_err(|error| os_error(&error))
}
