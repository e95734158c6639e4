//! The containers that this process has proxies of, and what those held that it has removed meanwhile.
//!
//! A store copies the values that are put into it, so a program that moves a container removes one and makes another:
//! `items[0], items[1] = items[1], items[0]` replaces the first before the second is put. So whatever this process removes
//! while it has a proxy of it is copied before, and can still be put as long as the proxy is there. To read or change it is
//! an error all the same.

use super::format::value::StoredValue;
use crate::sync::lock;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex};

/// A container, as this process has it.
#[derive(Default)]
struct Container {
    proxies: usize,
    /// The content that the container had when this process removed it.
    removed_content: Option<Arc<StoredValue>>,
}

/// By the ids of the containers.
#[derive(Default)]
pub struct Proxies(Mutex<HashMap<u64, Container, BuildHasherDefault<Ids>>>);

impl Proxies {
    /// Counts one proxy more.
    pub fn add(&self, id: u64) {
        lock(&self.0).entry(id).or_default().proxies += 1;
    }

    /// Counts one proxy less.
    pub fn remove(&self, id: u64) {
        let mut all = lock(&self.0);
        let Some(container) = all.get_mut(&id) else {
            return;
        };
        container.proxies = container.proxies.saturating_sub(1);
        if container.proxies == 0 {
            let removed = all.remove(&id);
            drop(all);
            drop(removed); // It may be large.
        }
    }

    /// Returns true if there is a proxy of the container.
    pub(super) fn has(&self, id: u64) -> bool {
        lock(&self.0).contains_key(&id)
    }

    /// Keeps what a container held, if there is a proxy of it.
    pub(super) fn set_removed(&self, id: u64, found: Arc<StoredValue>) {
        if let Some(container) = lock(&self.0).get_mut(&id) {
            container.removed_content = Some(found);
        }
    }

    /// Returns the content that a container had when this process removed it.
    pub(super) fn removed_content(&self, id: u64) -> Option<Arc<StoredValue>> {
        lock(&self.0).get(&id)?.removed_content.clone()
    }
}

/// Hashes ids, which count up.
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
