//! Helpers for the tests of shared memory.

mod allocation;
mod corruption;
mod deaths;
pub(crate) mod metadata;
mod transactions;

use super::allocator::{Allocator, file_size};
use super::backing_file::PAGE;
use super::undo_log::UndoLog;
use super::{Members, Words};
use crate::clock;
use crate::memory::mapping::SharedMapping;
use crate::sync::Ordering;
use crate::testing::{Child, LONG, TestRng, file_in_memory, fork, scaled, soon};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

/// The offset of the allocator, behind words that belong to the tests.
pub(crate) const START: u64 = 16 * PAGE;
pub(crate) type Mapping = Arc<SharedMapping>;
type Blocks = Allocator<Mapping, Member>;

/// A member whose process holds a lock on its byte of the file as long as it lives.
pub(crate) struct Member {
    number: u64,
    file: Arc<OwnedFd>,
}

impl Member {
    /// Returns the lock of a member: on a byte behind all others.
    fn lock(number: u64) -> libc::flock {
        libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: (1 << 60) + (number & 0x7fff_ffff) as libc::off_t,
            l_len: 1,
            l_pid: 0,
        }
    }

    pub(crate) fn new(number: u64, file: Arc<OwnedFd>) -> Self {
        let ours = Member::lock(number);
        // SAFETY: the structure lives through the call.
        let locked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const ours) };
        assert_eq!(locked, 0);
        Member { number, file }
    }
}

impl Members for Member {
    fn self_id(&self) -> u64 {
        self.number
    }

    fn is_alive(&self, member: u64) -> bool {
        let mut asked = Member::lock(member);
        // SAFETY: the structure lives through the call.
        unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_GETLK, &raw mut asked) };
        member == self.number || asked.l_type != libc::F_UNLCK as libc::c_short
    }
}

/// A file that the processes of a test share.
pub(crate) struct Shared {
    pub(crate) file: Arc<OwnedFd>,
    pub(crate) mapping: Mapping,
    pub(crate) max_memory: u64,
}

impl Shared {
    fn new(max_memory: u64) -> Self {
        let file = file_in_memory();
        Shared::over(file, max_memory)
    }

    fn over(file: File, max_memory: u64) -> Self {
        Shared::sized(file, file_size(START, max_memory), max_memory)
    }

    pub(crate) fn sized(file: File, size: u64, max_memory: u64) -> Self {
        file.set_len(size).unwrap();
        let mapping = SharedMapping::new(file.as_fd(), size as usize).unwrap();
        Shared {
            file: Arc::new(file.into()),
            mapping: Arc::new(mapping),
            max_memory,
        }
    }

    pub(crate) fn member(&self, number: u64) -> Member {
        Member::new(number, self.file.clone())
    }

    fn blocks(&self, number: u64) -> Blocks {
        let (file, mapping) = (self.file.clone(), self.mapping.clone());
        Blocks::new(mapping, &file, START, self.max_memory, self.member(number)).unwrap()
    }

    fn log(&self, number: u64) -> UndoLog<Mapping, Member> {
        UndoLog::new(self.mapping.clone(), START, self.member(number)).unwrap()
    }

    pub(crate) fn load(&self, at: u64) -> u64 {
        self.mapping.word(at).unwrap().load(Ordering::Relaxed)
    }

    pub(crate) fn store(&self, at: u64, value: u64) {
        let word = self.mapping.word(at).unwrap();
        word.store(value, Ordering::Relaxed);
    }

    /// Forks a process that runs `work` and ends.
    pub(crate) fn fork(&self, work: impl FnOnce()) -> Child {
        let _alone = crate::FORK.lock();
        fork(work)
    }
}
