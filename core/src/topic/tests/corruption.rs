//! Impossible values in a topic: they harm the hostile member alone.

use super::*;
use crate::shared_heap::Words;
use crate::testing::{TestRng, scaled};
use crate::topic::log::CutReason;
use crate::topic::subscriber::CorruptLog;

fn small(publisher: &mut Ours) -> Result<(), PublishError> {
    let bytes = payload(0, publisher.next(), 40);
    publish(publisher, &bytes)
}

#[test]
fn an_impossible_head_cuts_off_only_that_subscriber() {
    for (head, is_back) in [(9, false), (u64::MAX - 1, false), (1, true)] {
        let topic = Topic::new();
        let mut publisher = topic.publisher(limits(4, 2, MIB));
        let mut hostile = topic.subscriber(Policy::Block, 0, History::Last(0));
        let mut honest = topic.subscriber(Policy::Block, 0, History::Last(0));
        for _ in 0..4 {
            small(&mut publisher).unwrap();
        }
        assert_eq!(take(&mut hostile, 4).len(), 4);
        assert_eq!(take(&mut honest, 4).len(), 4);
        if is_back {
            small(&mut publisher).unwrap(); // The head is seen at 4, and then goes back.
        }
        topic.directory().set_head(hostile.seat(), 0, head);
        for _ in 0..20 {
            while small(&mut publisher).is_ok() {}
            assert!(!take(&mut honest, 100).is_empty());
        }
        let source = hostile.sources().next().unwrap();
        assert_eq!(
            trouble(&mut hostile),
            Received::CutOff(source, CutReason::Corruption)
        );
        let next = publisher.next();
        while small(&mut publisher).is_ok() {}
        assert_eq!(publisher.next() - next, 4, "the honest one is waited for");
    }
}

#[test]
fn a_corrupt_log_ends_only_its_own_attachment() {
    let topic = Topic::new();
    let mut good = topic.publisher(limits(4, 2, MIB));
    let mut bad = topic.publisher(limits(4, 2, MIB));
    let mut reader = topic.subscriber(Policy::Block, 0, History::Last(0));
    let of_bad = reader.sources().nth(1).unwrap();
    small(&mut bad).unwrap();
    let size = bad.log().space().size() as u64;
    let word = |at| bad.log().space().word(at).unwrap();
    word(4096).store(size - 8, Ordering::Relaxed);
    small(&mut good).unwrap();
    let mut found = Vec::new();
    for _ in 0..4 {
        let (mut out, mut messages) = (Vec::new(), Vec::new());
        found.push(reader.receive(1, false, &mut out, &mut messages).0);
    }
    assert!(found.contains(&Received::Corrupt(of_bad, CorruptLog::Entry(size - 8))));
    assert!(found.contains(&Received::Messages(1)));
    assert!(found.contains(&Received::Empty));
    // The hostile publisher does not wait for a subscriber that does not read it.
    for _ in 0..100 {
        small(&mut bad).unwrap();
    }
    let of_good = reader.sources().next().unwrap();
    good.log().tail().store(0, Ordering::Relaxed);
    let found = trouble(&mut reader);
    assert_eq!(found, Received::Corrupt(of_good, CorruptLog::Tail(0)));
}

#[test]
fn an_invalid_log_is_reported_once_and_blocks_no_publisher() {
    let topic = Topic::new();
    let mut publisher = topic.publisher(limits(4, 2, MIB));
    let directory = topic.directory();
    let other = crate::testing::file_in_memory();
    let unsealed = std::os::fd::AsRawFd::as_raw_fd(&other);
    for (owner, descriptor) in [
        (70, unsealed),
        (71, 1_000_000),
        (72, publisher.log().space().descriptor().unwrap()),
    ] {
        let (listing, _) = directory.acquire_listing(owner).unwrap();
        directory.open_listing(listing, 7, descriptor);
    }
    let mut reader = topic.subscriber(Policy::Block, 0, History::Last(0));
    let mut said = Vec::new();
    while let Some((source, why)) = reader.next_unreadable() {
        said.push((source.owner, why));
    }
    said.sort_unstable();
    let owners: Vec<u64> = said.iter().map(|each| each.0).collect();
    assert_eq!(owners, [70, 71, 72], "{said:?}");
    assert!(said[0].1.contains("sealed") && said[2].1.contains("no log"));
    reader.refresh(&mut open);
    assert!(reader.next_unreadable().is_none());
    small(&mut publisher).unwrap();
    assert_eq!(numbers(&take(&mut reader, 10)), [0]);
}

#[test]
fn a_sealed_log_cannot_be_written_by_others() {
    let publisher = Topic::new().publisher(limits(4, 2, MIB));
    let descriptor = publisher.log().space().descriptor().unwrap();
    let path = format!("/proc/self/fd/{descriptor}");
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    // The owner of the file may open it for writing, but cannot write.
    use std::os::unix::fs::FileExt;
    assert!(file.write_at(b"x", 0).is_err());
    assert!(file.set_len(4096).is_err());
    let (descriptor, size) = (std::os::fd::AsFd::as_fd(&file), 4096);
    let mapped = |access| {
        crate::memory::mapping::MappedRange::new(descriptor, 0, size, access, libc::MAP_SHARED)
    };
    assert!(mapped(crate::memory::mapping::WRITABLE).is_err());
    assert!(mapped(libc::PROT_READ).is_ok());
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    assert!(crate::os::fallocate(descriptor, mode, 0, 4096).is_err());
}

/// Any word of the directory may change at any time: each operation ends, and stays within the memory.
#[test]
fn a_corrupt_directory_causes_no_panic() {
    let mut rng = TestRng(0x70c);
    for _ in 0..scaled(25, 5_000) {
        let topic = Topic::new();
        let limits = limits(8, 4, 64 << 10);
        let mut publishers = [
            topic.publisher_of(limits, tight(limits)),
            topic.publisher_of(limits, tight(limits)),
        ];
        let mut readers: Vec<_> = [Policy::Block, Policy::KeepLast, Policy::Disconnect]
            .map(|policy| topic.subscriber(policy, 4, History::Oldest))
            .into();
        let mut held = Vec::new();
        for _ in 0..300 {
            let at = match rng.below(3) {
                0 => rng.below(4096 / 8),
                1 => Capacity::OF_A_TOPIC.seats_at() / 8 + rng.below(3 * 512),
                _ => rng.below(Capacity::OF_A_TOPIC.size() / 8),
            };
            let value = match rng.below(3) {
                0 => rng.below(16),
                1 => rng.next(),
                _ => rng.any_size(63),
            };
            topic
                .words
                .word(8 * at)
                .unwrap()
                .store(value, Ordering::Relaxed);
            for _ in 0..4 {
                let publisher = &mut publishers[rng.below(2) as usize];
                let len = if rng.below(4) == 0 {
                    6000
                } else {
                    rng.below(500)
                };
                let bytes = payload(0, publisher.next(), len as usize);
                let patience = [OnFull::Fail, WAITS][rng.below(2) as usize];
                let _ = write(publisher, &bytes, patience);
                publisher.publish();
                publisher.is_attached_by_all(WAITS);
            }
            let index = rng.below(3) as usize;
            let reader = &mut readers[index];
            if reader.is_stale() {
                reader.refresh(&mut open);
            }
            let (mut out, mut messages) = (Vec::new(), Vec::new());
            reader.receive(5, true, &mut out, &mut messages);
            held.append(&mut messages);
            held.truncate(rng.below(10) as usize);
            while reader.next_unreadable().is_some() {}
        }
    }
}
