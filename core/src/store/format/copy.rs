//! How a container becomes a value again.

use super::blob;
use super::budget::Bound;
use super::cell::{Cell, Content, Type};
use super::head::head_of;
use super::head::{self, Head};
use super::list::Cells;
use super::record::extra_of;
use super::table::Table;
use super::value::{Found, Place};
use crate::shared_heap::undo_log::See;
use crate::store::error::{StoreError, no_cell};

/// Copies what a cell says; containers too, if it is to be `deep`.
pub(in crate::store) fn copy(
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
pub(in crate::store) fn copy_container(
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
            let extra = match extra_of(t, head)? {
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
pub(in crate::store) fn copy_cells(
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
pub(in crate::store) fn copy_dict(
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
pub(in crate::store) fn copy_keys(
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
pub(in crate::store) fn place_of(t: &impl See, cell: Cell) -> Result<Place, StoreError> {
    match cell.content() {
        Some(Content::At(kind, at)) if kind.is_container() => Head::at(t, at)?.place(t),
        _ => Err(no_cell(0, cell.0)),
    }
}
