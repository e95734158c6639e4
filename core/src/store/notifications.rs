//! What a commit has changed, as far as others wait for it.

use super::format::mutator::RemovedContainer;

/// What members may wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitNotice {
    /// A container was changed that somebody watches, or one has gone.
    pub changes: bool,
    /// This many more messages are there.
    pub messages: u32,
    /// The lease is free, which was held for long.
    pub lease: bool,
}

/// Of what others are to be told at the end of a transaction, and this process is to know.
#[derive(Default)]
pub(super) struct PendingNotifications {
    pub(super) notice: CommitNotice,
    /// The contents of removed containers of which this process has proxies.
    pub(super) removed: Vec<RemovedContainer>,
    /// Of a store with an owner: the containers that it has changed, if readers may watch some; and how many watches readers
    /// had begun before it.
    pub(super) touched: Vec<u64>,
    pub(super) begun: u64,
}

/// The amount of news at some moment.
#[derive(Clone, Copy)]
pub(super) struct NotificationMark {
    pub(super) notice: CommitNotice,
    pub(super) removed: usize,
    pub(super) touched: usize,
}

impl PendingNotifications {
    pub(in crate::store) fn notified(&self) -> NotificationMark {
        NotificationMark {
            notice: self.notice,
            removed: self.removed.len(),
            touched: self.touched.len(),
        }
    }

    /// Forgets what has come since.
    pub(in crate::store) fn roll_back_to(&mut self, notified: NotificationMark) {
        self.notice = notified.notice;
        self.removed.truncate(notified.removed);
        self.touched.truncate(notified.touched);
    }
}
