//! `Publisher`: the publishing end of a topic.

use crate::objects::error::ObjectError;
use crate::objects::topic::{Publication, ROOM, RoomWait, TopicMembership};
use crate::python::codec::encoder::Encoder;
use crate::python::codec::items::LargeItem;
use crate::python::codec::msgpack::writer::OutgoingBody;
use crate::python::codec::values::{Values, item_at};
use crate::python::objects::error::object_error;
use crate::python::objects::report::subscriber_dicts;
use crate::python::objects::shared_object::SharedObject;
use crate::python::objects::topics::records::{PendingRecords, Record};
use crate::python::support::scratch::Scratch;
use crate::sync::lock;
use crate::topic::log_layout::PublisherLimits as Limits;
use crate::topic::publisher::OnFull;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::{Arc, Mutex};

/// A publisher of values, or of bytes. The functions are those of [`Values`].
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Publisher {
    object: Py<SharedObject>,
    membership: Arc<TopicMembership>,
    /// None once it is closed.
    publishing: Mutex<Option<Arc<Publication>>>,
    values: Values,
}

/// A wait until all subscribers have attached to the publisher. While it lives, they are asked to wake this process.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct AttachWait {
    object: Py<SharedObject>,
    waiting: RoomWait,
}

#[pymethods]
impl AttachWait {
    /// Returns True if all have attached. If not, the caller may sleep until the next check.
    fn is_over(&self, py: Python<'_>) -> PyResult<bool> {
        let membership = self.object.get().membership(py)?;
        let attached = self.is_attached();
        attached.map_err(|error| object_error(py, membership, error))
    }

    /// Waits in a thread: returns True, False after the timeout, None if waits were stopped.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<bool>> {
        let object = self.object.get();
        object.wait_in(py, ROOM, timeout, |_| self.is_attached())
    }
}

impl AttachWait {
    fn is_attached(&self) -> Result<bool, ObjectError> {
        let on_full = self.waiting.on_full();
        self.waiting.publication().is_attached_by_all(on_full)
    }
}

impl Publisher {
    fn publishing(&self, py: Python<'_>) -> PyResult<Arc<Publication>> {
        self.object.get().open(py)?;
        let publishing = lock(&self.publishing).clone();
        publishing.ok_or_else(|| object_error(py, &self.membership, ObjectError::Left))
    }

    /// Raises ValueError if there can never be room for a record, before any record of its batch is published.
    fn check_size(
        &self,
        py: Python<'_>,
        publishing: &Publication,
        record: &Record,
    ) -> PyResult<()> {
        let checked = publishing.check_size(record.len());
        checked.map_err(|error| object_error(py, &self.membership, error))
    }

    fn or_wait(
        &self,
        py: Python<'_>,
        publishing: Arc<Publication>,
        small: Scratch,
        records: Vec<Record>,
    ) -> PyResult<Option<PendingRecords>> {
        let object = self.object.clone_ref(py);
        let records = PendingRecords::new(object, publishing, small, records);
        let is_done = records.advance(py, OnFull::Fail)?;
        Ok((!is_done).then_some(records))
    }
}

/// Adds a value to a batch.
fn add(
    py: Python<'_>,
    values: &Values,
    value: &Bound<'_, PyAny>,
    small: &mut OutgoingBody,
    records: &mut Vec<Record>,
) -> PyResult<()> {
    let (at, index) = (small.bytes.len(), records.len() as u64);
    let large = values.write(py, value, small, Some(index))?;
    records.push(match large {
        Some(large) => Record::Large(large),
        None => {
            let (head, payload) = item_at(&small.bytes, at).expect("it was written");
            let form = (head.0 >> 40) as u8;
            Record::Small(form, at + 8, payload.len())
        }
    });
    Ok(())
}

#[pymethods]
impl Publisher {
    /// Opens a publisher. `limits` are the high and the low watermark, in records, and the bytes of large records.
    #[new]
    fn new(
        py: Python<'_>,
        object: Py<SharedObject>,
        encoder: Py<Encoder>,
        encode: Py<PyAny>,
        unencodable: Py<PyAny>,
        limits: [u64; 3],
    ) -> PyResult<Self> {
        let membership = object.get().open_as::<TopicMembership>(py)?;
        let [high, low, memory] = limits;
        let limits = Limits { high, low, memory };
        let publishing = py.detach(|| membership.publish(limits));
        let publishing = publishing.map_err(|error| object_error(py, &membership, error))?;
        Ok(Publisher {
            object,
            values: Values {
                encoder,
                encode,
                decode: py.None(),
                unencodable,
                undecodable: py.None(),
                raw: membership.shape().is_raw(),
                decode_own: None,
            },
            membership,
            publishing: Mutex::new(Some(publishing)),
        })
    }

    /// Publishes a value. Returns it encoded if it has to wait for room.
    fn publish_now(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<Option<PendingRecords>> {
        let publishing = self.publishing(py)?;
        let mut small = OutgoingBody::new();
        if let Some(large) = self.values.write(py, value, &mut small, None)? {
            let record = Record::Large(large);
            self.check_size(py, &publishing, &record)?;
            return self.or_wait(py, publishing, small.bytes, vec![record]);
        }
        let (head, payload) = item_at(&small.bytes, 0).expect("it was written");
        let form = (head.0 >> 40) as u8;
        let record = std::iter::once((form, payload, false));
        let published = publishing.publish(record, OnFull::Fail);
        let published = published.map_err(|error| object_error(py, &self.membership, error))?;
        if published.refused.is_none() {
            return Ok(None);
        }
        let record = Record::Small(form, 8, payload.len());
        self.or_wait(py, publishing, small.bytes, vec![record])
    }

    /// Publishes values one after the other. Returns those that have to wait for room, encoded.
    fn publish_many_now(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
    ) -> PyResult<Option<PendingRecords>> {
        let publishing = self.publishing(py)?;
        let list = values.cast_exact::<PyList>();
        let mut records = Vec::with_capacity(list.as_ref().map_or(0, |list| list.len()));
        let mut small = OutgoingBody::new();
        let mut add = |value: Bound<'_, PyAny>| {
            add(py, &self.values, &value, &mut small, &mut records)?;
            let added = records.last().expect("it was added");
            self.check_size(py, &publishing, added)
        };
        match list {
            Ok(list) => list.iter().try_for_each(&mut add)?,
            Err(_) => values.try_iter()?.try_for_each(|value| add(value?))?,
        }
        self.or_wait(py, publishing, small.bytes, records)
    }

    /// Returns a record of `size` bytes to be filled in place. With `body`, that is the body of a value with this one
    /// buffer. Returns None for a small record, which is copied. Raises ValueError if there can be no room for it.
    #[pyo3(signature = (size, body, /))]
    fn reserve(
        &self,
        py: Python<'_>,
        size: u64,
        body: Option<&[u8]>,
    ) -> PyResult<Option<PendingRecords>> {
        let publishing = self.publishing(py)?;
        let large = LargeItem::to_fill(size, body)?;
        if !publishing.is_large(large.payload().1) {
            return Ok(None);
        }
        let (object, record) = (self.object.clone_ref(py), Record::Large(large));
        self.check_size(py, &publishing, &record)?;
        let records = PendingRecords::new(object, publishing, Scratch::new(), vec![record]);
        Ok(Some(records))
    }

    /// Returns True if all subscribers read what is published from now on.
    fn is_attached(&self, py: Python<'_>) -> PyResult<bool> {
        let attached = self.publishing(py)?.is_attached_by_all(OnFull::Fail);
        attached.map_err(|error| object_error(py, &self.membership, error))
    }

    /// Returns a wait for that.
    fn attaching(&self, py: Python<'_>) -> PyResult<AttachWait> {
        Ok(AttachWait {
            object: self.object.clone_ref(py),
            waiting: self.publishing(py)?.wait(),
        })
    }

    /// Closes the publisher. Idempotent. With `waits`, the last handle of this process waits for a while until all
    /// subscribers have attached; without, the caller has waited.
    #[pyo3(signature = (waits = true))]
    fn close(&self, py: Python<'_>, waits: bool) {
        let publishing = lock(&self.publishing).take();
        if let Some(publishing) = publishing.as_ref().filter(|_| !waits) {
            publishing.note_waited();
        }
        py.detach(|| drop(publishing));
    }

    /// Returns the number of messages that this process has published, the bytes of large messages that are held, and
    /// the bytes of memory that these take.
    fn stats(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        let stats = self.publishing(py)?.stats();
        stats.map_err(|error| object_error(py, &self.membership, error))
    }

    /// Returns a dictionary for each subscriber: its process; the number of messages that it is behind, or None if it
    /// reads nothing of this publisher; the number of messages that it has missed; bytes of large messages that it
    /// reads in place; its policy, "block", "keep_last" or "disconnect", and the number of that.
    fn subscribers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let seen = self.publishing(py)?.subscribers();
        let seen = seen.map_err(|error| object_error(py, &self.membership, error))?;
        subscriber_dicts(py, seen)
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        let publishing = lock(&self.publishing).take();
        // This may wait for subscribers.
        if publishing.is_some() {
            Python::attach(|py| py.detach(|| drop(publishing)));
        }
    }
}
