//! Limits and codes that the reader and the writer share.

/// Greatest nesting of containers. The codec in Python handles deeper values.
pub(super) const MAX_DEPTH: u32 = 64;

/// Codes of the extensions, as in docs/wire.md.
pub(super) const BYTES_EXTENSION: u8 = 1;
pub(super) const MEMORYVIEW_EXTENSION: u8 = 3;
pub(super) const ARRAY_EXTENSION: u8 = 5;
