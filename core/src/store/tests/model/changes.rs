//! Random changes of containers of each type, of a store and of its model.

use super::*;

impl Trial {
    pub(super) fn change_dict(
        &mut self,
        open: Option<&mut OpenTransaction>,
        container: ContainerRef,
        part: &mut StoredValue,
        rng: &mut TestRng,
    ) {
        let StoredValue::Dict(items) = part else {
            panic!()
        };
        let chosen = self.key_of(items, rng);
        let key = key(&chosen);
        self.change_entries(open, container, items, &chosen, &Item::Key(&key), rng);
    }

    pub(super) fn change_entries(
        &mut self,
        mut open: Option<&mut OpenTransaction>,
        container: ContainerRef,
        items: &mut Vec<(StoredValue, StoredValue)>,
        chosen: &StoredValue,
        item: &Item<'_>,
        rng: &mut TestRng,
    ) {
        let index = position(items, chosen);
        let there = if index.is_some() {
            End::Done
        } else {
            End::NoKey
        };
        let store = &self.store;
        match rng.below(16) {
            0..6 => {
                let new = self.keys.value(rng, 2);
                let left = self.will_remove(open.as_deref_mut(), container, item);
                let done = self.store.set(open, soon(), container, item, &value(&new));
                if self.is_done(&done, End::Done, left) {
                    assert_eq!(done.unwrap(), index.is_some());
                    match index {
                        Some(index) => items[index].1 = new,
                        None => items.push((chosen.clone(), new)),
                    }
                }
            }
            6..10 => {
                let left = self.will_remove(open.as_deref_mut(), container, item);
                let done = take(&self.store, open, container, item);
                if self.is_done(&done, there, left) {
                    assert_eq!(done.unwrap(), items.remove(index.unwrap()).1);
                }
            }
            10 | 11 => {
                let found = store.get(open, soon(), container, item);
                assert_eq!(end(&found), there);
                assert!(found.is_err() || agrees(&found.unwrap(), &items[index.unwrap()].1));
            }
            12 => {
                let Item::Key(key) = item else { return };
                let has = store.contains(open, soon(), container, key).unwrap();
                assert_eq!(has, index.is_some());
            }
            13 => {
                let found = store.items(open, soon(), container).unwrap();
                assert!(
                    entries_agree(&found, items),
                    "{found:?} instead of {items:?}"
                );
            }
            14 => {
                let by = match rng.below(2) {
                    0 => Number::Int(rng.below(100) as i64 - 50),
                    _ => Number::Float(0.25),
                };
                let new = index.map(|index| sum(&items[index].1, by));
                let expected = match &new {
                    None => End::NoKey,
                    Some(None) => End::NoNumber,
                    Some(Some(_)) => End::Done,
                };
                let done = self.store.add(open, soon(), container, item, by);
                if self.is_done(&done, expected, None) {
                    let new = new.flatten().unwrap();
                    assert_eq!(StoredValue::Immediate(done.unwrap()), new);
                    items[index.unwrap()].1 = new;
                }
            }
            _ => self.exceed_memory(open, container, Some(item), rng),
        }
    }

    pub(super) fn change_list(
        &mut self,
        mut open: Option<&mut OpenTransaction>,
        container: ContainerRef,
        part: &mut StoredValue,
        rng: &mut TestRng,
    ) {
        let StoredValue::List(items) = part else {
            panic!()
        };
        let len = items.len() as i64;
        let index = rng.below(2 * len as u64 + 3) as i64 - len - 1;
        let found = if index < 0 { index + len } else { index };
        let (item, found) = (
            Item::Index(index),
            usize::try_from(found).unwrap_or(usize::MAX),
        );
        let there = if found < items.len() {
            End::Done
        } else {
            End::NoIndex
        };
        match rng.below(16) {
            0..3 => {
                let new = self.keys.value(rng, 2);
                let left = self.will_remove(open.as_deref_mut(), container, &item);
                let done = self.store.set(open, soon(), container, &item, &value(&new));
                if self.is_done(&done, there, left) {
                    items[found] = new;
                }
            }
            3..8 => {
                let end = |rng: &mut TestRng| match rng.below(4) {
                    0 => 0,
                    1 => len as u64,
                    _ => rng.below(len as u64 + 2),
                };
                let (from, to) = (end(rng), end(rng));
                let many = [3, 3, 3, 70, 200][rng.below(5) as usize];
                let new: Vec<StoredValue> = match rng.below(3) {
                    0 => (0..rng.below(4)).map(|_| self.keys.value(rng, 2)).collect(),
                    1 => Vec::new(),
                    _ => (0..rng.below(many))
                        .map(|each| values::int(each.into()))
                        .collect(),
                };
                let values: Vec<_> = new.iter().map(value).collect();
                let done = self
                    .store
                    .splice(open, soon(), container, from, to, &values);
                if self.is_done(&done, End::Done, None) {
                    let from = (from as usize).min(items.len());
                    let to = (to as usize).min(items.len()).max(from);
                    items.splice(from..to, new);
                }
            }
            8..11 => {
                let left = self.will_remove(open.as_deref_mut(), container, &item);
                let done = take(&self.store, open, container, &item);
                if self.is_done(&done, there, left) {
                    assert_eq!(done.unwrap(), items.remove(found));
                }
            }
            11 => {
                let done = self.store.get(open, soon(), container, &item);
                assert_eq!(end(&done), there);
                assert!(done.is_err() || agrees(&done.unwrap(), &items[found]));
            }
            12 => {
                let mut order: Vec<u32> = (0..len as u32).collect();
                for index in (1..order.len()).rev() {
                    order.swap(index, rng.below(index as u64 + 1) as usize);
                }
                let is_order = rng.below(8) > 0;
                if !is_order {
                    order.push(0);
                }
                let done = self.store.permute(open, soon(), container, &order);
                if self.is_done(&done, End::Done, None) {
                    assert_eq!(done.unwrap(), is_order);
                    if is_order {
                        let order = order.iter();
                        *items = order.map(|&index| items[index as usize].clone()).collect();
                    }
                }
            }
            13 => {
                let (from, to) = (rng.below(len as u64 + 2), rng.below(len as u64 + 2));
                let done = self.store.range(open, soon(), container, from, to).unwrap();
                let to = (to as usize).min(items.len());
                let from = (from as usize).min(to);
                assert!(all_agree(&done, &items[from..to]));
            }
            14 => {
                let keys = self.store.keys(open.as_deref_mut(), soon(), container);
                assert_eq!(end(&keys), End::OtherType);
                let len = self.store.len(open, soon(), container).unwrap();
                assert_eq!(len, items.len() as u64);
            }
            _ => self.exceed_memory(open, container, None, rng),
        }
    }

    pub(super) fn change_set(
        &mut self,
        open: Option<&mut OpenTransaction>,
        container: ContainerRef,
        part: &mut StoredValue,
        rng: &mut TestRng,
    ) {
        let StoredValue::Set(items) = part else {
            panic!()
        };
        let chosen = match rng.below(3) {
            0 if !items.is_empty() => items[rng.below(items.len() as u64) as usize].clone(),
            _ => self.keys.any(rng),
        };
        let (key, index) = (
            key(&chosen),
            items.iter().position(|each| is_same(each, &chosen)),
        );
        match rng.below(8) {
            0..3 => {
                let done = self.store.insert(open, soon(), container, &key);
                if self.is_done(&done, End::Done, None) {
                    assert_eq!(done.unwrap(), index.is_none());
                    if index.is_none() {
                        items.push(chosen);
                    }
                }
            }
            3..5 => {
                let done = self.store.discard(open, soon(), container, &key);
                if self.is_done(&done, End::Done, None) {
                    assert_eq!(done.unwrap(), index.is_some());
                    if let Some(index) = index {
                        items.remove(index);
                    }
                }
            }
            5 => {
                let has = self.store.contains(open, soon(), container, &key).unwrap();
                assert_eq!(has, index.is_some());
            }
            6 => assert_eq!(self.store.keys(open, soon(), container).unwrap(), *items),
            _ => {
                let done = take(&self.store, open, container, &Item::Key(&key));
                assert_eq!(end(&done), End::OtherType);
            }
        }
    }

    pub(super) fn change_record(
        &mut self,
        mut open: Option<&mut OpenTransaction>,
        container: ContainerRef,
        part: &mut StoredValue,
        rng: &mut TestRng,
    ) {
        let StoredValue::Record(_, fields, extra) = part else {
            panic!()
        };
        if rng.below(3) == 0 {
            let chosen = self.key_of(extra, rng);
            let key = key(&chosen);
            return self.change_entries(open, container, extra, &chosen, &Item::Extra(&key), rng);
        }
        let index = rng.below(fields.len() as u64 + 1);
        let (item, found) = (Item::Field(index), index as usize);
        let there = if found < fields.len() {
            End::Done
        } else {
            End::NoIndex
        };
        match rng.below(8) {
            0..4 => {
                let new = self.keys.value(rng, 2);
                let left = self.will_remove(open.as_deref_mut(), container, &item);
                let done = self.store.set(open, soon(), container, &item, &value(&new));
                if self.is_done(&done, there, left) {
                    fields[found] = new;
                }
            }
            4 => {
                let by = Number::Int(1 << rng.below(48));
                let new = fields.get(found).map(|old| sum(old, by));
                let expected = match &new {
                    None => End::NoIndex,
                    Some(None) => End::NoNumber,
                    Some(Some(_)) => End::Done,
                };
                let done = self.store.add(open, soon(), container, &item, by);
                if self.is_done(&done, expected, None) {
                    fields[found] = StoredValue::Immediate(done.unwrap());
                    assert_eq!(new, Some(Some(fields[found].clone())));
                }
            }
            5 => {
                let done = self.store.get(open, soon(), container, &item);
                assert_eq!(end(&done), there);
                assert!(done.is_err() || agrees(&done.unwrap(), &fields[found]));
            }
            6 => {
                let done = take(&self.store, open, container, &item);
                assert_eq!(end(&done), End::OtherType);
            }
            _ if found < fields.len() => self.exceed_memory(open, container, Some(&item), rng),
            _ => {}
        }
    }

    pub(super) fn change_buffer(
        &mut self,
        open: Option<&mut OpenTransaction>,
        container: ContainerRef,
        part: &mut StoredValue,
        rng: &mut TestRng,
    ) {
        let StoredValue::Buffer(meta, bytes) = part else {
            panic!()
        };
        if open.is_some() || rng.below(2) == 0 {
            let len = self.store.len(open, soon(), container).unwrap();
            return assert_eq!(len, bytes.len() as u64);
        }
        let (block, len, said) = self.store.pin(soon(), container).unwrap();
        assert_eq!((len, &said), (bytes.len() as u64, &*meta));
        let mut found = Vec::new();
        assert!(self.store.words().copy_out(block + 64, len, &mut found));
        assert_eq!(found, *bytes);
        self.pins.push(block);
        if self.pins.len() > 20 {
            let index = rng.below(self.pins.len() as u64) as usize;
            self.store
                .unpin(soon(), self.pins.swap_remove(index))
                .unwrap();
        }
    }
}
