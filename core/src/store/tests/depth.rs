//! Containers that are nested deeper than anybody looks: an error to the program, and no poison.

use super::*;

#[test]
fn what_is_nested_too_deep_is_refused_and_can_be_removed() {
    let shared = shared(8 * MIB);
    let store = store(&shared, US);
    let key = Key::Immediate(Cell::NONE);
    let item = Item::Key(&key);
    let mut place = root(&store);
    for _ in 0..2 * tree::DEPTH {
        store
            .set(None, soon(), place, &item, &Value::Dict(Vec::new()))
            .unwrap();
        place = match store.get(None, soon(), place, &item).unwrap() {
            Found::Container(_, place, _) => place,
            other => panic!("{other:?}"),
        };
    }
    for open in [false, true] {
        let mut open = open.then(|| store.begin(soon()).unwrap());
        let copied = store.copy(open.as_mut(), soon(), root(&store));
        assert!(matches!(copied, Err(StoreError::TooDeep)));
        let removed = store.remove(open.as_mut(), soon(), root(&store), &item);
        assert!(matches!(removed, Err(StoreError::TooDeep)));
        if let Some(open) = open {
            store.commit(open).unwrap();
        }
    }
    assert_eq!(store.len(None, soon(), place).unwrap(), 0);
    books::checked(&store);
    store.delete(None, soon(), root(&store), &item).unwrap();
    assert!(matches!(
        store.len(None, soon(), place),
        Err(StoreError::Gone)
    ));
    books::checked(&store);
}
