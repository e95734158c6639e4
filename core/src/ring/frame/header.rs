//! The header of a frame.

use crate::ring::memory::WORD;

/// Bytes before the payload.
pub const HEADER: usize = 2 * WORD;

/// Opcode of a frame after which the ring uses more of its memory; the id of the frame is the new size, in bytes.
pub const GROW: u32 = 0x1FF;

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Opcode, for the layer above.
    pub opcode: u32,
    /// Id of the call, for the layer above.
    pub id: u64,
    /// Length of the payload, in bytes.
    pub len: usize,
}
