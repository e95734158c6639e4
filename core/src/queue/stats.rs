//! Snapshots of a queue.

use std::time::Duration;

/// A claim that another member may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldClaim {
    /// Member that holds the claim.
    pub member: u64,
    /// Time since the claim was made.
    pub age: Duration,
    /// Number of deliveries of its item.
    pub deliveries: u64,
}

/// A copy of an item that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingItem {
    /// Number of the item in the order in which all items were put.
    pub number: u64,
    /// Number of deliveries after which it was returned.
    pub deliveries: u64,
    /// Length of the payload, in bytes.
    pub len: u64,
    /// A [`Head`] and the payload, padded to the next multiple of 8; empty if the item is large.
    pub copy: Vec<u8>,
}

/// A snapshot of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Number of items that wait.
    pub depth: u64,
    /// Number of items that were ever put.
    pub put: u64,
    /// Number of items that were put and not processed.
    pub unfinished: u64,
    /// Number of dead letters.
    pub dead: u64,
    /// True if the queue accepts no more items.
    pub shut: bool,
    /// Bytes of memory in use.
    pub used: u64,
    /// Bytes of memory that the queue has.
    pub memory: u64,
    /// Claims that are held.
    pub held: Vec<HeldClaim>,
    /// Number of acknowledged claims whose items' memory is still read.
    pub viewed: u64,
}

/// The state of the queue at the last trim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrimState {
    /// Number of items that were ever put.
    pub(super) put: u64,
    /// True if less than a quarter of the memory was in use.
    pub(super) is_low: bool,
}
