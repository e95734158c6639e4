//! The server's side of a call.

pub(crate) mod call_contexts;
pub(crate) mod client_requests;
pub(crate) mod current_call;
pub(crate) mod handler;
pub(crate) mod handler_table;
pub(crate) mod poller;
