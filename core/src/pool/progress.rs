//! A page that a pool and one of its workers share: how far the worker is in each of the chunks of tasks that it has, and
//! where a chunk ends.
//!
//! # The contract
//!
//! * A worker begins a task by counting it in its chunk's word, and only if the chunk has not ended before it. The pool
//!   ends a chunk sooner by the same word. So each task is either begun, or taken back, and both sides agree which.
//! * The pool opens a slot when the worker has nothing in it, and before it sends the chunk.
//! * What the other side writes is a claim: a count is never more than what was opened.

use crate::memory::mapping::SharedMapping;
use crate::sync::{AtomicU64, Ordering};
use std::io;
use std::os::fd::BorrowedFd;

/// Chunks that a worker has at a time.
pub const SLOTS: usize = 2;
/// Bytes of the page.
pub const SIZE: usize = 4096;
/// Bytes from one slot to the next: they share no cache line.
const STRIDE: usize = 128;
/// Where in a slot the task stands that is to be stopped.
const STOPPED: usize = 8;

/// The page.
pub struct Progress(SharedMapping);

/// How many tasks of a chunk were begun, and before which it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Tasks that were begun.
    pub begun: u32,
    /// The first one that is not of the chunk.
    pub limit: u32,
}

impl State {
    fn of(word: u64) -> Self {
        State {
            begun: (word >> 32) as u32,
            limit: word as u32,
        }
    }

    fn word(self) -> u64 {
        u64::from(self.begun) << 32 | u64::from(self.limit)
    }
}

impl Progress {
    /// Maps the page, a file of [`SIZE`] bytes that cannot shrink.
    pub fn new(file: BorrowedFd<'_>) -> io::Result<Self> {
        SharedMapping::new(file, SIZE).map(Progress)
    }

    fn slot(&self, slot: usize) -> &AtomicU64 {
        self.0.u64_at(slot * STRIDE)
    }

    fn to_stop(&self, slot: usize) -> &AtomicU64 {
        self.0.u64_at(slot * STRIDE + STOPPED)
    }

    /// Opens a slot for a chunk of this many tasks. By the pool.
    pub fn open(&self, slot: usize, count: u32) {
        // Relaxed: the worker looks at them for this chunk once it has its frame, whose publication releases them.
        self.to_stop(slot).store(0, Ordering::Relaxed);
        let state = State {
            begun: 0,
            limit: count,
        };
        self.slot(slot).store(state.word(), Ordering::Relaxed);
    }

    /// Begins the next task of a chunk; false if it has ended. By the worker.
    #[inline]
    pub fn begin(&self, slot: usize) -> bool {
        let next = |word| {
            let state = State::of(word);
            let begun = state.begun + 1;
            (state.begun < state.limit).then(|| State { begun, ..state }.word())
        };
        // Relaxed, as everywhere here: the word orders nothing but itself, and that all agree on the order of its values
        // is what decides. Arguments and results travel by the connection.
        let word = self.slot(slot);
        word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .is_ok()
    }

    /// Ends a chunk before its task `keep`, or before the next one that was not begun; how far it goes now. By the pool.
    pub fn take_back(&self, slot: usize, keep: u32) -> State {
        let sooner = |word| {
            let state = State::of(word);
            let limit = state.limit.min(keep.max(state.begun));
            Some(State { limit, ..state }.word())
        };
        let word = self.slot(slot);
        match word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sooner) {
            Ok(before) | Err(before) => {
                let state = State::of(before);
                let limit = state.limit.min(keep.max(state.begun));
                State { limit, ..state }
            }
        }
    }

    /// How far a chunk is.
    pub fn state(&self, slot: usize) -> State {
        State::of(self.slot(slot).load(Ordering::Relaxed))
    }

    /// Says that the task which a chunk is at is to be stopped; 0 if it is at none. By the pool, which sends a signal then.
    pub fn stop(&self, slot: usize) -> u32 {
        let begun = self.state(slot).begun;
        self.to_stop(slot).store(begun.into(), Ordering::Relaxed);
        begun
    }

    /// Whether the task that a chunk is at is to be stopped. By the worker, in the handler of the signal: the kernel,
    /// which brings that, orders it behind the word.
    pub fn is_stopped(&self, slot: usize) -> bool {
        let stopped = self.to_stop(slot).load(Ordering::Relaxed);
        stopped != 0 && stopped == u64::from(self.state(slot).begun)
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
    fn a_task_is_begun_or_taken_back() {
        let page = page();
        page.open(1, 5);
        assert!(page.begin(1) && page.begin(1));
        assert_eq!(page.take_back(1, 3), State { begun: 2, limit: 3 });
        assert!(page.begin(1) && !page.begin(1));
        assert_eq!(page.take_back(1, 0), State { begun: 3, limit: 3 });
        page.open(1, 1);
        assert_eq!(page.take_back(1, 0), State { begun: 0, limit: 0 });
        assert!(!page.begin(1));
        assert!(!page.begin(0));
    }

    #[test]
    fn only_the_task_that_was_meant_is_stopped() {
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
    fn each_task_has_one_who_does_it() {
        let page = page();
        for _ in 0..200 {
            page.open(0, 1000);
            let (begun, kept) = std::thread::scope(|scope| {
                let worker = scope.spawn(|| (0..).take_while(|_| page.begin(0)).count());
                let pool = scope.spawn(|| page.take_back(0, 10).limit);
                (worker.join().unwrap(), pool.join().unwrap())
            });
            assert_eq!(begun, kept as usize);
        }
    }
}
