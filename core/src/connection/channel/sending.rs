//! What becomes of a frame that is sent.

use crate::violation::Violation;
use thiserror::Error;

/// Bytes of payload, and frames, that wait for a peer's room before it counts as behind: a server asks it for nothing
/// more. Up to there it reads on, or it would not hear what takes nothing, a CANCEL above all, from a client that reads
/// nothing: a thread that has left a stream, say. What a stream may send ahead is 128 KiB, so that is for a few of
/// them; and a frame that is kept takes about 100 bytes besides its payload, so the frames are 800 KiB at most.
pub(super) const BEHIND_BYTES: usize = 512 << 10;
pub(super) const BEHIND_FRAMES: usize = 8192;

/// Why a frame was not sent. Nothing of it was; but for a violation or after the end, the channel goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the texts say what the fields hold")]
pub enum SendError {
    #[error("the channel is closed")]
    Closed,
    /// It has closed its end of the bell.
    #[error("the peer has left")]
    PeerLeft,
    #[error("a call with a higher id was begun before")]
    Overtaken,
    #[error("{len} bytes, the limit is {max}")]
    Oversize { len: usize, max: usize },
    /// There is no room for it now, and too much waits for room already.
    #[error(
        "{kept} bytes wait for the peer to read them; with {len} more they are over the limit of {max}"
    )]
    Backlog { kept: usize, len: usize, max: u64 },
    #[error(transparent)]
    Violation(#[from] Violation),
}

/// What a frame is to the call that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameRole {
    /// It begins the call.
    Begin,
    /// An item of a stream: a peer that is patient is not woken for it.
    StreamItem,
    /// Any other.
    Other,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// It is in the ring, and the peer was awake.
    PeerAwake,
    /// It is in the ring, and the peer had to be woken.
    PeerWoken,
    /// There was no room. It is kept and goes out as the peer reads.
    Queued,
}
