//! Frames over a ring: an opcode, an id and a payload, in order, of any size.
//!
//! A frame is two words and then its payload, padded to a whole word:
//!
//! ```text
//!   word 0   low half: length of the payload in bytes   high half: opcode
//!   word 1   id
//!   word 2…  payload
//! ```
//!
//! A frame of up to half the ring is published whole. A larger one is published in pieces, each as large as the room;
//! the reader assembles it in private memory. So the ring bounds the shared memory, never the frame.
//!
//! Between two frames the ring may grow, which a frame without a payload announces: [`GROW`]. The reader consumes it.

mod header;
mod reader;
#[cfg(all(test, not(loom)))]
mod tests;
mod writer;

pub use header::{GROW, HEADER, Header};
pub use reader::FrameReader;
pub use writer::{FrameWriter, KeptPayload, Unread};
