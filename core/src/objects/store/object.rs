//! A store as an object: the implementation of `Object`.

use super::copies::copy_of;
use super::membership::StoreMembership;
use crate::clock;
use crate::crash;
use crate::memory::named;
use crate::objects::deadline::RECOVERY_TIMEOUT;
use crate::objects::error::ObjectError;
use crate::objects::members::MemberId;
use crate::objects::membership::Membership;
use crate::objects::object::Object;
use std::io;
use std::sync::MutexGuard;

impl Object for StoreMembership {
    fn membership(&self) -> &Membership {
        self
    }

    /// Reports to the owner of a single-writer store that this process has mapped no contents.
    fn prepare_slot(&self) {
        // This process has no contents so far, whatever the last member of the slot had.
        self.unchecked_store()
            .report_mapped(self.members().slot(), 0);
    }

    /// Moves to the current copy, if there is one. In a single-writer store, becomes the owner if `is_writable` is true
    /// and there is none, otherwise a reader, whose watcher follows new owners.
    fn join(&self, is_writable: bool) -> Result<(), ObjectError> {
        if !self.shape().has_single_writer() {
            let moved = self.finish_replacing();
            return moved.map_err(|error| error.into_object_error("a copy of it cannot be made"));
        }
        if is_writable {
            self.become_owner()?;
        }
        self.become_reader()?;
        self.begin_following()
    }

    /// Becomes the owner of a single-writer store that has none.
    fn reopen(&self) -> Result<(), ObjectError> {
        match self.shape().has_single_writer() {
            true => self.become_owner(),
            false => Ok(()),
        }
    }

    /// Undoes the open transaction, and ends the pins and watches of this process. Returns the guard of
    /// `lock_contents`.
    fn release_held(&self) -> Option<MutexGuard<'_, ()>> {
        let guard = self.lock_contents();
        let (store, self_id) = (self.unchecked_store(), self.members().self_id());
        if let Some(transaction) = self.transaction.lock().take() {
            store.abandon(transaction.open);
        }
        if !store.is_read_only() {
            store.notify_all_readers(); // Nothing changes until there is another owner.
        }
        store.report_leaving(self_id.slot().unwrap_or_default());
        // Other threads of ours first: an owner lock of a process that is no member would be taken over.
        store.close(clock::now() + RECOVERY_TIMEOUT);
        let is_gone = |member| member == self_id.0;
        let _ = store.recover(is_gone, clock::now() + RECOVERY_TIMEOUT);
        Some(guard)
    }

    fn close_files(&self) {
        self.close_contents_file();
    }

    /// Removes the file of the copy that had the contents, if there is one.
    fn memory_removed(&self) {
        let copy = copy_of(self.mapping(), self.shape(), self.memory_name());
        if let Some(copy) = copy {
            let _ = named::remove(&copy);
        }
    }

    /// Ends the pins and watches of the dead member of a slot; of the owner of a single-writer store, also marks all
    /// watches of readers as changed. Waits for the owner lock for at most `RECOVERY_TIMEOUT`; false then, and after
    /// other errors.
    fn recover_contents(&self, slot: u32) -> bool {
        let is_gone = |member| MemberId(member).slot() == Some(slot);
        let store = self.unchecked_store();
        if self.shape().has_single_writer() && is_gone(store.owner_header().owner) {
            store.notify_all_readers(); // The owner may have died between a commit and its notification.
        }
        let recovered = self.in_current_contents(|store| {
            let recovered = store.recover(is_gone, clock::now() + RECOVERY_TIMEOUT);
            crash::point!(StoreRecovered);
            recovered.map_err(|error| self.map_error(error))
        });
        recovered.is_ok()
    }

    /// Maps the contents of a new owner of a single-writer store, if there is one.
    fn before_recovery(&self) {
        self.keep_up(); // First: the new owner waits for that.
    }

    fn allocated(&self) -> io::Result<u64> {
        self.allocated_contents()
    }
}
