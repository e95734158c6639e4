//! `Claim`: an item of a queue that this process holds.

use crate::memory::bytes;
use crate::objects::queue::QueueMembership;
use crate::python::codec::values::Values;
use crate::python::objects::queues::queue::{Queue, attempt_to_end, copied, first_word};
use crate::python::objects::shared_object::failed;
use crate::python::support::block::Block;
use crate::queue::parcel::Parts;
use crate::queue::{self, ClaimEnd, Form};
use crate::shared_heap::Field;
use crate::sync::lock;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyMemoryView, PyTuple};
use std::sync::{Arc, Mutex};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Held,
    /// It was acknowledged; its memory is looked at still.
    Over,
    Ended,
}

/// A claim that ends at the latest when nobody refers to it, nor to its memory: its item comes back then, if it was not
/// acknowledged.
pub(crate) struct Held {
    membership: Arc<QueueMembership>,
    claim: queue::Claim,
    state: Mutex<State>,
}

impl Held {
    pub(crate) fn new(membership: Arc<QueueMembership>, claim: queue::Claim) -> Self {
        Held {
            membership,
            claim,
            state: Mutex::new(State::Held),
        }
    }

    /// The value of the item, which refers to no memory of the queue. `number` as `Queue::value` has it.
    fn copy<'py>(
        &self,
        py: Python<'py>,
        queue: &Queue,
        number: Option<u64>,
        owns: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let claim = &self.claim;
        let copy = |at, len| copied(py, &self.membership, claim.at + at, len);
        match claim.form {
            Form::Raw => Ok(copy(0, claim.len)?.into_any()),
            Form::Value => {
                let body = copy(0, claim.len)?;
                queue.values().read(py, body.as_bytes(), number, owns)
            }
            Form::Parcel => {
                let parts = self.parts(py, queue)?;
                let buffers = parts.buffers.iter().map(|&(at, len)| copy(at, len));
                let buffers = buffers.collect::<PyResult<Vec<_>>>()?;
                let body = copy(parts.body.0, parts.body.1)?;
                queue
                    .values()
                    .read_parcel(py, body, PyTuple::new(py, buffers)?, number, owns)
            }
        }
    }

    /// The value of the item, whose arrays are the receiver's own.
    pub(crate) fn copy_own<'py>(
        self: &Arc<Self>,
        py: Python<'py>,
        queue: &Queue,
        number: Option<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let claim = &self.claim;
        if claim.form == Form::Parcel {
            let parts = self.parts(py, queue)?;
            let blocks = parts
                .buffers
                .iter()
                .map(|&(at, len)| Ok(Bound::new(py, block(py, self, at, len)?)?.into_any()));
            let blocks = blocks.collect::<PyResult<Vec<_>>>()?;
            let (at, len) = parts.body;
            let body = copied(py, &self.membership, claim.at + at, len)?;
            // Of the queue's memory nothing is left afterwards: each array is copied to where it stays.
            if let Some(value) = Values::read_own(py, &body, blocks) {
                return Ok(value);
            }
        }
        self.copy(py, queue, number, true)
    }

    fn parts(&self, py: Python<'_>, queue: &Queue) -> PyResult<Parts> {
        let all = self.membership.address_of(self.claim.at, self.claim.len);
        let all = all.map_err(|error| failed(py, &self.membership, error))?;
        let mut found = 0;
        let parts = Parts::read(self.claim.len, |at, to| {
            // SAFETY: `read` asks for bytes within the payload alone, which is mapped.
            unsafe {
                let from = all.wrapping_add(at as usize);
                bytes::copy(to.as_mut_ptr(), from, to.len());
            }
            if at == 0 {
                found = first_word(to);
            }
        });
        parts.ok_or_else(|| queue.unreadable(py, Field::Parts, self.claim.at, found))
    }

    /// Ends it, and unless it `keeps` that, its memory's use; false if it has ended before.
    pub(crate) fn acknowledge(&self, py: Python<'_>, end: ClaimEnd, keeps: bool) -> PyResult<bool> {
        if *lock(&self.state) != State::Held {
            return Ok(false);
        }
        let (membership, claim) = (&self.membership, &self.claim);
        let ended = attempt_to_end(py, membership, |patience| {
            membership.acknowledge(claim, end, keeps, patience)
        })?;
        let over = if ended && keeps {
            State::Over
        } else {
            State::Ended
        };
        *lock(&self.state) = over;
        Ok(ended)
    }

    fn give_back(&self, py: Python<'_>) -> PyResult<bool> {
        if *lock(&self.state) != State::Held {
            return Ok(false);
        }
        let (membership, claim) = (&self.membership, &self.claim);
        let ended = attempt_to_end(py, membership, |patience| {
            membership.return_item(claim, patience)
        })?;
        *lock(&self.state) = State::Ended;
        Ok(ended)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.membership.is_here() {
            std::mem::forget(self.membership.clone()); // A forked child takes nothing of the parent's down.
            return;
        }
        let state = *lock(&self.state);
        if state != State::Ended {
            let is_over = state == State::Over;
            self.membership.drop_claim(self.claim, is_over);
        }
    }
}

/// An item of a queue that this process holds: it is delivered to nobody else until that ends.
///
/// `acknowledge` and `give_back` return False if it had ended before.
#[pyclass(frozen, weakref, module = "shmrpc._core")]
pub struct Claim {
    queue: Py<Queue>,
    claim: queue::Claim,
    /// None once it has ended: what looks at the item's memory then keeps that.
    held: Mutex<Option<Arc<Held>>>,
    value: Mutex<Option<Py<PyAny>>>,
}

impl Claim {
    pub(crate) fn new(queue: Py<Queue>, held: Held) -> Self {
        Claim {
            queue,
            claim: held.claim,
            held: Mutex::new(Some(Arc::new(held))),
            value: Mutex::new(None),
        }
    }

    fn held(&self) -> PyResult<Arc<Held>> {
        let held = lock(&self.held).clone();
        held.ok_or_else(|| PyValueError::new_err("the claim has ended"))
    }

    fn read<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (queue, claim, held) = (self.queue.get(), &self.claim, self.held()?);
        let number = Some(claim.number);
        if claim.form == Form::Raw {
            let bytes = match claim.len >= LARGE {
                true => Bound::new(py, block(py, &held, 0, claim.len)?)?.into_any(),
                false => held.copy(py, queue, number, false)?,
            };
            return Ok(PyMemoryView::from(&bytes)?.into_any());
        }
        if claim.form != Form::Parcel {
            return held.copy(py, queue, number, false);
        }
        let parts = held.parts(py, queue)?;
        let blocks = parts.buffers.iter().map(|&(at, len)| {
            let block = block(py, &held, at, len)?;
            Ok(Bound::new(py, block)?.into_any())
        });
        let blocks = blocks.collect::<PyResult<Vec<_>>>()?;
        let body = copied(
            py,
            queue.membership(),
            claim.at + parts.body.0,
            parts.body.1,
        )?;
        queue
            .values()
            .read_parcel(py, body, PyTuple::new(py, blocks)?, number, false)
    }

    /// Ends the claim as `end` says; false if it had ended before.
    fn end(
        &self,
        py: Python<'_>,
        end: impl FnOnce(&Arc<Held>) -> PyResult<bool>,
    ) -> PyResult<bool> {
        let value = lock(&self.value).take();
        drop(value); // Not under the lock: it may run code.
        let Some(held) = lock(&self.held).clone() else {
            return Ok(false);
        };
        let ended = end(&held)?;
        let ours = lock(&self.held).take();
        py.detach(|| drop((ours, held)));
        Ok(ended)
    }
}

fn block(py: Python<'_>, held: &Arc<Held>, at: u64, len: u64) -> PyResult<Block> {
    let address = held.membership.address_of(held.claim.at + at, len);
    let address = address.map_err(|error| failed(py, &held.membership, error))?;
    let view = held.membership.view();
    let view = view.map_err(|error| failed(py, &held.membership, error))?;
    let (bytes, keeper) = ((address.addr(), len as usize), (held.clone(), view));
    Ok(Block::new(Arc::new(keeper), bytes, "an item of a queue"))
}

/// Raw bytes from here on are looked at where they are; fewer are copied.
const LARGE: u64 = 4096;

#[pymethods]
impl Claim {
    /// The value. ValueError once the claim has ended.
    #[getter]
    fn value<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if let Some(value) = &*lock(&self.value) {
            return Ok(value.bind(py).clone());
        }
        let value = self.read(py)?;
        *lock(&self.value) = Some(value.clone().unbind());
        Ok(value)
    }

    /// How often the item was delivered, this time among them.
    #[getter]
    fn deliveries(&self) -> u64 {
        self.claim.deliveries
    }

    /// The item's place in the order in which all were put, from 0 on.
    #[getter]
    fn number(&self) -> u64 {
        self.claim.number
    }

    /// Whether it was held until now, as far as this process knows.
    #[getter]
    fn is_held(&self) -> bool {
        let held = lock(&self.held);
        held.as_ref()
            .is_some_and(|held| *lock(&held.state) == State::Held)
    }

    /// The item is dealt with. What looks at its memory may go on to do so.
    fn acknowledge(&self, py: Python<'_>) -> PyResult<bool> {
        // One is the claim's, one is that of `end`; the others are views.
        self.end(py, |held| {
            let keeps = Arc::strong_count(held) > 2;
            held.acknowledge(py, ClaimEnd::Done, keeps)
        })
    }

    /// The item is the first one again, for anybody.
    fn give_back(&self, py: Python<'_>) -> PyResult<bool> {
        self.end(py, |held| held.give_back(py))
    }
}
