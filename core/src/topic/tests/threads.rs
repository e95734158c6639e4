//! Publishers and subscribers in threads that come and go: each record is accounted for.

use super::*;
use crate::testing::scaled;
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::thread;

const PUBLISHERS: u64 = 2;

fn len_of(seq: u64) -> usize {
    match seq % 97 {
        13 => 5000 + (seq % 7) as usize * 1000,
        _ => (seq * 11 % 300) as usize,
    }
}

/// Read until all publishers are gone, polling instead of sleeping.
fn read_all(
    topic: &Topic,
    policy: Policy,
    lag: u64,
    is_ready: &AtomicU64,
) -> (HashMap<u64, u64>, u64) {
    let mut reader = topic.subscriber(policy, lag, History::Oldest);
    is_ready.fetch_add(1, Ordering::SeqCst);
    let (mut next, mut skipped, mut gone) = (HashMap::new(), 0, 0);
    let mut held = Vec::new();
    while gone < PUBLISHERS {
        if reader.is_stale() {
            reader.refresh(&mut open);
        }
        let (mut out, mut messages) = (Vec::new(), Vec::new());
        match reader.receive(7, true, &mut out, &mut messages).0 {
            Received::Messages(_) => {}
            Received::PublisherGone(_) => gone += 1,
            Received::Empty => thread::yield_now(),
            other => panic!("{other:?}"),
        }
        for message in messages {
            let owner = message.source.owner;
            let seq = message.seq;
            let expected = payload(owner, seq, len_of(seq));
            assert!(bytes_of(&message, &out) == expected, "{policy:?} {seq}");
            let before = next.insert(owner, seq + 1).unwrap_or(0);
            assert!(seq >= before);
            skipped += seq - before;
            if matches!(message.payload, Payload::Pinned(_)) {
                held.push((message, expected));
            }
        }
        if held.len() > 3 {
            for (message, expected) in held.drain(..) {
                assert!(bytes_of(&message, &[]) == expected);
            }
        }
    }
    (next, reader.lost() - skipped)
}

#[test]
fn every_subscriber_accounts_for_every_record() {
    let count = scaled(8_000, 2_000_000);
    let topic = Topic::new();
    let is_ready = AtomicU64::new(0);
    let policies = [
        (Policy::Block, 0),
        (Policy::Block, 0),
        (Policy::KeepLast, 1),
        (Policy::KeepLast, 1000),
    ];
    thread::scope(|scope| {
        let readers: Vec<_> = policies
            .iter()
            .map(|&(policy, lag)| {
                let (topic, is_ready) = (&topic, &is_ready);
                scope.spawn(move || (policy, read_all(topic, policy, lag, is_ready)))
            })
            .collect();
        while is_ready.load(Ordering::SeqCst) < policies.len() as u64 {
            thread::yield_now();
        }
        for _ in 0..PUBLISHERS {
            scope.spawn(|| {
                let limits = limits(64, 32, 1 << 20);
                let mut ours = topic.publisher_of(limits, tight(limits));
                // Publishers are numbered from 5 on, behind the members that subscribe.
                let me = topic
                    .directory()
                    .listing_info(ours.listing().0)
                    .unwrap()
                    .owner;
                for seq in 0..count {
                    let bytes = payload(me, seq, len_of(seq));
                    while let Err(refused) = write(&mut ours, &bytes, WAITS) {
                        assert!(matches!(refused, PublishError::Full(_)), "{refused}");
                        ours.publish();
                        thread::yield_now();
                    }
                    if seq % 5 == 0 {
                        ours.publish();
                    }
                }
                // The descriptor stays open until all subscribers have opened it.
                while topic.directory().occupied_seats().any(|each| {
                    let (listing, generation) = ours.listing();
                    let progress = topic.directory().progress(each.seat, listing, generation);
                    progress.is_none()
                }) {
                    thread::yield_now();
                }
                ours.close();
            });
        }
        for reader in readers {
            let (policy, (next, unaccounted)) = reader.join().unwrap();
            if policy == Policy::Block {
                assert!(next.values().all(|&next| next == count), "{next:?}");
            }
            // Records that were missed after the last one that was read count too.
            let missing: u64 = next.values().map(|next| count - next).sum();
            assert_eq!(unaccounted, missing);
        }
    });
}

/// Subscribers join and leave all the time, beginning with the kept records.
#[test]
fn a_subscriber_that_joins_at_any_moment_reads_without_a_gap() {
    let topic = Topic::new();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let mut reader = topic.subscriber(Policy::Block, 0, History::Oldest);
                    let mut next = None;
                    for _ in 0..20 {
                        for (seq, bytes) in take(&mut reader, 9) {
                            assert_eq!(next.unwrap_or(seq), seq);
                            assert!(bytes == payload(0, seq, len_of(seq)), "{seq}");
                            next = Some(seq + 1);
                        }
                    }
                    reader.leave();
                }
            });
        }
        let limits = limits(16, 8, 256 << 10);
        let mut ours = topic.publisher_of(limits, tight(limits));
        for seq in 0..scaled(8_000, 1_000_000) {
            let bytes = payload(0, seq, len_of(seq));
            while publish(&mut ours, &bytes).is_err() {
                thread::yield_now();
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}
