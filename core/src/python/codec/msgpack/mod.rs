//! MessagePack for Python's own values: None, bool, int, float, str, bytes, list and dict; and three extensions of ours, for
//! arrays of numbers, large bytes and views of bytes, with the buffers that they refer to beside the body.
//!
//! One pass each way, in which no Python code runs. What needs more, such as a dataclass, a tuple, an array of texts or an
//! int of more than 64 bits, is neither written nor read here: the caller hands the whole over to the codec, which also has
//! the words for what is wrong.

pub(crate) mod expected;
mod int;
mod keys;
pub(crate) mod reader;
mod seen;
pub(crate) mod writer;

/// How deep containers may lie in each other. What is deeper is for the codec to say.
const MAX_DEPTH: u32 = 64;
/// The codes of the extensions, as in docs/wire.md.
const BYTES: u8 = 1;
const MEMORYVIEW: u8 = 3;
const ARRAY: u8 = 5;
