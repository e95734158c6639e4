//! Readers beside writers: a copy is of one moment, and a cell holds committed values.

use super::metadata::checked;
use super::*;
use crate::sync::Ordering;
use std::sync::atomic::AtomicBool;

const ACCOUNTS: u64 = 40;
const SUM: i64 = 1000 * ACCOUNTS as i64;

fn name(number: u64) -> Key<'static> {
    let text = Cell::text(format!("a{number}").as_bytes()).unwrap();
    Key::Immediate(text)
}

fn int(found: &StoredValue) -> i64 {
    match found {
        StoredValue::Immediate(cell) => match cell.content() {
            Some(Content::Int(int)) => int,
            other => panic!("{other:?}"),
        },
        StoredValue::Blob(Type::Text, bytes) => {
            // Its length, and the same byte throughout.
            assert!(bytes.iter().all(|&byte| byte == bytes[0]), "a torn text");
            0
        }
        other => panic!("{other:?}"),
    }
}

/// Returns the accounts, and the list of two equal counts.
fn containers(store: &Ours) -> [ContainerRef; 2] {
    ["accts", "count"].map(|name| {
        let key = Key::Immediate(Cell::text(name.as_bytes()).unwrap());
        match store
            .get(None, soon(), root(store), &Item::Key(&key))
            .unwrap()
        {
            StoredValue::Container(_, container, _) => container,
            other => panic!("{other:?}"),
        }
    })
}

fn open_accounts(store: &Ours) {
    let value = |int| Value::Immediate(Cell::int(int).unwrap());
    let accounts = (0..ACCOUNTS).map(|number| (name(number), value(1000)));
    let all = [
        ("accts", Value::Dict(accounts.collect())),
        ("count", Value::List(vec![value(0), value(0)])),
    ];
    for (name, value) in all {
        let key = Key::Immediate(Cell::text(name.as_bytes()).unwrap());
        store
            .set(None, soon(), root(store), &Item::Key(&key), &value)
            .unwrap();
    }
}

/// Moves money from one account to another, which this may close or open, and counts that twice.
fn write(store: &Ours, rng: &mut TestRng) {
    let [accounts, counts] = containers(store);
    let one = Number::Int(1);
    let mut open = store.begin(soon()).unwrap();
    let t = &mut Some(&mut open);
    let names = [0, 1].map(|_| name(rng.below(ACCOUNTS)));
    let [from, to] = names.each_ref().map(Item::Key);
    let amount = match take(store, t.as_deref_mut(), accounts, &from) {
        Ok(amount) => int(&amount),
        Err(StoreError::KeyNotFound) => 0,
        Err(error) => panic!("{error:?}"),
    };
    // Invisible to others: the sum is wrong.
    match store.add(t.as_deref_mut(), soon(), accounts, &to, Number::Int(amount)) {
        Ok(_) => {}
        Err(StoreError::KeyNotFound) => {
            let value = Value::Immediate(Cell::int(amount).unwrap());
            store
                .set(t.as_deref_mut(), soon(), accounts, &to, &value)
                .unwrap();
        }
        Err(error) => panic!("{error:?}"),
    }
    for index in [0, 1] {
        store
            .add(t.as_deref_mut(), soon(), counts, &Item::Index(index), one)
            .unwrap();
    }
    // Blocks of any size come and go.
    let text = vec![rng.below(256) as u8; rng.any_size(14) as usize];
    let text = Value::Blob(Type::Text, value::Bytes::Owned(text));
    let key = Key::Immediate(Cell::int(rng.below(20) as i64).unwrap());
    store
        .set(t.as_deref_mut(), soon(), accounts, &Item::Key(&key), &text)
        .unwrap();
    match rng.below(4) {
        0 => store.abandon(open),
        _ => store.commit(open).unwrap(),
    }
}

/// Checks that a copy is of one moment.
fn read(store: &Ours, rng: &mut TestRng, counted: &mut i64) {
    let [accounts, counts] = containers(store);
    match rng.below(4) {
        0 => {
            let StoredValue::Dict(all) = store.copy(None, soon(), root(store)).unwrap() else {
                panic!("no dict");
            };
            let [StoredValue::Dict(accounts), StoredValue::List(counts)] = [&all[0].1, &all[1].1]
            else {
                panic!("{all:?}");
            };
            let sum: i64 = accounts.iter().map(|(_, amount)| int(amount)).sum();
            assert_eq!(sum, SUM);
            assert_eq!(counts[0], counts[1]);
        }
        1 => {
            let items = store.items(None, soon(), accounts).unwrap();
            assert_eq!(
                items.iter().map(|(_, amount)| int(amount)).sum::<i64>(),
                SUM
            );
        }
        2 => {
            let both = store.range(None, soon(), counts, 0, 2).unwrap();
            assert_eq!(both[0], both[1]);
        }
        _ => {
            let count = int(&store.get(None, soon(), counts, &Item::Index(1)).unwrap());
            assert!(count >= *counted, "a count has decreased");
            *counted = count;
            let key = Key::Immediate(Cell::int(rng.below(20) as i64).unwrap());
            match store.get(None, soon(), accounts, &Item::Key(&key)) {
                Ok(text) => drop(int(&text)),
                Err(StoreError::KeyNotFound) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    }
}

#[test]
fn readers_see_one_moment_while_processes_and_threads_write() {
    let shared = shared(16 * MIB);
    let ours = store(&shared, US);
    open_accounts(&ours);
    let (rounds, over) = (scaled(3_000, 200_000), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (ours, over) = (&ours, &over);
            scope.spawn(move || {
                let (mut rng, mut counted) = (TestRng(seed + 70), 0);
                while !over.load(Ordering::Relaxed) {
                    read(ours, &mut rng, &mut counted);
                }
            });
        }
        let writers: Vec<_> = (0..2)
            .map(|seed| {
                shared.fork(|| {
                    let theirs = store(&shared, 1 << 32 | (seed + 5));
                    let mut rng = TestRng(seed + 7);
                    for _ in 0..rounds {
                        write(&theirs, &mut rng);
                    }
                })
            })
            .collect();
        let mut rng = TestRng(99);
        for _ in 0..rounds {
            write(&ours, &mut rng);
        }
        for writer in writers {
            assert_eq!(writer.wait(), 0);
        }
        over.store(true, Ordering::Relaxed);
    });
    read(&ours, &mut TestRng(1), &mut 0);
    checked(&ours);
}

#[test]
fn no_increment_of_threads_and_processes_is_lost() {
    let shared = shared(16 * MIB);
    let ours = store(&shared, US);
    open_accounts(&ours);
    let rounds = scaled(30_000, 1_000_000) as i64;
    let count = |store: &Ours| {
        let [accounts, counts] = containers(store);
        for _ in 0..rounds {
            store
                .add(None, soon(), accounts, &Item::Key(&name(3)), Number::Int(1))
                .unwrap();
            store
                .add(None, soon(), counts, &Item::Index(0), Number::Int(1))
                .unwrap();
        }
    };
    let child = shared.fork(|| count(&store(&shared, 1 << 32 | 5)));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| count(&ours));
        }
    });
    assert_eq!(child.wait(), 0);
    let [accounts, counts] = containers(&ours);
    let found = ours
        .get(None, soon(), accounts, &Item::Key(&name(3)))
        .unwrap();
    assert_eq!(int(&found), 1000 + 3 * rounds);
    let found = ours.get(None, soon(), counts, &Item::Index(0)).unwrap();
    assert_eq!(int(&found), 3 * rounds);
}

#[test]
fn a_large_copy_beside_writers_takes_the_lock_after_one_attempt() {
    let shared = shared(MIB);
    let (ours, theirs) = (store(&shared, US), store(&shared, 1 << 32 | 5));
    open_accounts(&ours);
    let [_, counts] = containers(&ours);
    let one = Number::Int(1);
    let mut attempts = 0;
    let read: Result<i64, StoreError> = ours.log.read(soon(), |t| {
        attempts += 1;
        assert_eq!(ours.is_long(), attempts > 1, "the lock is held for long");
        assert_eq!(ours.holder(), if attempts > 1 { US } else { 0 });
        let at = ours.cell_at(t, counts, &Item::Index(0))?;
        let count = copy::copy(t, Cell(t.get(at)?), false, &mut { ours.budget })?;
        if attempts == 1 {
            // So many changes that another attempt would fail as well.
            for _ in 0..100 {
                theirs.add(None, soon(), counts, &Item::Index(0), one)?;
            }
        }
        Ok(int(&count))
    });
    assert_eq!((read.unwrap(), attempts), (100, 2));
    assert!(ours.take_notice().lock_released, "waiters must be notified");
    assert!(!ours.take_notice().lock_released, "and once");
    assert!(!ours.is_long());
    assert_eq!(ours.holder(), 0);
    theirs
        .add(None, soon(), counts, &Item::Index(0), one)
        .unwrap();
}

#[test]
fn a_copy_beyond_its_limit_is_refused_and_poisons_nothing() {
    let shared = shared(MIB);
    let ours = store(&shared, US);
    open_accounts(&ours);
    let root = root(&ours);
    let refused = ours.copy_at_most(None, soon(), root, ACCOUNTS);
    assert!(
        matches!(refused, Err(StoreError::CopyTooLarge)),
        "{refused:?}"
    );
    let mut open = ours.begin(soon()).unwrap();
    let refused = ours.copy_at_most(Some(&mut open), soon(), root, ACCOUNTS);
    assert!(
        matches!(refused, Err(StoreError::CopyTooLarge)),
        "{refused:?}"
    );
    ours.abandon(open);
    let all = ours.copy(None, soon(), root).unwrap();
    assert_eq!(
        ours.copy_at_most(None, soon(), root, 10 * ACCOUNTS)
            .unwrap(),
        all
    );
}

#[test]
fn fields_read_one_after_another_are_committed_values() {
    let shared = shared(8 * MIB);
    let ours = store(&shared, US);
    let zero = || Value::Immediate(Cell::int(0).unwrap());
    let key = Key::Immediate(Cell::NONE);
    let record = Value::Record(0, vec![zero(), zero(), zero()], None);
    ours.set(None, soon(), root(&ours), &Item::Key(&key), &record)
        .unwrap();
    let container = |store: &Ours| match store
        .get(None, soon(), root(store), &Item::Key(&key))
        .unwrap()
    {
        StoredValue::Container(_, container, _) => container,
        other => panic!("{other:?}"),
    };
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..scaled(20_000, 2_000_000) {
                let container = container(&ours);
                let mut open = ours.begin(soon()).unwrap();
                for field in [0, 1] {
                    let (t, one) = (Some(&mut open), Number::Int(1));
                    ours.add(t, soon(), container, &Item::Field(field), one)
                        .unwrap();
                }
                ours.commit(open).unwrap();
                if round % 64 == 0 {
                    // Another record with the same fields; other contents use the memory of the first.
                    let found = ours.copy(None, soon(), container).unwrap();
                    let StoredValue::Record(_, fields, _) = found else {
                        panic!()
                    };
                    let fields = fields.iter().map(|field| {
                        let StoredValue::Immediate(cell) = field else {
                            panic!()
                        };
                        Value::Immediate(*cell)
                    });
                    let again = Value::Record(0, fields.collect(), None);
                    ours.set(None, soon(), root(&ours), &Item::Key(&key), &again)
                        .unwrap();
                    let other = Value::Blob(Type::Text, value::Bytes::Owned(vec![b'x'; 40]));
                    ours.set(
                        None,
                        soon(),
                        root(&ours),
                        &Item::Key(&Key::Immediate(Cell::int(1).unwrap())),
                        &other,
                    )
                    .unwrap();
                }
            }
            end.store(true, Ordering::Relaxed);
        });
        let mut last = 0;
        while !end.load(Ordering::Relaxed) {
            let container = container(&ours);
            let get = |field| ours.get(None, soon(), container, &Item::Field(field));
            let (first, second) = match (get(0), get(1)) {
                (Ok(first), Ok(second)) => (int(&first), int(&second)),
                (Err(StoreError::ContainerDeleted), _) | (_, Err(StoreError::ContainerDeleted)) => {
                    continue;
                }
                other => panic!("{other:?}"),
            };
            assert!(last <= first && first <= second, "{last} {first} {second}");
            last = second;
        }
    });
}
