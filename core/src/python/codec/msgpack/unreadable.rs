//! `Unreadable`: the error of the reader.

/// The bytes are not of the expected type, or need more than MessagePack's own types. The codec in Python tells which,
/// and why.
#[derive(Debug)]
pub(crate) struct Unreadable;

/// The result of reading.
pub(super) type Read<T> = Result<T, Unreadable>;
