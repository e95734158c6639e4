//! Connections and their calls; `client` and `server` are the two sides.

pub(crate) mod body;
pub(crate) mod channel;
pub(crate) mod client;
pub(crate) mod incoming;
pub(crate) mod payload;
pub(crate) mod pipelining;
pub(crate) mod reply;
pub(crate) mod requests;
pub(crate) mod segments;
pub(crate) mod server;
pub(crate) mod stream_sender;
