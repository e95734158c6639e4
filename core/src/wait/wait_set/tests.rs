use super::backing::Ticket;
use super::mapped::{MappedWaitSet, size_for};
use super::*;
use crate::memory::mapping::SharedMapping;
use crate::sync::AtomicU32;
use crate::sync::{AtomicU64, Ordering};
use crate::testing::{Child, file_in_memory, fork};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(3600);
/// Offset of the set, behind the counter that sleepers wait for.
const AT_SET: usize = 64;
/// Number of the tests' own process as a member.
const US: u32 = 0;

/// The memory that the processes of a test share: a counter of items, a wait set, and proofs of life.
struct Shared {
    file: File,
    mapping: Arc<SharedMapping>,
    slots: usize,
    stem: PathBuf,
}

type Set = Arc<WaitSet<MappedWaitSet<Arc<SharedMapping>, Box<dyn Fn(u32) -> bool + Send + Sync>>>>;

impl Drop for Shared {
    /// Remove the doorbells of killed members.
    fn drop(&mut self) {
        for member in 0..self.slots {
            let _ = std::fs::remove_file(format!("{}.{member}", self.stem.display()));
        }
    }
}

impl Shared {
    fn new(slots: usize) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let file = file_in_memory();
        let size = AT_SET + size_for(slots);
        file.set_len(size as u64).unwrap();
        let mapping = Arc::new(SharedMapping::new(file.as_fd(), size).unwrap());
        // Relaxed: each call gets another number.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("shmrpc-wait-set-{}-{number}", std::process::id());
        Shared {
            file,
            mapping,
            slots,
            stem: std::env::temp_dir().join(name),
        }
    }

    /// Open the set for the member of this number. A member is alive while its process holds a record lock.
    fn set(&self, member: u32) -> Set {
        let lock = |kind: libc::c_int, member: u32| libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: libc::off_t::from(member),
            l_len: 1,
            l_pid: 0,
        };
        let fd = self.file.as_raw_fd();
        let ours = lock(libc::F_WRLCK, member);
        // SAFETY: the structure is_alive through the call.
        let locked = unsafe { libc::fcntl(fd, libc::F_SETLK, &raw const ours) };
        assert_eq!(locked, 0);
        let is_alive = move |other| {
            let mut asked = lock(libc::F_WRLCK, other);
            // SAFETY: the structure is_alive through the call.
            unsafe { libc::fcntl(fd, libc::F_GETLK, &raw mut asked) };
            other == member || asked.l_type != libc::F_UNLCK as libc::c_short
        };
        let is_alive: Box<dyn Fn(u32) -> bool + Send + Sync> = Box::new(is_alive);
        let (mapping, stem) = (Arc::clone(&self.mapping), self.stem.clone());
        let backing = MappedWaitSet::new(mapping, AT_SET, self.slots, stem, is_alive);
        WaitSet::new(backing, member)
    }

    fn count(&self) -> &AtomicU64 {
        self.mapping.u64_at(0)
    }

    /// Relaxed, here and below: the set must order it.
    fn put(&self) {
        self.count().fetch_add(1, Ordering::Relaxed);
    }

    fn take(&self) -> bool {
        let some = |count: u64| count.checked_sub(1);
        self.count()
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, some)
            .is_ok()
    }

    /// Fork a process that is this member, runs `work`, and exits.
    fn fork(&self, member: u32, work: impl FnOnce(Set)) -> Child {
        fork(|| work(self.set(member)))
    }

    /// Fork a process that sleeps in a slot, as a thread or as an event loop, until there is an item for it.
    fn fork_sleeper(&self, member: u32, how: WakeMethod) -> Child {
        let child = self.fork(member, |set| {
            let mut slot = set.acquire_slot().unwrap();
            match how {
                WakeMethod::Futex => while !slot.sleep(LONG, || self.take()).unwrap() {},
                WakeMethod::Doorbell => loop_until(slot, || self.take()),
            }
        });
        self.until_asleep(member);
        // Between its announcement and its sleep, the sleeper checks for an item once more, and would need no wake-up.
        while !child.is_asleep() {
            thread::yield_now();
        }
        child
    }

    fn entries(&self) -> Vec<SlotWord> {
        let at = |index| AT_SET + 128 + 8 * index;
        let entry = |index| SlotWord(self.mapping.u64_at(at(index)).load(Ordering::Relaxed));
        (0..self.slots).map(entry).collect()
    }

    fn until_asleep(&self, member: u32) {
        let sleeps = |entry: &SlotWord| entry.member() == member && entry.wake_method().is_some();
        while !self.entries().iter().any(sleeps) {
            thread::yield_now();
        }
    }

    fn free_slots(&self) -> usize {
        let entries = self.entries();
        entries
            .iter()
            .filter(|each| each.is(SlotState::Free))
            .count()
    }
}

type MappedSlot = Slot<MappedWaitSet<Arc<SharedMapping>, Box<dyn Fn(u32) -> bool + Send + Sync>>>;

/// Run an event loop until its condition is true.
fn loop_until(slot: MappedSlot, is_there: impl Fn() -> bool) {
    let mut slot = slot.into_loop().unwrap();
    loop {
        slot.announce().unwrap();
        if is_there() {
            return slot.cancel().unwrap();
        }
        let mut asked = libc::pollfd {
            fd: slot.as_fd().as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry.
        unsafe { libc::poll(&raw mut asked, 1, -1) };
        slot.withdraw().unwrap();
        if is_there() {
            return;
        }
    }
}

const BOTH: [WakeMethod; 2] = [WakeMethod::Futex, WakeMethod::Doorbell];

#[test]
fn sleeping_threads_receive_every_item() {
    const SLEEPERS: usize = 6;
    const THINGS: usize = 3_000;
    let shared = Shared::new(SLEEPERS);
    let set = shared.set(US);
    let taken = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..SLEEPERS {
            let mut slot = set.acquire_slot().unwrap();
            let (shared, taken, set) = (&shared, &taken, &set);
            scope.spawn(move || {
                let all = || taken.load(Ordering::Relaxed) == (2 * THINGS) as u64;
                loop {
                    while !slot.sleep(LONG, || all() || shared.take()).unwrap() {}
                    if all() {
                        break;
                    }
                    taken.fetch_add(1, Ordering::Relaxed);
                    if all() {
                        set.wake_all();
                    }
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..THINGS {
                    shared.put();
                    set.wake_one();
                }
            });
        }
    });
    assert_eq!(taken.load(Ordering::Relaxed), (2 * THINGS) as u64);
    assert_eq!(shared.free_slots(), SLEEPERS);
}

#[test]
fn sleepers_of_other_processes_are_woken_one_by_one_and_all_at_once() {
    let _alone = crate::FORK.lock();
    for how in BOTH {
        let shared = Shared::new(70); // More than one word of bits.
        let set = shared.set(US);
        let _kept: Vec<_> = (0..62).map(|_| set.acquire_slot().unwrap()).collect();
        let children: Vec<_> = (1..=6)
            .map(|member| shared.fork_sleeper(member, how))
            .collect();
        for left in (4..6).rev() {
            shared.put();
            assert!(set.wake_one());
            while shared.free_slots() < 70 - 62 - left {
                thread::yield_now();
            }
        }
        for _ in 0..4 {
            shared.put();
        }
        assert_eq!(set.wake_all(), 4);
        for child in children {
            assert_eq!(child.wait(), 0);
        }
        assert_eq!(set.wake_all(), 0);
    }
}

#[test]
fn a_change_without_a_wake_up_is_seen_at_the_end_of_the_sleep() {
    let shared = Shared::new(1);
    let mut slot = shared.set(US).acquire_slot().unwrap();
    thread::scope(|scope| {
        const LIMIT: Duration = Duration::from_millis(50);
        let sleeper = scope.spawn(|| while !slot.sleep(LIMIT, || shared.take()).unwrap() {});
        shared.until_asleep(US);
        shared.put(); // The waker is stopped before its wake-up.
        sleeper.join().unwrap();
    });
}

#[test]
fn sleepers_are_woken_in_the_order_of_their_tickets() {
    let shared = Shared::new(4);
    let set = shared.set(US);
    let mut slots: Vec<_> = (0..4).map(|_| set.acquire_slot().unwrap()).collect();
    for line in [[2, 0, 3, 1], [1, 3, 0, 2], [3, 2, 1, 0]] {
        for index in line {
            slots[index].draw_ticket();
            slots[index].announce(WakeMethod::Doorbell).unwrap();
        }
        slots[line[1]].cancel().unwrap();
        slots[line[1]].announce(WakeMethod::Doorbell).unwrap(); // The sleeper has kept its ticket.
        for index in line {
            set.wake_one();
            assert!(slots[index].withdraw().unwrap(), "{line:?}");
        }
    }
}

#[test]
fn a_killed_sleeper_does_not_consume_a_wake_up() {
    let _alone = crate::FORK.lock();
    for how in BOTH {
        let shared = Shared::new(3);
        let set = shared.set(US);
        let (first, second) = (shared.fork_sleeper(1, how), shared.fork_sleeper(2, how));
        let living = shared.fork_sleeper(3, how);
        first.kill();
        second.kill();
        shared.put();
        assert!(set.wake_one());
        assert_eq!(living.wait(), 0);
        assert_eq!(shared.free_slots(), 3, "those of the dead are given back");
    }
}

#[test]
fn the_wake_up_of_a_sleeper_that_dies_goes_to_another() {
    let _alone = crate::FORK.lock();
    for how in BOTH {
        let shared = Shared::new(2);
        let set = shared.set(US);
        let first = shared.fork_sleeper(1, how);
        first.stop();
        let second = shared.fork_sleeper(2, how);
        assert!(set.wake_one(), "the first one has heard it");
        first.kill();
        assert!(shared.entries()[0].is(SlotState::Woken));
        shared.put();
        assert_eq!(set.sweep(|member| member != 1), 1);
        assert_eq!(second.wait(), 0);
        assert_eq!(shared.free_slots(), 2);
    }
}

#[test]
fn a_full_set_reuses_the_slot_of_a_dead_process() {
    let _alone = crate::FORK.lock();
    let shared = Shared::new(3);
    let set = shared.set(US);
    let ours = set.acquire_slot().unwrap();
    let children = [1, 2].map(|member| shared.fork_sleeper(member, WakeMethod::Futex));
    assert_eq!(
        set.acquire_slot().err(),
        Some(WaitSetError::Full { slots: 3 })
    );
    let [dead, living] = children;
    dead.kill();
    let taken = set.acquire_slot().unwrap();
    assert_eq!((ours.index(), taken.index()), (0, 1));
    assert_eq!(
        set.acquire_slot().err(),
        Some(WaitSetError::Full { slots: 3 })
    );
    drop(taken);
    assert_eq!(set.sweep(|_| true), 0);
    living.kill();
    assert_eq!(set.sweep(|member| set.backing().is_alive(member)), 1);
    assert_eq!(shared.free_slots(), 2);
}

#[test]
fn the_doorbell_of_a_dead_loop_is_replaced_by_the_next_owner_of_its_slot() {
    let _alone = crate::FORK.lock();
    let shared = Shared::new(1);
    let set = shared.set(US);
    shared.fork_sleeper(1, WakeMethod::Doorbell).kill();
    let left = PathBuf::from(format!("{}.0", shared.stem.display()));
    assert!(left.exists());
    let heir = shared.fork_sleeper(2, WakeMethod::Doorbell);
    shared.put();
    assert!(set.wake_one());
    assert_eq!(heir.wait(), 0);
    assert!(!left.exists());
}

/// Words of a hostile process: of live and dead members, of unknown states, and extreme values.
const CORRUPT_WORDS: [u64; 10] = [
    0,
    1,
    2,
    3,
    4,
    5,
    0xff,
    7 << 8 | SlotState::OnFutex as u64,
    u64::MAX << 8,
    u64::MAX,
];

#[test]
fn corrupt_words_cause_no_panic_and_each_call_ends() {
    let shared = Shared::new(3);
    let set = shared.set(US);
    for (bits, word) in CORRUPT_WORDS
        .iter()
        .flat_map(|bits| CORRUPT_WORDS.map(|word| (*bits, word)))
    {
        let mut slot = set.acquire_slot().unwrap();
        slot.announce(WakeMethod::Doorbell).unwrap();
        for index in 0..3 {
            set.backing().bits(0).store(bits, Ordering::Relaxed);
            set.backing().slot(index).store(word, Ordering::Relaxed);
        }
        set.wake_one();
        set.wake_all();
        let _ = slot.withdraw();
        let _ = slot.sleep(Duration::ZERO, || false);
        drop(slot);
        let _ = set.acquire_slot();
        set.sweep(|member| set.backing().is_alive(member));
        for index in 0..3 {
            set.backing().slot(index).store(0, Ordering::Relaxed);
        }
    }
}

#[test]
fn an_overwritten_slot_is_an_error() {
    let shared = Shared::new(1);
    let set = shared.set(US);
    let mut slot = set.acquire_slot().unwrap();
    slot.announce(WakeMethod::Futex).unwrap();
    set.backing().slot(0).store(0, Ordering::Relaxed);
    let error = slot.withdraw().unwrap_err();
    let expected = 1 << 32 | SlotState::OnFutex as u64;
    assert!(matches!(
        error,
        WaitSetError::Overwritten {
            index: 0,
            found: 0,
            ..
        }
    ));
    assert_eq!(
        error.to_string(),
        format!("slot 0 of the wait set holds 0x0 instead of {expected:#x}")
    );
    let other = set.acquire_slot().unwrap();
    drop(slot);
    assert!(
        !shared.entries()[0].is(SlotState::Free),
        "it is another one's now"
    );
    drop(other);
}

#[test]
fn a_process_that_overwrites_words_in_a_loop_blocks_no_other() {
    let shared = Shared::new(2);
    let set = shared.set(US);
    let over = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for word in CORRUPT_WORDS {
                    set.backing().bits(0).store(word, Ordering::Relaxed);
                    set.backing().slot(0).store(word, Ordering::Relaxed);
                }
            }
        });
        for _ in 0..2_000 {
            if let Ok(mut slot) = set.acquire_slot() {
                let _ = slot.sleep(Duration::from_micros(10), || false);
            }
            set.wake_all();
            set.sweep(|member| member == US);
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// A set whose tickets increase at each read.
struct Growing<B>(B);

impl<B: WaitSetMemory> WaitSetMemory for Growing<B> {
    fn slots(&self) -> usize {
        self.0.slots()
    }
    fn bits(&self, word: usize) -> &AtomicU64 {
        self.0.bits(word)
    }
    fn slot(&self, index: usize) -> &AtomicU64 {
        self.0.slot(index)
    }
    fn tickets(&self) -> &Ticket {
        self.0.tickets()
    }
    fn ticket(&self, index: usize) -> &Ticket {
        let ticket = self.0.ticket(index);
        ticket.fetch_add(1, Ordering::Relaxed);
        ticket
    }
    fn wake(&self, index: usize, how: WakeMethod) -> bool {
        self.0.wake(index, how)
    }
    fn is_alive(&self, member: u32) -> bool {
        self.0.is_alive(member)
    }
}

#[test]
fn increasing_tickets_do_not_block_a_waker() {
    let set = WaitSet::new(Growing(HeapWaitSet::new(3, |_| true)), US);
    let mut slots: Vec<_> = (0..3).map(|_| set.acquire_slot().unwrap()).collect();
    set.backing().bits(0).store(7, Ordering::Relaxed);
    assert!(!set.wake_one(), "there is no sleeper");
    slots[1].announce(WakeMethod::Futex).unwrap();
    assert!(set.wake_one());
}

#[test]
fn a_sleeper_detects_a_truncated_set() {
    let shared = Shared::new(1);
    let mut slot = shared.set(US).acquire_slot().unwrap();
    shared.file.set_len(0).unwrap();
    let slept = slot.sleep(LONG, || false);
    assert!(matches!(
        slept,
        Err(WaitSetError::Overwritten { found: 0, .. })
    ));
    assert!(shared.mapping.is_truncated());
}
