//! Queues that vanished with items in them when this process left as the last member.

use crate::fork_guard::PerProcess;
use crate::sync::lock;
use std::sync::Mutex;

/// The names of the queues, and the numbers of their items.
static DROPPED: PerProcess<Mutex<Vec<(String, u64)>>> = PerProcess::empty();

/// Returns the names of the queues that vanished with items in them since the last call, and the numbers of items, in
/// the order in which this process has left the queues.
pub fn take_dropped() -> Vec<(String, u64)> {
    let dropped = DROPPED
        .get()
        .map(|dropped| std::mem::take(&mut *lock(dropped)));
    dropped.unwrap_or_default()
}

/// Notes a queue that vanishes with this many items, unless that is 0.
pub fn note_dropped(name: &str, items: u64) {
    if items > 0
        && let Ok(dropped) = DROPPED.get()
    {
        lock(dropped).push((name.to_owned(), items));
    }
}
