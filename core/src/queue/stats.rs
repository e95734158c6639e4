//! What can be seen of a queue.

use std::time::Duration;

/// A claim that is held, as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldClaim {
    /// The member that holds it.
    pub member: u64,
    /// For how long.
    pub age: Duration,
    /// How often its item was delivered.
    pub deliveries: u64,
}

/// An item that waits, as it was when somebody looked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingItem {
    /// Its place in the order in which all items were put.
    pub number: u64,
    /// How often it was delivered, and came back.
    pub deliveries: u64,
    /// The bytes of its payload.
    pub len: u64,
    /// A [`Head`] and the payload, up to the next multiple of 8; nothing if it is large.
    pub copy: Vec<u8>,
}

/// What can be seen of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Items that wait.
    pub depth: u64,
    /// Items that were ever put.
    pub put: u64,
    /// Items that were put and not dealt with.
    pub unfinished: u64,
    /// Dead letters.
    pub dead: u64,
    /// Whether nothing more is put.
    pub shut: bool,
    /// Bytes of memory in use.
    pub used: u64,
    /// Bytes of memory that the queue has.
    pub memory: u64,
    /// ClaimTable that are held.
    pub held: Vec<HeldClaim>,
    /// ClaimTable that have ended, and of whose items' memory something is still looked at.
    pub viewed: u64,
}

/// What is remembered from one look at the memory to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrimState {
    /// Items that were ever put.
    pub(super) put: u64,
    /// Less than a quarter of the memory was in use.
    pub(super) is_low: bool,
}
