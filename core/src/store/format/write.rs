//! How a value becomes containers.

use super::budget::DEPTH;
use super::cell::{Cell, Type};
use super::head::{self, Owner};
use super::mutator::Hand;
use super::value::{Key, Value};
use crate::shared_heap::undo_log::Change;
use crate::shared_heap::{Members, Words};
use crate::store::error::StoreError;

impl<W: Words, M: Members> Hand<'_, '_, W, M> {
    /// Writes a value into blocks that nobody can reach. The cell by which they can be.
    pub(in crate::store) fn put(
        &mut self,
        value: &Value<'_>,
        owner: Owner,
    ) -> Result<Cell, StoreError> {
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

    pub(in crate::store) fn put_dict(
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
    pub(in crate::store) fn put_key_cell(&mut self, key: &Key<'_>) -> Result<Cell, StoreError> {
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
}
