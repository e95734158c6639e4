//! Operations of a program on the contents of a store.
//!
//! An operation belongs to the transaction `open` of the caller, or is a transaction of its own. `deadline`, in
//! nanoseconds of CLOCK_MONOTONIC, bounds its wait for the lock; 0 means not to wait. A read takes the lock only if
//! changes interfere with it again and again.
//!
//! Errors that all have in common: `HeapError::Busy` at the deadline, in a process that only reads `ReadOnly` for a
//! change and `NeverStable` for a read, `Limit` or `System` for missing memory, and `Poisoned`, `Replaced` and
//! `Detached`; `ContainerDeleted` if the container is no longer in the store, and `WrongType` if it is of another type
//! than the operation needs. A failed operation changes nothing.

pub mod buffers;
mod classes;
mod containers;
mod dicts;
pub mod items;
mod lists;
mod messages;
mod sets;
mod watching;
