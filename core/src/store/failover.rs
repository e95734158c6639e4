//! Copying a store to another file, in which its members continue without one that was stopped within a change.

use super::{Store, StoreError};
use crate::crash;
use crate::shared_heap::redo_log::LogPosition;
use crate::shared_heap::{HeapError, Members, Words};
use std::io;

/// Bytes to copy at once.
const CHUNK: u64 = 1 << 20;
/// The number of attempts to copy one consistent state. Meanwhile only the member that is fenced off can change
/// anything, and only finish its current commit.
const TRIES: usize = 8;

/// Returns the number of container numbers that a copy skips, from a random number. Another copy of the same store may
/// have given out the same numbers, which other processes know. Fewer are skipped when few of the 2^48 numbers remain.
pub fn ids_to_skip(random: u64) -> u64 {
    (random & 0xffff_ffff) << 4
}

impl<W: Words, M: Members> Store<W, M> {
    /// Marks the store as about to be replaced by a copy, without the member that holds the lock. From now on all
    /// operations of all members fail with `HeapError::Replaced`, until
    /// [`cancel_replacement`](Self::cancel_replacement). The caller excludes other processes that make a copy.
    pub fn mark_replaced(&self, fenced: u64) {
        self.log.seqlock().mark_replaced(fenced);
    }

    /// Removes the mark of [`mark_replaced`](Self::mark_replaced), because no copy was made.
    pub fn cancel_replacement(&self) {
        self.log.clear_replaced();
    }

    /// Returns the member that is fenced off if a copy replaces the store; None if the store is not marked as replaced.
    pub fn fenced(&self) -> Option<u64> {
        self.log.seqlock().fenced()
    }

    /// Copies one consistent state of the store to the same offset of another file of the same size: calls `put` with
    /// the offset and the bytes of each part, again for each attempt. Returns the position for
    /// [`adopt_copy`](Self::adopt_copy), EBUSY if the store changed during each attempt, or the error of `put`.
    pub fn copy_to(
        &self,
        mut put: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<LogPosition> {
        let (words, end) = (self.words(), self.words().size() as u64);
        for _ in 0..TRIES {
            let position = self.log.position();
            for (from, to) in self.heap.written(self.start, end)? {
                for at in (from..to).step_by(CHUNK as usize) {
                    let mut bytes = Vec::new();
                    if !words.copy_out(at, CHUNK.min(to - at), &mut bytes) {
                        return Err(io::Error::from_raw_os_error(libc::EFAULT));
                    }
                    put(at, &bytes)?;
                }
            }
            if self.log.is_unchanged_since(position) {
                return Ok(position);
            }
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// Prepares a copy, which no other process knows, for its members: finishes the running commit, and ends the pins
    /// and watches of the member that is fenced off. `skipped_ids` is the number of container numbers to skip; see
    /// [`ids_to_skip`].
    pub fn adopt_copy(
        &self,
        position: LogPosition,
        fenced: u64,
        skipped_ids: u64,
        deadline: u64,
    ) -> Result<(), StoreError> {
        self.log.adopt_position(position);
        self.operate(None, deadline, |mutator, _| {
            Ok(self.heap.back_all(mutator.t)?)
        })?;
        self.recover(|member| member == fenced, deadline)?;
        self.skip_ids(skipped_ids);
        crash::point!(CopyMade);
        match self.words().is_truncated() {
            true => Err(HeapError::Poisoned(crate::shared_heap::Corruption::TRUNCATED).into()),
            false => Ok(()),
        }
    }

    /// Runs `act`, which maps a copy in place of the memory, while no thread of this process changes the store. Returns
    /// its result; None, without running it, if threads still hold the lock at `deadline`. Blocks meanwhile.
    pub fn swap_memory<R>(&self, deadline: u64, act: impl FnOnce() -> R) -> Option<R> {
        self.log.seqlock().with_paused(deadline, || {
            let done = act();
            self.log.forget_backing();
            self.heap.forget_backing();
            done
        })
    }
}
