//! An immediate shutdown drops all waiting items.

use super::*;

const LIMITS: Limits = Limits {
    items: 0,
    memory: 8 * MIB,
    deliveries: 0,
};

fn claim(queue: &Ours) -> Claim {
    match queue.claim(Source::Queue, 0, soon()).unwrap().0 {
        ClaimOutcome::Item(claim) => claim,
        other => panic!("no item: {other:?}"),
    }
}

#[test]
fn a_full_table_of_claims_keeps_no_item_of_an_immediate_shutdown() {
    let memory = Memory::new(LIMITS);
    let queue = memory.queue(number(0, 1));
    let put = |index, len| queue.put(&item(index, len), 1, soon()).unwrap();
    let mut claims = Vec::new();
    for index in 0..MAX_CLAIMS {
        put(index, 8);
        claims.push(claim(&queue));
    }
    // Several chunks of items, and one of a large item.
    for index in 0..10 {
        put(MAX_CLAIMS + index, SMALL / 2);
    }
    let stored = queue.put_large(SMALL + 8, 1, soon(), |to, _| {
        let large = item(0, SMALL);
        // SAFETY: so many bytes were asked for.
        unsafe { std::ptr::copy_nonoverlapping(large.as_ptr(), to, large.len()) };
        large.len() as u64
    });
    assert_eq!(stored.unwrap(), PutOutcome::Stored);
    let found = queue.claim(Source::Queue, 0, soon()).unwrap().0;
    assert_eq!(found, ClaimOutcome::TableFull);
    queue.shut_down(true, soon()).unwrap();
    let stats = queue.stats(soon()).unwrap();
    assert_eq!((stats.depth, stats.unfinished), (0, MAX_CLAIMS));
    for claim in claims {
        assert!(queue.give_back(&claim, soon()).unwrap().is_some());
    }
    let stats = queue.stats(soon()).unwrap();
    assert_eq!((stats.depth, stats.unfinished), (0, 0));
    assert!(stats.used <= 2 * CHUNK_SIZES.1, "{} bytes", stats.used);
}

#[test]
fn an_immediate_shutdown_drops_returned_items_and_keeps_dead_letters() {
    let memory = Memory::new(Limits {
        deliveries: 2,
        ..LIMITS
    });
    let queue = memory.queue(number(0, 1));
    for index in 0..3 {
        queue.put(&item(index, 8), 1, soon()).unwrap();
    }
    for _ in 0..2 {
        let first = claim(&queue);
        queue.give_back(&first, soon()).unwrap();
    }
    let second = claim(&queue);
    queue.give_back(&second, soon()).unwrap();
    queue.shut_down(true, soon()).unwrap();
    let stats = queue.stats(soon()).unwrap();
    assert_eq!((stats.depth, stats.unfinished, stats.dead), (0, 0, 1));
    let found = queue.claim(Source::Queue, 0, soon()).unwrap().0;
    assert_eq!(found, ClaimOutcome::Finished);
}
