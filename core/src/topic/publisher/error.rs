//! Errors of publishing.

use std::io;
use thiserror::Error;

/// The reason why a record was not published. No part of the record is visible.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the texts say what the fields hold")]
pub enum PublishError {
    /// There is no room before subscribers have read, or have removed their pins.
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

/// Details of missing room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// Member that the publisher waits for, if it is a single one.
    pub owner: Option<u64>,
    /// Number of records that it is behind.
    pub lag: u64,
    /// Resource that is missing.
    pub cause: NoRoomCause,
}

/// The resource that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoomCause {
    /// A subscriber is behind by the maximum number of records, or by the bytes of the ring.
    Records,
    /// The blocks of large records have not been read, or are pinned.
    Memory,
    /// The blocks of large records are being filled.
    Filling,
}
