//! `PendingRecords`: encoded values that wait for room in a topic.

use crate::objects::error::ObjectError;
use crate::objects::topic::{Publication, ROOM, RoomWait};
use crate::python::codec::items::LargeItem;
use crate::python::objects::error::object_error;
use crate::python::objects::shared_object::SharedObject;
use crate::python::support::export::{Export, Memory, export};
use crate::python::support::scratch::Scratch;
use crate::sync::lock;
use crate::topic::publisher::{Block, NoRoom, NoRoomCause, OnFull};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::os::raw::c_int;
use std::sync::{Arc, Mutex, OnceLock};

/// The smallest number of bytes that are copied without the GIL.
const LONG: usize = 64 << 10;

/// A value to be published.
pub(crate) enum Record {
    /// A small record: its form, and the offset and the length of its payload among the small ones.
    Small(u8, usize, usize),
    Large(LargeItem),
}

impl Record {
    /// Returns the number of bytes of the payload.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Record::Small(_, _, len) => *len as u64,
            Record::Large(large) => large.payload().1,
        }
    }
}

/// The progress of a batch.
struct Progress {
    /// The number of published records.
    done: usize,
    /// The block of the next record, if there is one.
    filled: Option<Block>,
    /// The subscriber for which the next record waits.
    slowest: Option<NoRoom>,
}

/// Encoded values that wait for room, or a record that the program fills in place by the buffer protocol, between
/// `reserve_...` and `publish_...`.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct PendingRecords {
    object: Py<SharedObject>,
    publication: Arc<Publication>,
    /// The small records one after the other, each with its head.
    small: Scratch,
    records: Vec<Record>,
    progress: Mutex<Progress>,
    /// The wait for room, once it has begun.
    waiting: OnceLock<RoomWait>,
}

impl PendingRecords {
    /// Returns a batch of which nothing is published. `small` has the small records as `Values::write` appends them.
    pub(crate) fn new(
        object: Py<SharedObject>,
        publication: Arc<Publication>,
        small: Scratch,
        records: Vec<Record>,
    ) -> Self {
        PendingRecords {
            object,
            publication,
            small,
            records,
            progress: Mutex::new(Progress {
                done: 0,
                filled: None,
                slowest: None,
            }),
            waiting: OnceLock::new(),
        }
    }

    /// Begins the wait for room, which ends when this is dropped, and returns the argument `on_full` for attempts
    /// within this wait.
    fn begin_wait(&self) -> OnFull {
        let waiting = self.waiting.get_or_init(|| self.publication.wait());
        waiting.on_full()
    }

    /// Returns a result, or raises the exception for its error.
    fn map_error<T>(&self, py: Python<'_>, result: Result<T, ObjectError>) -> PyResult<T> {
        result.map_err(|error| object_error(py, self.publication.membership(), error))
    }

    /// Publishes further records, without the GIL if that takes long, and waits for no room. Returns true if all are
    /// published; otherwise the next call continues with the rest. Raises the exception for an unusable topic.
    pub(crate) fn advance(&self, py: Python<'_>, on_full: OnFull) -> PyResult<bool> {
        let is_long = self.small.len() >= LONG
            || (self.records.iter()).any(|record| matches!(record, Record::Large(_)));
        let done = match is_long {
            true => py.detach(|| self.publish(on_full)),
            false => self.publish(on_full),
        };
        self.map_error(py, done)
    }

    /// Publishes further records, under the lock of the progress. Returns true if all are published.
    fn publish(&self, on_full: OnFull) -> Result<bool, ObjectError> {
        let progress = &mut *lock(&self.progress);
        while progress.done < self.records.len() {
            let refused = match &self.records[progress.done] {
                Record::Small(..) => self.publish_small(progress, on_full)?,
                Record::Large(large) => self.publish_large(large, progress, on_full)?,
            };
            progress.slowest = refused;
            if refused.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Publishes the next records up to a large one. Returns the subscriber that leaves no room, if any.
    fn publish_small(
        &self,
        progress: &mut Progress,
        on_full: OnFull,
    ) -> Result<Option<NoRoom>, ObjectError> {
        let rest = &self.records[progress.done..];
        let small = rest.iter().map_while(|record| match *record {
            Record::Small(form, at, len) => Some((form, &self.small[at..at + len], false)),
            Record::Large(_) => None,
        });
        let published = self.publication.publish(small, on_full)?;
        progress.done += published.count;
        Ok(published.refused)
    }

    /// Publishes a large record, which is the next. Returns the subscriber that leaves no room, if any.
    fn publish_large(
        &self,
        large: &LargeItem,
        progress: &mut Progress,
        on_full: OnFull,
    ) -> Result<Option<NoRoom>, ObjectError> {
        let (form, len) = large.payload();
        let form = form as u8;
        if !self.publication.is_large(len) {
            let mut payload = vec![0; len as usize];
            // SAFETY: the vector is as long as the payload.
            unsafe { large.write_payload(payload.as_mut_ptr()) };
            let record = std::iter::once((form, &payload[..], true));
            let published = self.publication.publish(record, on_full)?;
            progress.done += published.count;
            return Ok(published.refused);
        }
        if let Some(slowest) = self.fill(large, progress, on_full)? {
            return Ok(Some(slowest));
        }
        let filled = &mut progress.filled;
        match self.publication.publish_block(form, filled, len, on_full)? {
            Ok(()) => {
                progress.done += 1;
                Ok(None)
            }
            Err(slowest) => Ok(Some(slowest)),
        }
    }

    /// Reserves a block for the next record, and writes the record, except a buffer that the program fills. Returns the
    /// subscriber that keeps the memory, if there is no block.
    fn fill(
        &self,
        large: &LargeItem,
        progress: &mut Progress,
        on_full: OnFull,
    ) -> Result<Option<NoRoom>, ObjectError> {
        if progress.filled.is_some() {
            return Ok(None);
        }
        let (_, len) = large.payload();
        let block = match self.publication.reserve(len, on_full)? {
            Ok(block) => block,
            Err(slowest) => return Ok(Some(slowest)),
        };
        let (_log, to) = self.publication.address(&block);
        // SAFETY: the block is as long, stays mapped as long as its log, and belongs to this record until it is
        // published.
        unsafe { large.write_payload(to) };
        progress.filled = Some(block);
        Ok(None)
    }

    /// Reserves the block of the only record, which the program fills. Returns true if there is a block; false without
    /// room, and for any other batch.
    fn reserve_with(&self, on_full: OnFull) -> Result<bool, ObjectError> {
        let progress = &mut *lock(&self.progress);
        if let (0, [Record::Large(large)]) = (progress.done, &self.records[..]) {
            progress.slowest = self.fill(large, progress, on_full)?;
        }
        Ok(progress.filled.is_some())
    }

    /// Returns the address and the length of the bytes that the program fills, which stay mapped while this lives; None
    /// if there are none.
    fn to_fill(&self) -> Option<(usize, usize)> {
        let progress = lock(&self.progress);
        let [Record::Large(large)] = &self.records[..] else {
            return None;
        };
        let (_log, begin) = self.publication.address(progress.filled.as_ref()?);
        let (at, len) = large.buffer_to_fill();
        Some((begin.addr() + at as usize, len as usize))
    }
}

// SAFETY: mapped and writable for as long as this object.
unsafe impl Export for PendingRecords {
    fn memory(&self) -> PyResult<Memory> {
        let Some((address, len)) = self.to_fill() else {
            return Err(PyBufferError::new_err("there is nothing to be filled"));
        };
        Ok(Memory {
            address,
            len,
            is_writable: true,
        })
    }
}

#[pymethods]
impl PendingRecords {
    /// Reserves the memory that the program fills. Returns False if there is none now.
    fn reserve_now(&self, py: Python<'_>) -> PyResult<bool> {
        self.object.get().open(py)?;
        let reserved = py.detach(|| self.reserve_with(OnFull::Fail));
        self.map_error(py, reserved)
    }

    /// Does what `reserve_now` does, for a caller that is about to sleep until there is memory.
    fn reserve_or_sleep(&self, py: Python<'_>) -> PyResult<bool> {
        self.object.get().open(py)?;
        let reserved = py.detach(|| self.reserve_with(self.begin_wait()));
        self.map_error(py, reserved)
    }

    /// Waits for the memory in a thread. Returns True; False after the timeout, None if waits were stopped.
    fn wait_reserved(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<bool>> {
        let reserve = |_| self.reserve_with(self.begin_wait());
        self.object.get().wait_in(py, ROOM, timeout, reserve)
    }

    /// Publishes further records. Returns False if there is no room for the rest.
    fn publish_now(&self, py: Python<'_>) -> PyResult<bool> {
        self.object.get().open(py)?;
        self.advance(py, OnFull::Fail)
    }

    /// Does what `publish_now` does, for a caller that is about to sleep until there is room. The slowest subscriber
    /// wakes it at the low watermark.
    fn publish_or_sleep(&self, py: Python<'_>) -> PyResult<bool> {
        self.object.get().open(py)?;
        self.advance(py, self.begin_wait())
    }

    /// Waits in a thread until all records are published. Returns True; False after the timeout, None if waits were
    /// stopped.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<bool>> {
        let publish = |_| self.publish(self.begin_wait());
        self.object.get().wait_in(py, ROOM, timeout, publish)
    }

    /// Frees the memory of a reserved record, unless it is published. Idempotent.
    fn give_up(&self) {
        let filled = lock(&self.progress).filled.take();
        if let Some(block) = filled
            && self.publication.membership().is_here()
        {
            self.publication.free_block(block);
        }
    }

    /// The number of published records.
    #[getter]
    fn done(&self) -> usize {
        lock(&self.progress).done
    }

    /// The number of records.
    #[getter]
    fn count(&self) -> usize {
        self.records.len()
    }

    /// Returns the subscriber for which the next record waits: its process id, 0 if there is none; the number of its
    /// unread messages; and the missing resource: "records", "memory" or "filling".
    fn slowest(&self) -> (i32, u64, &'static str) {
        let Some(slowest) = lock(&self.progress).slowest else {
            return (0, 0, "records");
        };
        let membership = self.publication.membership();
        let pid = slowest
            .owner
            .map_or(0, |owner| membership.process_of(owner));
        let cause = match slowest.cause {
            NoRoomCause::Records => "records",
            NoRoomCause::Memory => "memory",
            NoRoomCause::Filling => "filling",
        };
        (pid, slowest.lag, cause)
    }

    /// Returns True if the next record waits for a subscriber from which this thread was the last to read.
    fn waits_for_this_thread(&self) -> bool {
        let slowest = lock(&self.progress).slowest;
        slowest.is_some_and(|slowest| self.publication.is_read_by_this_thread(&slowest))
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // SAFETY: `view` is the caller's to be filled.
        unsafe { export(&slf, view, flags) }
    }
}

impl Drop for PendingRecords {
    fn drop(&mut self) {
        self.give_up();
    }
}
