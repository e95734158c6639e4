//! Changes of a commit that other members wait for.

use super::format::mutator::RemovedContainer;

/// Kinds of events in a commit that members may wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitNotice {
    /// True if a watched container was changed or deleted.
    pub changes: bool,
    /// The number of new messages.
    pub messages: u32,
    /// True if the lock was held for long and is free now.
    pub lock_released: bool,
}

/// The notifications that a transaction sends when it commits.
#[derive(Default)]
pub(super) struct PendingNotifications {
    pub(super) notice: CommitNotice,
    /// The contents of removed containers of which this process has proxies.
    pub(super) removed: Vec<RemovedContainer>,
    /// Of a store with an owner: the ids of changed containers, if readers may watch any.
    pub(super) touched: Vec<u64>,
    /// Of a store with an owner: the number of watches that readers had begun before the transaction.
    pub(super) begun: u64,
}

/// The state of the notifications at a savepoint.
#[derive(Clone, Copy)]
pub(super) struct NotificationMark {
    pub(super) notice: CommitNotice,
    pub(super) removed: usize,
    pub(super) touched: usize,
}

impl PendingNotifications {
    /// Returns the current state, for [`roll_back_to`](Self::roll_back_to).
    pub(in crate::store) fn mark(&self) -> NotificationMark {
        NotificationMark {
            notice: self.notice,
            removed: self.removed.len(),
            touched: self.touched.len(),
        }
    }

    /// Removes all notifications since `notified`.
    pub(in crate::store) fn roll_back_to(&mut self, notified: NotificationMark) {
        self.notice = notified.notice;
        self.removed.truncate(notified.removed);
        self.touched.truncate(notified.touched);
    }
}
