//! `Publisher`: what Python publishes in a topic.

use crate::objects::error::ObjectError;
use crate::objects::topic::{Publication, ROOM, RoomWait, SubscriberSeen, TopicMembership};
use crate::python::codec::encoder::Encoder;
use crate::python::codec::items::Large;
use crate::python::codec::msgpack::writer::OutgoingBody;
use crate::python::codec::values::{Values, item_at};
use crate::python::objects::shared_object::{SharedObject, failed};
use crate::python::objects::topics::records::{PendingRecords, Record};
use crate::python::support::scratch::Scratch;
use crate::queue::Form;
use crate::sync::lock;
use crate::topic::Policy;
use crate::topic::log_layout::PublisherLimits as Limits;
use crate::topic::publisher::OnFull;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::sync::{Arc, Mutex};

/// What a handle of a topic publishes: values, or bytes. The functions are those of [`Values`].
#[pyclass(frozen, module = "shmrpc._core")]
pub struct Publisher {
    name: Py<SharedObject>,
    membership: Arc<TopicMembership>,
    /// None once it is closed.
    publishing: Mutex<Option<Arc<Publication>>>,
    values: Values,
}

/// A wait until all that subscribe have attached themselves. As long as it is there, those are asked to wake us.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct AttachWait {
    name: Py<SharedObject>,
    waiting: RoomWait,
}

#[pymethods]
impl AttachWait {
    /// Whether they have; if not, one may sleep until it is asked again.
    fn is_over(&self, py: Python<'_>) -> PyResult<bool> {
        let membership = self.name.get().membership(py)?;
        let attached = self.is_attached();
        attached.map_err(|error| failed(py, membership, error))
    }

    /// Waits in a thread: False if the timeout is over, None if waits were stopped.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<bool>> {
        let name = self.name.get();
        name.wait_in(py, ROOM, timeout, |_| self.is_attached())
    }
}

impl AttachWait {
    fn is_attached(&self) -> Result<bool, ObjectError> {
        let patience = self.waiting.on_full();
        self.waiting.publication().is_attached_by_all(patience)
    }
}

impl Publisher {
    fn publishing(&self, py: Python<'_>) -> PyResult<Arc<Publication>> {
        self.name.get().open(py)?;
        let publishing = lock(&self.publishing).clone();
        publishing.ok_or_else(|| failed(py, &self.membership, ObjectError::Left))
    }

    /// Before anything of what it is published with is: whether there can ever be room for it.
    fn check_size(
        &self,
        py: Python<'_>,
        publishing: &Publication,
        record: &Record,
    ) -> PyResult<()> {
        let checked = publishing.check_size(record.len());
        checked.map_err(|error| failed(py, &self.membership, error))
    }

    fn or_wait(
        &self,
        py: Python<'_>,
        publishing: Arc<Publication>,
        small: Scratch,
        records: Vec<Record>,
    ) -> PyResult<Option<PendingRecords>> {
        let name = self.name.clone_ref(py);
        let records = PendingRecords::new(name, publishing, small, records);
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
    /// `limits`: high and low, in records, and bytes of large ones.
    #[new]
    fn new(
        py: Python<'_>,
        name: Py<SharedObject>,
        encoder: Py<Encoder>,
        encode: Py<PyAny>,
        unencodable: Py<PyAny>,
        limits: [u64; 3],
    ) -> PyResult<Self> {
        let membership = name.get().open_as::<TopicMembership>(py)?;
        let [high, low, memory] = limits;
        let limits = Limits { high, low, memory };
        let publishing = py.detach(|| membership.publish(limits));
        let publishing = publishing.map_err(|error| failed(py, &membership, error))?;
        Ok(Publisher {
            name,
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

    /// Publishes a value; what waits for room if there is none.
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
        let published = published.map_err(|error| failed(py, &self.membership, error))?;
        if published.refused.is_none() {
            return Ok(None);
        }
        let record = Record::Small(form, 8, payload.len());
        self.or_wait(py, publishing, small.bytes, vec![record])
    }

    /// Publishes values one after the other; those that wait for room if there is none for all.
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

    /// A record of `size` bytes that are to be filled in place; `body`, if there is one, is that of a value with this one
    /// buffer. None if it is a small one, which is copied. Raises ValueError if there can be no room for it.
    #[pyo3(signature = (size, body, /))]
    fn reserve(
        &self,
        py: Python<'_>,
        size: u64,
        body: Option<&[u8]>,
    ) -> PyResult<Option<PendingRecords>> {
        let publishing = self.publishing(py)?;
        let large = Large::to_fill(size, body)?;
        if !publishing.is_large(large.payload().1) {
            return Ok(None);
        }
        let (name, record) = (self.name.clone_ref(py), Record::Large(large));
        self.check_size(py, &publishing, &record)?;
        let records = PendingRecords::new(name, publishing, Scratch::new(), vec![record]);
        Ok(Some(records))
    }

    /// Whether all that subscribe read what is published from now on.
    fn is_attached(&self, py: Python<'_>) -> PyResult<bool> {
        let attached = self.publishing(py)?.is_attached_by_all(OnFull::Fail);
        attached.map_err(|error| failed(py, &self.membership, error))
    }

    /// A wait for that.
    fn attaching(&self, py: Python<'_>) -> PyResult<AttachWait> {
        Ok(AttachWait {
            name: self.name.clone_ref(py),
            waiting: self.publishing(py)?.wait(),
        })
    }

    /// Publishes nothing more. Idempotent. With `waits`, the last handle of this process waits for a while until all that
    /// subscribe have attached themselves; without, the caller has done so.
    #[pyo3(signature = (waits = true))]
    fn close(&self, py: Python<'_>, waits: bool) {
        let publishing = lock(&self.publishing).take();
        if let Some(publishing) = publishing.as_ref().filter(|_| !waits) {
            publishing.note_waited();
        }
        py.detach(|| drop(publishing));
    }

    /// How many messages this process has published; bytes of large ones that are held; bytes of memory that these have.
    fn stats(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        let stats = self.publishing(py)?.stats();
        stats.map_err(|error| failed(py, &self.membership, error))
    }

    /// Those that subscribe: their processes, how many messages they are behind, or None if they read nothing of this
    /// publisher; how many they have missed; bytes of large ones that they look at; their policies: "block", "keep_last"
    /// or "disconnect", and its number.
    fn subscribers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let seen = self.publishing(py)?.subscribers();
        let seen = seen.map_err(|error| failed(py, &self.membership, error))?;
        seen_subscribers(py, seen)
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        let publishing = lock(&self.publishing).take();
        // It may wait for those that subscribe.
        if publishing.is_some() {
            Python::attach(|py| py.detach(|| drop(publishing)));
        }
    }
}

/// What is seen of those that subscribe.
pub(crate) fn seen_subscribers(
    py: Python<'_>,
    seen: Vec<SubscriberSeen>,
) -> PyResult<Bound<'_, PyList>> {
    let found = PyList::empty(py);
    for each in seen {
        let subscriber = PyDict::new(py);
        subscriber.set_item("pid", each.pid)?;
        subscriber.set_item("lag", each.lag)?;
        subscriber.set_item("lost", each.lost)?;
        subscriber.set_item("kept", each.held)?;
        subscriber.set_item("policy", word_for(each.policy))?;
        subscriber.set_item("number", each.number)?;
        found.append(subscriber)?;
    }
    Ok(found)
}

fn word_for(policy: Policy) -> &'static str {
    match policy {
        Policy::Block => "block",
        Policy::KeepLast => "keep_last",
        Policy::Disconnect => "disconnect",
    }
}

/// The form of a record's number.
pub(crate) fn form_of(number: u8) -> Option<Form> {
    match number {
        0 => Some(Form::Value),
        1 => Some(Form::Raw),
        2 => Some(Form::Parcel),
        _ => None,
    }
}
