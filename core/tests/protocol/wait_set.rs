//! The wait set: no wake-up is lost while threads sleep, wake, give up or die.
//!
//! With two sleepers and two wakers, loom tries two preemptions: three take minutes.

use crate::model::{
    Arc, AtomicU64, LoopWaker, Ordering, Plain, fence, model, model_within, thread,
};
use _core::wait::wait_set::{DEAD_MEMBER, HeapWaitSet, Slot, WaitSet, WakeMethod};

/// A waker for each slot. The kernel may report that a wake-up reached no sleeper; here it never does for live ones.
type Wakers = std::sync::Arc<Vec<(LoopWaker, bool)>>;
type Memory = std::sync::Arc<HeapWaitSet<Box<dyn Fn(usize) -> bool + Send + Sync>>>;
type Set = std::sync::Arc<WaitSet<Memory>>;
type Sleeper = Slot<Memory>;

/// Create the memory of a set, and the wakers of its slots; the sleepers of the slots `deaf` receive no wake-up.
fn memory(slots: usize, deaf: &[usize]) -> (Memory, Wakers) {
    let bells: Wakers = std::sync::Arc::new(
        (0..slots)
            .map(|index| (LoopWaker::new(), deaf.contains(&index)))
            .collect(),
    );
    let rung = bells.clone();
    let ring = move |index: usize| {
        let (bell, deaf): &(LoopWaker, bool) = &rung[index];
        bell.ring();
        !deaf
    };
    (
        std::sync::Arc::new(HeapWaitSet::new(slots, Box::new(ring))),
        bells,
    )
}

fn set(slots: usize) -> (Set, Wakers) {
    let (memory, bells) = memory(slots, &[]);
    (WaitSet::new(memory, 1), bells)
}

/// A counter of items that the sleepers wait for, each for one thread.
#[derive(Clone)]
struct Things(Arc<AtomicU64>);

impl Things {
    fn new() -> Self {
        Things(Arc::new(AtomicU64::new(0)))
    }

    /// Relaxed: the set must order it.
    fn put(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn take(&self) -> bool {
        let some = |count: u64| count.checked_sub(1);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, some)
            .is_ok()
    }
}

/// Sleep until `is_there` returns true.
fn wait(sleeper: &mut Sleeper, bells: &Wakers, mut is_there: impl FnMut() -> bool) {
    loop {
        sleeper.announce(WakeMethod::Futex).unwrap();
        if is_there() {
            return sleeper.cancel().unwrap();
        }
        bells[sleeper.index()].0.sleep();
        sleeper.withdraw().unwrap();
        if is_there() {
            return;
        }
    }
}

fn spawn_sleeper(set: &Set, bells: &Wakers, things: &Things) -> thread::JoinHandle<()> {
    let (mut sleeper, bells, things) = (set.acquire_slot().unwrap(), bells.clone(), things.clone());
    thread::spawn(move || wait(&mut sleeper, &bells, || things.take()))
}

fn join(sleepers: [thread::JoinHandle<()>; 2]) {
    for sleeper in sleepers {
        sleeper.join().unwrap();
    }
}

#[test]
fn each_of_two_changes_wakes_one_of_two_sleepers() {
    model_within(2, || {
        let ((set, bells), things) = (set(2), Things::new());
        let sleepers = [(); 2].map(|()| spawn_sleeper(&set, &bells, &things));
        let (theirs, put) = (set.clone(), things.clone());
        let waker = thread::spawn(move || {
            put.put();
            theirs.wake_one();
        });
        things.put();
        set.wake_one();
        waker.join().unwrap();
        join(sleepers);
    });
}

/// A lock with a word for the thread that spins for it: see `src/objects/sole_spinner.rs`, where the word is a time.
#[derive(Clone)]
struct Lock {
    things: Things,
    looks: Arc<AtomicU64>,
    set: Set,
}

impl Lock {
    fn release(&self) {
        self.things.put();
        self.set
            .wake_one_unless(|| self.looks.load(Ordering::Relaxed) != 0);
    }

    /// Try once to acquire the lock. Return true on success.
    fn look(&self) -> bool {
        let is_there = self.things.take();
        self.looks.store(0, Ordering::Relaxed);
        is_there
    }

    /// The same as `hand_on`.
    fn give_up(&self) {
        fence(Ordering::SeqCst);
        if self.things.0.load(Ordering::Relaxed) > 0 {
            self.set.wake_one();
        }
    }
}

fn looked_for() -> (Lock, Wakers) {
    let (set, bells) = set(2);
    let (things, looks) = (Things::new(), Arc::new(AtomicU64::new(1)));
    (Lock { things, looks, set }, bells)
}

#[test]
fn a_change_left_to_a_spinner_wakes_the_sleeper_after_it() {
    model_within(2, || {
        let (lock, bells) = looked_for();
        let (sleeping, rung, mut bed) = (
            lock.clone(),
            bells.clone(),
            lock.set.acquire_slot().unwrap(),
        );
        let sleeper = thread::spawn(move || {
            wait(&mut bed, &rung, || sleeping.things.take());
            sleeping.release();
        });
        let (looking, mut place) = (lock.clone(), lock.set.acquire_slot().unwrap());
        let looker = thread::spawn(move || {
            if !looking.look() {
                wait(&mut place, &bells, || looking.things.take());
            }
            looking.release();
        });
        lock.release();
        looker.join().unwrap();
        sleeper.join().unwrap();
    });
}

#[test]
fn a_change_left_to_a_spinner_that_gives_up_wakes_the_sleeper() {
    model(|| {
        let (lock, bells) = looked_for();
        let sleeper = spawn_sleeper(&lock.set, &bells, &lock.things);
        let looking = lock.clone();
        let looker = thread::spawn(move || match looking.look() {
            true => looking.release(),
            false => looking.give_up(),
        });
        lock.release();
        looker.join().unwrap();
        sleeper.join().unwrap();
    });
}

#[test]
fn a_change_for_all_wakes_all_sleepers() {
    model_within(2, || {
        let ((set, bells), done) = (set(2), Arc::new(AtomicU64::new(0)));
        let sleepers = [(); 2].map(|()| {
            let (mut sleeper, bells, done) =
                (set.acquire_slot().unwrap(), bells.clone(), done.clone());
            thread::spawn(move || {
                loop {
                    sleeper.announce(WakeMethod::Futex).unwrap();
                    // Relaxed: the set must order it.
                    if done.load(Ordering::Relaxed) == 2 {
                        sleeper.withdraw().unwrap();
                        break;
                    }
                    bells[sleeper.index()].0.sleep();
                    sleeper.withdraw().unwrap();
                }
            })
        });
        let (theirs, add) = (set.clone(), done.clone());
        let waker = thread::spawn(move || {
            add.fetch_add(1, Ordering::Relaxed);
            theirs.wake_all();
        });
        done.fetch_add(1, Ordering::Relaxed);
        set.wake_all();
        waker.join().unwrap();
        join(sleepers);
    });
}

#[test]
fn a_woken_sleeper_sees_what_was_before_the_wake_up() {
    model(|| {
        let ((set, _), plain) = (set(1), Arc::new(Plain::new()));
        let mut sleeper = set.acquire_slot().unwrap();
        sleeper.announce(WakeMethod::Futex).unwrap();
        let (theirs, written) = (set.clone(), plain.clone());
        let waker = thread::spawn(move || {
            written.write(7);
            theirs.wake_one();
        });
        // Without a sleep, whose end would order it too.
        if sleeper.withdraw().unwrap() {
            assert_eq!(plain.read(), 7);
        }
        waker.join().unwrap();
    });
}

#[test]
fn a_sleeper_that_gives_up_passes_its_wake_up_on() {
    model(|| {
        let ((set, bells), things) = (set(2), Things::new());
        let mut impatient = set.acquire_slot().unwrap();
        let other = spawn_sleeper(&set, &bells, &things);
        impatient.announce(WakeMethod::Futex).unwrap();
        let (theirs, put) = (set.clone(), things.clone());
        let waker = thread::spawn(move || {
            put.put();
            theirs.wake_one();
        });
        drop(impatient);
        other.join().unwrap();
        waker.join().unwrap();
    });
}

#[test]
fn a_sleeper_that_needs_no_wake_up_passes_it_on() {
    model(|| {
        let ((set, bells), things) = (set(2), Things::new());
        things.put();
        let mut quick = set.acquire_slot().unwrap();
        let other = spawn_sleeper(&set, &bells, &things);
        let (theirs, put) = (set.clone(), things.clone());
        let waker = thread::spawn(move || {
            put.put();
            theirs.wake_one();
        });
        wait(&mut quick, &bells, || things.take());
        other.join().unwrap();
        waker.join().unwrap();
    });
}

#[test]
fn the_next_owner_of_a_slot_sees_all_of_the_last_one() {
    model(|| {
        let ((set, _), plain) = (set(1), Arc::new(Plain::new()));
        let (theirs, written) = (set.clone(), plain.clone());
        let first = set.acquire_slot().unwrap();
        plain.write(1);
        let next = thread::spawn(move || {
            let second = loop {
                match theirs.acquire_slot() {
                    Ok(slot) => break slot,
                    Err(_) => thread::yield_now(),
                }
            };
            written.write(written.read() + 1);
            drop(second);
        });
        drop(first);
        let third = loop {
            match set.acquire_slot() {
                Ok(slot) => break slot,
                Err(_) => thread::yield_now(),
            }
        };
        plain.read();
        drop(third);
        next.join().unwrap();
    });
}

#[test]
fn a_late_waker_does_not_change_the_next_owners_slot() {
    model(|| {
        let ((set, bells), things) = (set(1), Things::new());
        let (theirs, put) = (set.clone(), things.clone());
        let waker = thread::spawn(move || {
            put.put();
            theirs.wake_one();
        });
        let mut first = set.acquire_slot().unwrap();
        first.announce(WakeMethod::Futex).unwrap();
        drop(first);
        let mut second = set.acquire_slot().unwrap();
        wait(&mut second, &bells, || things.take());
        waker.join().unwrap();
    });
}

/// Leak a slot, as the death of its process does.
fn dies(slot: Sleeper) {
    let set = slot.set().clone();
    std::mem::forget(slot);
    // SAFETY: the slot counted as one, and is never dropped.
    unsafe { std::sync::Arc::decrement_strong_count(std::sync::Arc::as_ptr(&set)) };
}

/// Create a sleeper whose process has died during its sleep.
fn dead_sleeper(memory: &Memory) -> usize {
    let mut dead = WaitSet::new(memory.clone(), DEAD_MEMBER)
        .acquire_slot()
        .unwrap();
    dead.announce(WakeMethod::Futex).unwrap();
    let index = dead.index();
    dies(dead);
    index
}

#[test]
fn a_dead_sleeper_consumes_no_wake_up() {
    model(|| {
        let ((memory, bells), things) = (memory(2, &[0]), Things::new());
        dead_sleeper(&memory);
        let set = WaitSet::new(memory, 1);
        let sleeper = spawn_sleeper(&set, &bells, &things);
        things.put();
        set.wake_one();
        sleeper.join().unwrap();
    });
}

/// A dead sleeper was woken just before its death. `take` takes its slot over, unless it comes too early.
fn a_wake_up_is_passed_on_by(take: fn(&Set)) {
    model_within(2, move || {
        let ((memory, bells), things) = (memory(2, &[]), Things::new());
        dead_sleeper(&memory);
        let set = WaitSet::new(memory, 1);
        let sleeper = spawn_sleeper(&set, &bells, &things);
        let theirs = set.clone();
        let other = thread::spawn(move || take(&theirs));
        things.put();
        set.wake_one();
        other.join().unwrap();
        set.sweep(|member| member != DEAD_MEMBER);
        sleeper.join().unwrap();
    });
}

#[test]
fn a_sweep_passes_the_wake_up_of_a_dead_sleeper_on() {
    a_wake_up_is_passed_on_by(|set| {
        set.sweep(|member| member != DEAD_MEMBER);
    });
}

#[test]
fn acquiring_a_dead_sleepers_slot_passes_its_wake_up_on() {
    a_wake_up_is_passed_on_by(|set| drop(set.acquire_slot()));
}

/// Two threads find the dead owner; meanwhile a third one has its slot and sleeps there.
#[test]
fn a_late_take_over_does_not_change_the_next_owners_slot() {
    model(|| {
        let ((memory, bells), things) = (memory(1, &[]), Things::new());
        dead_sleeper(&memory);
        let set = WaitSet::new(memory, 1);
        let theirs = set.clone();
        let sweeper = thread::spawn(move || theirs.sweep(|member| member != DEAD_MEMBER));
        let (other, put) = (set.clone(), things.clone());
        let waker = thread::spawn(move || {
            put.put();
            other.wake_one();
        });
        let mut sleeper = loop {
            match set.acquire_slot() {
                Ok(slot) => break slot,
                Err(_) => thread::yield_now(),
            }
        };
        wait(&mut sleeper, &bells, || things.take());
        sweeper.join().unwrap();
        waker.join().unwrap();
    });
}

/// A member has died, and its number is used again while a thread has not finished with the dead one.
#[test]
fn a_late_take_over_does_not_affect_a_member_with_the_same_number() {
    model(|| {
        let (memory, _) = memory(1, &[]);
        dies(
            WaitSet::new(memory.clone(), DEAD_MEMBER)
                .acquire_slot()
                .unwrap(),
        );
        let alive = Arc::new(AtomicU64::new(0));
        let (set, seen) = (WaitSet::new(memory.clone(), 1), alive.clone());
        let theirs = set.clone();
        let late = thread::spawn(move || theirs.sweep(|_| seen.load(Ordering::Acquire) == 1));
        set.sweep(|member| member != DEAD_MEMBER);
        alive.store(1, Ordering::Release);
        if let Ok(mut next) = WaitSet::new(memory, DEAD_MEMBER).acquire_slot() {
            next.announce(WakeMethod::Futex).unwrap();
            next.withdraw().unwrap();
        }
        late.join().unwrap();
    });
}
