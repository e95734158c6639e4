//! `PendingRecords`: values on their way into a topic.

use crate::objects::error::ObjectError;
use crate::objects::topic::{Publication, ROOM, RoomWait};
use crate::python::codec::items::Large;
use crate::python::objects::shared_object::{SharedObject, failed};
use crate::python::support::buffer::fill;
use crate::python::support::scratch::Scratch;
use crate::sync::lock;
use crate::topic::publisher::{Block, NoRoom, NoRoomCause, OnFull};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::os::raw::c_int;
use std::sync::{Arc, Mutex, OnceLock};

/// Bytes from here on are copied without the GIL.
const LONG: usize = 64 << 10;

/// A value that is to be published.
pub(crate) enum Record {
    /// A small one: its form, and where its payload is among the small ones.
    Small(u8, usize, usize),
    Large(Large),
}

impl Record {
    /// Bytes of its payload.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Record::Small(_, _, len) => *len as u64,
            Record::Large(large) => large.payload().1,
        }
    }
}

/// How far a batch is published.
struct Progress {
    /// This many of its records are.
    done: usize,
    /// The block of the next one, which is filled, or is to be.
    filled: Option<Block>,
    /// Whom the next one waits for.
    slowest: Option<NoRoom>,
}

/// Values that wait for room, or those of them that were not published at once; or one that is filled in place, by the
/// buffer protocol, between `reserve` and `publish`.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct PendingRecords {
    name: Py<SharedObject>,
    publishing: Arc<Publication>,
    /// The small ones, one behind the other, each with its head.
    small: Scratch,
    records: Vec<Record>,
    progress: Mutex<Progress>,
    /// Once they wait.
    waiting: OnceLock<RoomWait>,
}

impl PendingRecords {
    pub(crate) fn new(
        name: Py<SharedObject>,
        publishing: Arc<Publication>,
        small: Scratch,
        records: Vec<Record>,
    ) -> Self {
        PendingRecords {
            name,
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

    fn told<T>(&self, py: Python<'_>, result: Result<T, ObjectError>) -> PyResult<T> {
        result.map_err(|error| failed(py, self.publishing.membership(), error))
    }

    /// Publishes on; whether all are.
    pub(crate) fn advance(&self, py: Python<'_>, on_full: OnFull) -> PyResult<bool> {
        let is_long = self.small.len() >= LONG
            || (self.records.iter()).any(|record| matches!(record, Record::Large(_)));
        let done = match is_long {
            true => py.detach(|| self.publish(on_full)),
            false => self.publish(on_full),
        };
        self.told(py, done)
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

    /// Publishes the small ones that follow.
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
        large: &Large,
        progress: &mut Progress,
        on_full: OnFull,
    ) -> Result<Option<NoRoom>, ObjectError> {
        let (form, len) = large.payload();
        let form = form as u8;
        if !self.publishing.is_large(len) {
            let mut payload = vec![0; len as usize];
            // SAFETY: it is as long as the payload.
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

    /// Sees to it that there is a block with the next record, but for what somebody else fills; or who has the memory.
    fn fill(
        &self,
        large: &Large,
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
        // SAFETY: the block is as long, mapped as long as its log, and nobody's until it is published.
        unsafe { large.write_payload(to) };
        progress.filled = Some(block);
        Ok(None)
    }

    /// The same for the only record, which somebody else fills; whether there is one.
    fn reserve_with(&self, on_full: OnFull) -> Result<bool, ObjectError> {
        let progress = &mut *lock(&self.progress);
        if let (0, [Record::Large(large)]) = (progress.done, &self.records[..]) {
            progress.slowest = self.fill(large, progress, on_full)?;
        }
        Ok(progress.filled.is_some())
    }

    /// Where the bytes are that somebody else fills, and how many; as long as this is there.
    fn to_fill(&self) -> Option<(usize, usize)> {
        let progress = lock(&self.progress);
        let [Record::Large(large)] = &self.records[..] else {
            return None;
        };
        let (_log, begin) = self.publishing.address(progress.filled.as_ref()?);
        let (at, len) = large.hole();
        Some((begin.addr() + at as usize, len as usize))
    }
}

#[pymethods]
impl PendingRecords {
    /// Finds memory that is to be filled; False if there is none now.
    fn reserve_now(&self, py: Python<'_>) -> PyResult<bool> {
        self.name.get().open(py)?;
        let reserved = py.detach(|| self.reserve_with(OnFull::Fail));
        self.told(py, reserved)
    }

    /// The same for one that is about to sleep until there is some.
    fn reserve_or_sleep(&self, py: Python<'_>) -> PyResult<bool> {
        self.name.get().open(py)?;
        let reserved = py.detach(|| self.reserve_with(self.waits()));
        self.told(py, reserved)
    }

    /// Waits for it in a thread. False if the timeout is over, None if waits were stopped.
    fn wait_reserved(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<bool>> {
        let reserve = |_| self.reserve_with(self.waits());
        self.name.get().wait_in(py, ROOM, timeout, reserve)
    }

    /// Publishes on; False if there is no room for the others.
    fn publish_now(&self, py: Python<'_>) -> PyResult<bool> {
        self.name.get().open(py)?;
        self.advance(py, OnFull::Fail)
    }

    /// The same for one that is about to sleep until there is room: it is woken when the slowest is at low water.
    fn publish_or_sleep(&self, py: Python<'_>) -> PyResult<bool> {
        self.name.get().open(py)?;
        self.advance(py, self.waits())
    }

    /// Waits until all are published, in a thread. False if the timeout is over, None if waits were stopped.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<bool>> {
        let publish = |_| self.publish(self.waits());
        self.name.get().wait_in(py, ROOM, timeout, publish)
    }

    /// Frees the memory of one that is not published. Again, or once it was published: nothing.
    fn give_up(&self) {
        let filled = lock(&self.progress).filled.take();
        if let Some(block) = filled
            && self.publishing.membership().is_here()
        {
            self.publishing.free_block(block);
        }
    }

    /// How many were published.
    #[getter]
    fn done(&self) -> usize {
        lock(&self.progress).done
    }

    #[getter]
    fn count(&self) -> usize {
        self.records.len()
    }

    /// Whom the next one waits for: the process, 0 if it is none; how many messages that is behind; and for what there is
    /// no room: "records", "memory" or "filling".
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
        let Some((address, len)) = slf.get().to_fill() else {
            return Err(PyBufferError::new_err("there is nothing to be filled"));
        };
        // SAFETY: mapped and writable for as long as this object, which the view keeps alive.
        unsafe { fill(view, slf.as_any(), address, len, true, flags) }
    }
}

impl Drop for PendingRecords {
    fn drop(&mut self) {
        self.give_up();
    }
}
