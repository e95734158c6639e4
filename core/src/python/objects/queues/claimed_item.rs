//! `ClaimedItem`: an item that this process has claimed, and its memory.

use crate::memory::bytes;
use crate::objects::queue::QueueMembership;
use crate::python::codec::values::Values;
use crate::python::objects::error::object_error;
use crate::python::objects::queues::waiting::{attempt_to_end, corruption_error, first_word};
use crate::python::support::buffer::new_bytes;
use crate::python::support::in_place_bytes::InPlaceBytes;
use crate::queue::parcel::Parts;
use crate::queue::{self, ClaimEnd, Form};
use crate::shared_heap::Field;
use crate::sync::lock;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PyTuple};
use std::sync::{Arc, Mutex};

/// The smallest number of raw bytes that are read in place rather than copied.
const LARGE: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// The state of a claim.
enum State {
    Claimed,
    /// Acknowledged, while views of the item exist.
    Acknowledged,
    Ended,
}

/// An item that this process has claimed.
///
/// The claim ends at the latest when nothing refers to it or to its memory. The item then returns to the queue, unless
/// it was acknowledged.
pub(crate) struct ClaimedItem {
    membership: Arc<QueueMembership>,
    claim: queue::Claim,
    state: Mutex<State>,
}

impl ClaimedItem {
    /// Takes over a claim, which ends when the last reference to this is dropped.
    pub(crate) fn new(membership: Arc<QueueMembership>, claim: queue::Claim) -> Self {
        ClaimedItem {
            membership,
            claim,
            state: Mutex::new(State::Claimed),
        }
    }

    /// Returns the claim in the queue, also once it has ended.
    pub(crate) fn claim(&self) -> queue::Claim {
        self.claim
    }

    /// Returns true if the claim has not ended, as far as this process knows.
    pub(crate) fn is_claimed(&self) -> bool {
        *lock(&self.state) == State::Claimed
    }

    /// Returns the value of the item, whose large buffers refer to the queue's memory. Raw bytes are a memoryview.
    /// Raises the error of an item that cannot be read, and RemoteProtocolError if its layout is corrupt.
    pub(crate) fn read_in_place<'py>(
        self: &Arc<Self>,
        py: Python<'py>,
        values: &Values,
    ) -> PyResult<Bound<'py, PyAny>> {
        let claim = &self.claim;
        let number = Some(claim.number);
        if claim.form == Form::Raw {
            let bytes = match claim.len >= LARGE {
                true => Bound::new(py, self.in_place(py, 0, claim.len)?)?.into_any(),
                false => self.read_copied(py, values, number, false)?,
            };
            return Ok(PyMemoryView::from(&bytes)?.into_any());
        }
        if claim.form != Form::Parcel {
            return self.read_copied(py, values, number, false);
        }
        let (body, buffers) = self.parcel_in_place(py)?;
        values.read_parcel(py, body, PyTuple::new(py, buffers)?, number, false)
    }

    /// Returns the value of the item, which refers to no memory of the queue, and whose arrays the receiver may write:
    /// each array is a copy. `number` is the number of the item, for errors. Raises what `read_in_place` raises.
    pub(crate) fn read_owned<'py>(
        self: &Arc<Self>,
        py: Python<'py>,
        values: &Values,
        number: Option<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if self.claim.form == Form::Parcel {
            let (body, buffers) = self.parcel_in_place(py)?;
            // Each array is copied to its final place, so nothing refers to the queue's memory afterwards.
            if let Some(value) = Values::read_owned(py, &body, buffers) {
                return Ok(value);
            }
        }
        self.read_copied(py, values, number, true)
    }

    /// Returns the value of the item, which refers to no memory of the queue. With `owns`, the receiver may write its
    /// arrays. `number` is the number of the item, for errors. Raises what `read_in_place` raises.
    fn read_copied<'py>(
        &self,
        py: Python<'py>,
        values: &Values,
        number: Option<u64>,
        owns: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let claim = &self.claim;
        match claim.form {
            Form::Raw => Ok(self.copy(py, 0, claim.len)?.into_any()),
            Form::Value => {
                let body = self.copy(py, 0, claim.len)?;
                values.read(py, body.as_bytes(), number, owns)
            }
            Form::Parcel => {
                let parts = self.parts(py)?;
                let buffers = parts.buffers.iter();
                let buffers = buffers.map(|&(at, len)| self.copy(py, at, len));
                let buffers = buffers.collect::<PyResult<Vec<_>>>()?;
                let body = self.copy(py, parts.body.0, parts.body.1)?;
                values.read_parcel(py, body, PyTuple::new(py, buffers)?, number, owns)
            }
        }
    }

    /// Returns a copy of the body of a parcel, and its buffers in place. Raises RemoteProtocolError if the layout of
    /// the parcel is corrupt.
    fn parcel_in_place<'py>(
        self: &Arc<Self>,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyBytes>, Vec<Bound<'py, PyAny>>)> {
        let parts = self.parts(py)?;
        let buffers = parts.buffers.iter().map(|&(at, len)| {
            let buffer = self.in_place(py, at, len)?;
            Ok(Bound::new(py, buffer)?.into_any())
        });
        let buffers = buffers.collect::<PyResult<Vec<_>>>()?;
        let body = self.copy(py, parts.body.0, parts.body.1)?;
        Ok((body, buffers))
    }

    /// Copies `len` bytes from offset `at` of the item into a new bytes object.
    fn copy<'py>(&self, py: Python<'py>, at: u64, len: u64) -> PyResult<Bound<'py, PyBytes>> {
        let membership = &self.membership;
        let from = membership.address_of(self.claim.at + at, len);
        let from = from
            .map_err(|error| object_error(py, membership, error))?
            .addr();
        new_bytes(py, len as usize, move |to| {
            // SAFETY: mapped for as long as the membership, which `self` has; `to` is as long.
            unsafe { bytes::copy(to, from as *const u8, len as usize) }
        })
    }

    /// Returns `len` bytes from offset `at` of the item, in place.
    fn in_place(self: &Arc<Self>, py: Python<'_>, at: u64, len: u64) -> PyResult<InPlaceBytes> {
        let membership = &self.membership;
        let address = membership.address_of(self.claim.at + at, len);
        let address = address.map_err(|error| object_error(py, membership, error))?;
        let view = membership.view();
        let view = view.map_err(|error| object_error(py, membership, error))?;
        let (location, owner) = ((address.addr(), len as usize), (self.clone(), view));
        Ok(InPlaceBytes::new(
            Arc::new(owner),
            location,
            "an item of a queue",
        ))
    }

    /// Returns the layout of the item's payload. Raises RemoteProtocolError if it is corrupt.
    fn parts(&self, py: Python<'_>) -> PyResult<Parts> {
        let membership = &self.membership;
        let payload = membership.address_of(self.claim.at, self.claim.len);
        let payload = payload.map_err(|error| object_error(py, membership, error))?;
        let mut found = 0;
        let parts = Parts::read(self.claim.len, |at, to| {
            // SAFETY: `read` asks only for bytes within the payload, which is mapped.
            unsafe {
                let from = payload.wrapping_add(at as usize);
                bytes::copy(to.as_mut_ptr(), from, to.len());
            }
            if at == 0 {
                found = first_word(to);
            }
        });
        parts.ok_or_else(|| corruption_error(py, membership, Field::Parts, self.claim.at, found))
    }

    /// Ends the claim, and frees the memory of the item; with `keeps_memory`, the memory is freed when this is dropped.
    /// Returns false if the claim had ended. Waits up to a second for the owner lock, and raises QueueBusy then: the
    /// claim stays.
    pub(crate) fn acknowledge(
        &self,
        py: Python<'_>,
        end: ClaimEnd,
        keeps_memory: bool,
    ) -> PyResult<bool> {
        if !self.is_claimed() {
            return Ok(false);
        }
        let (membership, claim) = (&self.membership, &self.claim);
        let has_ended = attempt_to_end(py, membership, |timeout| {
            membership.acknowledge(claim, end, keeps_memory, timeout)
        })?;
        *lock(&self.state) = if has_ended && keeps_memory {
            State::Acknowledged
        } else {
            State::Ended
        };
        Ok(has_ended)
    }

    /// Ends the claim and puts the item back at the head of the queue. Returns false if the claim had ended. Waits and
    /// raises as `acknowledge` does.
    pub(crate) fn nack(&self, py: Python<'_>) -> PyResult<bool> {
        if !self.is_claimed() {
            return Ok(false);
        }
        let (membership, claim) = (&self.membership, &self.claim);
        let has_ended = attempt_to_end(py, membership, |timeout| {
            membership.return_item(claim, timeout)
        })?;
        *lock(&self.state) = State::Ended;
        Ok(has_ended)
    }
}

impl Drop for ClaimedItem {
    /// Ends the claim: the item returns to the queue unless it was acknowledged. Waits for the owner lock for at most
    /// `OWNER_LOCK_TIMEOUT`, with the GIL if the caller has it; the watcher ends the claim otherwise.
    fn drop(&mut self) {
        if !self.membership.is_here() {
            std::mem::forget(self.membership.clone()); // A forked child must release nothing of its parent's.
            return;
        }
        let state = *lock(&self.state);
        if state != State::Ended {
            let is_acknowledged = state == State::Acknowledged;
            self.membership.drop_claim(self.claim, is_acknowledged);
        }
    }
}
