//! Attempts to change a queue, and waits of threads for it.

pub(crate) use crate::objects::deadline::OWNER_LOCK_TIMEOUT;
use crate::objects::error::ObjectError;
use crate::objects::queue::QueueMembership;
use crate::objects::queue::ROOM;
use crate::python::objects::error::object_error;
use crate::python::objects::shared_object::SharedObject;
use crate::queue::PutOutcome;
use crate::shared_heap::{Corruption, Field};
use pyo3::prelude::*;
use pyo3::types::PyBool;

/// The longest wait for the owner lock, in nanoseconds, of an operation that ends a claim or a task.
const END_TIMEOUT: u64 = 1_000_000_000;

/// Calls `operate` with a timeout of 0, and again without the GIL and with a longer timeout if another member holds the
/// owner lock. Returns the result, or raises the error: QueueBusy if the member holds the lock for too long.
pub(crate) fn attempt<T: Send>(
    py: Python<'_>,
    membership: &QueueMembership,
    operate: impl Fn(u64) -> Result<T, ObjectError> + Sync,
) -> PyResult<T> {
    attempt_then(py, membership, &operate, |operate| {
        membership.with_lock_timeout(operate)
    })
}

/// Does what `attempt` does, with an even longer timeout, a second, for an operation that ends a claim or a task.
pub(crate) fn attempt_to_end<T: Send>(
    py: Python<'_>,
    membership: &QueueMembership,
    operate: impl Fn(u64) -> Result<T, ObjectError> + Sync,
) -> PyResult<T> {
    attempt_then(py, membership, &operate, |operate| operate(END_TIMEOUT))
}

/// Calls `operate` with a timeout of 0, and then `wait` without the GIL if another member holds the owner lock.
fn attempt_then<T: Send, O: Fn(u64) -> Result<T, ObjectError> + Sync>(
    py: Python<'_>,
    membership: &QueueMembership,
    operate: &O,
    wait: impl FnOnce(&O) -> Result<T, ObjectError> + Send,
) -> PyResult<T> {
    let result = match operate(0) {
        Err(ObjectError::Changing { .. }) => py.detach(|| wait(operate)),
        result => result,
    };
    result.map_err(|error| object_error(py, membership, error))
}

/// Returns the exception QueueShutDown.
#[cold]
pub(crate) fn shut_down_error(py: Python<'_>, membership: &QueueMembership) -> PyErr {
    let text = format!("queue '{}' is shut down", membership.name());
    let make = || {
        let class = py.import("shmrpc.errors")?.getattr("QueueShutDown")?;
        class.call1((text,))
    };
    make().map_or_else(|error| error, PyErr::from_value)
}

/// Poisons the queue because of an impossible value, and returns the RemoteProtocolError.
#[cold]
pub(crate) fn corruption_error(
    py: Python<'_>,
    membership: &QueueMembership,
    field: Field,
    at: u64,
    found: u64,
) -> PyErr {
    let corruption = Corruption { field, at, found };
    object_error(py, membership, membership.poison(corruption))
}

/// Converts the outcome of a put: true if items were put, false if there is no room. Raises QueueShutDown.
pub(crate) fn was_put(
    py: Python<'_>,
    membership: &QueueMembership,
    outcome: PutOutcome,
) -> PyResult<bool> {
    match outcome {
        PutOutcome::Stored => Ok(true),
        PutOutcome::Full => Ok(false),
        PutOutcome::ShutDown => Err(shut_down_error(py, membership)),
    }
}

/// The reason for which a wait has failed: false for the timeout, None for stopped waits.
pub(crate) type FailedWait = Option<bool>;

/// Waits in a thread until `poll` returns something, and returns that; raises an error of `poll`. Returns as the inner
/// error the reason for which the wait has failed. After a wait for room, wakes the next waiter for room.
pub(crate) fn wait_for<T: Send>(
    py: Python<'_>,
    (object, membership): (&SharedObject, &QueueMembership),
    wait_set: usize,
    timeout: Option<f64>,
    mut poll: impl FnMut() -> Result<Option<T>, ObjectError> + Send,
) -> PyResult<Result<T, FailedWait>> {
    let mut found = None;
    let waited = object.wait_in(py, wait_set, timeout, |_| {
        found = match poll() {
            Err(ObjectError::Left) => return Err(ObjectError::Left),
            polled => polled.transpose(),
        };
        Ok(found.is_some())
    })?;
    if wait_set == ROOM && waited == Some(true) {
        // This waiter alone may have been woken for room that is enough for others, too.
        membership.wake_next(ROOM);
    }
    match found {
        Some(found) if waited == Some(true) => {
            let found = found.map_err(|error| object_error(py, membership, error));
            found.map(Ok)
        }
        _ => Ok(Err(waited)),
    }
}

/// Waits in a thread until `put` has put `count` items. Returns true; false after the timeout, None if waits were
/// stopped. Raises QueueShutDown, and an error of `put`.
pub(crate) fn wait_to_put(
    py: Python<'_>,
    queue: (&SharedObject, &QueueMembership),
    count: u64,
    timeout: Option<f64>,
    mut put: impl FnMut() -> Result<PutOutcome, ObjectError> + Send,
) -> PyResult<Option<bool>> {
    let membership = queue.1;
    let waited = wait_for(py, queue, ROOM, timeout, || {
        if !membership.may_put(count) {
            return Ok(None);
        }
        Ok(Some(put()?).filter(|&outcome| outcome != PutOutcome::Full))
    })?;
    match waited {
        Ok(outcome) => {
            was_put(py, membership, outcome)?;
            Ok(Some(true))
        }
        Err(reason) => Ok(reason),
    }
}

/// Converts the reason for which a wait has failed to a Python object: False, or None for stopped waits.
pub(crate) fn failed_wait_object<'py>(
    py: Python<'py>,
    reason: FailedWait,
) -> Option<Bound<'py, PyAny>> {
    reason.map(|reason| PyBool::new(py, reason).to_owned().into_any())
}

/// Returns the word at the beginning of these bytes, where missing bytes are 0.
pub(crate) fn first_word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let len = bytes.len().min(word.len());
    word[..len].copy_from_slice(&bytes[..len]);
    u64::from_ne_bytes(word)
}
