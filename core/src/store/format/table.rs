//! Dicts and sets: hash tables that keep the order of insertion.
//!
//! ```text
//!    0  slots    u64   the number of slots, a power of two
//!    8  entries  u64   the capacity in the high half, the number of entries ever used in the low one
//!   16  index    u64   for each slot: 0, never used; 1, its entry was removed; or an entry's number plus two in the
//!                      low half and the high half of its key's hash
//!       entries  the cell of the key and, of a dict, of the value; empty if the entry was removed
//! ```

use super::blob;
use super::cell::{Cell, Content, Type};
use super::header::{self, Header};
use super::mutator::Mutator;
use super::value::{Canonical, Key};
use crate::shared_heap::access::{ReadWords, WriteWords};
use crate::shared_heap::{Members, Words};
use crate::store::error::{StoreError, corrupt_cell, corrupt_container};

const EMPTY: u64 = 0;
const REMOVED: u64 = 1;
const MIN_SLOTS: u64 = 8;

/// The location of the parts of a table.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Table {
    header: Header,
    block: u64,
    slots: u64,
    room: u64,
    /// The number of entries that were ever used.
    pub(in crate::store) used: u64,
    /// Words of an entry.
    width: u64,
}

/// Result of looking up a key.
enum Lookup {
    /// The number of its slot, and of its entry.
    Entry(u64, u64),
    /// The slot for the key, which is not in the table.
    Slot(u64),
}

impl Table {
    /// Reads the location of a table, and checks its sizes. Returns the error for a corrupt container if they do not
    /// fit.
    pub(in crate::store) fn of(t: &impl ReadWords, header: Header) -> Result<Self, StoreError> {
        let block = header.payload(t)?;
        let width = if header.kind == Type::Set { 1 } else { 2 };
        let mut table = Table {
            header,
            block,
            slots: 0,
            room: 0,
            used: 0,
            width,
        };
        if block != 0 {
            let (slots, entries) = (t.get(block)?, t.get(block + 8)?);
            (table.slots, table.room, table.used) = (slots, entries >> 32, entries & 0xffff_ffff);
            let fits = slots.is_power_of_two()
                && slots < 1 << 33
                && table.room < slots
                && table.used <= table.room;
            if !fits {
                return Err(corrupt_container(block, slots));
            }
        }
        match header.len <= table.used {
            true => Ok(table),
            false => Err(corrupt_container(header.at, header.len)),
        }
    }

    /// Returns the offset of a slot.
    #[inline]
    fn slot(&self, number: u64) -> u64 {
        self.block + 16 + 8 * number
    }

    /// Returns the offset of the key cell of an entry; the value cell is the next one. The number is not checked.
    #[inline]
    pub(in crate::store) fn entry(&self, number: u64) -> u64 {
        self.block + 16 + 8 * self.slots + 8 * self.width * number
    }

    /// Returns the key of an entry below `used`; None if the entry was removed.
    pub(in crate::store) fn key(
        &self,
        t: &impl ReadWords,
        number: u64,
    ) -> Result<Option<Cell>, StoreError> {
        let cell = Cell(t.get(self.entry(number))?);
        Ok((cell != Cell::NOTHING).then_some(cell))
    }

    /// Returns the value cell of an entry of a dict, below `used`; an empty cell if the entry was removed.
    pub(in crate::store) fn value(
        &self,
        t: &impl ReadWords,
        number: u64,
    ) -> Result<Cell, StoreError> {
        Ok(Cell(t.get(self.entry(number) + 8)?))
    }

    /// Looks up a key by its hash. Returns the slot and the entry of the key, or else a slot for the key; in a table
    /// without slots the number 0, which is none.
    fn lookup(
        &self,
        t: &impl ReadWords,
        key: &Canonical<'_>,
        hash: u64,
    ) -> Result<Lookup, StoreError> {
        if self.slots == 0 {
            return Ok(Lookup::Slot(0));
        }
        let (mut slot, mut free) = (hash & (self.slots - 1), None);
        for _ in 0..self.slots {
            let word = t.get(self.slot(slot))?;
            match word {
                EMPTY => return Ok(Lookup::Slot(free.unwrap_or(slot))),
                REMOVED => free = free.or(Some(slot)),
                _ if word >> 32 == hash >> 32 => {
                    let number = (word & 0xffff_ffff).wrapping_sub(2);
                    if number >= self.used {
                        return Err(corrupt_container(self.slot(slot), word));
                    }
                    if equals(t, Cell(t.get(self.entry(number))?), key)? {
                        return Ok(Lookup::Entry(slot, number));
                    }
                }
                _ => {}
            }
            slot = (slot + 1) & (self.slots - 1);
        }
        match free {
            Some(slot) => Ok(Lookup::Slot(slot)),
            None => Err(corrupt_container(self.block, self.slots)),
        }
    }

    /// Returns the number of the entry of a key; None if the table does not have it.
    #[inline]
    pub(in crate::store) fn find(
        &self,
        t: &impl ReadWords,
        key: &Key<'_>,
    ) -> Result<Option<u64>, StoreError> {
        let key = key.canonical();
        match self.lookup(t, &key, key.hash())? {
            Lookup::Entry(_, number) => Ok(Some(number)),
            Lookup::Slot(_) => Ok(None),
        }
    }

    /// Returns the offset of the value cell of a key of a dict, or [`StoreError::KeyNotFound`].
    #[inline]
    pub(in crate::store) fn value_at(
        &self,
        t: &impl ReadWords,
        key: &Key<'_>,
    ) -> Result<u64, StoreError> {
        let number = self.find(t, key)?.ok_or(StoreError::KeyNotFound)?;
        Ok(self.entry(number) + 8)
    }
}

/// Returns true if the key in a cell equals this one.
#[inline]
fn equals(t: &impl ReadWords, cell: Cell, key: &Canonical<'_>) -> Result<bool, StoreError> {
    if let (Canonical::Word(word), true) = (key, cell.is_immediate()) {
        return Ok(cell.as_key().0 == *word);
    }
    match cell.content() {
        Some(Content::At(Type::Alias, at)) => {
            let mut bytes = Vec::new();
            Ok(alias(t, at, cell, &mut bytes)? == *key)
        }
        Some(Content::At(kind, at)) => {
            let Some((wanted, len)) = key.form() else {
                return Ok(false);
            };
            if kind != wanted || blob::key_len(t, kind, at)? != len {
                return Ok(false);
            }
            blob::key_equals(t, at, key.bytes())
        }
        Some(_) => Ok(Canonical::of(cell) == *key),
        None => Err(corrupt_cell(0, cell.0)),
    }
}

/// Returns the key that an alias equals, which borrows from `bytes`.
#[cold]
fn alias<'b>(
    t: &impl ReadWords,
    at: u64,
    cell: Cell,
    bytes: &'b mut Vec<u8>,
) -> Result<Canonical<'b>, StoreError> {
    blob::append_key_bytes(t, Type::Alias, at, bytes)?;
    Canonical::from_bytes(bytes).ok_or_else(|| corrupt_cell(at, cell.0))
}

/// Returns the hash of the key of a cell.
fn hash_of(t: &impl ReadWords, cell: Cell) -> Result<u64, StoreError> {
    match cell.content() {
        Some(Content::At(Type::Alias, at)) => {
            let mut bytes = Vec::new();
            Ok(alias(t, at, cell, &mut bytes)?.hash())
        }
        Some(Content::At(kind, at)) => {
            let mut bytes = Vec::new();
            blob::append_key_bytes(t, kind, at, &mut bytes)?;
            Ok(Canonical::Blob(kind, &bytes).hash())
        }
        Some(_) => Ok(Canonical::of(cell).hash()),
        None => Err(corrupt_cell(0, cell.0)),
    }
}

/// Returns the number of slots, a power of two, for this many entries, which use at most three quarters of them.
fn slots_for(entries: u64) -> u64 {
    (entries + entries / 3 + 2)
        .next_power_of_two()
        .max(MIN_SLOTS)
}

impl<W: Words, M: Members> Mutator<'_, '_, W, M> {
    /// Writes a table with space for `wanted` entries, and with these: key, value and hash. Their keys must be unique.
    /// Returns the offset of its block, which the caller stores in the header; [`StoreError::CapacityExceeded`] if
    /// there are too many.
    fn fill_table(
        &mut self,
        entries: &[(Cell, Cell, u64)],
        wanted: u64,
        width: u64,
    ) -> Result<u64, StoreError> {
        if wanted > header::MAX_ITEMS / 2 {
            return Err(StoreError::CapacityExceeded);
        }
        let (slots, count) = (slots_for(wanted), entries.len() as u64);
        let room = slots / 4 * 3;
        let block = self.allocate(16 + 8 * slots + 8 * width * room)?;
        self.t.init(block, slots)?;
        self.t.init(block + 8, room << 32 | count)?;
        let mut index = vec![EMPTY; slots as usize];
        let start = block + 16 + 8 * slots;
        for (number, &(key, value, hash)) in (0..).zip(entries) {
            let at = start + 8 * width * number;
            self.t.init(at, key.0)?;
            if width == 2 {
                self.t.init(at + 8, value.0)?;
            }
            // Probes the private index: corrupt values in the block cannot make this loop forever.
            let mut slot = hash & (slots - 1);
            while index[slot as usize] != EMPTY {
                slot = (slot + 1) & (slots - 1);
            }
            index[slot as usize] = hash >> 32 << 32 | (number + 2);
        }
        for (slot, word) in (0..).zip(index) {
            self.t.init(block + 16 + 8 * slot, word)?;
        }
        Ok(block)
    }

    /// Writes a table with these entries: key, value and hash. Their keys must be unique. `width` is 2 for a dict and 1
    /// for a set, whose values are ignored. Returns the offset of its block; 0 if there are no entries.
    pub(in crate::store) fn make_table(
        &mut self,
        entries: &[(Cell, Cell, u64)],
        width: u64,
    ) -> Result<u64, StoreError> {
        if entries.is_empty() {
            return Ok(0);
        }
        self.fill_table(entries, entries.len() as u64, width)
    }

    /// Moves the entries of a full table to a new one with space for more, frees the old one, and returns the new one.
    fn rewrite_table(&mut self, table: &Table) -> Result<Table, StoreError> {
        let mut entries = Vec::new();
        for number in 0..table.used {
            let Some(key) = table.key(self.t, number)? else {
                continue;
            };
            let value = match table.width {
                2 => table.value(self.t, number)?,
                _ => Cell::NOTHING,
            };
            entries.push((key, value, hash_of(self.t, key)?));
        }
        // Twice as many, unless many of the old entries were removed.
        let wanted = (entries.len() as u64 * 3 / 2).max(MIN_SLOTS / 2);
        let wanted = wanted.max(entries.len() as u64 + 1);
        let block = self.fill_table(&entries, wanted, table.width)?;
        if table.block != 0 {
            self.free(table.block);
        }
        self.t.set(table.header.payload_at(), block)?;
        Table::of(self.t, table.header)
    }

    /// Adds an entry for a key that the table does not have, in a new block if the table is full. The cells of the key
    /// and of the value are already written. Adds one to the number of items.
    pub(in crate::store) fn add_entry(
        &mut self,
        mut table: Table,
        key: &Key<'_>,
        cell: Cell,
        value: Cell,
    ) -> Result<(), StoreError> {
        if table.used == table.room {
            table = self.rewrite_table(&table)?;
        }
        let canonical = key.canonical();
        let hash = canonical.hash();
        let Lookup::Slot(slot) = table.lookup(self.t, &canonical, hash)? else {
            return Err(corrupt_container(table.block, table.used));
        };
        let number = table.used;
        let at = table.entry(number);
        self.t.set(at, cell.0)?;
        if table.width == 2 {
            self.t.set(at + 8, value.0)?;
        }
        let word = hash >> 32 << 32 | (number + 2);
        self.t.set(table.slot(slot), word)?;
        self.t
            .set(table.block + 8, table.room << 32 | (number + 1))?;
        self.add_to_len(table.header, 1)
    }

    /// Removes the entry of a key, and subtracts one from the number of items. Returns the cells of its key and its
    /// value, which the caller frees; None if the table does not have the key.
    pub(in crate::store) fn remove_entry(
        &mut self,
        table: &Table,
        key: &Key<'_>,
    ) -> Result<Option<(Cell, Cell)>, StoreError> {
        let canonical = key.canonical();
        let Lookup::Entry(slot, number) = table.lookup(self.t, &canonical, canonical.hash())?
        else {
            return Ok(None);
        };
        let at = table.entry(number);
        let found = Cell(self.t.get(at)?);
        let value = match table.width {
            2 => table.value(self.t, number)?,
            _ => Cell::NOTHING,
        };
        self.t.set(at, Cell::NOTHING.0)?;
        if table.width == 2 {
            self.t.set(at + 8, Cell::NOTHING.0)?;
        }
        self.t.set(table.slot(slot), REMOVED)?;
        self.add_to_len(table.header, -1)?;
        Ok(Some((found, value)))
    }

    /// Stores the number of items of the container, `by` more than `header` has.
    fn add_to_len(&mut self, header: Header, by: i64) -> Result<(), StoreError> {
        let len = header.len.wrapping_add_signed(by);
        let (at, form) = Header { len, ..header }.form();
        Ok(self.t.set(at, form)?)
    }
}
