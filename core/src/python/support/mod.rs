//! Shared by all bindings: errors, buffers, descriptors, and the steps of coroutines.

pub(crate) mod buffer;
pub(crate) mod coroutine_slots;
pub(crate) mod descriptor;
pub(crate) mod errors;
pub(crate) mod export;
pub(crate) mod in_place_bytes;
pub(crate) mod mapped_bytes;
pub(crate) mod native_coroutine;
pub(crate) mod owner;
pub(crate) mod parent_death;
pub(crate) mod reentrant_lock;
pub(crate) mod scratch;
pub(crate) mod step;
pub(crate) mod timeout;
pub(crate) mod yield_budget;
