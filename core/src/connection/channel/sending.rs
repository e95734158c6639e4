//! Results of sending a frame.

use crate::violation::Violation;
use thiserror::Error;

/// Bytes of queued payloads, and number of queued frames, from which on a peer counts as behind: a server takes no more
/// requests from it. Below that the server reads on; otherwise it would miss frames that need no reply, above all a
/// CANCEL, from a client that does not read, such as a thread that has left a stream. A stream may send 128 KiB ahead,
/// so the limit allows a few streams; and a queued frame takes about 100 bytes besides its payload, so the frames take
/// at most 800 KiB.
pub(super) const BEHIND_BYTES: usize = 512 << 10;
pub(super) const BEHIND_FRAMES: usize = 8192;

/// The reason why a frame, as a whole, was not sent. Except after a violation or the end, the channel remains usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the texts say what the fields hold")]
pub enum SendError {
    #[error("the channel is closed")]
    Closed,
    /// The peer has closed its end of the loop waker.
    #[error("the peer has left")]
    PeerLeft,
    #[error("a call with a higher id was begun before")]
    Overtaken,
    #[error("{len} bytes, the limit is {max}")]
    Oversize { len: usize, max: usize },
    /// There is no room for the frame now, and too many bytes are queued.
    #[error(
        "{kept} bytes wait for the peer to read them; with {len} more they are over the limit of {max}"
    )]
    Backlog { kept: usize, len: usize, max: u64 },
    #[error(transparent)]
    Violation(#[from] Violation),
}

/// The role of a frame in its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameRole {
    /// The frame begins the call.
    Begin,
    /// An item of a stream, for which a patient peer is not woken.
    StreamItem,
    /// Any other frame.
    Other,
}

/// The result of sending a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// The frame is in the ring, and the peer was awake.
    PeerAwake,
    /// The frame is in the ring, and the peer had to be woken.
    PeerWoken,
    /// The frame is queued for lack of room, and goes out as the peer reads.
    Queued,
}
