//! `MessageReader`: conversion of received messages to Python objects.

use crate::memory::bytes;
use crate::objects::topic::{self, Payload};
use crate::python::codec::items::form_of;
use crate::python::codec::values::Values;
use crate::python::objects::shared_object::SharedObject;
use crate::python::objects::topics::message;
use crate::python::objects::topics::message_in_place::MessageInPlace;
use crate::python::support::buffer::new_bytes;
use crate::python::support::in_place_bytes::InPlaceBytes;
use crate::queue::Form;
use crate::queue::parcel::Parts;
use crate::sync::lock;
use crate::topic::subscriber::PublisherId;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};
use std::sync::{Arc, Mutex};

/// Reader of the messages of a subscription.
pub(super) struct MessageReader {
    object: Py<SharedObject>,
    values: Values,
    /// Takes a process id and a number, and returns the publisher of a message.
    publisher: Py<PyAny>,
    /// Publishers of read messages, the last one first.
    publishers: Mutex<Vec<(PublisherId, Py<PyAny>)>>,
}

impl MessageReader {
    pub(super) fn new(object: Py<SharedObject>, values: Values, publisher: Py<PyAny>) -> Self {
        MessageReader {
            object,
            values,
            publisher,
            publishers: Mutex::default(),
        }
    }

    /// Returns a message as a Python object. `last` caches the publisher. Moves the pin of a block that is read in
    /// place from `message` to `held`, by which the caller reads the message again after an interruption. Raises
    /// DecodeError, the exception of a signal handler, and what the function `publisher` raises.
    #[inline]
    pub(super) fn read<'py>(
        &self,
        class: &Bound<'py, PyType>,
        subscription: &Arc<topic::Subscription>,
        bytes: &[u8],
        message: &mut topic::Message,
        last: &mut Option<(PublisherId, Py<PyAny>)>,
        held: &mut Option<Arc<MessageInPlace>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = class.py();
        let (source, seq, form) = (message.source, message.seq, form_of(message.form));
        let publisher = match last {
            Some((known, publisher)) if *known == source => publisher.clone_ref(py),
            _ => {
                let publisher = self.publisher_of(py, subscription, source)?;
                *last = Some((source, publisher.clone_ref(py)));
                publisher
            }
        };
        if let Payload::Pinned(_) = message.payload
            && let Payload::Pinned(pin) =
                std::mem::replace(&mut message.payload, Payload::Copied(0, 0))
        {
            *held = Some(Arc::new(MessageInPlace::new(
                subscription.clone(),
                pin,
                self.object.get().handle(),
            )));
        }
        // Either may be read again: the bytes stay where they are, and the caller keeps the block.
        let value = match (&*held, &message.payload) {
            (Some(held), _) => self.read_in_place(py, form, held, seq)?,
            (None, &Payload::Copied(at, len)) => {
                self.read_copied(py, form, &bytes[at..at + len], seq)?
            }
            (None, Payload::Pinned(_)) => return Err(self.unreadable_error(py, seq)),
        };
        message::make(class, value, publisher, seq)
    }

    /// Returns the value of a payload that was copied. Raises DecodeError.
    #[inline]
    fn read_copied<'py>(
        &self,
        py: Python<'py>,
        form: Option<Form>,
        payload: &[u8],
        seq: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let value = self.values.read_copied(py, form, payload, Some(seq))?;
        value.ok_or_else(|| self.unreadable_error(py, seq))
    }

    /// Returns the value of a block, whose large buffers refer to the block. Raises DecodeError.
    fn read_in_place<'py>(
        &self,
        py: Python<'py>,
        form: Option<Form>,
        held: &Arc<MessageInPlace>,
        seq: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (from, len) = held.bytes();
        let copy = |at: u64, len: u64| {
            new_bytes(py, len as usize, |to| {
                // SAFETY: within the payload, which is mapped while the message is held; `to` is as long.
                unsafe {
                    let from = (from as *const u8).wrapping_add(at as usize);
                    bytes::copy(to, from, len as usize);
                }
            })
        };
        match form {
            Some(Form::Value) => self
                .values
                .read(py, copy(0, len)?.as_bytes(), Some(seq), false),
            Some(Form::Raw) => Ok(copy(0, len)?.into_any()),
            Some(Form::Parcel) => {
                let parts = Parts::read(len, |at, to| {
                    // SAFETY: `read` asks only for bytes within the payload.
                    unsafe {
                        let from = (from as *const u8).wrapping_add(at as usize);
                        bytes::copy(to.as_mut_ptr(), from, to.len());
                    }
                });
                let parts = parts.ok_or_else(|| self.unreadable_error(py, seq))?;
                let views = parts.buffers.iter().map(|&(at, len)| {
                    let bytes = (from + at as usize, len as usize);
                    Bound::new(
                        py,
                        InPlaceBytes::new(held.clone(), bytes, "a message of a topic"),
                    )
                });
                let views = views.collect::<PyResult<Vec<_>>>()?;
                let body = copy(parts.body.0, parts.body.1)?;
                let views = PyTuple::new(py, views)?;
                self.values.read_parcel(py, body, views, Some(seq), false)
            }
            None => Err(self.unreadable_error(py, seq)),
        }
    }

    /// Returns the DecodeError for a message that its publisher has corrupted.
    #[cold]
    fn unreadable_error(&self, py: Python<'_>, seq: u64) -> PyErr {
        let text = format!(
            "topic '{}': message {seq} cannot be read: its publisher has written what it must not",
            self.object.get().name()
        );
        let raised = || {
            let class = py.import("shmrpc.errors")?.getattr("DecodeError")?;
            class.call1((text,))
        };
        raised().map_or_else(|error| error, PyErr::from_value)
    }

    /// Returns the publisher of a message as a Python object, which the first message of a publisher makes. Raises what
    /// the function `publisher` raises.
    fn publisher_of(
        &self,
        py: Python<'_>,
        subscription: &topic::Subscription,
        source: PublisherId,
    ) -> PyResult<Py<PyAny>> {
        let mut known = lock(&self.publishers);
        if let Some(place) = known.iter().position(|each| each.0 == source) {
            known.swap(0, place); // Mostly it is the next one's, too.
            return Ok(known[0].1.clone_ref(py));
        }
        drop(known);
        let pid = subscription.process_of(source);
        let made = self.publisher.bind(py).call1((pid, source.number()))?;
        let made = made.unbind();
        let mut known = lock(&self.publishers);
        let kept = known.len().min(crate::topic::directory::LISTINGS);
        let forgotten = known.split_off(kept);
        known.insert(0, (source, made.clone_ref(py)));
        drop(known);
        drop(forgotten); // After the lock, because a destructor may run any code.
        Ok(made)
    }
}
