//! A topic as an object: the implementation of `Object`.

use super::membership::TopicMembership;
use crate::objects::members::MemberId;
use crate::objects::membership::Membership;
use crate::objects::object::Object;
use crate::os::fstat;
use crate::topic::mapped_log::BLOCK;
use std::io;
use std::os::fd::AsFd;
use std::sync::MutexGuard;

impl Object for TopicMembership {
    fn membership(&self) -> &Membership {
        self
    }

    /// Publishes what is written, then frees all that this process has in the directory. Returns None, because no guard
    /// is needed.
    fn release_held(&self) -> Option<MutexGuard<'_, ()>> {
        if let Some(publication) = self.local_publication() {
            publication.finish();
        }
        let self_id = self.members().self_id().0;
        self.directory().recover(|owner| owner == self_id);
        None
    }

    /// Frees what the dead member of a slot had in the directory. Keeps what this process has, because
    /// the slot may belong to this process now.
    fn recover_slot(&self, slot: u32) {
        // The slot may be ours now.
        let self_id = self.members().self_id().0;
        self.directory()
            .recover(|owner| MemberId(owner).slot() == Some(slot) && owner != self_id);
    }

    /// Attaches the subscriptions of this process to publishers that have appeared.
    fn after_recovery(&self) {
        if self.check().is_ok() {
            self.attach_subscriptions();
        }
    }

    /// Returns the allocated bytes of the topic's own memory, without the logs of its publishers; 0 if the file cannot
    /// be examined. Never fails.
    fn allocated(&self) -> io::Result<u64> {
        let status = self.file().and_then(|file| fstat(file.as_fd()).ok());
        Ok(status.map_or(0, |status| BLOCK * status.st_blocks as u64))
    }
}
