//! Permits that tasks and threads of this process hold though the handles by which they were acquired are gone.

use crate::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// The tasks and threads that have abandoned permits. The object stays open for these permits.
#[derive(Default)]
pub struct AbandonedPermits {
    /// The owner of each permit.
    owners: Mutex<Vec<u64>>,
    /// True if there are any. A hint for all threads but the one that stored it.
    exists: AtomicBool,
}

impl AbandonedPermits {
    /// Returns true if there are any.
    #[inline]
    pub fn exist(&self) -> bool {
        // Relaxed: see the field.
        self.exists.load(Relaxed)
    }

    /// Adds a permit of this owner, unless there are as many as `held` returns, the number of permits of this process.
    pub fn add(&self, owner: u64, held: impl FnOnce() -> usize) {
        self.change(|owners| {
            if owners.len() < held() {
                owners.push(owner);
            }
        });
    }

    /// Removes a permit of this owner. Returns false if the owner has none.
    pub fn reclaim(&self, owner: u64) -> bool {
        self.exist()
            && self.change(|owners| {
                let found = owners.iter().position(|&each| each == owner);
                found.map(|index| owners.swap_remove(index)).is_some()
            })
    }

    /// Removes a permit, preferably one of this owner. Does nothing if there are none.
    pub fn forget_one(&self, owner: u64) {
        self.change(|owners| {
            let found = owners.iter().position(|&each| each == owner);
            if let Some(index) = found.or(owners.len().checked_sub(1)) {
                owners.swap_remove(index);
            }
        });
    }

    /// Removes permits until there are at most as many as `held` returns.
    pub fn limit(&self, held: impl FnOnce() -> usize) {
        self.change(|owners| owners.truncate(held()));
    }

    /// Calls `change` with the owners, and notes if any are left. Returns the result of `change`.
    fn change<R>(&self, change: impl FnOnce(&mut Vec<u64>) -> R) -> R {
        let mut owners = lock(&self.owners);
        let changed = change(&mut owners);
        self.exists.store(!owners.is_empty(), Relaxed);
        changed
    }
}
