//! Waking of sleepers, here and in other processes, and requests to the watcher.

use super::members::watcher;
use super::membership::{Membership, WaitSet};
use crate::sync::lock;
use crate::wait::doorbell::Ringer;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Membership {
    /// Wakes the next sleeper of a wait set. Returns false if there is none.
    ///
    /// The woken sleeper may not react, because its loop computes or its process is stopped. If others sleep on, the
    /// watcher rechecks after a while whether the reason to wake still exists, and then wakes the next.
    #[inline]
    pub fn wake_next(&self, set: usize) -> bool {
        let woken = self.sets[set].wake_one();
        // Relaxed: a hint.
        self.has_woken.store(woken, Relaxed);
        if woken && !self.is_recheck_requested.load(Relaxed) && self.sets[set].sleepers() > 1 {
            self.request_recheck();
        }
        woken
    }

    /// Wakes the next sleeper of a wait set, unless `is_handed_over` returns true. Calls `is_handed_over` only if there
    /// is a sleeper.
    #[inline]
    pub(super) fn wake_next_unless(&self, set: usize, is_handed_over: impl FnOnce() -> bool) {
        let mut handed_over = false;
        let woken = self.sets[set].wake_one_unless(|| {
            handed_over = is_handed_over();
            handed_over
        });
        // Relaxed: a hint.
        self.has_woken.store(woken, Relaxed);
        // The process to which it was handed over may be stopped: see `wake_next`.
        let others_sleep = handed_over || woken && self.sets[set].sleepers() > 1;
        if others_sleep && !self.is_recheck_requested.load(Relaxed) {
            self.request_recheck();
        }
    }

    /// Wakes the next sleeper of a wait set, if there is one, without a recheck by the watcher.
    pub(super) fn wake_one(&self, set: usize) {
        self.sets[set].wake_one();
    }

    /// Wakes all sleepers of a wait set.
    pub fn wake_all(&self, set: usize) {
        self.sets[set].wake_all();
    }

    /// Wakes all sleepers of all wait sets, in all processes.
    pub fn wake_all_sets(&self) {
        for set in &self.sets {
            set.wake_all();
        }
    }

    /// Returns the number of sleepers of a wait set; 0 if there is no such set.
    pub fn count_sleepers(&self, set: usize) -> usize {
        self.sets.get(set).map_or(0, |set| set.sleepers())
    }

    /// Returns the wait sets.
    pub(super) fn sets(&self) -> &[Arc<WaitSet>] {
        &self.sets
    }

    /// Asks the watcher to recheck after a while.
    #[cold]
    fn request_recheck(&self) {
        // Relaxed: the watcher learns of it by a system call.
        if !self.is_recheck_requested.swap(true, Relaxed) {
            // Without a watcher the woken sleeper has the turn, however long it takes.
            self.request_chore();
        }
    }

    /// Returns true if the watcher must recheck.
    pub(super) fn is_recheck_requested(&self) -> bool {
        // Relaxed: a hint.
        self.is_recheck_requested.load(Relaxed)
    }

    /// Notes that the watcher rechecks now.
    pub(super) fn begin_recheck(&self) {
        self.is_recheck_requested.store(false, Relaxed);
    }

    /// Wakes the watcher to check the requested chores, and starts to watch the object. Does nothing if the watcher
    /// cannot be started.
    #[cold]
    pub(super) fn request_chore(&self) {
        if let Some(object) = self.weak_self.upgrade() {
            let _ = watcher::request(&object);
        }
    }

    /// Rings the doorbells of the other members' watchers, because this process has joined or has begun to publish.
    /// Errors are ignored.
    pub(super) fn notify_watchers(&self) {
        let watch = lock(&self.watch);
        let mut ringer = None;
        for slot in self.members().watching_slots() {
            if ringer.is_none() {
                ringer = Ringer::new().ok();
            }
            if let Some(ringer) = &ringer {
                ringer.ring(&watch.doorbell_path(slot));
            }
        }
    }
}
