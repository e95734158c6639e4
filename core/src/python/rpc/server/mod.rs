//! The server's side of a call.

pub(crate) mod call_contexts;
pub(crate) mod current_call;
pub(crate) mod handler;
pub(crate) mod poller;
