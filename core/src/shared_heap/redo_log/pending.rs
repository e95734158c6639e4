//! The state of a transaction that is not yet committed.

use std::collections::{BTreeMap, HashMap};

/// The uncommitted changes of a transaction, which holds the lock.
#[must_use = "the lock is held until the transaction ends"]
pub struct PendingTransaction {
    pub(super) sequence: u64,
    pub(super) writes: Writes,
    pub(super) fresh: Fresh,
    /// Steps to undo the current operation, the last one first, if savepoints are open.
    pub(super) undo: Option<Vec<Undo>>,
    /// The number of open savepoints.
    pub(super) open_savepoints: usize,
    /// Fresh words by which other members may identify an object that this transaction has created. A rollback stores 0
    /// there.
    pub(super) created: Vec<u64>,
    /// True if a holder has died and its pages were not yet reclaimed.
    pub(in crate::shared_heap) taken_over: bool,
    /// Pages that the transaction has backed: start and length in bytes. A rollback returns them.
    pub(in crate::shared_heap) fetched: Vec<(u64, u64)>,
    /// Blocks to free at the end.
    pub(in crate::shared_heap) freed: Vec<u64>,
    /// Memory to return to the system after the commit: start and length in bytes.
    pub(in crate::shared_heap) to_punch: Vec<(u64, u64)>,
}

impl PendingTransaction {
    /// Returns true if a holder of the lock has died and its pages were not yet reclaimed.
    pub fn is_taken_over(&self) -> bool {
        self.taken_over
    }
}

pub(super) enum Undo {
    /// The number of a write, and its earlier value.
    Write(usize, u64),
    /// The offset of a fresh word, and its earlier value.
    Fresh(u64, u64),
}

/// A state to which a transaction can be rolled back: the lengths of its lists.
#[derive(Clone, Copy, Debug)]
pub struct Savepoint {
    pub(super) writes: usize,
    pub(super) fresh: usize,
    pub(super) fetched: usize,
    pub(super) freed: usize,
    pub(super) created: usize,
    pub(super) undo: usize,
}

/// The number of writes that are stored inline: as many as a small operation makes.
const INLINE: usize = 24;

/// Words and their new values, in the order of their first change.
pub(super) struct Writes {
    pub(super) inline: [(u64, u64); INLINE],
    pub(super) count: usize,
    /// The writes beyond the inline ones.
    overflow: Vec<(u64, u64)>,
    /// The numbers of the writes by offset, once there are more than the inline ones.
    index: HashMap<u64, usize>,
}

impl Writes {
    /// Creates a list without writes.
    pub(super) fn new() -> Self {
        Writes {
            inline: [(0, 0); INLINE],
            count: 0,
            overflow: Vec::new(),
            index: HashMap::new(),
        }
    }

    /// Returns the offset and the value of a write. Panics beyond the last one.
    pub(super) fn get(&self, number: usize) -> (u64, u64) {
        match number.checked_sub(INLINE) {
            None => self.inline[number],
            Some(number) => self.overflow[number],
        }
    }

    /// Returns the offset and the value of a write, to be changed. The offset must stay.
    pub(super) fn get_mut(&mut self, number: usize) -> &mut (u64, u64) {
        match number.checked_sub(INLINE) {
            None => &mut self.inline[number],
            Some(number) => &mut self.overflow[number],
        }
    }

    /// Returns the number of the write of the word at this offset; None if the word has none.
    #[inline]
    pub(super) fn find(&self, at: u64) -> Option<usize> {
        if self.count > INLINE {
            return self.index.get(&at).copied();
        }
        self.inline[..self.count]
            .iter()
            .position(|&(known, _)| known == at)
    }

    /// Adds a write of a word that has none.
    #[inline]
    pub(super) fn push(&mut self, at: u64, value: u64) {
        if self.count < INLINE {
            self.inline[self.count] = (at, value);
        } else {
            if self.count == INLINE {
                let known = self.inline.iter().enumerate();
                self.index = known.map(|(number, &(at, _))| (at, number)).collect();
            }
            self.index.insert(at, self.count);
            self.overflow.push((at, value));
        }
        self.count += 1;
    }

    /// Drops the last writes, down to this many.
    pub(super) fn truncate(&mut self, count: usize) {
        while self.count > count {
            self.count -= 1;
            let (at, _) = self.get(self.count);
            self.index.remove(&at);
            if self.count >= INLINE {
                self.overflow.pop();
            }
        }
    }

    /// Returns the offsets and the values of all writes, in the order of the first change of each word.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let inline = self.inline[..self.count.min(INLINE)].iter();
        inline.chain(&self.overflow).copied()
    }
}

/// Memory that was free when the transaction began and that no other member can reach before it ends.
#[derive(Default)]
pub(super) struct Fresh {
    /// The starts of the ranges, in the order in which they were added.
    pub(super) order: Vec<u64>,
    /// The end of each range by its start.
    ends: BTreeMap<u64, u64>,
}

impl Fresh {
    /// Adds a range of memory, which must overlap no other one.
    pub(super) fn add(&mut self, start: u64, len: u64) {
        self.order.push(start);
        self.ends.insert(start, start + len);
    }

    /// Returns true if a word is fresh.
    #[inline]
    pub(super) fn has(&self, at: u64) -> bool {
        !self.order.is_empty()
            && self
                .ends
                .range(..=at)
                .next_back()
                .is_some_and(|(_, &end)| at < end)
    }

    /// Removes the last ranges that were added, down to this many.
    pub(super) fn truncate(&mut self, count: usize) {
        for start in self.order.drain(count..) {
            self.ends.remove(&start);
        }
    }
}
