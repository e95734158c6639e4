//! Waiting writers are woken by the first room that suffices for one of them.

use super::*;

const LIMITS: Limits = Limits {
    items: 8,
    memory: 4 * MIB,
    deliveries: 0,
};

fn full(memory: &Memory) -> Ours {
    let queue = memory.queue(number(0, 1));
    for index in 0..LIMITS.items {
        assert_eq!(
            queue.put(&item(index, 8), 1, soon()).unwrap(),
            PutOutcome::Stored
        );
    }
    queue
}

/// Pop one item, and return the writers to wake.
fn take_one(queue: &Ours) -> WritersToWake {
    let (_, wakeups) = queue
        .pop(Source::Queue, 1, &mut Vec::new(), soon())
        .unwrap();
    wakeups.room
}

fn refuse(queue: &Ours, count: u64) {
    let items: Vec<u8> = (0..count).flat_map(|index| item(index, 8)).collect();
    assert_eq!(queue.put(&items, count, soon()).unwrap(), PutOutcome::Full);
}

#[test]
fn popping_an_item_wakes_a_writer_of_one_item() {
    let memory = Memory::new(LIMITS);
    let queue = full(&memory);
    assert_eq!(take_one(&queue), WritersToWake::None); // None waits.
    queue.put(&item(8, 8), 1, soon()).unwrap();
    refuse(&queue, 1);
    assert_eq!(take_one(&queue), WritersToWake::One);
    assert_eq!(take_one(&queue), WritersToWake::None); // The one that was woken wakes the next.
}

#[test]
fn a_writer_of_several_items_is_woken_when_all_of_them_fit() {
    let memory = Memory::new(LIMITS);
    let queue = full(&memory);
    refuse(&queue, 3);
    assert_eq!(
        [(); 3].map(|()| take_one(&queue)),
        [WritersToWake::None, WritersToWake::None, WritersToWake::All]
    );
}

#[test]
fn writers_of_one_and_of_several_are_woken_together() {
    let memory = Memory::new(LIMITS);
    let queue = full(&memory);
    refuse(&queue, 3);
    refuse(&queue, 1);
    assert_eq!(take_one(&queue), WritersToWake::All);
    refuse(&queue, 3);
    refuse(&queue, 5);
    assert_eq!(
        [(); 2].map(|()| take_one(&queue)),
        [WritersToWake::None, WritersToWake::All]
    );
}

#[test]
fn freeing_an_unused_chunk_wakes_writers_that_wait_for_memory() {
    let memory = Memory::new(Limits { items: 0, ..LIMITS });
    let [one, other] = [0, 1].map(|slot| memory.queue(number(slot, 1)));
    let chunk = one.reserve(3 * MIB, soon()).unwrap().unwrap();
    assert!(
        other
            .reserve_or_request_wakeup(3 * MIB, soon())
            .unwrap()
            .is_none()
    );
    assert!(!one.must_wake_writers());
    one.free_chunk(chunk, soon());
    assert!(one.must_wake_writers());
    assert!(!one.must_wake_writers()); // Once.
    assert!(
        other
            .reserve_or_request_wakeup(3 * MIB, soon())
            .unwrap()
            .is_some()
    );
}
