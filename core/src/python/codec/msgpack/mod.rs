//! MessagePack for Python's own values: None, bool, int, float, str, bytes, list and dict; and three extensions, for
//! arrays of numbers, large bytes and views of bytes, whose buffers travel beside the body.
//!
//! Each direction is a single pass that runs no Python code. A value that needs more, such as a dataclass, a tuple, an
//! array of texts or an int of more than 64 bits, is neither written nor read here: the caller leaves the whole value
//! to the codec in Python, which also has the error messages.

pub(crate) mod buffers;
pub(crate) mod expected_type;
mod extension_reader;
mod extension_writer;
mod format;
mod interpreter_objects;
mod key_cache;
pub(crate) mod outgoing_body;
pub(crate) mod reader;
mod seen;
mod small_int;
pub(crate) mod type_spec;
pub(crate) mod unreadable;
pub(crate) mod unsupported;
pub(crate) mod writer;
