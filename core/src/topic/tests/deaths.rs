//! Publishers and subscribers that are killed at each crash point: the others continue with all published records.

use super::*;
use crate::crash::{self, Point};
use crate::testing::{Child, TestRng, fork, scaled};
use std::thread;

/// The forked member.
const DYING: u64 = 1 << 40;

const LIMITS: PublisherLimits = PublisherLimits {
    high: 8,
    low: 4,
    memory: 256 << 10,
};

const OF_PUBLISHERS: [Point; 8] = [
    Point::ListingTaken,
    Point::ListingOpened,
    Point::RecordWritten,
    Point::RecordsPublished,
    Point::FloorRaised,
    Point::RecordsGivenUp,
    Point::CutOff,
    Point::ListingClosed,
];

const OF_SUBSCRIBERS: [Point; 8] = [
    Point::SeatTaken,
    Point::SeatJoining,
    Point::Attached,
    Point::SeatActive,
    Point::RecordsCopied,
    Point::RecordPinned,
    Point::HeadMoved,
    Point::PinCleared,
];

fn len_of(seq: u64) -> usize {
    if seq % 5 == 3 { 20_000 } else { 300 }
}

fn next_of(publisher: &mut Ours, id: u64) -> bool {
    let seq = publisher.next();
    publish(publisher, &payload(id, seq, len_of(seq))).is_ok()
}

/// Check that the child was killed at the armed point, which it had to pass.
fn is_killed(child: Child) {
    assert_eq!(child.wait(), libc::SIGKILL);
}

/// Read the pending records of one publisher, and check that they are consecutive.
fn read_on(reader: &mut Reader, process: i32, id: u64, next: &mut u64) -> Received {
    if reader.is_stale() {
        reader.refresh(&mut |listed: &ListingInfo| open_in(process, listed));
    }
    let (mut out, mut messages) = (Vec::new(), Vec::new());
    let taken = reader.receive(3, true, &mut out, &mut messages).0;
    for message in messages {
        assert_eq!(message.seq, *next);
        assert!(bytes_of(&message, &out) == payload(id, *next, len_of(*next)));
        *next += 1;
    }
    taken
}

#[test]
fn there_is_a_death_at_each_point() {
    let points = OF_PUBLISHERS.iter().chain(&OF_SUBSCRIBERS);
    let mut tried: Vec<usize> = points.map(|&point| point as usize).collect();
    tried.sort_unstable();
    let first = Point::DeadAllocationFound as usize + 1;
    assert!(tried.into_iter().eq(first..crash::NAMES.len()));
}

#[test]
fn a_publisher_that_is_killed_anywhere_leaves_what_it_has_published() {
    let _alone = crate::sync::lock(&crate::FORK);
    let mut rng = TestRng(19);
    for round in 0..scaled(5, 640) {
        for point in OF_PUBLISHERS {
            let topic = Topic::new();
            let mut reader = topic.subscriber(Policy::Block, 0, History::Oldest);
            let mut slow = topic.subscriber(Policy::Disconnect, 2, History::Oldest);
            let times = match point {
                Point::ListingTaken
                | Point::ListingOpened
                | Point::ListingClosed
                | Point::CutOff => 1,
                _ => rng.between(1, 30),
            };
            let child = fork(|| {
                crash::arm(point as usize, times, libc::SIGKILL, -1);
                let mut ours = topic.publisher_as(DYING, LIMITS, tight(LIMITS));
                while !ours.is_attached_by_all(OnFull::Fail) {
                    thread::yield_now();
                }
                while ours.next() < 200 {
                    if !next_of(&mut ours, 7) {
                        thread::yield_now();
                    }
                }
                ours.close();
            });
            let mut next = 0;
            let pid = child.id();
            while !child.has_ended() {
                read_on(&mut reader, pid, 7, &mut next);
                if slow.is_stale() {
                    slow.refresh(&mut |listed: &ListingInfo| open_in(pid, listed));
                }
            }
            is_killed(child);
            topic.directory().recover(|owner| owner == DYING);
            let at_death = next;
            while read_on(&mut reader, pid, 7, &mut next) != Received::Empty {}
            if point == Point::RecordsPublished {
                assert_eq!(next, times, "{round}");
            } else if point == Point::RecordWritten {
                assert_eq!(next, times - 1, "{round}");
            }
            assert!(next >= at_death && reader.sources().count() == 0);
            // The next publisher has its listing, and is read.
            let mut ours = topic.publisher_of(LIMITS, tight(LIMITS));
            assert_eq!(ours.listing().0, 0);
            assert!(next_of(&mut ours, 8));
            let (us, mut next) = (std::process::id() as i32, 0);
            while next < 1 {
                read_on(&mut reader, us, 8, &mut next);
            }
        }
    }
}

#[test]
fn a_subscriber_that_is_killed_anywhere_blocks_no_publisher() {
    let _alone = crate::sync::lock(&crate::FORK);
    let mut rng = TestRng(91);
    for _ in 0..scaled(5, 640) {
        for point in OF_SUBSCRIBERS {
            let topic = Topic::new();
            let mut ours = topic.publisher_of(LIMITS, tight(LIMITS));
            let mut other = topic.subscriber(Policy::Block, 0, History::Oldest);
            assert!(next_of(&mut ours, 7));
            let times = match point {
                Point::SeatTaken | Point::SeatJoining | Point::Attached | Point::SeatActive => 1,
                _ => rng.between(1, 20),
            };
            let us = std::process::id() as i32;
            let policy = match rng.below(3) {
                0 => (Policy::KeepLast, 8),
                _ => (Policy::Block, 0),
            };
            let child = fork(|| {
                crash::arm(point as usize, times, libc::SIGKILL, -1);
                let open = |listed: &ListingInfo| open_in(us, listed);
                let mut reader = topic.subscriber_as(DYING, policy, History::Oldest, open);
                let mut held = Vec::new();
                loop {
                    let (mut out, mut messages) = (Vec::new(), Vec::new());
                    reader.receive(3, true, &mut out, &mut messages);
                    held.append(&mut messages);
                    held.truncate(2);
                }
            });
            let (mut next, mut was_full) = (0, 0u64);
            while !child.has_ended() {
                was_full += u64::from(!next_of(&mut ours, 7));
                read_on(&mut other, us, 7, &mut next);
            }
            is_killed(child);
            topic.directory().recover(|owner| owner == DYING);
            // All that the dead subscriber has kept from others is free.
            let from = ours.next();
            while ours.next() < from + 100 {
                next_of(&mut ours, 7);
                read_on(&mut other, us, 7, &mut next);
            }
            while next < ours.next() {
                read_on(&mut other, us, 7, &mut next);
            }
            assert_eq!(topic.directory().occupied_seats().count(), 1, "{was_full}");
            assert_eq!(
                topic.subscriber(Policy::Block, 0, History::Oldest).seat(),
                1
            );
        }
    }
}
