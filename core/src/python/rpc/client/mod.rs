//! The client's side of a call.

pub(crate) mod calls;
pub(crate) mod coroutine;
pub(crate) mod endpoint;
pub(crate) mod ids;
pub(crate) mod item_stream;
pub(crate) mod loop_endpoint;
pub(crate) mod pipelining;
pub(crate) mod short_call;
pub(crate) mod thread_endpoint;
