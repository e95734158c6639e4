//! What members who are gone have left.

use crate::shared_heap::undo_log::{Change, See};
use crate::shared_heap::{Members, Words};
use crate::store::error::StoreError;
use crate::store::format::cell::{Cell, Type};
use crate::store::format::head::Owner;
use crate::store::format::pins::DOOMED;
use crate::store::format::roots::Root;
use crate::store::handle::Store;

impl<W: Words, M: Members> Store<W, M> {
    /// Makes what it begins with, unless it is there.
    pub fn found(&self, deadline: u64) -> Result<(), StoreError> {
        // It may be open while somebody else is within a transaction.
        let is_founded = self.log.read(deadline, |t| -> Result<bool, StoreError> {
            for root in Root::ALL {
                if t.get(self.root_at(root))? == 0 {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        if is_founded {
            return Ok(());
        }
        self.operate(None, deadline, |hand, _| {
            for root in Root::ALL {
                let at = self.root_at(root);
                if hand.t.get(at)? == 0 {
                    let kind = match root {
                        Root::Inbox => Type::List,
                        Root::Store | Root::Classes => Type::Dict,
                    };
                    let head = hand.make_head(kind, 0, 0, Owner::NONE)?;
                    hand.t.set(at, Cell::at(kind, head.at).0)?;
                }
            }
            Ok(())
        })
    }

    /// Ends what members who are gone looked at.
    pub fn recover(&self, is_gone: impl Fn(u64) -> bool, deadline: u64) -> Result<(), StoreError> {
        self.forget_readers(&is_gone);
        match self.is_reading() {
            true => Ok(()),
            false => self.recover_contents(&is_gone, deadline),
        }
    }

    pub(in crate::store) fn recover_contents(
        &self,
        is_gone: &dyn Fn(u64) -> bool,
        deadline: u64,
    ) -> Result<(), StoreError> {
        self.operate(None, deadline, |hand, _| {
            let orphans = self.pins().remove(hand.t, |member, _| is_gone(member))?;
            self.free_orphans(hand, orphans)?;
            self.watches().remove(hand.t, |member, _| is_gone(member))
        })
    }

    pub(in crate::store) fn forget_readers(&self, is_gone: &dyn Fn(u64) -> bool) {
        if let Some(readers) = self.readers() {
            readers.clear(is_gone);
        }
    }

    /// Gives back what all but this member looked at and waited for when they were owners.
    pub fn disinherit(&self, us: u64, deadline: u64) -> Result<(), StoreError> {
        self.recover_contents(&|member| member != us && member != DOOMED, deadline)
    }
}
