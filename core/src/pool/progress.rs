//! Memory that a pool and one of its workers share: how far the worker is in each of the chunks of tasks that it has, and
//! where a chunk ends; and which of its coroutines have begun.
//!
//! # The contract
//!
//! * A worker begins a task by counting it in its chunk's word, and only if the chunk has not ended before it. The pool
//!   ends a chunk sooner by the same word. So each task is either begun, or taken back, and both sides agree which.
//! * The pool opens a slot when the worker has nothing in it, and before it sends the chunk.
//! * What the worker writes is a claim. The pool knows by itself where each chunk ends, so a count is never more than
//!   that, whatever the word says; a count that is less than the truth makes tasks be done twice, and nothing else.
//! * A coroutine has a seat, a bit that the pool clears before it sends the coroutine. Who sets the bit first has the
//!   coroutine: the worker, which begins it then, or the pool, which has taken it back. The pool gives a seat to another
//!   coroutine once the worker has seen what it was sent with this one.

use crate::memory::mapping::SharedMapping;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::io;
use std::os::fd::BorrowedFd;

/// Chunks that a worker has at a time.
pub const SLOTS: usize = 2;
/// Bytes of it.
pub const SIZE: usize = 16384;
/// Bytes from one slot to the next: they share no cache line.
const STRIDE: usize = 128;
/// Where in a slot the task stands that is to be stopped.
const STOPPED: usize = 8;
/// Where in a slot it stands how long its last task took, in nanoseconds.
const TOOK: usize = 16;
/// Where the seats of coroutines begin.
const SEATED: usize = SLOTS * STRIDE;
/// Coroutines that a worker has at a time.
pub const SEATS: usize = (SIZE - SEATED) * 8;

/// This memory, as one of the two sides has it.
pub struct Progress {
    page: SharedMapping,
    /// Before which task each chunk ends, as the pool knows it; no other process sees these. Relaxed: they order nothing.
    limits: [AtomicU32; SLOTS],
}

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
    /// Maps it, a file of [`SIZE`] bytes that cannot shrink.
    pub fn new(file: BorrowedFd<'_>) -> io::Result<Self> {
        let limits = std::array::from_fn(|_| AtomicU32::new(0));
        SharedMapping::new(file, SIZE).map(|page| Progress { page, limits })
    }

    fn slot(&self, slot: usize) -> &AtomicU64 {
        self.page.u64_at(slot * STRIDE)
    }

    fn to_stop(&self, slot: usize) -> &AtomicU64 {
        self.page.u64_at(slot * STRIDE + STOPPED)
    }

    /// Opens a slot for a chunk of this many tasks. By the pool.
    pub fn open(&self, slot: usize, count: u32) {
        // Relaxed: the worker looks at them for this chunk once it has its frame, whose publication releases them.
        self.to_stop(slot).store(0, Ordering::Relaxed);
        self.limits[slot].store(count, Ordering::Relaxed);
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
        let end = self.limits[slot].load(Ordering::Relaxed);
        let sooner = |word| {
            let begun = State::of(word).begun.min(end);
            let limit = end.min(keep.max(begun));
            State { begun, limit }
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

    /// Says how long the last task of a slot took, in nanoseconds. By the worker.
    pub fn took(&self, slot: usize, nanoseconds: u64) {
        // Relaxed: its result is published after it.
        self.page
            .u64_at(slot * STRIDE + TOOK)
            .store(nanoseconds, Ordering::Relaxed);
    }

    /// How long the last task of a slot took, in nanoseconds: a claim. By the pool.
    pub fn time(&self, slot: usize) -> u64 {
        // Relaxed: its result was read before.
        self.page
            .u64_at(slot * STRIDE + TOOK)
            .load(Ordering::Relaxed)
    }

    /// The word of a seat, and its bit there.
    fn seat(&self, seat: usize) -> (&AtomicU64, u64) {
        (self.page.u64_at(SEATED + seat / 64 * 8), 1 << (seat % 64))
    }

    /// Clears a seat for a coroutine. By the pool.
    pub fn seat_for(&self, seat: usize) {
        let (word, bit) = self.seat(seat);
        // Relaxed, as all of these: as for a slot, the worker looks at it for this coroutine once it has its frame.
        word.fetch_and(!bit, Ordering::Relaxed);
    }

    /// Takes the coroutine of a seat, to begin it or to take it back; false if the other side has done so before.
    pub fn claim(&self, seat: usize) -> bool {
        let (word, bit) = self.seat(seat);
        word.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// Whether the coroutine of a seat was begun or taken back.
    pub fn is_claimed(&self, seat: usize) -> bool {
        let (word, bit) = self.seat(seat);
        word.load(Ordering::Relaxed) & bit != 0
    }

    /// How many tasks of a chunk were begun, as far as that can be true. By the pool.
    pub fn begun(&self, slot: usize) -> u32 {
        let claimed = State::of(self.slot(slot).load(Ordering::Relaxed)).begun;
        claimed.min(self.limits[slot].load(Ordering::Relaxed))
    }

    /// Says that the task which a chunk is at is to be stopped; 0 if it is at none. By the pool, which sends a signal then.
    pub fn stop(&self, slot: usize) -> u32 {
        let begun = self.begun(slot);
        self.to_stop(slot).store(begun.into(), Ordering::Relaxed);
        begun
    }

    /// Whether the task that a chunk is at is to be stopped. By the worker, in the handler of the signal: the kernel,
    /// which brings that, orders it behind the word.
    pub fn is_stopped(&self, slot: usize) -> bool {
        let stopped = self.to_stop(slot).load(Ordering::Relaxed);
        let state = State::of(self.slot(slot).load(Ordering::Relaxed));
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
    fn one_side_has_a_coroutine() {
        let progress = page();
        for seat in [0, 63, 64, SEATS - 1] {
            progress.seat_for(seat);
            assert!(!progress.is_claimed(seat));
            assert!(progress.claim(seat));
            assert!(progress.is_claimed(seat));
            assert!(!progress.claim(seat));
            progress.seat_for(seat);
            assert!(progress.claim(seat));
        }
        assert!(!progress.is_claimed(1) && !progress.is_claimed(65));
        assert!(!progress.begin(SLOTS - 1), "a seat is no slot");
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
    fn what_a_worker_claims_is_never_more_than_it_was_given() {
        let page = page();
        let lies = [
            u64::MAX,
            u64::MAX - 1,
            u64::from(u32::MAX),
            u64::from(u32::MAX) << 32,
            (7 << 32) | 3,
            1 << 63,
            0,
        ];
        for lie in lies {
            for count in [0, 1, 5, u32::MAX] {
                for keep in [0, 2, u32::MAX] {
                    page.open(0, count);
                    page.slot(0).store(lie, Ordering::Relaxed);
                    assert!(page.begun(0) <= count && page.stop(0) <= count);
                    let state = page.take_back(0, keep);
                    assert!(state.begun <= state.limit && state.limit <= count);
                    page.slot(0).store(lie, Ordering::Relaxed);
                    let again = page.take_back(0, u32::MAX);
                    assert!(again.limit <= state.limit, "a chunk has grown again");
                }
            }
        }
    }

    #[test]
    fn a_worker_that_writes_without_end_holds_nobody_up() {
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
                let state = page.take_back(0, keep);
                assert!(state.begun <= state.limit && state.limit <= limit);
                limit = state.limit;
            }
            done.store(true, Ordering::Relaxed);
        });
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
