//! The header of a frame.

use crate::ring::memory::WORD;

/// Bytes before the payload.
pub const HEADER: usize = 2 * WORD;

/// The opcode of a frame that says that from its end on more of the ring's memory is in use; its id says how much, in
/// bytes.
pub const GROW: u32 = 0x1FF;

/// What stands before a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame is, to the layer above.
    pub opcode: u32,
    /// Which call it belongs to, to the layer above.
    pub id: u64,
    /// Bytes of payload.
    pub len: usize,
}
