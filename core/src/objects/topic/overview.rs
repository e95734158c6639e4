//! An overview of a topic: its publishers and its subscribers.

use super::membership::TopicMembership;
use crate::objects::error::ObjectError;
use crate::objects::object::Object;
use crate::topic::Policy;
use crate::topic::directory::{SeatInfo, SeatState};
use crate::topic::log;
use crate::topic::mapped_log::{self, MappedLog};
use crate::topic::subscriber::PublisherId;

/// A publisher of a topic, as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublisherSeen {
    /// The identity of the publisher.
    pub source: PublisherId,
    /// The process id; 0 if the process is in another container or has ended.
    pub pid: libc::pid_t,
    /// The number of published records, and their bytes; None if this process cannot open the log.
    pub published: Option<(u64, u64)>,
}

/// A subscriber of a topic, as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriberSeen {
    /// The process id; 0 if the process is in another container or has ended.
    pub pid: libc::pid_t,
    /// The number of unread records of the given publishers; None if the subscriber reads from none of them.
    pub lag: Option<u64>,
    /// The number of missed records of these publishers.
    pub lost: u64,
    /// Bytes of pinned large records of these publishers.
    pub held: u64,
    /// The policy for a slow subscriber.
    pub policy: Policy,
    /// The argument of the policy: the n of `KeepLast(n)` or `Disconnect(n)`.
    pub number: u64,
}

/// The publishers and the subscribers of a topic.
#[derive(Debug)]
pub struct Overview {
    /// The publishers.
    pub publishers: Vec<PublisherSeen>,
    /// The subscribers, as all these publishers see them.
    pub subscribers: Vec<SubscriberSeen>,
    /// Bytes of memory: of the topic, and of its publishers' logs.
    pub size: u64,
}

impl TopicMembership {
    /// Returns the publishers and the subscribers, with their progress. Ignores the logs that this process cannot open.
    /// Raises what `Membership::check` raises.
    pub fn overview(&self) -> Result<Overview, ObjectError> {
        self.check()?;
        let directory = self.directory();
        let (mut publishers, mut ends) = (Vec::new(), Vec::new());
        let mut size = self.allocated().unwrap_or(0);
        for listed in
            (0..directory.capacity().listings).filter_map(|each| directory.listing_info(each))
        {
            let pid = self.process_of(listed.owner);
            let log = MappedLog::open(pid, listed.descriptor);
            let log = log
                .ok()
                .and_then(|memory| log::Log::open(memory, listed.token));
            if log.is_some() {
                size += mapped_log::allocated(pid, listed.descriptor);
            }
            let published = log.map(|log| log.published());
            if let Some((tail, _)) = published {
                ends.push((listed.listing, listed.generation, tail));
            }
            publishers.push(PublisherSeen {
                source: PublisherId {
                    listing: listed.listing,
                    generation: listed.generation,
                    owner: listed.owner,
                },
                pid,
                published,
            });
        }
        Ok(Overview {
            publishers,
            subscribers: self.subscribers_of(&ends),
            size,
        })
    }

    /// Returns the subscribers, with their progress in these publishers. A publisher is a listing, a generation, and
    /// the number of its next record. Skips subscribers that are joining.
    pub(super) fn subscribers_of(&self, publishers: &[(usize, u64, u64)]) -> Vec<SubscriberSeen> {
        let directory = self.directory();
        let seen = |each: SeatInfo| {
            // A joining subscriber may begin behind the last record.
            if each.word.state() == SeatState::Joining {
                return None;
            }
            let (mut lag, mut lost, mut held) = (None, 0_u64, 0_u64);
            for &(listing, generation, next) in publishers {
                if let Some(progress) = directory.progress(each.seat, listing, generation) {
                    lost = progress.lost.saturating_add(lost);
                    held = progress.held.saturating_add(held);
                    if let Some(behind) = next.checked_sub(progress.head) {
                        lag = Some(behind.saturating_add(lag.unwrap_or(0)));
                    }
                }
            }
            Some(SubscriberSeen {
                pid: self.process_of(each.owner),
                lag,
                lost,
                held,
                policy: each.word.policy()?,
                number: each.lag,
            })
        };
        directory.occupied_seats().filter_map(seen).collect()
    }
}
