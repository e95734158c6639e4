//! Why something was not published.

use std::io;
use thiserror::Error;

/// Why something was not published. Nothing of it was then.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the texts say what the fields hold")]
pub enum PublishError {
    /// There is no room before others have read, or let go.
    #[error("there is no room: {0:?}")]
    Full(NoRoom),
    #[error(
        "a message of {asked} bytes needs memory of its own, for which max_memory={most} is too little; \
         open it with max_memory={asked} or more"
    )]
    TooLarge { asked: u64, most: u64 },
    #[error("there is no memory for it: {0}")]
    System(#[from] io::Error),
}

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// The member that is waited for, if it is one.
    pub owner: Option<u64>,
    /// How many records it is behind.
    pub lag: u64,
    /// What there is no room for.
    pub cause: NoRoomCause,
}

/// What there is no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoomCause {
    /// One is behind by as many records as it may be, or by the bytes of the ring.
    Records,
    /// The blocks of large records have not been read, or are looked at.
    Memory,
    /// The blocks of large records are being filled.
    Filling,
}
