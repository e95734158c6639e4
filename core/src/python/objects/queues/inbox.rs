//! `Inbox`: the receiving end of a queue.

use crate::objects::error::ObjectError;
use crate::objects::queue::ITEMS;
use crate::objects::queue::QueueMembership;
use crate::python::codec::values::{Values, is_from_signal_handler, item_at};
use crate::python::objects::error::object_error;
use crate::python::objects::queues::claimed_item::ClaimedItem;
use crate::python::objects::queues::waiting::{
    FailedWait, OWNER_LOCK_TIMEOUT, attempt, corruption_error, first_word, shut_down_error,
    wait_for,
};
use crate::python::objects::returned_objects::ReturnedObjects;
use crate::python::objects::shared_object::SharedObject;
use crate::python::support::scratch::Scratch;
use crate::queue::{ClaimEnd, ClaimOutcome, PopOutcome, Source};
use crate::shared_heap::Field;
use crate::sync::lock;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex};

/// The receiving end of a queue, with the items that this process has taken and no caller has received.
pub(crate) struct Inbox {
    membership: Arc<QueueMembership>,
    values: Arc<Values>,
    /// Items that this process has taken from the queue and not read.
    unread: Mutex<Vec<u8>>,
    /// The same for dead letters.
    unread_dead: Mutex<Vec<u8>>,
    /// Values that were taken before these items and reached no caller: see [`put_back`](Self::put_back).
    returned: ReturnedObjects,
}

impl Inbox {
    pub(crate) fn new(membership: Arc<QueueMembership>, values: Arc<Values>) -> Self {
        Inbox {
            membership,
            values,
            unread: Mutex::default(),
            unread_dead: Mutex::default(),
            returned: ReturnedObjects::default(),
        }
    }

    /// Takes up to `max_items` items, and appends them to `items` in their stored form. Returns `Large` for a large
    /// first item, which the caller claims. Waits without the GIL if another member holds the owner lock, and raises
    /// QueueBusy if it holds the lock for too long.
    fn take(
        &self,
        py: Python<'_>,
        source: Source,
        max_items: usize,
        items: &mut Vec<u8>,
    ) -> PyResult<PopOutcome> {
        let membership = &self.membership;
        let mut outcome = membership.pop(source, max_items, items, 0);
        if let Err(ObjectError::Changing { .. }) = outcome {
            outcome = py.detach(|| {
                membership
                    .with_lock_timeout(|timeout| membership.pop(source, max_items, items, timeout))
            });
        }
        outcome.map_err(|error| object_error(py, membership, error))
    }

    /// Reads the item at offset `at`, and moves `at` behind the item, also if it cannot be read. `number` is the number
    /// of the item, if it is known. Raises the error of an item that cannot be read, and RemoteProtocolError for a
    /// corrupt item, which poisons the queue.
    pub(crate) fn read_first<'py>(
        &self,
        py: Python<'py>,
        items: &[u8],
        at: &mut usize,
        number: Option<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let corrupt = |found| corruption_error(py, &self.membership, Field::Copied, 0, found);
        let Some((head, payload)) = item_at(items, *at) else {
            let found = first_word(items.get(*at..).unwrap_or_default());
            *at = items.len();
            return Err(corrupt(found));
        };
        *at = (*at + 8 + payload.len()).next_multiple_of(8);
        let value = self.values.read_copied(py, head.form(), payload, number)?;
        value.ok_or_else(|| corrupt(head.form().map_or(head.0, |_| first_word(payload))))
    }

    /// Returns up to `max_items` values: those that this process has taken before, or else those in the queue, of which
    /// a large item comes alone. Raises QueueShutDown once nothing is left in a queue that is shut down, and the error
    /// of an item that cannot be read, which is then lost; and QueueBusy.
    pub(crate) fn get_some<'py>(
        &self,
        py: Python<'py>,
        source: Source,
        max_items: usize,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        if source == Source::Queue && self.returned.exist() {
            let returned = self.returned.take(py, max_items);
            if !returned.is_empty() {
                return Ok(returned);
            }
        }
        let mut items = Scratch::new();
        std::mem::swap(&mut *lock(self.unread_of(source)), &mut *items);
        if items.is_empty() {
            match self.take(py, source, max_items, &mut items)? {
                PopOutcome::Items(_) => {}
                PopOutcome::Large => {
                    let large = self.take_large(py, source)?;
                    return Ok(large.into_iter().collect());
                }
                PopOutcome::Empty => return Ok(Vec::new()),
                PopOutcome::Finished => return Err(shut_down_error(py, &self.membership)),
            }
        }
        self.read_all(py, source, &items, max_items)
    }

    /// Returns the items that this process has taken from this source and not read.
    fn unread_of(&self, source: Source) -> &Mutex<Vec<u8>> {
        match source {
            Source::Queue => &self.unread,
            Source::DeadLetters => &self.unread_dead,
        }
    }

    /// Waits in a thread for values, and returns up to `max_items` of them; none if other receivers were faster.
    /// Returns as the inner error the reason for which the wait has failed. Raises what `get_some` raises, and what a
    /// signal handler raises.
    pub(crate) fn wait_some<'py>(
        &self,
        py: Python<'py>,
        queue: &SharedObject,
        max_items: usize,
        timeout: Option<f64>,
    ) -> PyResult<Result<Vec<Bound<'py, PyAny>>, FailedWait>> {
        let values = self.get_some(py, Source::Queue, max_items)?;
        if !values.is_empty() {
            return Ok(Ok(values));
        }
        let mut items = Scratch::new();
        let membership = &*self.membership;
        let waited = wait_for(py, (queue, membership), ITEMS, timeout, || {
            if self.returned.exist() {
                return Ok(Some(PopOutcome::Empty));
            }
            if !membership.may_pop() {
                return Ok(None);
            }
            let outcome =
                membership.pop(Source::Queue, max_items, &mut items, OWNER_LOCK_TIMEOUT)?;
            Ok(Some(outcome).filter(|&outcome| outcome != PopOutcome::Empty))
        })?;
        match waited {
            Err(reason) => Ok(Err(reason)),
            Ok(PopOutcome::Items(_)) => self.read_all(py, Source::Queue, &items, max_items).map(Ok),
            Ok(PopOutcome::Finished) => Err(shut_down_error(py, membership)),
            // Values that have come back to this process.
            Ok(PopOutcome::Empty) => Ok(Ok(self.returned.take(py, max_items))),
            // A large item is taken without a wait.
            Ok(PopOutcome::Large) => {
                let large = self.take_large(py, Source::Queue)?;
                Ok(Ok(large.into_iter().collect()))
            }
        }
    }

    /// Reads up to `max_items` items from `source`, and keeps all others for it, including those behind an item that cannot be read. Raises
    /// the error of the first item, which is dropped; after an exception of a signal handler all items are kept.
    fn read_all<'py>(
        &self,
        py: Python<'py>,
        source: Source,
        items: &[u8],
        max_items: usize,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (mut at, mut values) = (0, Vec::new());
        let mut failed = None;
        while at < items.len() && values.len() < max_items {
            let before = at;
            match self.read_first(py, items, &mut at, None) {
                Ok(value) => values.push(value),
                // An exception of a signal handler, such as KeyboardInterrupt, says nothing of the item: all items
                // stay.
                Err(error) if is_from_signal_handler(py, &error).unwrap_or(true) => {
                    (at, failed) = (0, Some(error));
                    break;
                }
                Err(_) if !values.is_empty() => {
                    at = before; // The next call raises the error.
                    break;
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        if at < items.len() {
            lock(self.unread_of(source)).splice(0..0, items[at..].iter().copied());
        }
        failed.map_or(Ok(values), Err)
    }

    /// Takes the first item, which is large, and returns its value; None if another receiver was faster. Raises the
    /// error of an item that cannot be read, which is dropped; after an exception of a signal handler the item stays.
    fn take_large<'py>(
        &self,
        py: Python<'py>,
        source: Source,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(item) = self.claim_now(py, source, 0)? else {
            return Ok(None);
        };
        let item = Arc::new(item);
        let value = item.read_owned(py, &self.values, None);
        if let Err(error) = &value
            && is_from_signal_handler(py, error).unwrap_or(true)
        {
            return value.map(Some); // The item returns to the queue, as in `read_all`.
        }
        item.acknowledge(py, ClaimEnd::HandedOver, false)?;
        value.map(Some)
    }

    /// Claims the next item, for `limit` nanoseconds if that is not 0; None if there is none. Raises QueueBusy, and
    /// the errors of `claimed_item`.
    pub(crate) fn claim_now(
        &self,
        py: Python<'_>,
        source: Source,
        limit: u64,
    ) -> PyResult<Option<ClaimedItem>> {
        let membership = &self.membership;
        let claim = |timeout| membership.claim(source, limit, timeout);
        self.claimed_item(py, attempt(py, membership, claim)?)
    }

    /// Returns the item of a claim; None if there was nothing to claim. Raises QueueShutDown, and SharedMemoryError if
    /// there are too many claims.
    pub(crate) fn claimed_item(
        &self,
        py: Python<'_>,
        outcome: ClaimOutcome,
    ) -> PyResult<Option<ClaimedItem>> {
        let membership = &self.membership;
        match outcome {
            ClaimOutcome::Item(claim) => Ok(Some(ClaimedItem::new(membership.clone(), claim))),
            ClaimOutcome::Empty => Ok(None),
            ClaimOutcome::Finished => Err(shut_down_error(py, membership)),
            ClaimOutcome::TableFull => {
                Err(object_error(py, membership, membership.too_many_claims()))
            }
        }
    }

    /// Puts back values that were taken and reached no caller, and wakes all waiters. This process returns them first.
    pub(crate) fn put_back(&self, values: Vec<Bound<'_, PyAny>>) {
        self.returned.put_back(values);
        if self.membership.is_here() {
            self.membership.wake_all_sets(); // Other threads of this process among them.
        }
    }

    /// Returns the number of items that this process has taken from this source and no caller has received.
    pub(crate) fn len(&self, source: Source) -> u64 {
        let (unread, mut at, mut count) = (lock(self.unread_of(source)), 0, 0);
        while let Some((_, payload)) = item_at(&unread, at) {
            at = (at + 8 + payload.len()).next_multiple_of(8);
            count += 1;
        }
        drop(unread);
        match source {
            Source::Queue => count + self.returned.len() as u64,
            Source::DeadLetters => count,
        }
    }

    /// Returns true if this process has taken items from the queue that no caller has received.
    pub(crate) fn has_any(&self) -> bool {
        self.returned.exist() || !lock(&self.unread).is_empty()
    }
}
