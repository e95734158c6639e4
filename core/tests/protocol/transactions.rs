//! The lease and its journal: who holds it is alone, who reads sees one moment, and what a dead one began is undone.

use crate::model::{Arc, Mutex, Plain, model_within, thread};
use _core::shared_heap::access::{ReadWords, WriteWords};
use _core::shared_heap::owner_lock::NEVER;
use _core::shared_heap::undo_log::{SIZE, UndoLog};
use _core::shared_heap::{HeapError, Members, VecWords};

/// Where the two words are that are always equal.
const PAIR: [u64; 2] = [SIZE, SIZE + 8];

type Memory = std::sync::Arc<VecWords>;

fn memory() -> Memory {
    std::sync::Arc::new(VecWords::new(SIZE as usize / 8 + 2))
}

/// A member, and whether member 2 lives: as the kernel tells it, in order with what that one did.
#[derive(Clone)]
struct Member(u64, Arc<Mutex<bool>>);

impl Members for Member {
    fn self_id(&self) -> u64 {
        self.0
    }
    fn is_alive(&self, member: u64) -> bool {
        member != 2 || !*self.1.lock().unwrap()
    }
}

fn journals(memory: &Memory) -> [UndoLog<Memory, Member>; 3] {
    let dead = Arc::new(Mutex::new(false));
    [1, 2, 3].map(|number| UndoLog::new(memory.clone(), 0, Member(number, dead.clone())).unwrap())
}

/// One more in both words; what they were.
fn add(journal: &UndoLog<Memory, Member>) -> u64 {
    let added = journal.transact(NEVER, |t| {
        let was = t.get(PAIR[0])?;
        assert_eq!(t.get(PAIR[1])?, was);
        t.set(PAIR[0], was + 1)?;
        t.set(PAIR[1], was + 1)?;
        Ok(was)
    });
    added.unwrap()
}

fn look(journal: &UndoLog<Memory, Member>) -> u64 {
    let [first, second] = journal
        .read(NEVER, |look| Ok([look.get(PAIR[0])?, look.get(PAIR[1])?]))
        .unwrap();
    assert_eq!(first, second);
    first
}

#[test]
fn whoever_holds_the_lease_is_alone() {
    model_within(2, || {
        let [first, second, _] = journals(&memory());
        let plain = std::sync::Arc::new(Plain::new());
        let theirs = plain.clone();
        let other = thread::spawn(move || {
            let changed = second.transact(NEVER, |_| {
                theirs.write(theirs.read() + 1);
                Ok(())
            });
            changed.unwrap();
        });
        let changed = first.transact(NEVER, |_| {
            plain.write(plain.read() + 1);
            Ok(())
        });
        changed.unwrap();
        other.join().unwrap();
        assert_eq!(plain.read(), 2);
    });
}

#[test]
fn a_reader_sees_words_of_one_moment() {
    model_within(2, || {
        let [writer, reader, _] = journals(&memory());
        let other = thread::spawn(move || {
            assert!(look(&reader) <= 1);
        });
        add(&writer);
        other.join().unwrap();
        assert_eq!(look(&writer), 1);
    });
}

#[test]
fn a_change_that_fails_was_never_seen() {
    model_within(2, || {
        let [writer, reader, _] = journals(&memory());
        let other = thread::spawn(move || {
            let seen = reader.read(NEVER, |look| look.get(PAIR[0]));
            assert!(matches!(seen, Ok(0)), "{seen:?}");
        });
        let changed: Result<(), _> = writer.transact(NEVER, |t| {
            t.set(PAIR[0], 7)?;
            Err(HeapError::NoBlock { offset: 0 })
        });
        assert!(changed.is_err());
        other.join().unwrap();
        assert_eq!(look(&writer), 0);
    });
}

/// Two come at the same time, one to read and one to change.
#[test]
fn what_a_dead_holder_began_is_undone_by_whoever_comes() {
    model_within(2, || {
        let [first, dying, third] = journals(&memory());
        dying.die_within(|t| t.set(PAIR[0], 100));
        *first.members().1.lock().unwrap() = true;
        let reader = thread::spawn(move || look(&third));
        assert_eq!(add(&first), 0);
        assert!(reader.join().unwrap() <= 1);
        assert_eq!(look(&first), 1);
    });
}

#[test]
fn one_that_waits_for_a_dying_holder_sees_what_it_left() {
    model_within(2, || {
        let [first, dying, _] = journals(&memory());
        let dead = first.members().1.clone();
        let death = thread::spawn(move || {
            dying.die_within(|t| t.set(PAIR[0], 100));
            *dead.lock().unwrap() = true;
        });
        assert_eq!(add(&first), 0);
        death.join().unwrap();
        assert_eq!(look(&first), 1);
    });
}
