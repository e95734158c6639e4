//! Members that die at any point: their commits stay, their other changes are invisible, and no memory is lost.

use super::metadata::checked;
use super::model::Trial;
use super::*;
use crate::crash::{self, Point};
use crate::testing::Child;
use std::thread;
use std::time::Duration;

/// The offset, among the words of the tests, of the number of steps that the dying member has done.
const DONE: u64 = 0;

/// A store whose members are killed again and again, and a model that does the same and lives.
struct Twins {
    shared: Shared,
    /// The store of the surviving member.
    ours: Ours,
    living: Trial,
    _memory: Shared,
    generation: u64,
    last: u64,
}

impl Twins {
    fn new() -> Self {
        let (shared, memory) = (shared(64 * MIB), shared(64 * MIB));
        Twins {
            ours: store(&shared, US),
            shared,
            living: Trial::new(store(&memory, US)),
            _memory: memory,
            generation: 0,
            last: 0,
        }
    }

    /// Forks a member that runs the operations of this seed.
    fn begin(&mut self, seed: u64, armed: impl FnOnce()) -> (u64, Child) {
        self.generation += 1;
        let number = self.generation << 32 | 3;
        self.shared.store(DONE, 0);
        let child = self.shared.fork(|| {
            armed();
            let mut trial = self.living.twin(store(&self.shared, number));
            let mut rng = TestRng(seed);
            for done in 1.. {
                trial.step(&mut rng);
                self.shared.store(DONE, done);
            }
        });
        (number, child)
    }

    /// Forks a member that takes over from a dead one, and dies at a point of that.
    fn inherit(&mut self, point: Point) -> (u64, Child) {
        self.generation += 1;
        let number = self.generation << 32 | 3;
        let child = self.shared.fork(|| {
            crash::arm(point as usize, 1, libc::SIGKILL, -1);
            let successor = store(&self.shared, number);
            successor.recover(|_| false, soon()).unwrap();
        });
        (number, child)
    }

    /// Returns the number of steps that the dying member has done.
    fn done(&self) -> u64 {
        self.shared.load(DONE)
    }

    /// Checks the store after the deaths of these members, of which the first one has done so many steps of this seed:
    /// all of them are committed, and the interrupted step is if `is_done`.
    fn end(&mut self, dead: &[u64], seed: u64, done: u64, is_done: Option<bool>) {
        let ours = &self.ours;
        ours.recover(|member| dead.contains(&member), soon())
            .unwrap();
        let found = ours.copy(None, soon(), root(ours)).unwrap();
        let mut rng = TestRng(seed);
        for _ in 0..done {
            self.living.step(&mut rng);
        }
        if is_done.unwrap_or(found != self.living.model) {
            self.living.step(&mut rng);
        }
        assert!(
            found == self.living.model,
            "a step of {done} is half done, lost or visible too early"
        );
        assert_eq!(self.living.refused, 0);
        self.living.forget();
        let metadata = checked(&self.ours);
        assert!(metadata.last >= self.last, "a number may be reused");
        self.last = metadata.last;
    }
}

/// Points, and if a step that is interrupted there is done.
const POINTS: [(Point, bool, u64); 11] = [
    (Point::LockAcquired, false, 300),
    (Point::OnlyWordStored, true, 50),
    (Point::NumberTaken, false, 500),
    (Point::LogWritten, false, 200),
    (Point::LogCounted, true, 200),
    (Point::LogWordStored, true, 5000),
    (Point::LogEnded, true, 200),
    (Point::LogSettled, true, 200),
    (Point::HeapGrown, false, 6),
    (Point::HeapFreed, true, 3),
    (Point::HeapPunched, true, 3),
];

/// Points that a member passes when it takes over from a dead one.
const OF_SUCCESSORS: [Point; 4] = [
    Point::RedoBegun,
    Point::RedoWordStored,
    Point::RedoDone,
    Point::RepairPunched,
];

#[test]
fn members_die_at_each_point() {
    let points = POINTS[1..].iter().map(|&(point, ..)| point);
    let heirs = OF_SUCCESSORS
        .into_iter()
        .chain([Point::DeadContainersRemoved]);
    let mut tried: Vec<_> = points.chain(heirs).map(|point| point as usize).collect();
    tried.sort_unstable();
    let all = Point::OnlyWordStored as usize..=Point::RepairPunched as usize;
    assert!(tried.into_iter().eq(all));
}

#[test]
fn commits_of_members_that_die_at_any_point_stay() {
    let mut rng = TestRng(5);
    let mut twins = Twins::new();
    let mut kills = 0;
    for _ in 0..scaled(4, 400) {
        for (point, is_done, most) in POINTS {
            let (seed, times) = (rng.next(), rng.between(1, most));
            let (number, child) = twins.begin(seed, || {
                crash::arm(point as usize, times, libc::SIGKILL, -1);
            });
            assert_eq!(child.wait(), libc::SIGKILL, "{point:?}");
            twins.end(&[number], seed, twins.done(), Some(is_done));
            kills += 1;
        }
        for point in OF_SUCCESSORS {
            let (seed, times) = (rng.next(), rng.between(1, 300));
            let (number, child) = twins.begin(seed, || {
                crash::arm(Point::LogWordStored as usize, times, libc::SIGKILL, -1);
            });
            assert_eq!(child.wait(), libc::SIGKILL);
            let done = twins.done();
            let mut dead = vec![number];
            for _ in 0..rng.between(1, 3) {
                let (number, child) = twins.inherit(point);
                dead.push(number);
                assert_eq!(child.wait(), libc::SIGKILL, "{point:?}");
                kills += 1;
                // Nothing is left to redo.
                if matches!(point, Point::RedoDone) {
                    break;
                }
            }
            twins.end(&dead, seed, done, Some(true));
        }
    }
    println!("{kills} deaths, {} containers", twins.last);
}

#[test]
fn commits_of_members_that_are_killed_at_any_time_stay() {
    let mut rng = TestRng(6);
    let mut twins = Twins::new();
    let (mut steps, kills) = (0, scaled(60, 10_000));
    for _ in 0..kills {
        let seed = rng.next();
        let (number, child) = twins.begin(seed, || {});
        while twins.done() == 0 && !child.has_ended() {
            thread::yield_now();
        }
        thread::sleep(Duration::from_micros(rng.below(20_000)));
        child.kill();
        steps += twins.done();
        twins.end(&[number], seed, twins.done(), None);
    }
    println!("{kills} kills after {steps} steps");
}

#[test]
fn the_memory_of_the_log_of_a_dead_member_is_returned() {
    let shared = shared(16 * MIB);
    let ours = store(&shared, US);
    let zero = || Value::Immediate(Cell::int(0).unwrap());
    let list = Value::List((0..20_000).map(|_| zero()).collect());
    let key = Key::Immediate(Cell::NONE);
    ours.set(None, soon(), root(&ours), &Item::Key(&key), &list)
        .unwrap();
    let before = (checked(&ours), ours.allocated().unwrap());
    for (number, point) in (3..).zip([Point::LogWritten, Point::LogWordStored, Point::LogEnded]) {
        let child = shared.fork(|| {
            let store = store(&shared, number << 32 | 3);
            let found = store
                .get(None, soon(), root(&store), &Item::Key(&key))
                .unwrap();
            let StoredValue::Container(_, list, _) = found else {
                panic!()
            };
            let mut open = store.begin(soon()).unwrap();
            for index in 0..20_000 {
                store
                    .add(
                        Some(&mut open),
                        soon(),
                        list,
                        &Item::Index(index),
                        Number::Int(1),
                    )
                    .unwrap();
            }
            crash::arm(point as usize, 1, libc::SIGKILL, -1);
            store.commit(open).unwrap();
        });
        assert_eq!(child.wait(), libc::SIGKILL);
        ours.recover(|_| false, soon()).unwrap();
        assert_eq!(checked(&ours), before.0);
        assert!(ours.allocated().unwrap() <= before.1 + redo_log::KEPT);
    }
    let found = take(&ours, None, root(&ours), &Item::Key(&key)).unwrap();
    let StoredValue::List(found) = found else {
        panic!()
    };
    assert!(
        found
            .iter()
            .all(|each| *each == StoredValue::Immediate(Cell::int(2).unwrap()))
    );
}

/// The offset of the number of containers that the dying member has created, and of the first of them.
const MADE: u64 = 8;

#[test]
fn containers_of_a_dead_uncommitted_transaction_are_deleted_for_all() {
    for (round, size) in [4, 300, 2100].into_iter().enumerate() {
        let shared = shared(16 * MIB);
        let ours = store(&shared, US);
        let name = Key::Immediate(Cell::NONE);
        let item = Item::Key(&name);
        let zero = || Value::Immediate(Cell::int(0).unwrap());
        // Each of another size: in slabs, and in pages of their own.
        let value = || {
            let record = |_| Value::Record(0, (0..size).map(|_| zero()).collect(), None);
            Value::List((0..20).map(record).collect())
        };
        // Free memory that has held other blocks.
        for _ in 0..round {
            ours.set(None, soon(), root(&ours), &item, &value())
                .unwrap();
            ours.delete(None, soon(), root(&ours), &item).unwrap();
        }
        for generation in 1..4 {
            let child = shared.fork(|| {
                let store = store(&shared, generation << 32 | 3);
                let mut open = store.begin(soon()).unwrap();
                let there = root(&store);
                store
                    .set(Some(&mut open), soon(), there, &item, &value())
                    .unwrap();
                let before = containers(&store, None);
                let mut containers = containers(&store, Some(&mut open));
                containers.retain(|container| !before.contains(container));
                for (index, container) in containers.iter().enumerate() {
                    shared.store(MADE + 8 + 16 * index as u64, container.at);
                    shared.store(MADE + 16 + 16 * index as u64, container.id);
                }
                shared.store(MADE, containers.len() as u64);
                if generation == 3 {
                    crash::arm(Point::LogCounted as usize, 1, libc::SIGKILL, -1);
                    store.commit(open).unwrap();
                }
                // SAFETY: it ends this process.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            });
            assert_eq!(child.wait(), libc::SIGKILL);
            let made: Vec<ContainerRef> = (0..shared.load(MADE))
                .map(|index| ContainerRef {
                    at: shared.load(MADE + 8 + 16 * index),
                    id: shared.load(MADE + 16 + 16 * index),
                })
                .collect();
            assert_eq!(made.len(), 21);
            let are_gone = || {
                made.iter().all(|&container| {
                    matches!(
                        ours.len(None, soon(), container),
                        Err(StoreError::ContainerDeleted)
                    )
                })
            };
            // A member that dies during the takeover leaves the rest to the next one.
            let successor = shared.fork(|| {
                let store = store(&shared, generation << 32 | 5);
                crash::arm(Point::DeadContainersRemoved as usize, 1, libc::SIGKILL, -1);
                store.recover(|_| false, soon()).unwrap();
            });
            let was_committed = generation == 3;
            assert_eq!(
                successor.wait(),
                if was_committed { 0 } else { libc::SIGKILL }
            );
            assert_eq!(are_gone(), !was_committed);
            // From now on their numbers count as committed, and their memory is used again.
            for key in 1..4 {
                let key = Key::Immediate(Cell::int(key).unwrap());
                let value = Value::List(vec![Value::List(Vec::new())]);
                ours.set(None, soon(), root(&ours), &Item::Key(&key), &value)
                    .unwrap();
                assert_eq!(are_gone(), !was_committed);
            }
            checked(&ours);
        }
    }
}
