//! `Batch`: messages that were received together, and `UnreadBatches`: those of a subscription.

use crate::objects::topic;
use crate::python::objects::topics::message_in_place::MessageInPlace;
use crate::sync::lock;
use pyo3::prelude::*;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// The largest capacity, in bytes, that is kept for the next batch.
const MAX_KEPT: usize = 256 << 10;

/// Messages that were received from a log.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) bytes: Vec<u8>,
    pub(super) messages: Vec<topic::Message>,
    /// The block of the first message, if a signal handler interrupted its reading in place.
    pub(super) interrupted: Option<Arc<MessageInPlace>>,
    /// The error of the message before these, which the next call raises.
    pub(super) failed: Option<Box<PyErr>>,
}

impl Batch {
    /// Returns true if there is no message to read and no error to raise.
    fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.failed.is_none()
    }
}

/// Batches of unread messages, in their order. The last batch may be empty, and its memory is reused.
#[derive(Default)]
pub(super) struct UnreadBatches(Mutex<VecDeque<Batch>>);

impl UnreadBatches {
    /// Removes and returns the first batch, or an empty one.
    #[inline]
    pub(super) fn take_first(&self) -> Batch {
        lock(&self.0).pop_front().unwrap_or_default()
    }

    /// Removes and returns all batches.
    pub(super) fn take_all(&self) -> VecDeque<Batch> {
        std::mem::take(&mut *lock(&self.0))
    }

    /// Returns true if there is a message to read or an error to raise.
    pub(super) fn exist(&self) -> bool {
        lock(&self.0).front().is_some_and(|batch| !batch.is_empty())
    }

    /// Puts a batch with unread messages before all others. Keeps the memory of any other batch for the next one if no
    /// batch is there.
    pub(super) fn keep(&self, mut batch: Batch) {
        let mut unread = lock(&self.0);
        if !batch.is_empty() {
            unread.push_front(batch);
        } else if unread.is_empty() {
            if batch.bytes.capacity() > MAX_KEPT {
                batch.bytes = Vec::new();
            }
            batch.bytes.clear();
            unread.push_back(batch);
        }
    }
}
