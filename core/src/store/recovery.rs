//! Initializing a store, and releasing the pins and watches of members who are gone.

use crate::shared_heap::access::{ReadWords, WriteWords};
use crate::shared_heap::{Members, Words};
use crate::store::error::StoreError;
use crate::store::format::cell::{Cell, Type};
use crate::store::format::header::Parent;
use crate::store::format::pins::DEFERRED_FREE;
use crate::store::format::roots::Root;
use crate::store::handle::Store;

impl<W: Words, M: Members> Store<W, M> {
    /// Creates the containers that a store begins with. Idempotent. Takes the lock, for which it waits until
    /// `deadline`, only if one of them is missing.
    pub fn initialize(&self, deadline: u64) -> Result<(), StoreError> {
        // Reads first: another process may be within a transaction.
        let is_initialized = self.log.read(deadline, |t| -> Result<bool, StoreError> {
            for root in Root::ALL {
                if t.get(self.root_at(root))? == 0 {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        if is_initialized {
            return Ok(());
        }
        self.operate(None, deadline, |mutator, _| {
            for root in Root::ALL {
                let at = self.root_at(root);
                if mutator.t.get(at)? == 0 {
                    let kind = match root {
                        Root::Inbox => Type::List,
                        Root::Store | Root::Classes => Type::Dict,
                    };
                    let header = mutator.make_header(kind, 0, 0, Parent::NONE)?;
                    mutator.t.set(at, Cell::at(kind, header.at).0)?;
                }
            }
            Ok(())
        })
    }

    /// Ends the pins and watches of members for which `is_gone` returns true, and frees the blocks that only they kept:
    /// in the reader table, and in the store unless this process only reads it. Waits for the lock until `deadline`,
    /// then fails with `HeapError::Busy`.
    pub fn recover(&self, is_gone: impl Fn(u64) -> bool, deadline: u64) -> Result<(), StoreError> {
        self.clear_reader_entries(&is_gone);
        match self.is_read_only() {
            true => Ok(()),
            false => self.recover_contents(&is_gone, deadline),
        }
    }

    /// Ends the pins and watches in the store itself, and frees the blocks that only they kept.
    pub(in crate::store) fn recover_contents(
        &self,
        is_gone: &dyn Fn(u64) -> bool,
        deadline: u64,
    ) -> Result<(), StoreError> {
        self.operate(None, deadline, |mutator, _| {
            let unpinned = self.pins().remove(mutator.t, |member, _| is_gone(member))?;
            self.free_unpinned(mutator, unpinned)?;
            self.versions()
                .remove(mutator.t, |member, _| is_gone(member))
        })
    }

    /// Frees the entries in the reader table of members for which `is_gone` returns true.
    pub(in crate::store) fn clear_reader_entries(&self, is_gone: &dyn Fn(u64) -> bool) {
        if let Some(readers) = self.reader_table() {
            readers.clear(is_gone);
        }
    }

    /// Ends the pins and watches that all members but this one began while they were owners.
    pub fn release_former_owners(&self, self_id: u64, deadline: u64) -> Result<(), StoreError> {
        self.recover_contents(
            &|member| member != self_id && member != DEFERRED_FREE,
            deadline,
        )
    }
}
