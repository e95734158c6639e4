//! Descriptors that belong to an object: whoever loses it, as by the exception of a signal's handler between two
//! instructions, has closed them.

use crate::own_fd::OwnFd;
use crate::packet;
use crate::python::support::errors::os_error;
use crate::sync::lock;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};

fn closed() -> PyErr {
    os_error(&io::Error::from_raw_os_error(libc::EBADF))
}

/// An open file of this process. It is closed when this goes.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Descriptor(Mutex<Option<OwnFd>>);

impl Descriptor {
    pub(crate) fn new(file: OwnedFd) -> Self {
        Descriptor(Mutex::new(Some(file.into())))
    }

    fn file(&self) -> MutexGuard<'_, Option<OwnFd>> {
        lock(&self.0)
    }

    /// What this comes to for the file; an error if it is closed.
    pub(crate) fn with<T>(
        &self,
        use_it: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
    ) -> PyResult<T> {
        let file = self.file();
        let file = file.as_ref().ok_or_else(closed)?;
        use_it(file.as_fd()).map_err(|error| os_error(&error))
    }

    /// The file itself. This is closed then.
    pub(crate) fn take(&self) -> PyResult<OwnedFd> {
        self.file().take().map(OwnFd::into_inner).ok_or_else(closed)
    }
}

#[pymethods]
impl Descriptor {
    /// The two ends of a pair of local sockets of packets.
    #[staticmethod]
    fn pair() -> PyResult<(Self, Self)> {
        let [one, other] = packet::pair().map_err(|error| os_error(&error))?;
        Ok((Descriptor::new(one), Descriptor::new(other)))
    }

    /// Its number; -1 once it is closed.
    fn fileno(&self) -> i32 {
        self.file().as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Closes it. Again: nothing.
    fn close(&self) {
        let file = self.file().take();
        drop(file);
    }
}

/// Takes the next packet of up to ``size`` bytes out of a socket, without a wait: its bytes, none at the end; the
/// descriptors that came along, eight at least if there are as many; whether there were more, or this process could not
/// take them; and the id of the process that sent it, 0 if it has none here or the socket does not ask (SO_PASSCRED).
///
/// ``patience``: nanoseconds for which it waits for one; ``spin``: for how many of them it looks again and again.
#[pyfunction]
#[pyo3(signature = (socket, size, patience=0, spin=0, /))]
pub fn receive_packet(
    py: Python<'_>,
    socket: i32,
    size: usize,
    patience: u64,
    spin: u64,
) -> PyResult<(Bound<'_, PyBytes>, Vec<Descriptor>, bool, i32)> {
    // SAFETY: the caller keeps `socket` open during the call; a closed one is an error.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    if patience > 0 {
        py.detach(|| packet::wait(socket, spin, patience));
    }
    // Most packets are small, and a large buffer would be filled with zeros first.
    let len = packet::next_len(socket).map_err(|error| os_error(&error))?;
    let (mut bytes, mut room) = (vec![0; len.min(size)], [0; packet::ROOM]);
    let packet =
        packet::receive(socket, &mut bytes, &mut room, 0).map_err(|error| os_error(&error))?;
    let files = packet.files.into_iter().map(Descriptor::new).collect();
    let bytes = PyBytes::new(py, &bytes[..packet.len]);
    Ok((bytes, files, packet.cut, packet.sender))
}

/// Sends a packet with descriptors, without a wait: whole, or not at all.
#[pyfunction]
pub fn send_packet(socket: i32, bytes: &[u8], files: Vec<PyRef<'_, Descriptor>>) -> PyResult<()> {
    let held: Vec<_> = files.iter().map(|each| each.file()).collect();
    let files: Option<Vec<_>> = held
        .iter()
        .map(|each| Some(each.as_ref()?.as_fd()))
        .collect();
    // SAFETY: the caller keeps `socket` open during the call; a closed one is an error.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    let files = files.ok_or_else(closed)?;
    packet::send(socket, bytes, &files).map_err(|error| os_error(&error))
}
