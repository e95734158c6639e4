//! Members that are killed at any point: the others continue, and no change is half done, lost or done twice.

use super::metadata::checked;
use super::*;
use crate::crash::{self, Point};
use crate::shared_heap::HeapError;
use crate::shared_heap::access::{ReadWords, WriteWords};
use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

/// The member number of the test's own process.
const US: u64 = 1 << 32 | 1;
const MIB: u64 = 1 << 20;

// Words of the tests: two counts that are always equal, and cells with the offset and the size of a block.
const COUNTS: [u64; 2] = [0, 8];
const CELLS: u64 = 64;

fn cell(index: u64) -> u64 {
    1024 + index * 16
}

fn number(slot: u64, generation: u64) -> u64 {
    generation << 32 | (slot + 1)
}

/// Fills a block, without the lock.
fn fill(shared: &Shared, offset: u64, len: u64) {
    for at in [offset, offset + (len - 8) / 8 * 8] {
        shared.store(at, offset ^ len);
    }
}

fn assert_filled(shared: &Shared, offset: u64, len: u64) {
    for at in [offset, offset + (len - 8) / 8 * 8] {
        assert_eq!(shared.load(at), offset ^ len, "{len} bytes at {offset}");
    }
}

/// Runs one operation of a member, and checks all invariants that it meets.
fn step(shared: &Shared, blocks: &Blocks, rng: &mut TestRng, largest: u64) {
    let at = cell(rng.below(CELLS));
    let log = blocks.undo_log();
    match rng.below(8) {
        // A new block in the place of the old one.
        0..4 => {
            let len = rng.any_size(largest).max(16);
            let block = match blocks.reserve(len, soon()) {
                Ok(block) => block,
                Err(HeapError::Limit { .. } | HeapError::TooManyUnfinished { .. }) => return,
                Err(error) => panic!("{error}"),
            };
            let offset = block.offset();
            fill(shared, offset, len);
            if rng.below(8) == 0 {
                return blocks.release(&block, soon()).unwrap();
            }
            let changed = log.transact(soon(), |t| {
                let (old, old_len) = (t.get(at)?, t.get(at + 8)?);
                if old != 0 {
                    assert_filled(shared, old, old_len);
                    blocks.free_within(t, old)?;
                }
                t.set(at, offset)?;
                t.set(at + 8, len)?;
                blocks.commit(t, &block)
            });
            changed.unwrap();
            blocks.shrink_excess(soon());
        }
        4..6 => {
            let changed = log.transact(soon(), |t| {
                let old = t.get(at)?;
                if old != 0 {
                    blocks.free_within(t, old)?;
                    t.set(at, 0)?;
                }
                Ok(())
            });
            changed.unwrap();
            blocks.shrink_excess(soon());
        }
        6 => {
            let changed = log.transact(soon(), |t| {
                let was = t.get(COUNTS[0])?;
                assert_eq!(t.get(COUNTS[1])?, was);
                t.set(COUNTS[0], was + 1)?;
                t.set(COUNTS[1], was + 1)
            });
            changed.unwrap();
        }
        _ => {
            let counts = log.read(soon(), |t| Ok(COUNTS.map(|at| t.get(at))));
            let [first, second] = counts.unwrap();
            assert_eq!(first.unwrap(), second.unwrap());
        }
    }
}

/// Forks a process that runs operations until it is killed.
fn worker(shared: &Shared, member: u64, largest: u64, seed: u64) -> Child {
    shared.fork(|| {
        let blocks = shared.blocks(member);
        let mut rng = TestRng(seed);
        loop {
            step(shared, &blocks, &mut rng, largest);
        }
    })
}

/// Checks, when only this member is alive, that each block is in one cell and each cell has a block.
fn nothing_is_lost(shared: &Shared, blocks: &Blocks) {
    let metadata = checked(blocks);
    assert!(metadata.unfinished.is_empty(), "{:?}", metadata.unfinished);
    let mut held = BTreeMap::new();
    for index in 0..CELLS {
        let (offset, len) = (shared.load(cell(index)), shared.load(cell(index) + 8));
        if offset != 0 {
            assert_filled(shared, offset, len);
            assert!(
                held.insert(offset, len).is_none(),
                "two cells have {offset}"
            );
        }
    }
    assert!(
        metadata.blocks.keys().eq(held.keys()),
        "{:?} instead of {held:?}",
        metadata.blocks
    );
    assert_eq!(shared.load(COUNTS[0]), shared.load(COUNTS[1]));
}

#[test]
fn members_that_are_killed_at_any_time_leave_nothing_half_done() {
    const SLOTS: u64 = 3;
    let kills = scaled(300, 10_000);
    let shared = Shared::new(64 * MIB);
    let blocks = shared.blocks(US);
    let mut rng = TestRng(0x2545_f491_4f6c_dd1d);
    let (mut longest, mut killed, mut generation) = (0, 0, 1);
    while killed < kills {
        let mut workers: Vec<_> = (1..=SLOTS)
            .map(|slot| {
                let member = number(slot, generation);
                (member, worker(&shared, member, 16, rng.next()))
            })
            .collect();
        for _ in 0..20 {
            thread::sleep(Duration::from_micros(rng.below(3_000)));
            let index = rng.below(SLOTS) as usize;
            let (dead, child) = workers.swap_remove(index);
            child.kill();
            let died = clock::now();
            step(&shared, &blocks, &mut rng, 16);
            longest = longest.max(clock::now() - died);
            blocks.recover(|owner| owner == dead, soon()).unwrap();
            killed += 1;
            generation += 1;
            let member = number((dead & 0xffff_ffff) - 1, generation);
            workers.push((member, worker(&shared, member, 16, rng.next())));
        }
        for (member, child) in workers {
            child.kill();
            killed += 1;
            blocks.recover(|owner| owner == member, soon()).unwrap();
        }
        nothing_is_lost(&shared, &blocks);
        generation += 1;
    }
    let counted = shared.load(COUNTS[0]);
    println!(
        "{killed} kills, {counted} counted; the longest operation after a death took {:.1} ms",
        longest as f64 / 1e6
    );
}

/// The numbers of the members that die.
const DEAD: [u64; 2] = [1 << 32 | 3, 1 << 32 | 4];

/// Forks a process that dies when it passes a point for the `times`th time.
fn dies_at(shared: &Shared, member: u64, point: Point, times: u64, work: impl Fn(&Blocks)) {
    let child = shared.fork(|| {
        let blocks = shared.blocks(member);
        crash::arm(point as usize, times, libc::SIGKILL, -1);
        work(&blocks);
    });
    assert_eq!(
        child.wait(),
        libc::SIGKILL,
        "{point:?} was not passed {times} times"
    );
}

/// Lets a member pass a point for the `times`th time, and die there.
fn pass(shared: &Shared, point: Point, times: u64, seed: u64) {
    let busy = |blocks: &Blocks| {
        let mut rng = TestRng(seed);
        for _ in 0..100_000 {
            step(shared, blocks, &mut rng, 21);
        }
    };
    match point {
        // These points are passed by a member that takes over from a dead one.
        Point::LockTakenOver | Point::RollbackBegun | Point::WordRestored | Point::RollbackDone => {
            for _ in 0..times {
                let wreck = |blocks: &Blocks| {
                    let changed = blocks.undo_log().transact(soon(), |t| {
                        t.set(COUNTS[1], 7)?;
                        t.set(COUNTS[1], 8)?;
                        t.set(COUNTS[0], 9)
                    });
                    changed.unwrap();
                };
                dies_at(shared, DEAD[1], Point::WordChanged, 3, wreck);
                dies_at(shared, DEAD[0], point, 1, busy);
            }
        }
        Point::LockAwaited => {
            let held = shared.log(US).transact(soon(), |_| {
                dies_at(shared, DEAD[0], point, times, busy);
                Ok(())
            });
            held.unwrap();
        }
        Point::DeadAllocationFound => {
            dies_at(shared, DEAD[1], Point::BlockReserved, times, |blocks| {
                while blocks.reserve(100, soon()).is_ok() {}
            });
            dies_at(shared, DEAD[0], point, times, |blocks| {
                blocks.recover(|owner| owner == DEAD[1], soon()).unwrap();
            });
        }
        _ => dies_at(shared, DEAD[0], point, times, busy),
    }
}

#[test]
fn members_that_die_at_any_point_leave_nothing_half_done() {
    let points = [
        Point::LockAcquired,
        Point::LockTakenOver,
        Point::LockAwaited,
        Point::LockReleased,
        Point::SequenceOdd,
        Point::EntryWritten,
        Point::EntryCounted,
        Point::WordChanged,
        Point::Committed,
        Point::SequenceEven,
        Point::RollbackBegun,
        Point::WordRestored,
        Point::RollbackDone,
        Point::GrowthBegun,
        Point::GrowthDone,
        Point::ShrinkingBegun,
        Point::ShrinkingDone,
        Point::BlockReserved,
        Point::DeadAllocationFound,
    ];
    let all = &crash::NAMES[crash::OF_PYTHON..=Point::DeadAllocationFound as usize];
    assert!(
        points
            .iter()
            .map(|point| format!("{point:?}"))
            .eq(all.iter().copied())
    );
    let mut rng = TestRng(77);
    let mut kills = 0;
    for point in points {
        let shared = Shared::new(16 * MIB);
        let blocks = shared.blocks(US);
        let often = matches!(
            point,
            Point::EntryWritten | Point::EntryCounted | Point::WordChanged | Point::Committed
        );
        let most = match point {
            Point::RollbackBegun | Point::RollbackDone | Point::LockTakenOver => 1,
            Point::WordRestored | Point::LockAwaited | Point::DeadAllocationFound => 3,
            _ if often => scaled(40, 1000),
            _ => scaled(6, 40),
        };
        for round in 0..most {
            let times = if often {
                1 + rng.below(3_000)
            } else {
                round + 1
            };
            pass(&shared, point, times, rng.next());
            // Operations of others before the dead member is recovered.
            for _ in 0..50 {
                step(&shared, &blocks, &mut rng, 21);
            }
            for dead in DEAD {
                blocks.recover(|owner| owner == dead, soon()).unwrap();
            }
            nothing_is_lost(&shared, &blocks);
            kills += 1;
        }
    }
    println!("{kills} deaths at {} points", points.len());
}
