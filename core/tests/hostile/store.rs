//! A store that another member overwrites, and the operations of a member on it.

use super::descriptors::memfd;
use super::{AT_ONCE, Alone, Script};
use _core::memory::mapping::SharedMapping;
use _core::shared_heap::{HeapError, Words, redo_log};
use _core::store::{Bytes, ContainerRef, Key, StoredValue, Value};
use _core::store::{Cell, Type};
use _core::store::{Item, Number, OpenTransaction, Root, Store, StoreError, sizes};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const MAX_MEMORY: u64 = 1 << 20;
/// The offsets of its pins, its watches, the metadata of its heap, and its log: see `store/mod.rs`.
const PINS: u64 = 64;
const WATCHES: u64 = 65_616;
const BOOKS: u64 = (WATCHES + 8 + 24 * 1024_u64).next_multiple_of(4096);
/// The greatest nesting of a value of the script.
const DEPTH: u32 = 3;
/// The most containers to keep.
const PLACES: usize = 32;

type Ours = Store<Arc<SharedMapping>, Alone>;

/// Runs the operations of a member while another one overwrites the store, as the bytes say.
pub fn store(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let (size, _) = sizes(0, MAX_MEMORY);
    let file = Arc::new(memfd(size, 0, false));
    let words = Arc::new(SharedMapping::new(file.as_fd(), size as usize).expect("a mapping"));
    let store = Store::new(words.clone(), &file, 0, MAX_MEMORY, Alone).expect("pages");
    store.initialize(AT_ONCE).expect("a few pages");
    let mut has = Has::new(&store, &words);
    while !script.is_over() {
        if script.byte() % 4 == 0 {
            has.corrupt(&mut script);
            continue;
        }
        let done = has.act(&mut script);
        let memory = File::from(file.try_clone().expect("a descriptor"));
        let memory = memory.metadata().expect("a file").blocks() * 512;
        assert!(memory <= size, "the memory has grown to {memory}");
        if let Err(StoreError::Heap(HeapError::Poisoned(_))) = done {
            let next = has.store.containers_made(AT_ONCE);
            let is_poisoned = matches!(next, Err(StoreError::Heap(HeapError::Poisoned(_))));
            assert!(is_poisoned, "{next:?}");
            break;
        }
    }
    if let Some(open) = has.open.take() {
        store.abandon(open);
    }
}

/// The store and the containers of the member.
struct Has<'s> {
    store: &'s Ours,
    words: &'s SharedMapping,
    places: Vec<ContainerRef>,
    pinned: Vec<u64>,
    watched: Vec<(ContainerRef, u64)>,
    open: Option<OpenTransaction>,
    /// Savepoints of this transaction and of earlier ones.
    parts: Vec<u64>,
}

impl<'s> Has<'s> {
    fn new(store: &'s Ours, words: &'s SharedMapping) -> Self {
        let root = |root| store.root(root, AT_ONCE).expect("it was made");
        Has {
            store,
            words,
            places: [Root::Store, Root::Inbox, Root::Classes].map(root).to_vec(),
            pinned: Vec::new(),
            watched: Vec::new(),
            open: None,
            parts: Vec::new(),
        }
    }

    fn act(&mut self, script: &mut Script) -> Result<(), StoreError> {
        let place = self.place(script);
        let (store, mut open) = (self.store, self.open.take());
        let done = match script.byte() % 32 {
            0 => match open.take() {
                Some(open) => store.commit(open),
                None => store.begin(AT_ONCE).map(|begun| open = Some(begun)),
            },
            1 => {
                if let Some(open) = open.take() {
                    store.abandon(open);
                }
                Ok(())
            }
            2 if open.is_some() => {
                self.with_savepoint(open.as_mut(), script);
                Ok(())
            }
            // These belong to no transaction, and would wait for the end of the open one.
            2..8 if open.is_none() => self.alone(place, script),
            _ => self.operate(open.as_mut(), place, script),
        };
        self.open = open;
        done
    }

    /// Sets a savepoint, or ends the last one, which may belong to an earlier transaction.
    fn with_savepoint(&mut self, open: Option<&mut OpenTransaction>, script: &mut Script) {
        let Some(open) = open else { return };
        let ends = script.byte() % 2 == 0;
        match self.parts.pop().filter(|_| ends) {
            Some(part) => self.store.end_savepoint(open, part, script.byte() % 2 == 0),
            None => self.parts.push(self.store.begin_savepoint(open)),
        }
    }

    fn operate(
        &mut self,
        open: Option<&mut OpenTransaction>,
        place: ContainerRef,
        script: &mut Script,
    ) -> Result<(), StoreError> {
        let store = self.store;
        let (key, new) = (key(script), value(script, DEPTH));
        let item = match script.byte() % 4 {
            0 => Item::Extra(&key),
            1 => Item::Index(i64::from(script.byte() as i8)),
            2 => Item::Field(u64::from(script.byte() % 8)),
            _ => Item::Key(&key),
        };
        let (from, to) = (u64::from(script.byte()), u64::from(script.byte()));
        match script.byte() % 24 {
            0..5 => store.set(open, AT_ONCE, place, &item, &new).map(drop),
            5..8 => {
                let found = store.get(open, AT_ONCE, place, &item)?;
                self.note(&found);
                Ok(())
            }
            8 => {
                let mut open = open;
                let known = match script.byte() % 3 {
                    0 => None,
                    _ => Some(
                        store
                            .get_copy(open.as_deref_mut(), AT_ONCE, place, &item)?
                            .1,
                    ),
                };
                let is_wanted =
                    |found: &StoredValue| known.as_ref().is_none_or(|known| known == found);
                let removed = store.remove(open, AT_ONCE, place, &item, is_wanted);
                removed.map(drop)
            }
            9 => {
                let by = match script.byte() % 2 {
                    0 => Number::Int(i64::from(script.byte())),
                    _ => Number::Float(0.5),
                };
                store.add(open, AT_ONCE, place, &item, by).map(drop)
            }
            10 => match script.byte() % 2 {
                0 => store.copy(open, AT_ONCE, place),
                _ => store.copy_for_insert(open, AT_ONCE, place),
            }
            .map(|found| self.note(&found)),
            11 => {
                for (key, found) in store.items(open, AT_ONCE, place)? {
                    self.note(&key);
                    self.note(&found);
                }
                Ok(())
            }
            12 => store.keys(open, AT_ONCE, place).map(drop),
            13 => {
                for found in store.range(open, AT_ONCE, place, from, to)? {
                    self.note(&found);
                }
                Ok(())
            }
            14 | 15 => {
                let values = [new, Value::Immediate(Cell::NONE)];
                store.splice(open, AT_ONCE, place, from, to, &values)
            }
            16 => {
                let order: Vec<u32> = (0..from as u32).rev().collect();
                store.permute(open, AT_ONCE, place, &order).map(drop)
            }
            17 => store.insert(open, AT_ONCE, place, &key).map(drop),
            18 => store.discard(open, AT_ONCE, place, &key).map(drop),
            19 => store.contains(open, AT_ONCE, place, &key).map(drop),
            20 => store.send(open, AT_ONCE, &new, script.byte() % 2 == 0),
            21 => store
                .receive(open, AT_ONCE, StoredValue::is_plain)
                .map(drop),
            22 => match script.byte() % 4 {
                0 => store.first_message(open, AT_ONCE).map(drop),
                1 => store.define_class(open, AT_ONCE, &key, &new).map(drop),
                2 => store.classes(open, AT_ONCE).map(drop),
                _ => store.clear(open, AT_ONCE, place),
            },
            _ => store.len(open, AT_ONCE, place).map(drop),
        }
    }

    /// Runs an operation outside of transactions.
    fn alone(&mut self, place: ContainerRef, script: &mut Script) -> Result<(), StoreError> {
        let store = self.store;
        match script.byte() % 8 {
            0 | 1 => {
                let (block, len, _) = store.pin(AT_ONCE, place)?;
                let size = self.words.size() as u64;
                assert!(block + 64 + len <= size, "{len} bytes at {block}");
                self.pinned.push(block);
                Ok(())
            }
            2 => match self.pinned.pop() {
                Some(block) => store.unpin(AT_ONCE, block),
                None => Ok(()),
            },
            3 => {
                let watch = store.watch(AT_ONCE, place)?;
                self.watched.push((place, watch));
                Ok(())
            }
            4 => match self.watched.last() {
                Some(&(place, watch)) => store.has_changed(AT_ONCE, place, watch).map(drop),
                None => Ok(()),
            },
            5 => match self.watched.pop() {
                Some((_, watch)) => store.unwatch(AT_ONCE, watch),
                None => Ok(()),
            },
            6 => {
                let gone = u64::from(script.byte() % 4);
                store.recover(|member| member & 3 == gone, AT_ONCE)
            }
            _ => store.usage(AT_ONCE).map(drop),
        }
    }

    fn place(&self, script: &mut Script) -> ContainerRef {
        self.places[usize::from(script.byte()) % self.places.len()]
    }

    /// Keeps the containers that were found.
    fn note(&mut self, found: &StoredValue) {
        if let StoredValue::Container(_, place, _) = found {
            if self.places.len() == PLACES {
                self.store.proxies().remove(self.places.remove(3).id);
            }
            self.store.proxies().add(place.id);
            self.places.push(*place);
        }
    }

    /// Overwrites a word, as another member.
    fn corrupt(&self, script: &mut Script) {
        let at = self.somewhere(script).min(self.words.size() as u64 - 8) & !7;
        let Some(word) = self.words.word(at) else {
            return;
        };
        let found = word.load(Ordering::Relaxed);
        let place = self.place(script);
        let value = match script.byte() {
            0..24 => 0,
            24..48 => u64::MAX,
            48..72 => found.wrapping_add(1),
            72..96 => found.wrapping_sub(1),
            96..120 => u64::from(script.byte()),
            120..144 => found ^ 1 << (script.byte() % 64),
            144..160 => found.wrapping_add_signed(i64::from(script.byte() as i8) << 32),
            160..176 => found.wrapping_add_signed(i64::from(script.byte() as i8) * 8),
            // A cycle, or a container in two others.
            176..216 => {
                let kind = Type::of(script.byte() % 24).unwrap_or(Type::Tuple);
                Cell::at(kind, place.at).0
            }
            216..232 => place.at,
            232..244 => place.id,
            _ => script.u64(),
        };
        word.store(value, Ordering::Relaxed);
    }

    /// Returns an offset: of the header, the pins and watches, the metadata of the heap, the log, or a container.
    fn somewhere(&self, script: &mut Script) -> u64 {
        let (kind, index) = (script.byte(), u64::from(script.byte()) * 8);
        let log = self.words.size() as u64 - redo_log::SIZE;
        match kind {
            0..8 => index % 32,
            8..20 => PINS + index % 64,
            20..32 => WATCHES + index % 64,
            32..64 => BOOKS + index % 512,
            64..80 => BOOKS + 8 * u64::from(script.u32() % (1 << 14)),
            80..108 => log + index % 128,
            108..160 => self.place(script).at + index % 64,
            160..240 => {
                // The first word of its items; those of a dict lie behind its slots.
                let payload = self.words.word(self.place(script).at + 24);
                payload.map_or(0, |word| word.load(Ordering::Relaxed) & ((1 << 40) - 1))
                    + index % 512
            }
            _ => script.u64() % self.words.size() as u64,
        }
    }
}

/// Returns a key: a small one, a large one, or one of another type.
fn key(script: &mut Script) -> Key<'static> {
    let number = script.byte();
    match number % 8 {
        0..4 => Key::Immediate(Cell::int(i64::from(number)).expect("a small one")),
        4 => Key::Immediate(Cell::text(b"text").expect("a short one")),
        5 => Key::Blob(Type::Text, Bytes::Owned(vec![b'a' + number % 5; 12])),
        6 => Key::Blob(
            Type::Int,
            Bytes::Owned(vec![1; 8 + usize::from(number % 4)]),
        ),
        _ if number % 16 == 7 => {
            let equal = Key::Immediate(Cell::int(i64::from(number / 16)).expect("a small one"));
            Key::Alias(Box::new(equal), vec![b'm', number])
        }
        _ => Key::Other(vec![b'k', number % 4], vec![b'm', number]),
    }
}

fn keys(script: &mut Script) -> Vec<Key<'static>> {
    (0..script.byte() % 6).map(|_| key(script)).collect()
}

/// Returns a value with at most so many levels of nesting.
fn value(script: &mut Script, depth: u32) -> Value<'static> {
    let kind = script.byte() % if depth == 0 { 6 } else { 14 };
    let some = |script: &mut Script| -> Vec<Value<'static>> {
        (0..script.byte() % 5)
            .map(|_| value(script, depth - 1))
            .collect()
    };
    match kind {
        0..2 => Value::Immediate(Cell::int(i64::from(script.byte())).expect("a small one")),
        2 => Value::Immediate(Cell::float(1.5)),
        3 => Value::Immediate(Cell::NONE),
        4 => Value::Blob(
            Type::Text,
            Bytes::Owned(vec![b'a'; 6 + usize::from(script.byte()) * 8]),
        ),
        5 => Value::Blob(
            Type::Packed,
            Bytes::Owned(vec![1; usize::from(script.byte())]),
        ),
        6 => Value::Tuple(some(script)),
        7 => Value::FrozenSet(keys(script)),
        8 | 9 => Value::List(some(script)),
        10 => {
            let values = some(script);
            Value::Dict(
                values
                    .into_iter()
                    .map(|value| (key(script), value))
                    .collect(),
            )
        }
        11 => Value::Set(keys(script)),
        12 => {
            let fields = some(script);
            let extra = (script.byte() % 2 == 0).then(|| vec![(key(script), value(script, 0))]);
            Value::Record(u32::from(script.byte() % 3), fields, extra)
        }
        _ => Value::Buffer(
            Bytes::Owned(vec![b'b']),
            Bytes::Owned(vec![0; usize::from(script.byte()) * 40]),
        ),
    }
}
