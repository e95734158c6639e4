//! `SeenObjects`: the objects that the writer has written, by their addresses.

use std::collections::HashSet;

/// Number of addresses that are searched one by one, without an allocation.
const FEW: usize = 8;

/// Addresses of living objects.
pub(super) struct SeenObjects {
    few: [usize; FEW],
    /// Number of used entries of `few`.
    count: usize,
    /// All further addresses.
    many: HashSet<usize>,
}

impl SeenObjects {
    #[inline]
    pub(super) fn new() -> Self {
        SeenObjects {
            few: [0; FEW],
            count: 0,
            many: HashSet::new(),
        }
    }

    /// Forgets all addresses.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.count = 0;
        if !self.many.is_empty() {
            self.many.clear();
        }
    }

    /// Adds an address. Returns false if the address was added before.
    #[inline]
    pub(super) fn add(&mut self, address: usize) -> bool {
        if self.few[..self.count].contains(&address) {
            return false;
        }
        if self.count < FEW {
            self.few[self.count] = address;
            self.count += 1;
            return true;
        }
        self.many.insert(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_new_once() {
        let mut seen = SeenObjects::new();
        for _ in 0..2 {
            assert!((0..100).all(|address| seen.add(address)));
            assert!(!(0..100).any(|address| seen.add(address)));
            seen.clear();
        }
    }
}
