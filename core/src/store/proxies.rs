//! Containers of which this process has proxies, and the contents of those that it has removed.
//!
//! A store copies the values that are inserted, so a program that moves a container removes one and creates another:
//! `items[0], items[1] = items[1], items[0]` replaces the first before it inserts the second. Therefore the store
//! copies each container that this process removes while it has a proxy of it. The copy can be inserted as long as the
//! proxy exists; reading or changing the removed container stays an error.

use super::format::value::StoredValue;
use crate::sync::lock;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex};

/// A container that this process has proxies of.
#[derive(Default)]
struct Container {
    proxies: usize,
    /// Contents of the container when this process removed it.
    removed_content: Option<Arc<StoredValue>>,
}

/// The containers by their ids.
#[derive(Default)]
pub struct Proxies(Mutex<HashMap<u64, Container, BuildHasherDefault<Ids>>>);

impl Proxies {
    /// Counts one more proxy.
    pub fn add(&self, id: u64) {
        lock(&self.0).entry(id).or_default().proxies += 1;
    }

    /// Counts one proxy less, and after the last one drops the removed contents. Does nothing without a proxy.
    pub fn remove(&self, id: u64) {
        let mut all = lock(&self.0);
        let Some(container) = all.get_mut(&id) else {
            return;
        };
        container.proxies = container.proxies.saturating_sub(1);
        if container.proxies == 0 {
            let removed = all.remove(&id);
            drop(all);
            drop(removed); // Outside of the lock: it may be large.
        }
    }

    /// Returns true if this process has a proxy of the container.
    pub(super) fn has(&self, id: u64) -> bool {
        lock(&self.0).contains_key(&id)
    }

    /// Stores the contents of a removed container, if this process has a proxy of it.
    pub(super) fn set_removed(&self, id: u64, found: Arc<StoredValue>) {
        if let Some(container) = lock(&self.0).get_mut(&id) {
            container.removed_content = Some(found);
        }
    }

    /// Returns the contents that a container had when this process removed it; None if this process has not removed it,
    /// or had no proxy of it then.
    pub(super) fn removed_content(&self, id: u64) -> Option<Arc<StoredValue>> {
        lock(&self.0).get(&id)?.removed_content.clone()
    }
}

/// A hasher for ids, which count up.
#[derive(Default)]
struct Ids(u64);

impl Hasher for Ids {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }
    fn write_u64(&mut self, id: u64) {
        self.0 = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
