//! `Seen`: the objects that were met, by their addresses.

use std::collections::HashSet;

/// Up to so many are looked through one by one, and nothing is allocated.
const FEW: usize = 8;

/// Addresses of living objects.
pub(super) struct Seen {
    few: [usize; FEW],
    /// How many of `few` there are.
    count: usize,
    /// The others.
    many: HashSet<usize>,
}

impl Seen {
    #[inline]
    pub(super) fn new() -> Self {
        Seen {
            few: [0; FEW],
            count: 0,
            many: HashSet::new(),
        }
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        self.count = 0;
        if !self.many.is_empty() {
            self.many.clear();
        }
    }

    /// Adds an address; false if it is there already.
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
        let mut seen = Seen::new();
        for _ in 0..2 {
            assert!((0..100).all(|address| seen.add(address)));
            assert!(!(0..100).any(|address| seen.add(address)));
            seen.clear();
        }
    }
}
