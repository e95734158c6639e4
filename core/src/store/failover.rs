//! A copy of a store in another file, in which its members go on without one that has stopped within a change.

use super::{Store, StoreError};
use crate::crash;
use crate::shared_heap::redo_log::LogPosition;
use crate::shared_heap::{HeapError, Members, Words};
use std::io;

/// Bytes that are copied at once.
const CHUNK: u64 = 1 << 20;
/// How often it is tried to copy all of one moment. Only the member that is fenced off can change anything meanwhile, and
/// only what it is in the middle of.
const TRIES: usize = 8;

/// Returns the number of container numbers that a copy skips, by chance: numbers that another copy of the same store has
/// given out, and that others know, must not come again. Fewer are skipped when few of the 2^48 are left.
pub fn ids_to_skip(random: u64) -> u64 {
    (random & 0xffff_ffff) << 4
}

impl<W: Words, M: Members> Store<W, M> {
    /// Says that a copy is to take its place, without the member that holds the lease.
    pub fn mark_replaced(&self, fenced: u64) {
        self.log.seqlock().mark_replaced(fenced);
    }

    /// Takes that back.
    pub fn cancel_replacement(&self) {
        self.log.clear_replaced();
    }

    /// The member without which a copy takes its place, if one does.
    pub fn fenced(&self) -> Option<u64> {
        self.log.seqlock().fenced()
    }

    /// Copies all of it, as it is at one moment, to the same place in another file of its size: `put` is given bytes, and where
    /// they begin.
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

    /// Makes a copy, which nobody else knows so far, what its members go on with: what was being committed is, and what the
    /// member that is fenced off has looked at and watched is given back. `passed_over`: how many numbers no container gets,
    /// since another copy of the same may have given them out; see [`numbers_to_pass_over`].
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
        match self.words().is_cut_off() {
            true => Err(HeapError::Poisoned(crate::shared_heap::Corruption::CUT_OFF).into()),
            false => Ok(()),
        }
    }

    /// Lets no thread of this process change anything while `act` puts a copy in its place. None if some do not end before
    /// `deadline`.
    pub fn swap_memory<R>(&self, deadline: u64, act: impl FnOnce() -> R) -> Option<R> {
        self.log.seqlock().with_paused(deadline, || {
            let done = act();
            self.log.memory_replaced();
            self.heap.memory_replaced();
            done
        })
    }
}
