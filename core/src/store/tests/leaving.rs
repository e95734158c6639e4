//! Open transactions of a member that has left and of a forked child: they change nothing, and take no lock from other
//! members.

use super::metadata::checked;
use super::*;
use std::sync::atomic::AtomicU64;

/// A member that leaves; the kernel reports no member as alive.
struct Leaving(Arc<AtomicU64>);

impl Members for Leaving {
    fn self_id(&self) -> u64 {
        self.0.load(Relaxed)
    }

    fn is_alive(&self, _member: u64) -> bool {
        true
    }
}

/// Opens the store as a member that has left once its number is stored as 0.
fn leaving_store(shared: &Shared) -> (Arc<AtomicU64>, Store<Mapping, Leaving>) {
    let number = Arc::new(AtomicU64::new(1 << 32 | 9));
    let (mapping, file) = (shared.mapping.clone(), shared.file.clone());
    let leaving = Leaving(number.clone());
    let store = Store::new(mapping, &file, START, shared.max_memory, leaving).unwrap();
    (number, store)
}

const NAME: Key<'static> = Key::Immediate(Cell::NONE);

fn large() -> Value<'static> {
    Value::Blob(Type::Bytes, value::Bytes::Owned(vec![7; 500_000]))
}

#[test]
fn a_commit_after_leaving_is_refused_and_others_get_the_lock() {
    let shared = shared(8 * MIB);
    let ours = store(&shared, US);
    let (number, theirs) = leaving_store(&shared);
    for is_kept in [true, false] {
        number.store(1 << 32 | 9, Relaxed);
        let (container, item) = (root(&ours), Item::Key(&NAME));
        let mut left = theirs.begin(soon()).unwrap();
        theirs
            .set(Some(&mut left), soon(), container, &item, &large())
            .unwrap();
        number.store(0, Relaxed);
        // The lock is taken over, and another transaction uses its memory.
        let mut open = ours.begin(soon()).unwrap();
        ours.set(Some(&mut open), soon(), container, &item, &large())
            .unwrap();
        match is_kept {
            true => {
                let done = theirs.commit(left);
                assert!(matches!(done, Err(StoreError::Heap(HeapError::Detached))));
            }
            false => theirs.abandon(left),
        }
        assert_eq!(ours.holder(), US);
        ours.commit(open).unwrap();
        let found = take(&ours, None, container, &item).unwrap();
        assert_eq!(found, StoredValue::Blob(Type::Bytes, vec![7; 500_000]));
        checked(&ours);
    }
}

#[test]
fn a_read_after_leaving_is_refused_and_others_keep_the_lock() {
    let shared = shared(8 * MIB);
    let ours = store(&shared, US);
    let container = root(&ours);
    let (number, theirs) = leaving_store(&shared);
    for is_corrupt in [false, true] {
        number.store(1 << 32 | 9, Relaxed);
        let mut open = None;
        let read = theirs.log.read(soon(), |t| {
            if theirs.holder() == 0 {
                // Each attempt meets a change, so that the last one has the lock.
                ours.set(None, soon(), container, &Item::Key(&NAME), &large())?;
                return Ok(());
            }
            number.store(0, Relaxed);
            open = Some(ours.begin(soon())?);
            match is_corrupt {
                true => t.get(u64::MAX).map(drop).map_err(StoreError::from),
                false => Ok(()),
            }
        });
        let is_refused = matches!(read, Err(StoreError::Heap(HeapError::Detached)));
        assert!(is_refused, "{read:?}");
        assert_eq!(ours.holder(), US);
        ours.commit(open.unwrap()).unwrap();
        checked(&ours);
    }
}

#[test]
fn a_thread_that_waits_for_the_lock_while_its_process_leaves_does_not_get_it() {
    let shared = shared(8 * MIB);
    let ours = store(&shared, US);
    let (number, theirs) = leaving_store(&shared);
    let open = ours.begin(soon()).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| theirs.begin(soon()).map(|open| theirs.abandon(open)));
        // Bit 31 of the lock: see `owner_lock.rs`.
        while shared.load(theirs.log.seqlock().start()) & 1 << 31 == 0 {
            std::thread::yield_now();
        }
        number.store(0, Relaxed);
        ours.abandon(open);
        let begun = waiting.join().unwrap();
        assert!(matches!(begun, Err(StoreError::Heap(HeapError::Detached))));
    });
    ours.begin(soon()).map(|open| ours.abandon(open)).unwrap();
    checked(&ours);
}

#[test]
fn a_forked_child_changes_nothing_in_a_transaction_of_its_parent() {
    let shared = shared(8 * MIB);
    let ours = store(&shared, US);
    let (container, item) = (root(&ours), Item::Key(&NAME));
    for is_kept in [true, false] {
        let mut open = ours.begin(soon()).unwrap();
        ours.set(Some(&mut open), soon(), container, &item, &large())
            .unwrap();
        let mut open = Some(open);
        let child = shared.fork(|| {
            let mut open = open.take().unwrap();
            let done = ours.set(Some(&mut open), soon(), container, &item, &large());
            assert!(matches!(done, Err(StoreError::Heap(HeapError::Detached))));
            match is_kept {
                true => assert!(ours.commit(open).is_err()),
                false => ours.abandon(open),
            }
            assert!(ours.len(None, soon(), container).is_err());
        });
        assert_eq!(child.wait(), 0);
        assert_eq!(ours.holder(), US);
        ours.commit(open.take().unwrap()).unwrap();
        let found = take(&ours, None, container, &item).unwrap();
        assert_eq!(found, StoredValue::Blob(Type::Bytes, vec![7; 500_000]));
        checked(&ours);
    }
}
