//! `Poller`: the frames of many channels, in turn.

use super::channel::Channel;
use super::errors::{ChannelError, unsent};
use super::incoming::Frame;
use super::payload::Payload;
use crate::connection::channel::{SendError, Sent};
use crate::connection::poller::{self, Found};
use crate::sync::lock;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyTuple};
use std::sync::{Arc, Mutex, MutexGuard};

/// The receiving side of a server: the next frame on any of its channels.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Poller {
    inner: Mutex<poller::Poller<Py<PyAny>>>,
    /// What stands in the place of the opcode if a peer broke the rules.
    fault: u64,
}

impl Poller {
    /// Never held while waiting for the GIL.
    fn lock(&self) -> MutexGuard<'_, poller::Poller<Py<PyAny>>> {
        lock(&self.inner)
    }

    fn found<'py>(&self, py: Python<'py>, found: Found) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let inner = self.lock();
        let (index, violation) = match found {
            Found::Nothing => return Ok(None),
            Found::Frame(index) => (index, None),
            Found::Broken(index, violation) => (index, Some(violation)),
        };
        let (Some(key), Some(channel)) = (inner.key(index), inner.channel(index)) else {
            return Ok(None);
        };
        let key = key.clone_ref(py).into_bound(py);
        let channel = Arc::clone(channel);
        drop(inner);
        let mut receiver = channel.receiver();
        let header = match violation.map_or_else(|| receiver.peek(), Err) {
            Ok(Some(header)) => header,
            Ok(None) => return Ok(None),
            Err(violation) => {
                return self.broken(key, ChannelError::new_err(violation.to_string()));
            }
        };
        let taken = Frame::take(py, &channel, &mut receiver, header);
        drop(receiver);
        let opened = taken.and_then(|frame| {
            let opcode = frame.opcode;
            Ok((opcode, frame.open(py, channel.max_frame())?))
        });
        match opened {
            Ok((opcode, payload)) => Ok(Some((key, opcode, header.id, payload).into_pyobject(py)?)),
            Err(error) if error.is_instance_of::<ChannelError>(py) => self.broken(key, error),
            Err(error) => Err(error),
        }
    }

    /// What comes in the place of a frame if a channel's peer broke the rules.
    fn broken<'py>(
        &self,
        key: Bound<'py, PyAny>,
        error: PyErr,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let py = key.py();
        let report = (key, self.fault, 0u64, error.into_value(py));
        Ok(Some(report.into_pyobject(py)?))
    }
}

#[pymethods]
impl Poller {
    #[new]
    #[pyo3(signature = (*, spin, fault))]
    fn new(spin: f64, fault: u64) -> Self {
        Poller {
            fault,
            inner: Mutex::new(poller::Poller::new((spin * 1e3) as u64)),
        }
    }

    /// What the garbage collector asks: a key may lead back to our holder, as at a server that was never closed.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // A lock that is held now is held by a user of ours: nothing is garbage then.
        let Ok(inner) = self.inner.try_lock() else {
            return Ok(());
        };
        inner.keys().try_for_each(|key| visit.call(key))
    }

    /// The cycle is broken here.
    fn __clear__(&self) {
        let fresh = poller::Poller::new(0);
        let before = std::mem::replace(&mut *self.lock(), fresh);
        drop(before); // After the lock: a key that goes may come back to us.
    }

    /// Adds a channel; `key` comes back with each of its frames. Returns its number.
    fn add(&self, channel: &Channel, key: Py<PyAny>) -> PyResult<usize> {
        let channel = channel.open()?;
        Ok(self.lock().add(channel, key))
    }

    /// Forgets the channel of this number.
    fn remove(&self, index: usize) {
        let key = self.lock().remove(index);
        drop(key);
    }

    /// The bell of this channel rang. False if it will never ring again: the peer has ended it.
    fn wake(&self, index: usize) -> bool {
        self.lock().wake(index)
    }

    /// Whether to look for more than what is there.
    fn set_spinning(&self, spinning: bool) {
        self.lock().spinning = spinning;
    }

    /// The next frame as (key, opcode, id, payload), or None when it is time to rest.
    ///
    /// A channel whose peer broke the rules comes as (key, fault, 0, ChannelError).
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let found = py.detach(|| self.lock().find());
        self.found(py, found)
    }

    /// Sends a frame on `channel`, then does as `next`. After a large frame it returns True at
    /// once: the caller may have something to do while the peer reads it, and calls `next` then.
    fn send_next<'py>(
        &self,
        py: Python<'py>,
        channel: &Channel,
        opcode: u32,
        id: u64,
        payload: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        // A closed channel is one whose client has just gone: there are others.
        let Ok(channel) = channel.open() else {
            return Ok(self.next(py)?.map(Bound::into_any));
        };
        let mut payload = Payload::new(payload)?;
        let large = payload.is_large();
        let found = py.detach(|| match payload.send(&channel, opcode, id, false) {
            Err(error @ (SendError::Oversize { .. } | SendError::Backlog { .. })) => Err(error),
            sent => {
                let mut inner = self.lock();
                if let Ok(Sent::Rang) = sent {
                    inner.rang();
                }
                // A violation is remembered: the next look at the channel finds it.
                Ok((!large).then(|| inner.find()))
            }
        });
        match found.map_err(unsent)? {
            Some(found) => Ok(self.found(py, found)?.map(Bound::into_any)),
            None => Ok(Some(PyBool::new(py, true).to_owned().into_any())),
        }
    }

    /// Before the loop goes on: true if a bell will ring for the next frame, false if the
    /// loop is to call again on its next turn.
    fn rest(&self) -> bool {
        self.lock().rest()
    }
}
