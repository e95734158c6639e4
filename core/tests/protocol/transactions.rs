//! The owner lock and the undo log: one holder at a time, readers see one moment, and the changes of a dead holder are
//! undone.

use crate::model::{Arc, Mutex, Plain, model_within, thread};
use _core::shared_heap::access::{ReadWords, WriteWords};
use _core::shared_heap::owner_lock::NEVER;
use _core::shared_heap::undo_log::{SIZE, UndoLog};
use _core::shared_heap::{HeapError, Members, VecWords};

/// The offsets of two words that are always equal.
const PAIR: [u64; 2] = [SIZE, SIZE + 8];

type Memory = std::sync::Arc<VecWords>;

fn memory() -> Memory {
    std::sync::Arc::new(VecWords::new(SIZE as usize / 8 + 2))
}

/// A member, and if member 2 is alive: as the kernel reports it, in order with the stores of member 2.
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

/// Adds one to both words. Returns their old value.
fn add(log: &UndoLog<Memory, Member>) -> u64 {
    let added = log.transact(NEVER, |t| {
        let was = t.get(PAIR[0])?;
        assert_eq!(t.get(PAIR[1])?, was);
        t.set(PAIR[0], was + 1)?;
        t.set(PAIR[1], was + 1)?;
        Ok(was)
    });
    added.unwrap()
}

fn read_pair(log: &UndoLog<Memory, Member>) -> u64 {
    let [first, second] = log
        .read(NEVER, |t| Ok([t.get(PAIR[0])?, t.get(PAIR[1])?]))
        .unwrap();
    assert_eq!(first, second);
    first
}

#[test]
fn the_holder_of_the_lock_excludes_others() {
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
            assert!(read_pair(&reader) <= 1);
        });
        add(&writer);
        other.join().unwrap();
        assert_eq!(read_pair(&writer), 1);
    });
}

#[test]
fn a_failed_change_is_never_visible() {
    model_within(2, || {
        let [writer, reader, _] = journals(&memory());
        let other = thread::spawn(move || {
            let seen = reader.read(NEVER, |t| t.get(PAIR[0]));
            assert!(matches!(seen, Ok(0)), "{seen:?}");
        });
        let changed: Result<(), _> = writer.transact(NEVER, |t| {
            t.set(PAIR[0], 7)?;
            Err(HeapError::NoBlock { offset: 0 })
        });
        assert!(changed.is_err());
        other.join().unwrap();
        assert_eq!(read_pair(&writer), 0);
    });
}

/// Two members come at the same time, one to read and one to change.
#[test]
fn the_next_member_undoes_the_changes_of_a_dead_holder() {
    model_within(2, || {
        let [first, dying, third] = journals(&memory());
        dying.die_within(|t| t.set(PAIR[0], 100));
        *first.members().1.lock().unwrap() = true;
        let reader = thread::spawn(move || read_pair(&third));
        assert_eq!(add(&first), 0);
        assert!(reader.join().unwrap() <= 1);
        assert_eq!(read_pair(&first), 1);
    });
}

#[test]
fn a_waiter_undoes_the_changes_of_a_holder_that_dies() {
    model_within(2, || {
        let [first, dying, _] = journals(&memory());
        let dead = first.members().1.clone();
        let death = thread::spawn(move || {
            dying.die_within(|t| t.set(PAIR[0], 100));
            *dead.lock().unwrap() = true;
        });
        assert_eq!(add(&first), 0);
        death.join().unwrap();
        assert_eq!(read_pair(&first), 1);
    });
}
