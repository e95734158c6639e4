use super::*;
use crate::shared_heap::access::{ReadWords, WriteWords};
use crate::shared_heap::undo_log::CAPACITY;
use crate::shared_heap::{Field, HeapError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const ME: u64 = 1 << 32 | 1;
const OTHER: u64 = 1 << 32 | 2;
const SMALL: u64 = 1 << 20;

/// Adds one to two words that are equal.
fn add(log: &UndoLog<Mapping, Member>) -> Result<u64, HeapError> {
    log.transact(soon(), |t| {
        let was = t.get(0)?;
        assert_eq!(t.get(8)?, was);
        t.set(0, was + 1)?;
        t.set(8, was + 1)?;
        Ok(was)
    })
}

#[test]
fn a_change_that_fails_changes_nothing() {
    let shared = Shared::new(SMALL);
    let log = shared.log(ME);
    add(&log).unwrap();
    let failed: Result<(), _> = log.transact(soon(), |t| {
        t.set(0, 7)?;
        t.set(16, 8)?;
        t.set(0, 9)?;
        Err(HeapError::NoBlock { offset: 0 })
    });
    assert!(matches!(failed, Err(HeapError::NoBlock { .. })));
    assert_eq!(
        [0, 8, 16].map(|at| shared.load(at)),
        [1, 1, 0],
        "the old values are restored"
    );
    assert_eq!(add(&log).unwrap(), 1);
}

#[test]
fn a_change_that_panics_changes_nothing() {
    let shared = Shared::new(SMALL);
    let log = shared.log(ME);
    let panics = std::panic::AssertUnwindSafe(|| {
        log.transact(soon(), |t| {
            t.set(0, 7)?;
            if t.get(0)? == 7 {
                panic!("as intended");
            }
            Ok(())
        })
    });
    assert!(std::panic::catch_unwind(panics).is_err());
    assert_eq!(add(&log).unwrap(), 0);
}

#[test]
fn one_word_too_many_is_an_error_and_is_not_stored() {
    let shared = Shared::new(SMALL);
    let log = shared.log(ME);
    let filled = |count: u64| {
        log.transact(soon(), |t| {
            for index in 0..count {
                t.set(index * 8, index + 1)?;
            }
            Ok(())
        })
    };
    let most = CAPACITY as u64;
    let failed = filled(most + 1);
    assert!(matches!(
        failed,
        Err(HeapError::TransactionTooLarge { most: 251 })
    ));
    assert!((0..=most).all(|index| shared.load(index * 8) == 0));
    filled(most).unwrap();
    assert!((0..most).all(|index| shared.load(index * 8) == index + 1));
}

#[test]
fn a_wait_for_a_live_holder_ends_at_the_deadline_and_names_it() {
    let shared = Shared::new(SMALL);
    let holder = shared.fork(|| {
        let log = shared.log(OTHER);
        let held: Result<(), _> = log.transact(soon(), |t| {
            t.set(0, 7)?;
            shared.store(800, 1);
            loop {
                thread::park();
            }
        });
        held.unwrap();
    });
    while shared.load(800) == 0 {
        thread::yield_now();
    }
    let log = shared.log(ME);
    for wait in [0, 30_000_000] {
        let deadline = clock::now() + wait;
        let ended = log.transact(deadline, |_| Ok(()));
        assert!(matches!(ended, Err(HeapError::Busy { holder: OTHER })));
        assert!(clock::now() >= deadline);
        let ended = log.read(clock::now() + wait, |t| t.get(0));
        assert!(matches!(ended, Err(HeapError::Busy { holder: OTHER })));
    }
    holder.signal(libc::SIGSTOP);
    let ended = log.transact(clock::now() + 1_000_000, |_| Ok(()));
    assert!(matches!(ended, Err(HeapError::Busy { holder: OTHER })));
    let waiter = thread::scope(|scope| {
        let waiter = scope.spawn(|| add(&log));
        thread::sleep(Duration::from_millis(20));
        holder.kill();
        waiter.join().unwrap()
    });
    assert_eq!(waiter.unwrap(), 0, "its change is undone");
}

#[test]
fn threads_of_one_process_exclude_each_other_and_readers_see_pairs() {
    const EACH: u64 = 20_000;
    let shared = Shared::new(SMALL);
    let log = shared.log(ME);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    add(&log).unwrap();
                }
            });
        }
        for _ in 0..EACH {
            let pair = log.read(soon(), |t| Ok((t.get(0)?, t.get(8)?)));
            let (first, second) = pair.unwrap();
            assert_eq!(first, second);
        }
    });
    assert_eq!(add(&log).unwrap(), 4 * EACH);
}

#[test]
fn a_release_wakes_a_sleeper_before_its_slice_ends() {
    let shared = Shared::new(SMALL);
    let log = shared.log(ME);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let held = log.transact(soon(), |t| {
                        thread::sleep(Duration::from_micros(200));
                        let was = t.get(0)?;
                        t.set(0, was + 1)
                    });
                    held.unwrap();
                }
            });
        }
    });
    assert_eq!(shared.load(0), 200);
    assert_eq!(shared.load(START), 0, "the lock is free");
}

#[test]
fn a_waiter_gets_the_lock_beside_large_transactions() {
    let shared = Shared::new(SMALL);
    let log = shared.log(ME);
    let hold = || {
        let held = log.transact(soon(), |t| {
            thread::sleep(Duration::from_micros(200));
            let was = t.get(0)?;
            t.set(0, was + 1)
        });
        held.unwrap();
    };
    let done = AtomicBool::new(false);
    let turns = thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut turns = 0;
            while !done.load(Ordering::Relaxed) {
                hold();
                turns += 1;
            }
            turns
        });
        for _ in 0..200 {
            hold(); // And at once the next time.
        }
        done.store(true, Ordering::Relaxed);
        other.join().unwrap()
    });
    assert!(turns >= 50, "{turns} turns beside 200");
}

#[test]
fn a_forked_child_is_no_member() {
    let shared = Shared::new(SMALL);
    let (log, blocks) = (shared.log(ME), shared.blocks(ME));
    let held = log.transact(soon(), |t| {
        t.set(0, 7)?;
        let child = shared.fork(|| {
            assert!(matches!(add(&log), Err(HeapError::Detached)));
            let seen = log.read(soon(), |t| t.get(0));
            assert!(matches!(seen, Err(HeapError::Detached)));
            let block = blocks.allocate(1, soon());
            assert!(matches!(block, Err(HeapError::Detached)));
        });
        assert_eq!(child.wait(), 0);
        assert_eq!(t.get(0)?, 7, "the parent keeps its changes");
        t.set(0, 0)
    });
    held.unwrap();
    add(&log).unwrap();
}

/// Forks a holder that dies within a change.
fn wreck(shared: &Shared) {
    let dead = shared.fork(|| {
        let log = shared.log(OTHER);
        log.die_within(|t| {
            t.set(0, 7)?;
            t.set(8, 8)?;
            t.set(0, 9)
        });
    });
    assert_eq!(dead.wait(), 0);
}

#[test]
fn readers_undo_the_changes_of_a_dead_holder() {
    let shared = Shared::new(SMALL);
    wreck(&shared);
    assert_eq!(shared.load(0), 9);
    let log = shared.log(ME);
    let pair = log.read(soon(), |t| Ok((t.get(0)?, t.get(8)?)));
    assert_eq!(pair.unwrap(), (0, 0));
    wreck(&shared);
    assert_eq!(add(&log).unwrap(), 0);
}

#[test]
fn a_corrupt_log_poisons_the_memory_and_is_reported() {
    for (at, value, field) in [
        (72, 252, Field::LogCount),
        (72, u64::MAX, Field::LogCount),
        (80, 3, Field::LogEntry),
        (80, 1 << 50, Field::LogEntry),
        (96, START + 72, Field::LogEntry),
    ] {
        let shared = Shared::new(SMALL);
        wreck(&shared);
        shared.store(START + at, value);
        let [log, other] = [ME, OTHER].map(|number| shared.log(number));
        for each in [&log, &other, &log] {
            let Err(HeapError::Poisoned(corruption)) = add(each) else {
                panic!("{field:?} was accepted");
            };
            assert_eq!(
                (corruption.field, corruption.at, corruption.found),
                (field, START + at, value)
            );
            assert!(corruption.to_string().contains(&format!("{value:#x}")));
        }
        assert_eq!(shared.load(8), 8, "no word was restored");
    }
}

#[test]
fn an_overwritten_lock_poisons_the_memory() {
    let shared = Shared::new(SMALL);
    let log = shared.log(ME);
    let changed = log.transact(soon(), |_| {
        shared.store(START, 77);
        Ok(())
    });
    changed.unwrap();
    let Err(HeapError::Poisoned(corruption)) = add(&log) else {
        panic!("it was accepted");
    };
    assert_eq!((corruption.field, corruption.found), (Field::OwnerLock, 77));
}

#[test]
fn offsets_outside_of_the_memory_are_no_words() {
    let shared = Shared::new(SMALL);
    let end = shared.mapping.size() as u64;
    for at in [
        end,
        end - 4,
        end + 8,
        1,
        u64::MAX,
        u64::MAX - 7,
        START,
        START + 4088,
    ] {
        let shared = Shared::new(SMALL);
        let log = shared.log(ME);
        let set = log.transact(soon(), |t| t.set(at, 1));
        assert!(matches!(set, Err(HeapError::Poisoned(corruption)) if corruption.found == at));
    }
}

#[test]
fn truncated_memory_is_poisoned() {
    let shared = Shared::new(SMALL);
    let log = shared.log(ME);
    add(&log).unwrap();
    File::from(shared.file.try_clone().unwrap())
        .set_len(0)
        .unwrap();
    let Err(HeapError::Poisoned(corruption)) = add(&log) else {
        panic!("zeros were accepted");
    };
    assert_eq!(corruption.field, Field::Truncated);
}
