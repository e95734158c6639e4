//! Writing values into containers and blobs.

use super::budget::DEPTH;
use super::cell::{Cell, Type};
use super::header::{self, Parent};
use super::mutator::Mutator;
use super::value::{Key, Value};
use crate::shared_heap::access::WriteWords;
use crate::shared_heap::{Members, Words};
use crate::store::error::StoreError;

impl<W: Words, M: Members> Mutator<'_, '_, W, M> {
    /// Writes a value with its contents into blocks that no other member can reach. Returns the cell that refers to it,
    /// which the caller stores. Fails with [`StoreError::NestingTooDeep`] below the greatest depth.
    pub(in crate::store) fn write(
        &mut self,
        value: &Value<'_>,
        parent: Parent,
    ) -> Result<Cell, StoreError> {
        let inner = parent.deeper();
        if parent.depth > DEPTH as u64 && !matches!(value, Value::Immediate(_) | Value::Blob(..)) {
            return Err(StoreError::NestingTooDeep);
        }
        match value {
            Value::Immediate(cell) => Ok(*cell),
            Value::Blob(kind, bytes) => Ok(Cell::at(*kind, self.write_blob(bytes.all())?)),
            Value::Tuple(items) => {
                let at = self.allocate(8 + 8 * items.len() as u64)?;
                self.t.init(at, items.len() as u64)?;
                for (index, item) in (1..).zip(items) {
                    let cell = self.write(item, inner)?;
                    self.t.init(at + 8 * index, cell.0)?;
                }
                Ok(Cell::at(Type::Tuple, at))
            }
            Value::FrozenSet(keys) => {
                let at = self.allocate(8 + 8 * keys.len() as u64)?;
                self.t.init(at, keys.len() as u64)?;
                for (index, key) in (1..).zip(keys) {
                    let cell = self.write_key(key)?;
                    self.t.init(at + 8 * index, cell.0)?;
                }
                Ok(Cell::at(Type::FrozenSet, at))
            }
            Value::List(items) => {
                let header = self.make_header(Type::List, 0, items.len() as u64, parent)?;
                if !items.is_empty() {
                    let block = self.allocate(8 + 8 * items.len() as u64)?;
                    self.t.init(block, (items.len() as u64) << 32)?;
                    for (index, item) in (1..).zip(items) {
                        let cell = self.write(item, inner.within(header))?;
                        self.t.init(block + 8 * index, cell.0)?;
                    }
                    self.t.init(header.payload_at(), block)?;
                }
                Ok(Cell::at(Type::List, header.at))
            }
            Value::Dict(items) => self.write_dict(items, parent),
            Value::Set(keys) => {
                let mut entries = Vec::with_capacity(keys.len());
                for key in keys {
                    let cell = self.write_key(key)?;
                    entries.push((cell, Cell::NOTHING, key.canonical().hash()));
                }
                let header = self.make_header(Type::Set, 0, keys.len() as u64, parent)?;
                let block = self.make_table(&entries, 1)?;
                self.t.init(header.payload_at(), block)?;
                Ok(Cell::at(Type::Set, header.at))
            }
            Value::Record(class, fields, extra) => {
                let header = self.make_header(Type::Record, *class, fields.len() as u64, parent)?;
                for (index, field) in (0..).zip(fields) {
                    let cell = self.write(field, inner.within(header))?;
                    self.t.init(header.at + header::SIZE + 8 * index, cell.0)?;
                }
                if let Some(extra) = extra {
                    let cell = self.write_dict(extra, inner.within(header))?;
                    self.t.init(header.payload_at(), cell.0)?;
                }
                Ok(Cell::at(Type::Record, header.at))
            }
            Value::Buffer(meta, bytes) => {
                let header = self.make_header(Type::Buffer, 0, 0, parent)?;
                let meta = self.write_blob(meta.all())?;
                let block = self.allocate(64 + bytes.all().len() as u64)?;
                self.t.init(block, bytes.all().len() as u64)?;
                self.t.init(block + 8, meta)?;
                self.t.init_bytes(block + 64, bytes.all())?;
                self.t.init(header.payload_at(), block)?;
                Ok(Cell::at(Type::Buffer, header.at))
            }
        }
    }

    /// Writes a dict, whose keys must be unique. Returns the cell that refers to it.
    pub(in crate::store) fn write_dict(
        &mut self,
        items: &[(Key<'_>, Value<'_>)],
        parent: Parent,
    ) -> Result<Cell, StoreError> {
        let header = self.make_header(Type::Dict, 0, items.len() as u64, parent)?;
        let mut entries = Vec::with_capacity(items.len());
        for (key, value) in items {
            let cell = self.write_key(key)?;
            let value = self.write(value, parent.deeper().within(header))?;
            entries.push((cell, value, key.canonical().hash()));
        }
        let block = self.make_table(&entries, 2)?;
        self.t.init(header.payload_at(), block)?;
        Ok(Cell::at(Type::Dict, header.at))
    }

    /// Writes a key into a block that no other member can reach. Returns the cell that refers to it.
    pub(in crate::store) fn write_key(&mut self, key: &Key<'_>) -> Result<Cell, StoreError> {
        match key {
            Key::Immediate(cell) => Ok(*cell),
            Key::Blob(kind, bytes) => Ok(Cell::at(*kind, self.write_blob(bytes.all())?)),
            Key::Other(canonical, exact) => {
                Ok(Cell::at(Type::Key, self.write_key_blob(canonical, exact)?))
            }
            Key::Alias(equal, exact) => {
                let equal = equal.canonical().to_bytes();
                Ok(Cell::at(Type::Alias, self.write_key_blob(&equal, exact)?))
            }
        }
    }
}
