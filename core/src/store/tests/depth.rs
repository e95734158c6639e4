//! Values that are nested as deeply as a store accepts, and deeper.

use super::*;
use crate::store::format::value::Bytes;

/// Returns so many nested tuples.
fn tuples(count: usize) -> Value<'static> {
    (0..count).fold(Value::Immediate(Cell::NONE), |inner, _| {
        Value::Tuple(vec![inner])
    })
}

#[test]
fn values_nested_too_deeply_are_refused_and_others_copied() {
    let shared = shared(8 * MIB);
    let store = store(&shared, US);
    let key = Key::Immediate(Cell::NONE);
    let item = Item::Key(&key);
    let mut container = root(&store);
    for _ in 0..DEPTH {
        store
            .set(None, soon(), container, &item, &Value::Dict(Vec::new()))
            .unwrap();
        container = match store.get(None, soon(), container, &item).unwrap() {
            StoredValue::Container(_, container, _) => container,
            other => panic!("{other:?}"),
        };
    }
    let long = Value::Blob(Type::Text, Bytes::Owned(vec![b'x'; 100]));
    for open in [false, true] {
        let mut open = open.then(|| store.begin(soon()).unwrap());
        let refused = store.set(open.as_mut(), soon(), container, &item, &tuples(1));
        assert!(matches!(refused, Err(StoreError::NestingTooDeep)));
        store
            .set(open.as_mut(), soon(), container, &item, &long)
            .unwrap();
        store.copy(open.as_mut(), soon(), root(&store)).unwrap();
        store.snapshot(open.as_mut(), soon()).unwrap();
        if let Some(open) = open {
            store.commit(open).unwrap();
        }
    }
    metadata::checked(&store);
    take(&store, None, root(&store), &item).unwrap();
    assert!(matches!(
        store.len(None, soon(), container),
        Err(StoreError::ContainerDeleted)
    ));
    metadata::checked(&store);
}

#[test]
fn tuples_count_as_levels_of_nesting() {
    let shared = shared(8 * MIB);
    let store = store(&shared, US);
    let key = Key::Immediate(Cell::NONE);
    let item = Item::Key(&key);
    let half = DEPTH / 2;
    let within = |count, inner| {
        let fold = |inner, _| Value::Tuple(vec![inner]);
        (0..count).fold(inner, fold)
    };
    let value = within(half - 1, Value::List(Vec::new()));
    store
        .set(None, soon(), root(&store), &item, &value)
        .unwrap();
    let mut found = store.get(None, soon(), root(&store), &item).unwrap();
    let container = loop {
        found = match found {
            StoredValue::Tuple(mut items) => items.remove(0),
            StoredValue::Container(_, container, _) => break container,
            other => panic!("{other:?}"),
        };
    };
    let put = |value| store.splice(None, soon(), container, 0, 0, &[value]);
    assert!(matches!(
        put(tuples(half + 1)),
        Err(StoreError::NestingTooDeep)
    ));
    put(tuples(half)).unwrap();
    store.copy(None, soon(), root(&store)).unwrap();
    metadata::checked(&store);
}
