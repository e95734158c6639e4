//! `PendingRecords`: values on their way into a topic.

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

/// Smallest number of bytes that are copied without the GIL.
const LONG: usize = 64 << 10;

/// A value to be published.
pub(crate) enum Record {
    /// A small record: its form, and the offset and the length of its payload among the small ones.
    Small(u8, usize, usize),
    Large(LargeItem),
}

impl Record {
    /// Returns the bytes of its payload.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Record::Small(_, _, len) => *len as u64,
            Record::Large(large) => large.payload().1,
        }
    }
}

/// Progress of a batch.
struct Progress {
    /// Number of its records that are published.
    done: usize,
    /// The block of the next record, which is filled or has to be.
    filled: Option<Block>,
    /// Whom the next one waits for.
    slowest: Option<NoRoom>,
}

/// Values that wait for room, or those of them that were not published at once; or a record that the program fills in
/// place, by the buffer protocol, between `reserve` and `publish`.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct PendingRecords {
    object: Py<SharedObject>,
    publishing: Arc<Publication>,
    /// The small records, one behind the other, each with its head.
    small: Scratch,
    records: Vec<Record>,
    progress: Mutex<Progress>,
    /// Set once they wait.
    waiting: OnceLock<RoomWait>,
}

impl PendingRecords {
    pub(crate) fn new(
        object: Py<SharedObject>,
        publishing: Arc<Publication>,
        small: Scratch,
        records: Vec<Record>,
    ) -> Self {
        PendingRecords {
            object,
            publishing,
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

    fn waits(&self) -> OnFull {
        let waiting = self.waiting.get_or_init(|| self.publishing.wait());
        waiting.on_full()
    }

    fn map_error<T>(&self, py: Python<'_>, result: Result<T, ObjectError>) -> PyResult<T> {
        result.map_err(|error| object_error(py, self.publishing.membership(), error))
    }

    /// Publishes further records. Returns true if all are published.
    pub(crate) fn advance(&self, py: Python<'_>, on_full: OnFull) -> PyResult<bool> {
        let is_long = self.small.len() >= LONG
            || (self.records.iter()).any(|record| matches!(record, Record::Large(_)));
        let done = match is_long {
            true => py.detach(|| self.publish(on_full)),
            false => self.publish(on_full),
        };
        self.map_error(py, done)
    }

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

    /// Publishes the small records that follow.
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
        let published = self.publishing.publish(small, on_full)?;
        progress.done += published.count;
        Ok(published.refused)
    }

    fn publish_large(
        &self,
        large: &LargeItem,
        progress: &mut Progress,
        on_full: OnFull,
    ) -> Result<Option<NoRoom>, ObjectError> {
        let (form, len) = large.payload();
        let form = form as u8;
        if !self.publishing.is_large(len) {
            let mut payload = vec![0; len as usize];
            // SAFETY: the vector is as long as the payload.
            unsafe { large.write_payload(payload.as_mut_ptr()) };
            let record = std::iter::once((form, &payload[..], true));
            let published = self.publishing.publish(record, on_full)?;
            progress.done += published.count;
            return Ok(published.refused);
        }
        if let Some(slowest) = self.fill(large, progress, on_full)? {
            return Ok(Some(slowest));
        }
        let filled = &mut progress.filled;
        match self.publishing.publish_block(form, filled, len, on_full)? {
            Ok(()) => {
                progress.done += 1;
                Ok(None)
            }
            Err(slowest) => Ok(Some(slowest)),
        }
    }

    /// Provides a block with the next record, except for a buffer that the program fills. Returns the subscriber that
    /// keeps the memory, if there is none.
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
        let block = match self.publishing.reserve(len, on_full)? {
            Ok(block) => block,
            Err(slowest) => return Ok(Some(slowest)),
        };
        let (_log, to) = self.publishing.address(&block);
        // SAFETY: the block is as long, stays mapped as long as its log, and belongs to this record until it is
        // published.
        unsafe { large.write_payload(to) };
        progress.filled = Some(block);
        Ok(None)
    }

    /// Does what `fill` does, for the only record, which the program fills. Returns true if there is a block.
    fn reserve_with(&self, on_full: OnFull) -> Result<bool, ObjectError> {
        let progress = &mut *lock(&self.progress);
        if let (0, [Record::Large(large)]) = (progress.done, &self.records[..]) {
            progress.slowest = self.fill(large, progress, on_full)?;
        }
        Ok(progress.filled.is_some())
    }

    /// Returns the address and the length of the bytes that the program fills. They stay mapped while this lives.
    fn to_fill(&self) -> Option<(usize, usize)> {
        let progress = lock(&self.progress);
        let [Record::Large(large)] = &self.records[..] else {
            return None;
        };
        let (_log, begin) = self.publishing.address(progress.filled.as_ref()?);
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
    /// Reserves the memory to be filled. Returns False if there is none now.
    fn reserve_now(&self, py: Python<'_>) -> PyResult<bool> {
        self.object.get().open(py)?;
        let reserved = py.detach(|| self.reserve_with(OnFull::Fail));
        self.map_error(py, reserved)
    }

    /// Does what `reserve_now` does, for a caller that is about to sleep until there is memory.
    fn reserve_or_sleep(&self, py: Python<'_>) -> PyResult<bool> {
        self.object.get().open(py)?;
        let reserved = py.detach(|| self.reserve_with(self.waits()));
        self.map_error(py, reserved)
    }

    /// Waits for the memory in a thread: returns True, False after the timeout, None if waits were stopped.
    fn wait_reserved(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<bool>> {
        let reserve = |_| self.reserve_with(self.waits());
        self.object.get().wait_in(py, ROOM, timeout, reserve)
    }

    /// Publishes further records. Returns False if there is no room for the others.
    fn publish_now(&self, py: Python<'_>) -> PyResult<bool> {
        self.object.get().open(py)?;
        self.advance(py, OnFull::Fail)
    }

    /// Does what `publish_now` does, for a caller that is about to sleep until there is room: it is woken when the
    /// slowest subscriber has read down to the low watermark.
    fn publish_or_sleep(&self, py: Python<'_>) -> PyResult<bool> {
        self.object.get().open(py)?;
        self.advance(py, self.waits())
    }

    /// Waits in a thread until all are published: returns True, False after the timeout, None if waits were stopped.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<bool>> {
        let publish = |_| self.publish(self.waits());
        self.object.get().wait_in(py, ROOM, timeout, publish)
    }

    /// Frees the memory of a record that is not published. Does nothing for a published one. Idempotent.
    fn give_up(&self) {
        let filled = lock(&self.progress).filled.take();
        if let Some(block) = filled
            && self.publishing.membership().is_here()
        {
            self.publishing.free_block(block);
        }
    }

    /// Number of published records.
    #[getter]
    fn done(&self) -> usize {
        lock(&self.progress).done
    }

    #[getter]
    fn count(&self) -> usize {
        self.records.len()
    }

    /// Returns the subscriber that the next record waits for: its process, 0 if there is none; the number of messages
    /// that it is behind; and the resource that is short: "records", "memory" or "filling".
    fn slowest(&self) -> (i32, u64, &'static str) {
        let Some(slowest) = lock(&self.progress).slowest else {
            return (0, 0, "records");
        };
        let membership = self.publishing.membership();
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

    /// Returns true if the next record waits for a subscriber that this thread alone has read.
    fn waits_for_this_thread(&self) -> bool {
        let slowest = lock(&self.progress).slowest;
        slowest.is_some_and(|slowest| self.publishing.is_read_by_this_thread(&slowest))
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
