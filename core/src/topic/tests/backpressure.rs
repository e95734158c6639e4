//! Which subscribers a publisher waits for, and which records it keeps for them.

use super::*;
use crate::topic::blocks::PAGE;
use crate::topic::log::CutReason;
use crate::topic::publisher::NoRoomCause;

fn numbered(publisher: &mut Ours) -> Result<(), PublishError> {
    let bytes = payload(0, publisher.next(), 50);
    publish(publisher, &bytes)
}

fn publish_all(publisher: &mut Ours, count: u64) {
    for _ in 0..count {
        numbered(publisher).unwrap();
    }
}

fn full(refused: Result<(), PublishError>) -> crate::topic::publisher::NoRoom {
    match refused {
        Err(PublishError::Full(slowest)) => slowest,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_subscriber_reads_all_records_and_the_publisher_waits_for_the_slowest() {
    let topic = Topic::new();
    let mut publisher = topic.publisher(limits(8, 4, MIB));
    let mut quick = topic.subscriber(Policy::Block, 0, History::Last(0));
    let mut slow = topic.subscriber(Policy::Block, 0, History::Last(0));
    publish_all(&mut publisher, 8);
    assert_eq!(numbers(&take(&mut quick, 100)), (0..8).collect::<Vec<_>>());
    let slowest = full(numbered(&mut publisher));
    assert_eq!((slowest.lag, slowest.cause), (8, NoRoomCause::Records));
    assert_eq!(slowest.owner, Some(3));
    assert_eq!(numbers(&take(&mut slow, 1)), [0]);
    publish_all(&mut publisher, 1);
    full(numbered(&mut publisher));
    for (seq, bytes) in take(&mut slow, 100) {
        assert_eq!(bytes, payload(0, seq, 50));
    }
    assert_eq!(numbers(&take(&mut quick, 100)), [8]);
}

#[test]
fn a_blocking_subscriber_copies_only_a_part_of_the_ring_at_once() {
    let topic = Topic::new();
    let mut publisher = topic.publisher(limits(1000, 500, MIB));
    let mut reader = topic.subscriber(Policy::Block, 0, History::Last(0));
    let mut add = |len| {
        let bytes = payload(0, publisher.next(), len);
        publish(&mut publisher, &bytes).map(|()| publisher.next())
    };
    let mut all = 0;
    while let Ok(count) = add(10_000) {
        all = count;
    }
    let mut read = numbers(&take(&mut reader, 1000)).len() as u64;
    assert!(read > 1 && read <= all / 3, "{read} of {all}");
    add(10_000).unwrap();
    // Large records are not in the ring: as many come at once as are requested.
    for _ in 0..8 {
        all = add(100_000).unwrap();
    }
    let mut last = 0;
    while read < all {
        let taken = take(&mut reader, 1000);
        last = taken.len();
        for (seq, bytes) in taken {
            assert_eq!((seq, &bytes), (read, &payload(0, seq, bytes.len())));
            read += 1;
        }
    }
    assert!(last >= 8, "{last}");
}

#[test]
fn keep_last_never_blocks_the_publisher_and_counts_missed_records() {
    let topic = Topic::new();
    let mut publisher = topic.publisher(limits(8, 4, MIB));
    let mut chart = topic.subscriber(Policy::KeepLast, 3, History::Last(0));
    publish_all(&mut publisher, 100_000);
    assert_eq!(numbers(&take(&mut chart, 100)), [99_997, 99_998, 99_999]);
    assert_eq!(chart.lost(), 99_997);
    publish_all(&mut publisher, 2);
    assert_eq!(numbers(&take(&mut chart, 100)), [100_000, 100_001]);
    assert_eq!(chart.lost(), 99_997);
}

#[test]
fn a_disconnect_subscriber_is_cut_off_beyond_its_lag() {
    let topic = Topic::new();
    let mut publisher = topic.publisher(limits(64, 4, MIB));
    let mut reader = topic.subscriber(Policy::Disconnect, 5, History::Last(0));
    publish_all(&mut publisher, 5);
    assert_eq!(take(&mut reader, 100).len(), 5);
    publish_all(&mut publisher, 100);
    let source = reader.sources().next().unwrap();
    assert_eq!(
        trouble(&mut reader),
        Received::CutOff(source, CutReason::Lag)
    );
    // Only that publisher is reported, because the subscriber is attached to no other.
    reader.refresh(&mut open);
    assert_eq!(trouble(&mut reader), Received::Empty);
    let other = topic.publisher(limits(64, 4, MIB));
    assert!(reader.is_stale());
    reader.refresh(&mut open);
    assert_eq!(reader.sources().count(), 1);
    drop(other);
}

#[test]
fn late_subscribers_begin_at_the_requested_history() {
    let topic = Topic::new();
    let mut publisher = topic.publisher(limits(16, 4, MIB));
    publish_all(&mut publisher, 10);
    for (history, expected) in [
        (History::Last(0), vec![]),
        (History::Last(3), vec![7, 8, 9]),
        (History::Last(100), (0..10).collect()),
        (History::Oldest, (0..10).collect()),
    ] {
        for policy in [Policy::Block, Policy::Disconnect] {
            let mut reader = topic.subscriber(policy, 0, history);
            assert_eq!(numbers(&take(&mut reader, 100)), expected, "{history:?}");
            reader.leave();
        }
    }
    publish_all(&mut publisher, 100_000);
    let mut reader = topic.subscriber(Policy::Block, 0, History::Oldest);
    let taken = numbers(&take(&mut reader, 100));
    assert!(taken.len() >= 16, "{taken:?}: at least `high` are kept");
    assert_eq!(*taken.last().unwrap(), 100_009);
}

#[test]
fn present_subscribers_read_all_records_of_a_new_publisher() {
    let topic = Topic::new();
    let mut reader = topic.subscriber(Policy::Block, 0, History::Last(0));
    let mut publisher = topic.publisher(limits(8, 4, MIB));
    assert!(!publisher.is_attached_by_all(WAITS));
    publish_all(&mut publisher, 8);
    assert_eq!(full(numbered(&mut publisher)).lag, 8);
    assert_eq!(numbers(&take(&mut reader, 100)), (0..8).collect::<Vec<_>>());
    assert!(publisher.is_attached_by_all(WAITS));
}

#[test]
fn what_was_published_is_read_after_its_publisher_is_gone() {
    let topic = Topic::new();
    let mut publisher = topic.publisher(limits(8, 4, MIB));
    let mut reader = topic.subscriber(Policy::Block, 0, History::Last(0));
    publish_all(&mut publisher, 3);
    publisher
        .append(0, b"is not published", false, OnFull::Fail)
        .unwrap();
    topic.directory().recover(|owner| owner == 1);
    drop(publisher);
    // Another publisher has its listing by now.
    let mut next = topic.publisher(limits(8, 4, MIB));
    publish_all(&mut next, 1);
    let source = reader.sources().next().unwrap();
    assert_eq!(numbers(&take(&mut reader, 2)), [0, 1]);
    assert_eq!(reader.sources().count(), 2);
    let mut rest = numbers(&take(&mut reader, 100));
    rest.sort_unstable();
    assert_eq!(rest, [0, 2]);
    assert_eq!(trouble(&mut reader), Received::PublisherGone(source));
    assert_eq!(trouble(&mut reader), Received::Empty);
}

/// The watcher of its process reads the listings before the subscriber does.
#[test]
fn a_subscriber_about_to_sleep_learns_of_an_end_that_the_watcher_has_seen() {
    let topic = Topic::new();
    let mut publisher = topic.publisher(limits(8, 4, MIB));
    let mut reader = topic.subscriber(Policy::Block, 0, History::Last(0));
    assert_eq!(trouble(&mut reader), Received::Empty);
    assert!(!reader.may_receive());
    publisher.close();
    let source = reader.sources().next().unwrap();
    reader.refresh(&mut open);
    assert!(!reader.is_stale() && reader.may_receive());
    assert_eq!(trouble(&mut reader), Received::PublisherGone(source));
    assert!(!reader.may_receive());
    // The same for a log that cannot be opened.
    topic.directory().open_listing(
        topic.directory().acquire_listing(9).unwrap().0,
        7,
        1_000_000,
    );
    reader.refresh(&mut open);
    assert!(!reader.is_stale() && reader.may_receive());
    assert!(reader.next_unreadable().is_some());
    assert!(!reader.may_receive());
}

#[test]
fn a_waiting_publisher_is_woken_at_the_low_watermark() {
    let topic = Topic::new();
    let mut publisher = topic.publisher(limits(8, 4, MIB));
    let mut quick = topic.subscriber(Policy::Block, 0, History::Last(0));
    let mut slow = topic.subscriber(Policy::Block, 0, History::Last(0));
    publish_all(&mut publisher, 8);
    let bytes = payload(0, 8, 50);
    full(write(&mut publisher, &bytes, WAITS));
    let read = |reader: &mut Reader, most| {
        let (mut out, mut messages) = (Vec::new(), Vec::new());
        reader.receive(most, false, &mut out, &mut messages).1.room
    };
    for _ in 0..7 {
        assert!(!read(&mut slow, 1));
    }
    // Both had read nothing, and the publisher waits for the first seat, which wakes it at the low watermark.
    assert!(!read(&mut quick, 3));
    full(write(&mut publisher, &bytes, WAITS));
    assert!(read(&mut quick, 1));
    write(&mut publisher, &bytes, WAITS).unwrap();
    publisher.cancel_wait(WAITER);
    assert!(publisher.publish());
    assert!(!read(&mut quick, 100));
}

#[test]
fn each_waiter_is_woken_even_if_others_wait_for_something_else() {
    let topic = Topic::new();
    let len = PAGE as usize * 5;
    let mut publisher = topic.publisher(limits(4, 2, 2 * len as u64));
    let mut holds = topic.subscriber(Policy::KeepLast, 100, History::Last(0));
    publish(&mut publisher, &payload(0, 0, len)).unwrap();
    let (mut out, mut messages) = (Vec::new(), Vec::new());
    let (taken, _) = holds.receive(1, true, &mut out, &mut messages);
    assert_eq!(taken, Received::Messages(1));
    let mut slow = topic.subscriber(Policy::Block, 0, History::Last(0));
    publish_all(&mut publisher, 4);
    let one = OnFull::Wait(Waiter(1));
    let other = OnFull::Wait(Waiter(2));
    let bytes = payload(0, 5, 50);
    // One waiter waits for pinned memory, and the other one, later, for the slowest subscriber.
    assert!(publisher.reserve(2 * len as u64, one).is_err());
    full(write(&mut publisher, &bytes, other));
    let Payload::Pinned(pin) = &mut messages[0].payload else {
        panic!("the record must be pinned");
    };
    assert!(pin.end(), "one waits for it");
    let block = publisher.reserve(2 * len as u64, one).unwrap();
    publisher.free_block(block);
    // The other waiter continues to wait, and no longer for any change.
    let read = |reader: &mut Reader, most| {
        let (mut out, mut messages) = (Vec::new(), Vec::new());
        reader.receive(most, false, &mut out, &mut messages).1.room
    };
    assert!(!read(&mut holds, 1));
    assert!(read(&mut slow, 4));
    write(&mut publisher, &bytes, other).unwrap();
    publisher.cancel_wait(Waiter(2));
    assert!(!read(&mut holds, 100));
}

#[test]
fn large_records_are_pinned_in_place_and_block_only_their_own_memory() {
    let topic = Topic::new();
    let len = 5 * PAGE as usize;
    let mut publisher = topic.publisher(limits(8, 4, 8 * len as u64));
    let mut reader = topic.subscriber(Policy::KeepLast, 100, History::Last(0));
    publish(&mut publisher, &payload(0, 0, len)).unwrap();
    let (mut out, mut messages) = (Vec::new(), Vec::new());
    let (taken, _) = reader.receive(1, true, &mut out, &mut messages);
    assert_eq!((taken, out.len()), (Received::Messages(1), 0));
    for seq in 1..1000 {
        publish(&mut publisher, &payload(0, seq, len)).unwrap();
    }
    assert_eq!(bytes_of(&messages[0], &out), payload(0, 0, len));
    messages.clear();
    // The block is reused.
    let mut used = Vec::new();
    for seq in 1000..1020 {
        let block = publisher.reserve(len as u64, OnFull::Fail).unwrap();
        used.push(block.at);
        publisher
            .log()
            .space()
            .write(block.at, &payload(0, seq, len));
        publisher
            .append_block(2, block, len as u64, OnFull::Fail)
            .unwrap();
        publisher.publish();
    }
    used.sort_unstable();
    used.dedup();
    assert_eq!(used.len(), 8);
}

#[test]
fn a_subscriber_with_too_many_pinned_bytes_gets_copies() {
    let topic = Topic::new();
    let len = PAGE as usize * 5;
    let mut publisher = topic.publisher(limits(64, 4, 10 * len as u64));
    let mut reader = topic.subscriber(Policy::KeepLast, 100, History::Last(0));
    let mut held = Vec::new();
    let mut copied = 0;
    for seq in 0..100 {
        publish(&mut publisher, &payload(0, seq, len)).unwrap();
        let (mut out, mut messages) = (Vec::new(), Vec::new());
        let (taken, _) = reader.receive(1, true, &mut out, &mut messages);
        assert_eq!(taken, Received::Messages(1));
        let message = messages.pop().unwrap();
        assert_eq!(bytes_of(&message, &out), payload(0, seq, len));
        copied += usize::from(matches!(message.payload, Payload::Copied(..)));
        held.push((message, out));
    }
    assert_eq!(copied, 95);
    for (seq, (message, out)) in held.iter().enumerate() {
        assert_eq!(bytes_of(message, out), payload(0, seq as u64, len));
    }
}

#[test]
fn a_lack_of_memory_names_its_holder_and_ends_with_the_pin() {
    let topic = Topic::new();
    let len = PAGE as usize * 5;
    let mut publisher = topic.publisher(limits(64, 4, 2 * len as u64));
    let mut reader = topic.subscriber(Policy::Block, 0, History::Last(0));
    for seq in 0..2 {
        publish(&mut publisher, &payload(0, seq, len)).unwrap();
    }
    let behind = full(write(&mut publisher, &payload(0, 2, len), WAITS));
    assert_eq!((behind.owner, behind.cause), (Some(2), NoRoomCause::Memory));
    let (mut out, mut messages) = (Vec::new(), Vec::new());
    let (taken, wakeups) = reader.receive(2, true, &mut out, &mut messages);
    assert_eq!((taken, wakeups.room), (Received::Messages(2), true));
    // One of the two records was pinned, the other one copied.
    publish(&mut publisher, &payload(0, 2, len)).unwrap();
    let held = full(write(&mut publisher, &payload(0, 3, len), OnFull::Fail));
    assert_eq!((held.owner, held.cause), (Some(2), NoRoomCause::Memory));
    let (_, _) = reader.receive(1, false, &mut Vec::new(), &mut Vec::new());
    publish(&mut publisher, &payload(0, 3, len)).unwrap();
    let (_, _) = reader.receive(1, false, &mut Vec::new(), &mut Vec::new());
    let one = publisher.reserve(len as u64, OnFull::Fail).unwrap();
    let held = publisher.reserve(len as u64, WAITS);
    assert!(matches!(held, Err(PublishError::Full(slowest)) if slowest.owner == Some(2)));
    let Payload::Pinned(pin) = &mut messages[0].payload else {
        panic!("the first record must be pinned");
    };
    assert!(pin.end(), "the publisher waits for it");
    let other = publisher.reserve(len as u64, WAITS).unwrap();
    let filling = publisher.reserve(len as u64, OnFull::Fail);
    assert!(
        matches!(filling, Err(PublishError::Full(slowest)) if slowest.cause == NoRoomCause::Filling)
    );
    publisher.free_block(one);
    publisher.free_block(other);
    let large = publisher.reserve(3 * len as u64, OnFull::Fail);
    assert!(matches!(large, Err(PublishError::TooLarge { .. })));
}

#[test]
fn a_seat_is_released_with_its_last_pin() {
    let topic = Topic::new();
    let len = PAGE as usize * 5;
    let mut publisher = topic.publisher(limits(8, 4, 3 * len as u64));
    let mut reader = topic.subscriber(Policy::Block, 0, History::Last(0));
    publish(&mut publisher, &payload(0, 0, len)).unwrap();
    let (mut out, mut messages) = (Vec::new(), Vec::new());
    reader.receive(1, true, &mut out, &mut messages);
    reader.leave();
    drop(reader);
    let other = topic.subscriber(Policy::KeepLast, 1, History::Last(0));
    assert_ne!(other.seat(), 0);
    for seq in 1..50 {
        publish(&mut publisher, &payload(0, seq, len)).unwrap();
    }
    assert_eq!(bytes_of(&messages[0], &out), payload(0, 0, len));
    messages.clear();
    let other = topic.subscriber(Policy::KeepLast, 1, History::Last(0));
    assert_eq!(other.seat(), 0);
}

#[test]
fn seats_and_listings_are_limited_to_the_capacity() {
    let topic = Topic::new();
    let publishers: Vec<_> = (0..Capacity::OF_A_TOPIC.listings)
        .map(|_| topic.publisher(limits(1, 1, 0)))
        .collect();
    let mut readers: Vec<_> = (0..Capacity::OF_A_TOPIC.seats)
        .map(|_| topic.subscriber(Policy::Block, 0, History::Last(0)))
        .collect();
    assert!(topic.directory().acquire_listing(1).is_none());
    let us = (1, Box::new(|| true) as _);
    let full = Reader::subscribe(
        topic.directory(),
        us,
        (Policy::Block, 0),
        History::Oldest,
        |_, _| Ok(()),
        &mut open,
    );
    assert!(full.unwrap().is_none());
    let mut publishers = publishers;
    for publisher in &mut publishers {
        numbered(publisher).unwrap();
    }
    for reader in &mut readers {
        assert_eq!(take(reader, 1000).len(), Capacity::OF_A_TOPIC.listings);
    }
    topic.directory().recover(|_| true);
    assert_eq!(topic.directory().occupied_seats().count(), 0);
}

#[test]
fn records_that_a_new_publisher_reclaims_before_a_read_count_as_missed() {
    let topic = Topic::new();
    let mut last = topic.subscriber(Policy::KeepLast, 1000, History::Last(0));
    let mut publisher = topic.publisher(limits(8, 4, MIB));
    for seq in 0..2_000 {
        publish(&mut publisher, &payload(0, seq, 500)).unwrap();
    }
    assert!(last.is_stale());
    last.refresh(&mut open);
    let first = take(&mut last, 1)[0].0;
    assert!(first > 0);
    assert_eq!(last.lost(), first);
}
