//! `Publisher`: the publication end of a topic.

use crate::objects::error::ObjectError;
use crate::objects::topic::{Publication, ROOM, RoomWait, TopicMembership};
use crate::python::codec::encoder::Encoder;
use crate::python::codec::items::LargeItem;
use crate::python::codec::msgpack::outgoing_body::OutgoingBody;
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

/// A publisher of values, or of bytes. For the functions see [`Values`].
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Publisher {
    object: Py<SharedObject>,
    membership: Arc<TopicMembership>,
    /// None once it is closed.
    publication: Mutex<Option<Arc<Publication>>>,
    values: Values,
}

/// A wait until all subscribers have attached to the publisher. While this lives, they wake this process as they
/// attach.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct AttachWait {
    object: Py<SharedObject>,
    waiting: RoomWait,
}

#[pymethods]
impl AttachWait {
    /// Returns True if all subscribers have attached. Otherwise the caller may sleep until the next check.
    fn is_over(&self, py: Python<'_>) -> PyResult<bool> {
        let membership = self.object.get().membership(py)?;
        let attached = self.is_attached();
        attached.map_err(|error| object_error(py, membership, error))
    }

    /// Waits in a thread until all subscribers have attached. Returns True; False after the timeout, None if waits were
    /// stopped.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<bool>> {
        let object = self.object.get();
        object.wait_in(py, ROOM, timeout, |_| self.is_attached())
    }
}

impl AttachWait {
    /// Returns true if all subscribers have attached; the other ones then wake this process as they attach.
    fn is_attached(&self) -> Result<bool, ObjectError> {
        let on_full = self.waiting.on_full();
        self.waiting.publication().is_attached_by_all(on_full)
    }
}

impl Publisher {
    /// Returns the publication. Raises LocalProtocolError if the publisher is closed.
    fn publication(&self, py: Python<'_>) -> PyResult<Arc<Publication>> {
        self.object.get().open(py)?;
        let publication = lock(&self.publication).clone();
        publication.ok_or_else(|| object_error(py, &self.membership, ObjectError::Left))
    }

    /// Raises ValueError if there can never be room for a record, before any record of its batch is published.
    fn check_size(
        &self,
        py: Python<'_>,
        publication: &Publication,
        record: &Record,
    ) -> PyResult<()> {
        let checked = publication.check_size(record.len());
        checked.map_err(|error| object_error(py, &self.membership, error))
    }

    /// Publishes records, as far as there is room. Returns them if some have to wait for room, and None otherwise.
    /// Raises what `PendingRecords::advance` raises.
    fn publish_or_pend(
        &self,
        py: Python<'_>,
        publication: Arc<Publication>,
        small: Scratch,
        records: Vec<Record>,
    ) -> PyResult<Option<PendingRecords>> {
        let object = self.object.clone_ref(py);
        let records = PendingRecords::new(object, publication, small, records);
        let is_done = records.advance(py, OnFull::Fail)?;
        Ok((!is_done).then_some(records))
    }
}

/// Encodes a value, and adds its record to a batch, of which `small` has the bytes. Raises what `Values::write` raises:
/// the batch is unchanged then.
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
        let publication = py.detach(|| membership.publish(limits));
        let publication = publication.map_err(|error| object_error(py, &membership, error))?;
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
            publication: Mutex::new(Some(publication)),
        })
    }

    /// Publishes a value. Returns the encoded value if it has to wait for room, and None otherwise.
    fn publish_now(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<Option<PendingRecords>> {
        let publication = self.publication(py)?;
        let mut small = OutgoingBody::new();
        if let Some(large) = self.values.write(py, value, &mut small, None)? {
            let record = Record::Large(large);
            self.check_size(py, &publication, &record)?;
            return self.publish_or_pend(py, publication, small.bytes, vec![record]);
        }
        let (head, payload) = item_at(&small.bytes, 0).expect("it was written");
        let form = (head.0 >> 40) as u8;
        let record = std::iter::once((form, payload, false));
        let published = publication.publish(record, OnFull::Fail);
        let published = published.map_err(|error| object_error(py, &self.membership, error))?;
        if published.refused.is_none() {
            return Ok(None);
        }
        let record = Record::Small(form, 8, payload.len());
        self.publish_or_pend(py, publication, small.bytes, vec![record])
    }

    /// Publishes values one after the other. Returns the encoded values that have to wait for room, and None if there
    /// are none. Publishes none of them if one cannot be encoded, or can never have room: raises ValueError for the
    /// latter.
    fn publish_many_now(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
    ) -> PyResult<Option<PendingRecords>> {
        let publication = self.publication(py)?;
        let list = values.cast_exact::<PyList>();
        let mut records = Vec::with_capacity(list.as_ref().map_or(0, |list| list.len()));
        let mut small = OutgoingBody::new();
        let mut add = |value: Bound<'_, PyAny>| {
            add(py, &self.values, &value, &mut small, &mut records)?;
            let added = records.last().expect("it was added");
            self.check_size(py, &publication, added)
        };
        match list {
            Ok(list) => list.iter().try_for_each(&mut add)?,
            Err(_) => values.try_iter()?.try_for_each(|value| add(value?))?,
        }
        self.publish_or_pend(py, publication, small.bytes, records)
    }

    /// Returns a record of `size` bytes that the program fills in place: raw bytes, or with `body` the only buffer of
    /// the value with this body. Returns None for a small record, which is copied. Raises ValueError if there can never
    /// be room for the record.
    #[pyo3(signature = (size, body, /))]
    fn reserve(
        &self,
        py: Python<'_>,
        size: u64,
        body: Option<&[u8]>,
    ) -> PyResult<Option<PendingRecords>> {
        let publication = self.publication(py)?;
        // First of the buffer alone: an item's head has no room for any size.
        let fits = publication.check_size(size);
        fits.map_err(|error| object_error(py, &self.membership, error))?;
        let large = LargeItem::to_fill(size, body)?;
        if !publication.is_large(large.payload().1) {
            return Ok(None);
        }
        let (object, record) = (self.object.clone_ref(py), Record::Large(large));
        self.check_size(py, &publication, &record)?;
        let records = PendingRecords::new(object, publication, Scratch::new(), vec![record]);
        Ok(Some(records))
    }

    /// Returns True if all subscribers have attached, so that they read what is published from now on.
    fn is_attached(&self, py: Python<'_>) -> PyResult<bool> {
        let attached = self.publication(py)?.is_attached_by_all(OnFull::Fail);
        attached.map_err(|error| object_error(py, &self.membership, error))
    }

    /// Returns a wait until all subscribers have attached.
    fn attaching(&self, py: Python<'_>) -> PyResult<AttachWait> {
        Ok(AttachWait {
            object: self.object.clone_ref(py),
            waiting: self.publication(py)?.wait(),
        })
    }

    /// Closes the publisher. With `waits`, the last handle of this process waits for a while until all subscribers have
    /// attached; without, the caller has done so. Idempotent.
    #[pyo3(signature = (waits = true))]
    fn close(&self, py: Python<'_>, waits: bool) {
        let publication = lock(&self.publication).take();
        if let Some(publication) = publication.as_ref().filter(|_| !waits) {
            publication.note_waited();
        }
        py.detach(|| drop(publication));
    }

    /// Returns the number of messages that this process has published, the bytes of large messages in use, and the
    /// bytes of memory that are allocated for them.
    fn stats(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        let stats = self.publication(py)?.stats();
        stats.map_err(|error| object_error(py, &self.membership, error))
    }

    /// Returns a dictionary for each subscriber: "pid"; "lag", the number of unread messages, None if the subscriber
    /// reads nothing of this publisher; "lost", the number of missed messages; "kept", the bytes of large messages that
    /// it reads in place; "policy", which is "block", "keep_last" or "disconnect"; and "number", the argument of the
    /// policy.
    fn subscribers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let seen = self.publication(py)?.subscribers();
        let seen = seen.map_err(|error| object_error(py, &self.membership, error))?;
        subscriber_dicts(py, seen)
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        let publication = lock(&self.publication).take();
        // This may wait for subscribers.
        if publication.is_some() {
            Python::attach(|py| py.detach(|| drop(publication)));
        }
    }
}
