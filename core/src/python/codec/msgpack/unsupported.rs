//! `Unsupported`: the error of the writer.

/// The value contains an object that the core does not write.
#[derive(Debug)]
pub(crate) struct Unsupported;

/// The result of writing.
pub(super) type Result<T = ()> = std::result::Result<T, Unsupported>;
