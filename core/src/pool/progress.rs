//! Progress memory of a pool and one of its workers: how far the worker is in each of its chunks of tasks, where each
//! chunk ends, and which of its coroutines have begun.
//!
//! # The contract
//!
//! * A worker begins a task by counting it in its chunk's word, and only if the chunk has not ended before it. The pool
//!   shortens a chunk by the same word. So each task is either begun or taken back, and both sides agree which.
//! * The pool opens a slot when the worker has no chunk in it, and before it sends the chunk.
//! * What the worker writes is untrusted. The pool knows where each chunk ends, so a count is never higher than that,
//!   whatever the word contains; a count that is too low makes tasks run twice, and nothing else.
//! * A coroutine has a bit that the pool clears before it sends the coroutine. The side that sets the bit first has the
//!   coroutine: the worker, which then begins it, or the pool, which has taken it back. The pool gives a bit to another
//!   coroutine once the worker has seen all messages that name the bit.

use crate::memory::mapping::SharedMapping;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::io;
use std::os::fd::BorrowedFd;

/// Number of chunks that a worker has at a time.
pub const SLOTS: usize = 2;
/// Bytes of the progress memory.
pub const SIZE: usize = 16384;
/// Bytes from one slot to the next: they share no cache line.
const STRIDE: usize = 128;
/// Offset in a slot of the task to stop.
const STOPPED: usize = 8;
/// Offset in a slot of the duration of its last task, in nanoseconds.
const TOOK: usize = 16;
/// Offset of the bits of coroutines.
const COROUTINE_BITS: usize = SLOTS * STRIDE;
/// Number of coroutines that a worker has at a time.
pub const COROUTINES: usize = (SIZE - COROUTINE_BITS) * 8;

/// The progress memory, as one of the two sides has it. The caller passes slots below [`SLOTS`] and coroutines below
/// [`COROUTINES`], which are not checked. No method waits.
pub struct Progress {
    page: SharedMapping,
    /// End of each chunk, as the pool knows it; no other process sees these. Relaxed: they order nothing.
    limits: [AtomicU32; SLOTS],
}

/// The number of begun tasks of a chunk, and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkState {
    /// Number of tasks that were begun.
    pub begun: u32,
    /// First task behind the chunk.
    pub limit: u32,
}

impl ChunkState {
    /// Decode the state from the word of a slot.
    fn of(word: u64) -> Self {
        ChunkState {
            begun: (word >> 32) as u32,
            limit: word as u32,
        }
    }

    /// Encode the state as the word of a slot.
    fn word(self) -> u64 {
        u64::from(self.begun) << 32 | u64::from(self.limit)
    }
}

impl Progress {
    /// Map the progress memory, a file of [`SIZE`] bytes that cannot shrink, which the caller ensures. Fails if the
    /// system refuses the mapping. The file may be closed afterwards.
    pub fn new(file: BorrowedFd<'_>) -> io::Result<Self> {
        let limits = std::array::from_fn(|_| AtomicU32::new(0));
        SharedMapping::new(file, SIZE).map(|page| Progress { page, limits })
    }

    /// Return the word with the state of a slot's chunk.
    fn slot(&self, slot: usize) -> &AtomicU64 {
        self.page.u64_at(slot * STRIDE)
    }

    /// Return the word with the number of the task to stop in a slot; 0 if there is none.
    fn to_stop(&self, slot: usize) -> &AtomicU64 {
        self.page.u64_at(slot * STRIDE + STOPPED)
    }

    /// Open a slot for a chunk of this many tasks, in which the worker has no chunk. Called by the pool, which then
    /// sends the chunk.
    pub fn open(&self, slot: usize, count: u32) {
        // Relaxed: the worker reads them for this chunk once it has its frame, whose publication releases them.
        self.to_stop(slot).store(0, Ordering::Relaxed);
        self.limits[slot].store(count, Ordering::Relaxed);
        let state = ChunkState {
            begun: 0,
            limit: count,
        };
        self.slot(slot).store(state.word(), Ordering::Relaxed);
    }

    /// Begin the next task of a chunk, by counting it. Return false, and change nothing, if the chunk has ended: all of
    /// its tasks were begun, or the pool has taken back the rest. Called by the worker.
    #[inline]
    pub fn begin(&self, slot: usize) -> bool {
        let next = |word| {
            let state = ChunkState::of(word);
            (state.begun < state.limit).then(|| {
                let begun = state.begun + 1;
                ChunkState { begun, ..state }.word()
            })
        };
        // Relaxed, as everywhere here: the word orders nothing but itself, and only the common order of its values
        // matters. Arguments and results travel over the connection.
        let word = self.slot(slot);
        word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .is_ok()
    }

    /// End a chunk before its task `keep`, counted from 0, or before the first task that was not begun if that is
    /// later; never extend it. Return its new state: the tasks from its limit on are the pool's again. Called by the
    /// pool.
    pub fn shorten(&self, slot: usize, keep: u32) -> ChunkState {
        let end = self.limits[slot].load(Ordering::Relaxed);
        let sooner = |word| {
            let begun = ChunkState::of(word).begun.min(end);
            let limit = end.min(keep.max(begun));
            ChunkState { begun, limit }
        };
        let word = self.slot(slot);
        let write = |word| Some(sooner(word).word());
        match word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, write) {
            Ok(before) | Err(before) => {
                let state = sooner(before);
                self.limits[slot].store(state.limit, Ordering::Relaxed);
                state
            }
        }
    }

    /// Store the duration of the last task of a slot, in nanoseconds. Called by the worker before it sends the result.
    pub fn record_duration(&self, slot: usize, nanoseconds: u64) {
        // Relaxed: the task's result is published after it.
        self.page
            .u64_at(slot * STRIDE + TOOK)
            .store(nanoseconds, Ordering::Relaxed);
    }

    /// Return the duration of the last task of a slot, in nanoseconds, an untrusted value. Called by the pool.
    pub fn last_duration(&self, slot: usize) -> u64 {
        // Relaxed: the task's result was read before.
        self.page
            .u64_at(slot * STRIDE + TOOK)
            .load(Ordering::Relaxed)
    }

    /// Return the word of a coroutine, and its bit there.
    fn coroutine_bit(&self, coroutine: usize) -> (&AtomicU64, u64) {
        (
            self.page.u64_at(COROUTINE_BITS + coroutine / 64 * 8),
            1 << (coroutine % 64),
        )
    }

    /// Clear the bit of a coroutine. Called by the pool, before it sends the coroutine.
    pub fn clear_coroutine(&self, coroutine: usize) {
        let (word, bit) = self.coroutine_bit(coroutine);
        // Relaxed, as all of these: the worker reads it for this coroutine once it has its frame.
        word.fetch_and(!bit, Ordering::Relaxed);
    }

    /// Take a coroutine, to begin it or to take it back. Return false if the other side has taken it before.
    pub fn take_coroutine(&self, coroutine: usize) -> bool {
        let (word, bit) = self.coroutine_bit(coroutine);
        word.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// Return true if a coroutine was begun or taken back since its bit was cleared.
    pub fn is_coroutine_taken(&self, coroutine: usize) -> bool {
        let (word, bit) = self.coroutine_bit(coroutine);
        word.load(Ordering::Relaxed) & bit != 0
    }

    /// Return the number of begun tasks of a chunk, an untrusted value that is limited to its bounds. Called by the
    /// pool.
    pub fn begun(&self, slot: usize) -> u32 {
        let claimed = ChunkState::of(self.slot(slot).load(Ordering::Relaxed)).begun;
        claimed.min(self.limits[slot].load(Ordering::Relaxed))
    }

    /// Mark the task of a chunk that was begun last, which may have ended, for a stop. Return its number, counted from
    /// 1; 0 if none was begun. Called by the pool, which then sends a signal.
    pub fn stop(&self, slot: usize) -> u32 {
        let begun = self.begun(slot);
        self.to_stop(slot).store(begun.into(), Ordering::Relaxed);
        begun
    }

    /// Return true if the task of a chunk that was begun last must stop. Called by the worker in the signal's handler:
    /// the kernel orders the signal after the word.
    pub fn is_stopped(&self, slot: usize) -> bool {
        let stopped = self.to_stop(slot).load(Ordering::Relaxed);
        let state = ChunkState::of(self.slot(slot).load(Ordering::Relaxed));
        stopped != 0 && stopped == u64::from(state.begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::file_in_memory;
    use std::os::fd::AsFd;

    fn page() -> Progress {
        let file = file_in_memory();
        file.set_len(SIZE as u64).unwrap();
        Progress::new(file.as_fd()).unwrap()
    }

    #[test]
    fn only_one_side_takes_a_coroutine() {
        let progress = page();
        for coroutine in [0, 63, 64, COROUTINES - 1] {
            progress.clear_coroutine(coroutine);
            assert!(!progress.is_coroutine_taken(coroutine));
            assert!(progress.take_coroutine(coroutine));
            assert!(progress.is_coroutine_taken(coroutine));
            assert!(!progress.take_coroutine(coroutine));
            progress.clear_coroutine(coroutine);
            assert!(progress.take_coroutine(coroutine));
        }
        assert!(!progress.is_coroutine_taken(1) && !progress.is_coroutine_taken(65));
        assert!(!progress.begin(SLOTS - 1), "a coroutine is no slot");
    }

    #[test]
    fn a_task_is_begun_or_taken_back() {
        let page = page();
        page.open(1, 5);
        assert!(page.begin(1) && page.begin(1));
        assert_eq!(page.shorten(1, 3), ChunkState { begun: 2, limit: 3 });
        assert!(page.begin(1) && !page.begin(1));
        assert_eq!(page.shorten(1, 0), ChunkState { begun: 3, limit: 3 });
        page.open(1, 1);
        assert_eq!(page.shorten(1, 0), ChunkState { begun: 0, limit: 0 });
        assert!(!page.begin(1));
        assert!(!page.begin(0));
    }

    #[test]
    fn no_task_is_begun_beyond_the_greatest_count() {
        let page = page();
        let state = ChunkState {
            begun: u32::MAX,
            limit: u32::MAX,
        };
        page.slot(0).store(state.word(), Ordering::Relaxed);
        assert!(!page.begin(0));
        assert_eq!(page.slot(0).load(Ordering::Relaxed), state.word());
    }

    #[test]
    fn only_the_current_task_is_stopped() {
        let page = page();
        page.open(0, 3);
        assert_eq!(page.stop(0), 0);
        assert!(!page.is_stopped(0));
        page.begin(0);
        assert_eq!(page.stop(0), 1);
        assert!(page.is_stopped(0) && !page.is_stopped(1));
        page.begin(0);
        assert!(!page.is_stopped(0));
        page.open(0, 3);
        page.begin(0);
        assert!(!page.is_stopped(0));
    }

    #[test]
    fn the_count_of_a_hostile_worker_stays_within_its_chunk() {
        let page = page();
        let words = [
            u64::MAX,
            u64::MAX - 1,
            u64::from(u32::MAX),
            u64::from(u32::MAX) << 32,
            (7 << 32) | 3,
            1 << 63,
            0,
        ];
        for word in words {
            for count in [0, 1, 5, u32::MAX] {
                for keep in [0, 2, u32::MAX] {
                    page.open(0, count);
                    page.slot(0).store(word, Ordering::Relaxed);
                    assert!(page.begun(0) <= count && page.stop(0) <= count);
                    let state = page.shorten(0, keep);
                    assert!(state.begun <= state.limit && state.limit <= count);
                    page.slot(0).store(word, Ordering::Relaxed);
                    let again = page.shorten(0, u32::MAX);
                    assert!(again.limit <= state.limit, "a chunk has grown again");
                }
            }
        }
    }

    #[test]
    fn a_worker_that_writes_in_a_loop_does_not_block_the_pool() {
        let page = page();
        page.open(0, 1000);
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut word = 0_u64;
                while !done.load(Ordering::Relaxed) {
                    word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    page.slot(0).store(word, Ordering::Relaxed);
                }
            });
            let mut limit = 1000;
            for keep in (0..1000).rev() {
                let state = page.shorten(0, keep);
                assert!(state.begun <= state.limit && state.limit <= limit);
                limit = state.limit;
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn each_task_is_begun_by_one_side() {
        let page = page();
        for _ in 0..200 {
            page.open(0, 1000);
            let (begun, kept) = std::thread::scope(|scope| {
                let worker = scope.spawn(|| (0..).take_while(|_| page.begin(0)).count());
                let pool = scope.spawn(|| page.shorten(0, 10).limit);
                (worker.join().unwrap(), pool.join().unwrap())
            });
            assert_eq!(begun, kept as usize);
        }
    }
}
