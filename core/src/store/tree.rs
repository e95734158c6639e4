//! Trees of containers: how a value becomes one, how one becomes a value again, and how it is freed.
//!
//! Each container is in one other, or in the store itself, so what is taken out is freed with all that is in it.

use super::blob;
use super::cell::{Cell, Content, Type};
use super::error::{StoreError, no_cell, no_container};
use super::head::{self, Head, Owner};
use super::held::Held;
use super::list::Cells;
use super::pins::Pins;
use super::table::Table;
use super::value::{Found, Key, Place, Value};
use crate::crash;
use crate::shared_heap::heap::Heap;
use crate::shared_heap::redo_log::Writer;
use crate::shared_heap::undo_log::{Change, See};
use crate::shared_heap::{Members, Words};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// The greatest nesting of containers and tuples, the store not counted: deeper values are refused.
pub const DEPTH: usize = 256;
/// The greatest depth of a copy: all that can be put in, with the store itself and the items of the innermost tuple.
pub(super) const COPIED: usize = DEPTH + 4;

/// What one operation may look at: as much as there can be, so that a lie does not lead it around for ever.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    cells: u64,
    depth: usize,
    /// There may be more, which is not to be looked at.
    is_cut: bool,
    /// Of buffers it is to be said which they are, and not what they hold.
    names_buffers: bool,
}

impl Bound {
    /// For a memory of this many bytes.
    pub(super) fn of(size: u64) -> Self {
        Bound {
            cells: size / 8,
            depth: COPIED,
            is_cut: false,
            names_buffers: false,
        }
    }

    /// For a copy that equals another one if nothing was changed meanwhile: what buffers hold changes in no transaction.
    pub(super) fn naming_buffers(self) -> Self {
        Bound {
            names_buffers: true,
            ..self
        }
    }

    /// For at most this many words: [`StoreError::TooMuch`] if there are more.
    pub(super) fn at_most(self, words: u64) -> Self {
        Bound {
            cells: words.min(self.cells),
            is_cut: words < self.cells,
            ..self
        }
    }

    /// Room for so many that are copied, of which there cannot be more than words.
    fn room<T>(&self, count: u64) -> Result<Vec<T>, StoreError> {
        let mut room = Vec::new();
        match room.try_reserve_exact(count.min(self.cells) as usize) {
            Ok(()) => Ok(room),
            Err(_) => Err(StoreError::NoMemory),
        }
    }

    /// Room for so many bytes.
    fn room_for_bytes(&mut self, len: u64) -> Result<Vec<u8>, StoreError> {
        self.look(len.div_ceil(8))?;
        let mut room = Vec::new();
        match room.try_reserve_exact(len as usize) {
            Ok(()) => Ok(room),
            Err(_) => Err(StoreError::NoMemory),
        }
    }

    /// It looks at this many more words.
    #[inline]
    fn look(&mut self, words: u64) -> Result<(), StoreError> {
        match self.cells.checked_sub(words) {
            Some(cells) => {
                self.cells = cells;
                Ok(())
            }
            None if self.is_cut => Err(StoreError::TooMuch),
            None => Err(no_cell(0, words)),
        }
    }

    /// It goes into what a cell leads to.
    #[inline]
    fn enter(&mut self) -> Result<(), StoreError> {
        self.depth = self.depth.checked_sub(1).ok_or(StoreError::TooDeep)?;
        Ok(())
    }
}

/// The id of a container, and what it held when it was removed.
pub(super) type Kept = (u64, Arc<Found>);

/// An operation that changes a store.
pub(super) struct Hand<'t, 'w, W, M> {
    pub(super) heap: &'t Heap,
    pub(super) t: &'t mut Writer<'w, W, M>,
    /// Where the number of the last container stands that was begun, and of the last one that was committed.
    pub(super) last_id: u64,
    pub(super) committed_id: u64,
    /// The containers that this process has proxies of.
    pub(super) held: &'t Held,
    /// The contents of the containers that the operation removes.
    pub(super) kept: Vec<Kept>,
    pub(super) pins: Pins,
    /// Of a store with an owner: whether something is out of it that a reader may look at.
    pub(super) dooms: Option<&'t AtomicBool>,
    pub(super) bound: Bound,
}

impl<W: Words, M: Members> Hand<'_, '_, W, M> {
    pub(super) fn allocate(&mut self, len: u64) -> Result<u64, StoreError> {
        Ok(self.heap.allocate(self.t, len)?)
    }

    pub(super) fn free(&mut self, block: u64) {
        self.heap.free(self.t, block);
    }

    /// How many blocks are to be freed at the end of the transaction.
    pub(super) fn frees(&self) -> usize {
        self.heap.frees(self.t)
    }

    /// A head with room for this many fields, which are not written.
    pub(super) fn make_head(
        &mut self,
        kind: Type,
        class: u32,
        len: u64,
        owner: Owner,
    ) -> Result<Head, StoreError> {
        if len > head::MOST {
            return Err(StoreError::TooLong);
        }
        let fields = if kind == Type::Record { len } else { 0 };
        let at = self.allocate(head::SIZE + 8 * fields)?;
        // The number is used up at once, whatever becomes of the transaction: no other container ever gets it.
        let number = self.t.get(self.last_id)?.wrapping_add(1);
        self.t.init(self.last_id, number)?;
        crash::point!(NumberTaken);
        self.t.set(self.committed_id, number)?;
        self.t.is_made(at);
        let head = Head {
            at,
            kind,
            class,
            len,
        };
        self.t.init(at, head::id(number))?;
        let (at_form, form) = head.form();
        self.t.init(at_form, form)?;
        self.t.init(head.owner_at(), owner.word())?;
        self.t.init(head.payload_at(), 0)?;
        Ok(head)
    }

    /// Writes a value into blocks that nobody can reach. The cell by which they can be.
    pub(super) fn put(&mut self, value: &Value<'_>, owner: Owner) -> Result<Cell, StoreError> {
        let inner = owner.deeper();
        if owner.depth > DEPTH as u64 && !matches!(value, Value::Immediate(_) | Value::Blob(..)) {
            return Err(StoreError::TooDeep);
        }
        match value {
            Value::Immediate(cell) => Ok(*cell),
            Value::Blob(kind, bytes) => Ok(Cell::at(*kind, self.put_blob(bytes.all())?)),
            Value::Tuple(items) => {
                let at = self.allocate(8 + 8 * items.len() as u64)?;
                self.t.init(at, items.len() as u64)?;
                for (index, item) in (1..).zip(items) {
                    let cell = self.put(item, inner)?;
                    self.t.init(at + 8 * index, cell.0)?;
                }
                Ok(Cell::at(Type::Tuple, at))
            }
            Value::FrozenSet(keys) => {
                let at = self.allocate(8 + 8 * keys.len() as u64)?;
                self.t.init(at, keys.len() as u64)?;
                for (index, key) in (1..).zip(keys) {
                    let cell = self.put_key_cell(key)?;
                    self.t.init(at + 8 * index, cell.0)?;
                }
                Ok(Cell::at(Type::FrozenSet, at))
            }
            Value::List(items) => {
                let head = self.make_head(Type::List, 0, items.len() as u64, owner)?;
                if !items.is_empty() {
                    let block = self.allocate(8 + 8 * items.len() as u64)?;
                    self.t.init(block, (items.len() as u64) << 32)?;
                    for (index, item) in (1..).zip(items) {
                        let cell = self.put(item, inner.within(head))?;
                        self.t.init(block + 8 * index, cell.0)?;
                    }
                    self.t.init(head.payload_at(), block)?;
                }
                Ok(Cell::at(Type::List, head.at))
            }
            Value::Dict(items) => self.put_dict(items, owner),
            Value::Set(keys) => {
                let mut entries = Vec::with_capacity(keys.len());
                for key in keys {
                    let cell = self.put_key_cell(key)?;
                    entries.push((cell, Cell::NOTHING, key.canonical().hash()));
                }
                let head = self.make_head(Type::Set, 0, keys.len() as u64, owner)?;
                let block = self.make_table(&entries, 1)?;
                self.t.init(head.payload_at(), block)?;
                Ok(Cell::at(Type::Set, head.at))
            }
            Value::Record(class, fields, extra) => {
                let head = self.make_head(Type::Record, *class, fields.len() as u64, owner)?;
                for (index, field) in (0..).zip(fields) {
                    let cell = self.put(field, inner.within(head))?;
                    self.t.init(head.at + head::SIZE + 8 * index, cell.0)?;
                }
                if let Some(extra) = extra {
                    let cell = self.put_dict(extra, inner.within(head))?;
                    self.t.init(head.payload_at(), cell.0)?;
                }
                Ok(Cell::at(Type::Record, head.at))
            }
            Value::Buffer(meta, bytes) => {
                let head = self.make_head(Type::Buffer, 0, 0, owner)?;
                let meta = self.put_blob(meta.all())?;
                let block = self.allocate(64 + bytes.all().len() as u64)?;
                self.t.init(block, bytes.all().len() as u64)?;
                self.t.init(block + 8, meta)?;
                self.t.init_bytes(block + 64, bytes.all())?;
                self.t.init(head.payload_at(), block)?;
                Ok(Cell::at(Type::Buffer, head.at))
            }
        }
    }

    fn put_dict(
        &mut self,
        items: &[(Key<'_>, Value<'_>)],
        owner: Owner,
    ) -> Result<Cell, StoreError> {
        let head = self.make_head(Type::Dict, 0, items.len() as u64, owner)?;
        let mut entries = Vec::with_capacity(items.len());
        for (key, value) in items {
            let cell = self.put_key_cell(key)?;
            let value = self.put(value, owner.deeper().within(head))?;
            entries.push((cell, value, key.canonical().hash()));
        }
        let block = self.make_table(&entries, 2)?;
        self.t.init(head.payload_at(), block)?;
        Ok(Cell::at(Type::Dict, head.at))
    }

    /// Writes a key into a block that nobody can reach.
    pub(super) fn put_key_cell(&mut self, key: &Key<'_>) -> Result<Cell, StoreError> {
        match key {
            Key::Immediate(cell) => Ok(*cell),
            Key::Blob(kind, bytes) => Ok(Cell::at(*kind, self.put_blob(bytes.all())?)),
            Key::Other(canonical, exact) => {
                Ok(Cell::at(Type::Key, self.put_key(canonical, exact)?))
            }
            Key::Alias(equal, exact) => {
                let equal = equal.canonical().flat();
                Ok(Cell::at(Type::Alias, self.put_key(&equal, exact)?))
            }
        }
    }

    /// Frees what a cell has led to, with all that is in it.
    #[inline]
    pub(super) fn free_all(&mut self, cell: Cell) -> Result<(), StoreError> {
        match cell.is_immediate() && cell.content().is_some() {
            true => Ok(()),
            false => self.free_tree(cell),
        }
    }

    fn free_tree(&mut self, cell: Cell) -> Result<(), StoreError> {
        self.free_each(vec![cell], self.bound)
    }

    /// The same, of many cells.
    pub(super) fn free_each(
        &mut self,
        mut left: Vec<Cell>,
        mut bound: Bound,
    ) -> Result<(), StoreError> {
        while let Some(cell) = left.pop() {
            let (kind, at) = match cell.content() {
                Some(Content::At(kind, at)) => (kind, at),
                Some(_) => continue,
                None => return Err(no_cell(0, cell.0)),
            };
            if kind.is_container() {
                let head = head_of(self.t, kind, at, cell)?;
                self.keep(head)?;
                self.leave(head, &mut left, &mut bound)?;
                self.t.set(at, 0)?;
            } else if matches!(kind, Type::Tuple | Type::FrozenSet) {
                let count = self.t.get(at)?;
                bound.look(count)?;
                for index in 1..=count {
                    left.push(Cell(self.t.get(at + 8 * index)?));
                }
            }
            self.free(at);
        }
        Ok(())
    }

    /// Keeps what a container holds that is about to be removed, if this process has a proxy of it.
    fn keep(&mut self, head: Head) -> Result<(), StoreError> {
        let id = self.t.get(head.at)?;
        if self.held.has(id) && head.kind != Type::Buffer {
            // What is nested too deep to be copied cannot be put either.
            if let Ok(found) = copy_container(self.t, head, &mut { self.bound }) {
                self.kept.push((id, Arc::new(found)));
            }
        }
        Ok(())
    }

    /// Frees the payload of a container with all that is in it.
    pub(super) fn empty(&mut self, head: Head) -> Result<(), StoreError> {
        let (mut left, mut bound) = (Vec::new(), self.bound);
        self.leave(head, &mut left, &mut bound)?;
        self.free_each(left, bound)
    }

    /// Frees the payload of a container; what was in it is still to be freed.
    fn leave(
        &mut self,
        head: Head,
        left: &mut Vec<Cell>,
        bound: &mut Bound,
    ) -> Result<(), StoreError> {
        let payload = match head.kind {
            Type::Record => {
                bound.look(head.len)?;
                for number in 0..head.len {
                    left.push(Cell(self.t.get(head.field(number)?)?));
                }
                left.push(head.extra(self.t)?);
                return Ok(());
            }
            _ => head.payload(self.t)?,
        };
        match head.kind {
            Type::Buffer => {
                let meta = self.t.get(payload + 8)?;
                self.free(meta);
                if self.pins.orphan(self.t, payload)? {
                    return Ok(()); // Whoever looks at it frees it.
                }
                if let Some(dooms) = self.dooms {
                    // Relaxed: looked at by whoever commits this, in this process.
                    dooms.store(true, Relaxed);
                    return match self.pins.doom(self.t, payload)? {
                        true => Ok(()),
                        false => Err(StoreError::TooLong),
                    };
                }
            }
            Type::List => {
                let cells = Cells::of(self.t, head)?;
                bound.look(cells.len())?;
                for index in 0..cells.len() {
                    left.push(cells.cell(self.t, index)?);
                }
            }
            _ => {
                let table = Table::of(self.t, head)?;
                bound.look(table.used)?;
                for number in 0..table.used {
                    let Some(key) = table.key(self.t, number)? else {
                        continue;
                    };
                    left.push(key);
                    if head.kind == Type::Dict {
                        left.push(table.value(self.t, number)?);
                    }
                }
            }
        }
        if payload != 0 {
            self.free(payload);
        }
        Ok(())
    }
}

/// The head that a cell leads to.
fn head_of(t: &impl See, kind: Type, at: u64, cell: Cell) -> Result<Head, StoreError> {
    let head = Head::at(t, at)?;
    match head.kind == kind && head::is_id(t.get(at)?) {
        true => Ok(head),
        false => Err(no_container(at, cell.0)),
    }
}

/// Copies what a cell says; containers too, if it is to be `deep`.
pub(super) fn copy(
    t: &impl See,
    cell: Cell,
    deep: bool,
    bound: &mut Bound,
) -> Result<Found, StoreError> {
    let (kind, at) = match cell.content() {
        Some(Content::At(kind, at)) => (kind, at),
        Some(_) => {
            bound.look(1)?;
            return Ok(Found::Immediate(cell));
        }
        None => return Err(no_cell(0, cell.0)),
    };
    bound.look(1)?;
    bound.enter()?;
    let found = copy_block(t, (kind, at), cell, deep, bound);
    bound.depth += 1;
    found
}

fn copy_block(
    t: &impl See,
    (kind, at): (Type, u64),
    cell: Cell,
    deep: bool,
    bound: &mut Bound,
) -> Result<Found, StoreError> {
    match kind {
        Type::Tuple | Type::FrozenSet => {
            let items = copy_cells(t, at + 8, t.get(at)?, deep, bound)?;
            Ok(match kind {
                Type::Tuple => Found::Tuple(items),
                _ => Found::FrozenSet(items),
            })
        }
        kind if !kind.is_container() => {
            let mut bytes = bound.room_for_bytes(blob::len(t, kind, at)?)?;
            blob::bytes(t, kind, at, &mut bytes)?;
            Ok(Found::Blob(kind, bytes))
        }
        kind => {
            let head = head_of(t, kind, at, cell)?;
            match deep {
                true => copy_container(t, head, bound),
                false => Ok(Found::Container(kind, head.place(t)?, head.class)),
            }
        }
    }
}

/// Copies a container with all that is in it.
pub(super) fn copy_container(
    t: &impl See,
    head: Head,
    bound: &mut Bound,
) -> Result<Found, StoreError> {
    Ok(match head.kind {
        Type::List => {
            let cells = Cells::of(t, head)?;
            Found::List(copy_cells(t, cells.at(0), cells.len(), true, bound)?)
        }
        Type::Dict => Found::Dict(copy_dict(t, head, true, bound)?),
        Type::Set => Found::Set(copy_keys(t, head, bound)?),
        Type::Record => {
            let fields = copy_cells(t, head.at + head::SIZE, head.len, true, bound)?;
            let extra = match super::extra_of(t, head)? {
                Some(extra) => copy_dict(t, extra, true, bound)?,
                None => Vec::new(),
            };
            Found::Record(head.class, fields, extra)
        }
        kind if bound.names_buffers => Found::Container(kind, head.place(t)?, head.class),
        _ => {
            let mut meta = Vec::new();
            let block = head.payload(t)?;
            let mut bytes = bound.room_for_bytes(t.get(block)?)?;
            blob::bytes(t, Type::Bytes, t.get(block + 8)?, &mut meta)?;
            t.copy(block + 64, t.get(block)?, &mut bytes)?;
            Found::Buffer(meta, bytes)
        }
    })
}

/// Copies cells that lie one after another.
pub(super) fn copy_cells(
    t: &impl See,
    at: u64,
    count: u64,
    deep: bool,
    bound: &mut Bound,
) -> Result<Vec<Found>, StoreError> {
    let mut found = bound.room(count)?;
    for index in 0..count {
        found.push(copy(t, Cell(t.get(at + 8 * index)?), deep, bound)?);
    }
    Ok(found)
}

/// Copies the entries of a dict.
pub(super) fn copy_dict(
    t: &impl See,
    head: Head,
    deep: bool,
    bound: &mut Bound,
) -> Result<Vec<(Found, Found)>, StoreError> {
    let table = Table::of(t, head)?;
    bound.look(table.used)?;
    let mut items = bound.room(head.len)?;
    for number in 0..table.used {
        if let Some(key) = table.key(t, number)? {
            let key = copy(t, key, true, bound)?;
            items.push((key, copy(t, table.value(t, number)?, deep, bound)?));
        }
    }
    Ok(items)
}

/// Copies the keys of a dict or a set.
pub(super) fn copy_keys(
    t: &impl See,
    head: Head,
    bound: &mut Bound,
) -> Result<Vec<Found>, StoreError> {
    let table = Table::of(t, head)?;
    bound.look(table.used)?;
    let mut keys = bound.room(head.len)?;
    for number in 0..table.used {
        if let Some(key) = table.key(t, number)? {
            keys.push(copy(t, key, true, bound)?);
        }
    }
    Ok(keys)
}

/// The place of a container that a cell leads to.
pub(super) fn place_of(t: &impl See, cell: Cell) -> Result<Place, StoreError> {
    match cell.content() {
        Some(Content::At(kind, at)) if kind.is_container() => Head::at(t, at)?.place(t),
        _ => Err(no_cell(0, cell.0)),
    }
}
