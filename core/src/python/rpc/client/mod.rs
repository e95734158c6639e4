//! The client's side of a call.

pub(crate) mod call_ids;
pub(crate) mod endpoint;
pub(crate) mod home_loop;
pub(crate) mod item_stream;
pub(crate) mod loop_endpoint;
pub(crate) mod native_call;
pub(crate) mod shared_channel;
pub(crate) mod thread_calls;
pub(crate) mod thread_endpoint;
