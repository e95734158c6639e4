//! Conversion of the errors of stores into exceptions of `shmrpc.errors`.

use crate::objects::store::StoreMembership;
use crate::objects::store::StoreRefused;
use crate::python::objects::error::object_error;
use crate::store::{DEPTH, StoreError};
use pyo3::exceptions::{
    PyIndexError, PyKeyError, PyMemoryError, PyOverflowError, PyRecursionError, PyTypeError,
};
use pyo3::prelude::*;

/// Returns the exception for an operation that was refused: that of the object or of the contents, StoreBusy if the
/// store is being replaced, and StoreFull if it has no room, or if a transaction changes too much.
#[cold]
pub(crate) fn refusal_error(
    py: Python<'_>,
    membership: &StoreMembership,
    error: StoreRefused,
) -> PyErr {
    match error {
        StoreRefused::Object(error) => object_error(py, membership, error),
        StoreRefused::Store(error) => store_error(py, membership, error),
        StoreRefused::Replaced => named_error(
            py,
            membership,
            "StoreBusy",
            "is being replaced by a copy: try again".to_owned(),
        ),
        StoreRefused::Full { asked, used, limit } => named_error(
            py,
            membership,
            "StoreFull",
            format!(
                "has no room for {asked} bytes more: {used} of max_memory={limit} are in use; remove something, or \
                 open it with more"
            ),
        ),
        StoreRefused::TooMany(most) => named_error(
            py,
            membership,
            "StoreFull",
            format!(
                "can change at most {most} words in one transaction: split this one into several"
            ),
        ),
    }
}

/// Returns the exception for an error of a store's contents.
#[cold]
pub(crate) fn store_error(
    py: Python<'_>,
    membership: &StoreMembership,
    error: StoreError,
) -> PyErr {
    match error {
        StoreError::ContainerDeleted => named_error(
            py,
            membership,
            "ObjectDeleted",
            "no longer has this container: it was removed or replaced".to_owned(),
        ),
        StoreError::IndexOutOfRange(len) => {
            PyIndexError::new_err(format!("index out of range: there are {len}"))
        }
        StoreError::InTransaction => named_error(
            py,
            membership,
            "LocalProtocolError",
            "cannot do this within a transaction: view a buffer, or wait for a change, before or after the transaction"
                .to_owned(),
        ),
        StoreError::KeyNotFound => PyKeyError::new_err("no such key"),
        StoreError::NotANumber => PyTypeError::new_err("expected a number to add to"),
        StoreError::WrongType => PyTypeError::new_err("the container is of another type"),
        StoreError::Unwanted => PyKeyError::new_err("another process has replaced the item"),
        StoreError::NestingTooDeep => PyRecursionError::new_err(format!(
            "containers and tuples of a store are nested {DEPTH} deep at most: store parts of this under keys of their own"
        )),
        StoreError::NoMemory => PyMemoryError::new_err(format!(
            "store '{}': no memory for a copy of this; copy a part of it",
            membership.name()
        )),
        StoreError::CopyTooLarge => PyOverflowError::new_err("there is more to copy than the limit allows"),
        StoreError::CapacityExceeded => PyOverflowError::new_err(
            "over a limit of a store: 2^32 items of a container, 4,096 open views of buffers, 1,024 waits for changes",
        ),
        StoreError::Heap(error) => {
            let refusal = membership.map_error(StoreError::Heap(error));
            refusal_error(py, membership, refusal)
        }
    }
}

/// Returns the exception of this class of `shmrpc.errors`; `text` continues the sentence that begins with the store's
/// name.
#[cold]
pub(crate) fn named_error(
    py: Python<'_>,
    membership: &StoreMembership,
    class: &str,
    text: String,
) -> PyErr {
    let text = format!("store '{}' {text}", membership.name());
    let made = || py.import("shmrpc.errors")?.getattr(class)?.call1((text,));
    made().map_or_else(|error| error, PyErr::from_value)
}
