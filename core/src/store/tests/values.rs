//! Random values of all kinds: how they are stored and found, and which of them are the same key.

use super::*;
use crate::store::format::value::{self, Bytes};

/// A key as a program means it.
#[derive(Clone, Debug)]
enum Meaning {
    Int(i128),
    Float(f64),
    Other(StoredValue),
}

fn meaning(key: &StoredValue) -> Meaning {
    match key {
        StoredValue::Immediate(cell) => match cell.content() {
            Some(Content::Int(int)) => Meaning::Int(int.into()),
            Some(Content::Bool(bool)) => Meaning::Int(bool.into()),
            Some(Content::Float(float)) => Meaning::Float(float),
            _ => Meaning::Other(key.clone()),
        },
        StoredValue::Blob(Type::Int, bytes) => {
            let sign = if bytes[bytes.len() - 1] >= 0x80 {
                0xff
            } else {
                0
            };
            let mut all = [sign; 16];
            all[..bytes.len()].copy_from_slice(bytes);
            Meaning::Int(i128::from_le_bytes(all))
        }
        StoredValue::Blob(Type::Alias, exact) => meaning(&aliased(exact)),
        StoredValue::Blob(Type::Key, exact) => {
            Meaning::Other(StoredValue::Blob(Type::Key, canonical(exact).to_vec()))
        }
        _ => Meaning::Other(key.clone()),
    }
}

/// Returns true if Python takes both for the same key; unlike Python, also for a NaN and itself.
pub(super) fn is_same(one: &StoredValue, other: &StoredValue) -> bool {
    let is_equal = |int: i128, float: f64| {
        float == float.trunc() && float.abs() < 1e38 && float as i128 == int
    };
    match (meaning(one), meaning(other)) {
        (Meaning::Int(one), Meaning::Int(other)) => one == other,
        (Meaning::Int(int), Meaning::Float(float)) | (Meaning::Float(float), Meaning::Int(int)) => {
            is_equal(int, float)
        }
        (Meaning::Float(one), Meaning::Float(other)) => {
            one == other || one.is_nan() && other.is_nan()
        }
        (Meaning::Other(one), Meaning::Other(other)) => one == other,
        _ => false,
    }
}

/// Returns the key that an alias of the tests equals. One more byte tells which of the equal ones it is.
fn aliased(exact: &[u8]) -> StoredValue {
    match exact[0] {
        number @ 0..20 => int(number.into()),
        number @ 20..30 => float(f64::from(number) + 0.5),
        number @ 30..35 => int(i128::from(number) << 60),
        number => text(&b"abcdefghijklmnopqrstuvwxyz0123456789"[..usize::from(number) - 30]),
    }
}

/// Returns the comparison bytes of a key of the tests. One more byte tells which of the equal ones it is.
fn canonical(exact: &[u8]) -> &[u8] {
    &exact[..exact.len() - 1]
}

pub(super) fn int(value: i128) -> StoredValue {
    let small = i64::try_from(value).ok().and_then(Cell::int);
    small.map(StoredValue::Immediate).unwrap_or_else(|| {
        let mut bytes = value.to_le_bytes().to_vec();
        value::trim(&mut bytes);
        StoredValue::Blob(Type::Int, bytes)
    })
}

pub(super) fn float(value: f64) -> StoredValue {
    StoredValue::Immediate(Cell::float(value))
}

pub(super) fn text(bytes: &[u8]) -> StoredValue {
    let short = Cell::text(bytes).map(StoredValue::Immediate);
    short.unwrap_or_else(|| StoredValue::Blob(Type::Text, bytes.to_vec()))
}

fn bytes(bytes: &[u8]) -> StoredValue {
    let short = Cell::bytes(bytes).map(StoredValue::Immediate);
    short.unwrap_or_else(|| StoredValue::Blob(Type::Bytes, bytes.to_vec()))
}

/// Returns the value that a program inserts to find this one.
pub(super) fn value(found: &StoredValue) -> Value<'_> {
    let borrowed = |bytes| Bytes::Borrowed(bytes);
    match found {
        StoredValue::Immediate(cell) => Value::Immediate(*cell),
        StoredValue::Blob(kind, bytes) => Value::Blob(*kind, borrowed(bytes)),
        StoredValue::Tuple(items) => Value::Tuple(items.iter().map(value).collect()),
        StoredValue::FrozenSet(items) => Value::FrozenSet(items.iter().map(key).collect()),
        StoredValue::List(items) => Value::List(items.iter().map(value).collect()),
        StoredValue::Dict(items) => Value::Dict(entries(items)),
        StoredValue::Set(items) => Value::Set(items.iter().map(key).collect()),
        StoredValue::Record(class, fields, extra) => {
            let extra = (!extra.is_empty()).then(|| entries(extra));
            Value::Record(*class, fields.iter().map(value).collect(), extra)
        }
        StoredValue::Buffer(meta, bytes) => Value::Buffer(borrowed(meta), borrowed(bytes)),
        StoredValue::Container(..) => panic!("{found:?} is in a store"),
    }
}

fn entries(items: &[(StoredValue, StoredValue)]) -> Vec<(Key<'_>, Value<'_>)> {
    let entries = items.iter().map(|(each, item)| (key(each), value(item)));
    entries.collect()
}

pub(super) fn key(found: &StoredValue) -> Key<'_> {
    match found {
        StoredValue::Immediate(cell) => Key::Immediate(*cell),
        StoredValue::Blob(Type::Alias, exact) => {
            let equal = key(&aliased(exact)).into_owned();
            Key::Alias(Box::new(equal), exact.clone())
        }
        StoredValue::Blob(Type::Key, exact) => Key::Other(canonical(exact).to_vec(), exact.clone()),
        StoredValue::Blob(kind, bytes) => Key::Blob(*kind, Bytes::Borrowed(bytes)),
        _ => panic!("{found:?} is no key"),
    }
}

/// Keys of many kinds, of which many collide: by their value, by the stored half of their hash, or by their slot.
pub(super) struct Keys {
    colliding: Vec<StoredValue>,
}

impl Keys {
    pub(super) fn new() -> Self {
        let mut rng = TestRng(1);
        let mut all: Vec<(u64, i64)> = (0..300_000)
            .map(|_| rng.below(1 << 47) as i64)
            .map(|int| {
                let key = Key::Immediate(Cell::int(int).unwrap());
                (key.canonical().hash() >> 32, int)
            })
            .collect();
        all.sort_unstable();
        let pairs = all.windows(2).filter(|pair| pair[0].0 == pair[1].0);
        let colliding: Vec<StoredValue> = pairs
            .flat_map(|pair| [int(pair[0].1.into()), int(pair[1].1.into())])
            .collect();
        assert!(!colliding.is_empty());
        Keys { colliding }
    }

    /// Creates keys for a test that needs none.
    pub(super) fn none() -> Self {
        let colliding = Vec::new();
        Keys { colliding }
    }

    pub(super) fn any(&self, rng: &mut TestRng) -> StoredValue {
        let number = rng.below(40);
        match rng.below(16) {
            0..3 => int(number.into()),
            3 => float(number as f64),
            4 => float(number as f64 + 0.5),
            5 => StoredValue::Immediate(Cell::bool(number % 2 == 1)),
            // Around the limits of ints that fit into a cell, and of floats that are ints.
            6 | 7 => {
                let power = [46, 47, 48, 52, 53, 63, 64, 100][rng.below(8) as usize];
                let near = (1i128 << power) + i128::from(rng.below(3)) - 1;
                int(if number % 2 == 1 { -near } else { near })
            }
            8 => {
                let power = [46, 47, 48, 52, 53, 63, 64, 100, 1000][rng.below(9) as usize];
                let near = 2f64.powi(power) + rng.below(3) as f64 - 1.0;
                float(if number % 2 == 1 { -near } else { near })
            }
            9 => [
                StoredValue::Immediate(Cell::NONE),
                float(-0.0),
                float(f64::NAN),
                float(f64::NEG_INFINITY),
                float(5e-324),
            ][rng.below(5) as usize]
                .clone(),
            10 | 11 => text(&b"abcdefghijklmnopqrstuvwxyz0123456789"[..number as usize % 36]),
            12 => bytes(&b"abcdefghijklmnopqrstuvwxyz0123456789"[..number as usize % 36]),
            13 if number % 2 == 1 => {
                let exact = vec![number as u8, rng.below(2) as u8];
                StoredValue::Blob(Type::Alias, exact)
            }
            13 => {
                let mut exact = vec![b'k'; rng.below(20) as usize];
                exact.push(rng.below(2) as u8);
                StoredValue::Blob(Type::Key, exact)
            }
            _ => {
                let index = rng.below(self.colliding.len() as u64);
                self.colliding[index as usize].clone()
            }
        }
    }

    fn some(&self, rng: &mut TestRng, most: u64) -> Vec<StoredValue> {
        let mut some: Vec<StoredValue> = Vec::new();
        for _ in 0..rng.below(most + 1) {
            let each = self.any(rng);
            if !some.iter().any(|other| is_same(other, &each)) {
                some.push(each);
            }
        }
        some
    }

    /// Returns a value with at most so many levels of nesting.
    pub(super) fn value(&self, rng: &mut TestRng, depth: u64) -> StoredValue {
        let deeper = |rng: &mut TestRng| self.value(rng, depth - 1);
        let most = if rng.below(20) == 0 { 100 } else { 6 };
        match rng.below(if depth == 0 { 10 } else { 18 }) {
            0..4 => int(rng.below(1000).into()),
            4 => float(rng.below(1000) as f64 / 8.0),
            5 => match self.any(rng) {
                StoredValue::Blob(Type::Key | Type::Alias, exact) => {
                    StoredValue::Blob(Type::Packed, exact)
                }
                other => other,
            },
            6 => text(&vec![b'x'; rng.any_size(12) as usize]),
            7 if rng.below(40) == 0 => bytes(&vec![0xfe; 400_000]),
            7 => bytes(&vec![0xff; rng.any_size(6) as usize]),
            8 => StoredValue::Buffer(bytes_of(rng, 20), bytes_of(rng, 5000)),
            9 => StoredValue::FrozenSet(self.some(rng, 5)),
            10 => StoredValue::Tuple((0..rng.below(4)).map(|_| deeper(rng)).collect()),
            11 | 12 => StoredValue::List((0..rng.below(most)).map(|_| deeper(rng)).collect()),
            13 | 14 => {
                let keys = self.some(rng, most);
                StoredValue::Dict(keys.into_iter().map(|key| (key, deeper(rng))).collect())
            }
            15 => StoredValue::Set(self.some(rng, most)),
            _ => {
                let fields = (0..rng.below(8)).map(|_| deeper(rng)).collect();
                let extra = self.some(rng, 3).into_iter();
                let extra = extra.map(|key| (key, deeper(rng))).collect();
                StoredValue::Record(rng.below(100) as u32, fields, extra)
            }
        }
    }
}

fn bytes_of(rng: &mut TestRng, most: u64) -> Vec<u8> {
    let byte = rng.below(256) as u8;
    vec![byte; rng.below(most) as usize]
}

#[test]
fn copies_alone_never_use_up_the_numbers_of_containers() {
    let shared = shared(8 * MIB);
    let store = store(&shared, US);
    let made = store.containers_made(soon()).unwrap();
    for round in 1..100_000_u64 {
        let random = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        store.skip_ids(failover::ids_to_skip(random));
    }
    assert_eq!(store.containers_made(soon()).unwrap(), made);
    let container = root(&store);
    let key = Key::Immediate(Cell::NONE);
    let inner = Value::List(Vec::new());
    store
        .set(None, soon(), container, &Item::Key(&key), &inner)
        .unwrap();
    // The old containers and the new one exist.
    for container in containers(&store, None) {
        store.len(None, soon(), container).unwrap();
    }
}

#[test]
fn a_savepoint_that_is_ended_late_affects_no_other_transaction() {
    let shared = shared(8 * MIB);
    let store = store(&shared, US);
    let container = root(&store);
    let mut first = store.begin(soon()).unwrap();
    let late = store.begin_savepoint(&mut first);
    store.abandon(first);
    let mut second = store.begin(soon()).unwrap();
    let part = store.begin_savepoint(&mut second);
    let key = Key::Immediate(Cell::NONE);
    let value = Value::Immediate(Cell::int(7).unwrap());
    store
        .set(
            Some(&mut second),
            soon(),
            container,
            &Item::Key(&key),
            &value,
        )
        .unwrap();
    store.end_savepoint(&mut second, late, false);
    store.end_savepoint(&mut second, part, true);
    store.end_savepoint(&mut second, part, false);
    store.commit(second).unwrap();
    assert_eq!(store.len(None, soon(), container).unwrap(), 1);
}
