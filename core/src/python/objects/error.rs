//! Conversion of the errors of shared objects into exceptions of `shmrpc.errors`.

use crate::memory::region::Kind;
use crate::objects::error::ObjectError;
use crate::objects::membership::Membership;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Returns the exception for an error of an open object.
#[cold]
pub(crate) fn object_error(py: Python<'_>, membership: &Membership, error: ObjectError) -> PyErr {
    named_error(py, membership.shape().kind.word(), membership.name(), error)
}

/// Returns the login name of a user. Raises KeyError for an unknown one.
fn name_of_user(py: Python<'_>, user: libc::uid_t) -> PyResult<String> {
    let entry = py.import("pwd")?.call_method1("getpwuid", (user,))?;
    entry.getattr("pw_name")?.extract()
}

/// Returns the exception for an error of the object with this kind and name: ValueError for `TooLarge`, and a class of
/// `shmrpc.errors` for any other; or the exception that its making has raised.
pub(crate) fn named_error(py: Python<'_>, kind: &str, name: &str, error: ObjectError) -> PyErr {
    let class = match &error {
        ObjectError::Os { .. }
        | ObjectError::Full(_)
        | ObjectError::Crowded
        | ObjectError::Claimed { .. } => "SharedMemoryError",
        ObjectError::Mismatch { .. }
        | ObjectError::LeftOver { .. }
        | ObjectError::Limits { .. } => "NameConflict",
        ObjectError::Foreign(_) | ObjectError::Poisoned(_) => "RemoteProtocolError",
        ObjectError::Busy { .. } => "WaitTimeout",
        ObjectError::Restless { .. } => "StoreBusy",
        ObjectError::Changing { .. } if kind == Kind::Store.word() => "StoreBusy",
        ObjectError::Changing { .. } => "QueueBusy",
        ObjectError::TooLarge(_) => {
            return PyValueError::new_err(format!("{kind} '{name}': {error}"));
        }
        ObjectError::Fenced
        | ObjectError::OfUser(_)
        | ObjectError::Left
        | ObjectError::Forked
        | ObjectError::ReadOnly { .. }
        | ObjectError::NotHeld(_) => "LocalProtocolError",
    };
    let joint = if error.is_predicate() { " " } else { ": " };
    let mut text = format!("{kind} {name:?}{joint}{error}").replace('"', "'");
    if let ObjectError::OfUser(user) = error
        && let Ok(called) = name_of_user(py, user)
    {
        let number = format!("user {user};");
        text = text.replace(&number, &format!("user {user} ({called});"));
    }
    let made = || {
        let class = py.import("shmrpc.errors")?.getattr(class)?;
        match error {
            ObjectError::Os { error, .. } => {
                class.call1((error.raw_os_error().unwrap_or(libc::EIO), text))
            }
            ObjectError::Full(_) | ObjectError::Crowded | ObjectError::Claimed { .. } => {
                class.call1((libc::EUSERS, text))
            }
            _ => class.call1((text,)),
        }
    };
    made().map_or_else(|error| error, PyErr::from_value)
}
