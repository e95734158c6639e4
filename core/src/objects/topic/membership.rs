//! The membership of this process in a topic: the directory, the logs of publishers, and the publication and the
//! subscriptions of this process.

use crate::memory::mapping::SharedMapping;
use crate::memory::sealed;
use crate::objects::members::Holder;
use crate::objects::members::MemberId;
use crate::objects::members::watcher::Watched;
use crate::objects::membership::Membership;
use crate::objects::parts::Parts;
use crate::sync::lock;
use crate::topic::directory::{Capacity, Directory, ListingInfo};
use crate::topic::mapped_log::MappedLog;
use crate::topic::subscriber::Wakeups;
use std::any::Any;
use std::collections::HashMap;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

/// The wait set of subscribers that wait for a message.
pub const ITEMS: usize = 0;
/// The wait set of publishers that wait for room.
pub const ROOM: usize = 1;

/// The number of further attempts to open a log, and the pause before each.
const LOG_ATTEMPTS: usize = 10;
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(2);

/// The log of a publisher, mapped here.
pub type Log = Arc<MappedLog>;

/// The process ids of publishers when they were attached, by listing and generation.
pub(super) type Processes = Mutex<HashMap<(usize, u64), libc::pid_t>>;

/// The publication of this process, as its topic sees it.
pub(super) trait LocalPublication: Any + Send + Sync {
    /// Publishes what is written, and waits for subscribers that have not attached, because this process leaves: for at
    /// most one second.
    fn finish(&self);
}

/// A subscription of this process, as its topic sees it.
pub(super) trait LocalSubscription: Send + Sync {
    /// Attaches to publishers that have appeared. Errors are ignored: the next read raises them.
    fn attach_publishers(&self);
    /// Returns true if this thread was the last to read.
    fn was_read_by_this_thread(&self) -> bool;
}

/// The membership of this process in a topic.
pub struct TopicMembership {
    membership: Membership,
    directory: Directory<Arc<SharedMapping>>,
    file: Weak<OwnedFd>,
    /// The publication of this process, if it has one.
    pub(super) publication: Mutex<Option<Weak<dyn LocalPublication>>>,
    subscriptions: Mutex<Vec<Weak<dyn LocalSubscription>>>,
}

impl Deref for TopicMembership {
    type Target = Membership;

    fn deref(&self) -> &Membership {
        &self.membership
    }
}

impl TopicMembership {
    /// Builds the membership from its parts.
    pub fn build(parts: Parts) -> Arc<Self> {
        let start = parts.shape.data_at() as u64;
        Arc::new_cyclic(|weak: &Weak<Self>| {
            let weak: Weak<dyn Watched> = weak.clone();
            TopicMembership {
                directory: Directory::new(parts.mapping.clone(), start, Capacity::OF_A_TOPIC),
                file: Arc::downgrade(&parts.file),
                membership: Membership::new(parts, weak),
                publication: Mutex::default(),
                subscriptions: Mutex::default(),
            }
        })
    }

    /// Returns the directory of publishers and subscribers.
    pub(super) fn directory(&self) -> &Directory<Arc<SharedMapping>> {
        &self.directory
    }

    /// Returns the file of the memory, or None once this process has left.
    pub(super) fn file(&self) -> Option<Arc<OwnedFd>> {
        self.file.upgrade()
    }

    /// Returns the publication of this process; None if it has none, or if the last handle was dropped.
    pub(super) fn local_publication(&self) -> Option<Arc<dyn LocalPublication>> {
        lock(&self.publication).as_ref()?.upgrade()
    }

    /// Adds a subscription of this process.
    pub(super) fn add_subscription(&self, subscription: Weak<dyn LocalSubscription>) {
        let mut subscriptions = lock(&self.subscriptions);
        subscriptions.retain(|each| each.strong_count() > 0);
        subscriptions.push(subscription);
    }

    /// Returns the subscriptions of this process.
    pub(super) fn local_subscriptions(&self) -> Vec<Arc<dyn LocalSubscription>> {
        let subscriptions = lock(&self.subscriptions).clone();
        subscriptions.iter().filter_map(Weak::upgrade).collect()
    }

    /// Attaches the subscriptions of this process to publishers that have appeared.
    pub(super) fn attach_subscriptions(&self) {
        for subscription in self.local_subscriptions() {
            subscription.attach_publishers();
        }
    }

    /// Wakes all publishers that wait for room, if a change has made some.
    pub(super) fn wake_for(&self, wakeups: Wakeups) {
        if wakeups.room {
            self.wake_all(ROOM);
        }
    }

    /// Maps the log of a publisher, and notes the publisher's process in `processes`. Returns as the error the reason
    /// why the log cannot be opened, or None if the publisher has ended.
    pub(super) fn open_log(
        &self,
        listed: &ListingInfo,
        processes: &Processes,
    ) -> Result<Log, Option<String>> {
        match self.members().holder_of(MemberId(listed.owner)) {
            Some(Holder::Process(pid)) => {
                lock(processes).insert((listed.listing, listed.generation), pid);
                self.open_log_of(pid, listed)
            }
            Some(Holder::Elsewhere) => Err(Some(
                "it is in another container, where its memory cannot be opened from here"
                    .to_owned(),
            )),
            None => Err(None),
        }
    }

    /// Maps the log of a publisher in the process `pid`, with some attempts. Returns None as the error if the publisher
    /// is ending: the kernel may free its memory before its slot among the members, and long before on a busy machine.
    /// Sleeps between the attempts, for `LOG_ATTEMPTS` times `RETRY_PAUSE` at most.
    fn open_log_of(&self, pid: libc::pid_t, listed: &ListingInfo) -> Result<Log, Option<String>> {
        let is_alive = || match self.members().holder_of(MemberId(listed.owner)) {
            Some(Holder::Process(holder)) => holder == pid && !sealed::is_ending(pid),
            _ => false,
        };
        let open = || MappedLog::open(pid, listed.descriptor).map(Arc::new);
        let mut opened = open();
        for _ in 0..LOG_ATTEMPTS {
            if opened.is_ok() || !is_alive() {
                break;
            }
            thread::sleep(RETRY_PAUSE);
            opened = open();
        }
        opened.map_err(|why| is_alive().then_some(why))
    }
}
