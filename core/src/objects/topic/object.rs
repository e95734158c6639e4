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

    /// Publishes what is written before this process leaves the directory.
    fn release_held(&self) -> Option<MutexGuard<'_, ()>> {
        if let Some(publication) = self.local_publication() {
            publication.finish();
        }
        let self_id = self.members().self_id().0;
        self.directory().recover(|owner| owner == self_id);
        None
    }

    fn recover_slot(&self, slot: u32) {
        // The slot may be ours now.
        let self_id = self.members().self_id().0;
        self.directory()
            .recover(|owner| MemberId(owner).slot() == Some(slot) && owner != self_id);
    }

    fn after_recovery(&self) {
        if self.check().is_ok() {
            self.attach_subscriptions();
        }
    }

    /// Returns the bytes of the topic's own memory, without the logs of its publishers.
    fn allocated(&self) -> io::Result<u64> {
        let status = self.file().and_then(|file| fstat(file.as_fd()).ok());
        Ok(status.map_or(0, |status| BLOCK * status.st_blocks as u64))
    }
}
