//! Copying containers and other values out of a store.

use super::blob;
use super::budget::Budget;
use super::cell::{Cell, Content, Type};
use super::header::header_of;
use super::header::{self, Header};
use super::list::Cells;
use super::record::extra_of;
use super::table::Table;
use super::value::{ContainerRef, StoredValue};
use crate::shared_heap::access::ReadWords;
use crate::store::error::{StoreError, corrupt_cell};

/// Copies the value of a cell: containers with their contents if `deep`, and as references otherwise. Spends its words
/// from `budget`, and fails as [`Budget::spend`] and [`Budget::descend`] do.
pub(in crate::store) fn copy(
    t: &impl ReadWords,
    cell: Cell,
    deep: bool,
    budget: &mut Budget,
) -> Result<StoredValue, StoreError> {
    let (kind, at) = match cell.content() {
        Some(Content::At(kind, at)) => (kind, at),
        Some(_) => {
            budget.spend(1)?;
            return Ok(StoredValue::Immediate(cell));
        }
        None => return Err(corrupt_cell(0, cell.0)),
    };
    budget.spend(1)?;
    budget.descend()?;
    let found = copy_block(t, (kind, at), cell, deep, budget);
    budget.depth += 1;
    found
}

/// Copies the value in the block of this type and offset, to which `cell` refers.
fn copy_block(
    t: &impl ReadWords,
    (kind, at): (Type, u64),
    cell: Cell,
    deep: bool,
    budget: &mut Budget,
) -> Result<StoredValue, StoreError> {
    match kind {
        Type::Tuple | Type::FrozenSet => {
            let items = copy_cells(t, at + 8, t.get(at)?, deep, budget)?;
            Ok(match kind {
                Type::Tuple => StoredValue::Tuple(items),
                _ => StoredValue::FrozenSet(items),
            })
        }
        kind if !kind.is_container() => {
            let mut bytes = budget.allocate_bytes(blob::len(t, kind, at)?)?;
            blob::append_bytes(t, kind, at, &mut bytes)?;
            Ok(StoredValue::Blob(kind, bytes))
        }
        kind => {
            let header = header_of(t, kind, at, cell)?;
            match deep {
                true => copy_container(t, header, budget),
                false => Ok(StoredValue::Container(
                    kind,
                    header.reference(t)?,
                    header.class,
                )),
            }
        }
    }
}

/// Copies a container with its contents; a buffer as a reference if `budget` keeps those.
pub(in crate::store) fn copy_container(
    t: &impl ReadWords,
    header: Header,
    budget: &mut Budget,
) -> Result<StoredValue, StoreError> {
    Ok(match header.kind {
        Type::List => {
            let cells = Cells::of(t, header)?;
            StoredValue::List(copy_cells(t, cells.at(0), cells.len(), true, budget)?)
        }
        Type::Dict => StoredValue::Dict(copy_dict(t, header, true, budget)?),
        Type::Set => StoredValue::Set(copy_keys(t, header, budget)?),
        Type::Record => {
            let fields = copy_cells(t, header.at + header::SIZE, header.len, true, budget)?;
            let extra = match extra_of(t, header)? {
                Some(extra) => copy_dict(t, extra, true, budget)?,
                None => Vec::new(),
            };
            StoredValue::Record(header.class, fields, extra)
        }
        kind if budget.keeps_buffer_refs => {
            StoredValue::Container(kind, header.reference(t)?, header.class)
        }
        _ => {
            let mut meta = Vec::new();
            let block = header.payload(t)?;
            let mut bytes = budget.allocate_bytes(t.get(block)?)?;
            blob::append_bytes(t, Type::Bytes, t.get(block + 8)?, &mut meta)?;
            t.copy(block + 64, t.get(block)?, &mut bytes)?;
            StoredValue::Buffer(meta, bytes)
        }
    })
}

/// Copies the values of `count` adjacent cells.
pub(in crate::store) fn copy_cells(
    t: &impl ReadWords,
    at: u64,
    count: u64,
    deep: bool,
    budget: &mut Budget,
) -> Result<Vec<StoredValue>, StoreError> {
    let mut found = budget.allocate(count)?;
    for index in 0..count {
        found.push(copy(t, Cell(t.get(at + 8 * index)?), deep, budget)?);
    }
    Ok(found)
}

/// Copies the entries of a dict in the order of their insertion; the keys always with their contents.
pub(in crate::store) fn copy_dict(
    t: &impl ReadWords,
    header: Header,
    deep: bool,
    budget: &mut Budget,
) -> Result<Vec<(StoredValue, StoredValue)>, StoreError> {
    let table = Table::of(t, header)?;
    budget.spend(table.used)?;
    let mut items = budget.allocate(header.len)?;
    for number in 0..table.used {
        if let Some(key) = table.key(t, number)? {
            let key = copy(t, key, true, budget)?;
            items.push((key, copy(t, table.value(t, number)?, deep, budget)?));
        }
    }
    Ok(items)
}

/// Copies the keys of a dict or a set.
pub(in crate::store) fn copy_keys(
    t: &impl ReadWords,
    header: Header,
    budget: &mut Budget,
) -> Result<Vec<StoredValue>, StoreError> {
    let table = Table::of(t, header)?;
    budget.spend(table.used)?;
    let mut keys = budget.allocate(header.len)?;
    for number in 0..table.used {
        if let Some(key) = table.key(t, number)? {
            keys.push(copy(t, key, true, budget)?);
        }
    }
    Ok(keys)
}

/// Returns the container that a cell refers to, or the error for a corrupt cell.
pub(in crate::store) fn container_of(
    t: &impl ReadWords,
    cell: Cell,
) -> Result<ContainerRef, StoreError> {
    match cell.content() {
        Some(Content::At(kind, at)) if kind.is_container() => Header::at(t, at)?.reference(t),
        _ => Err(corrupt_cell(0, cell.0)),
    }
}
