//! Wake-ups of operations of several transactions, which another one interrupts.

use super::{ITEMS, QueueMembership};
use crate::objects::error::ObjectError;
use crate::objects::kinds;
use crate::objects::memory::ObjectAddress;
use crate::objects::memory::shape::Shape;
use crate::objects::object::downcast;
use crate::objects::registry::Handle;
use crate::queue::{ClaimOutcome, Form, Head, Limits, Source, layout};
use crate::shared_heap::owner_lock::NEVER;
use crate::shared_heap::undo_log::UndoLog;
use crate::testing::LONG;
use crate::wait::wait_set::WakeMethod;
use std::sync::Arc;
use std::sync::mpsc::channel;

const LIMITS: Limits = Limits {
    items: 0,
    memory: 8 << 20,
    deliveries: 0,
};
/// More items than one transaction ends.
const ITEMS_PUT: u64 = 2_000;

/// Opens a new queue with waiting items.
fn open(name: &str) -> (Handle, Arc<QueueMembership>) {
    let name = format!("queue-{}-{name}", std::process::id());
    let lock_file = std::env::temp_dir().join(format!("{name}@shared.lock"));
    let shape = Shape::of_queue(LIMITS, true);
    let opened = kinds::open(&ObjectAddress { name, lock_file }, shape);
    let handle = opened.unwrap().expect("it is created");
    let queue: Arc<QueueMembership> = downcast(handle.object()).expect("a queue");
    for _ in 0..ITEMS_PUT {
        let item = Head::new(0, Form::Raw).0.to_ne_bytes();
        queue.put(&item, 1, LONG).unwrap();
    }
    (handle, queue)
}

/// Runs `operate`, whose later transactions find the owner lock taken, once `is_begun` returns true. Returns its
/// result, and true if it has woken a sleeper that waits for an item. None if the operation was too fast.
fn interrupt(
    queue: &QueueMembership,
    is_begun: impl Fn() -> bool + Sync,
    operate: impl FnOnce() -> Result<(), ObjectError>,
) -> Option<bool> {
    let mut sleeper = queue.thread_slot(ITEMS).unwrap();
    sleeper.draw_ticket();
    sleeper.announce(WakeMethod::Futex).unwrap();
    let (mapping, members) = (queue.mapping().clone(), queue.members().clone());
    let at = queue.shape().contents_at() as u64 + layout::SIZE;
    let log = UndoLog::new(mapping, at, members).unwrap();
    let (end, ended) = channel::<()>();
    let (log, is_begun) = (&log, &is_begun);
    let done = std::thread::scope(|scope| {
        scope.spawn(move || {
            while !is_begun() {
                std::hint::spin_loop();
            }
            log.transact(NEVER, |_| Ok(ended.recv())).unwrap().unwrap();
        });
        let done = operate();
        end.send(()).unwrap();
        done
    });
    let is_woken = sleeper.withdraw().unwrap();
    match done {
        Ok(()) => None,
        Err(ObjectError::Changing { .. }) => Some(is_woken),
        Err(error) => panic!("{error}"),
    }
}

/// Returns the first result of `attempt` that is not None.
fn until_interrupted(name: &str, attempt: impl Fn(&QueueMembership) -> Option<bool>) -> bool {
    let mut attempts = (0..1_000).map(|number| {
        let (_handle, queue) = open(&format!("{name}-{number}"));
        attempt(&queue)
    });
    attempts.find_map(|found| found).expect("an interruption")
}

#[test]
fn an_immediate_shutdown_that_is_interrupted_wakes_the_sleepers() {
    let is_woken = until_interrupted("shutdown", |queue| {
        let is_begun = || queue.unchecked_queue().is_shut_down();
        interrupt(queue, is_begun, || queue.shut_down(true, 0))
    });
    assert!(is_woken);
}

#[test]
fn the_items_of_expired_claims_wake_a_reader_though_others_cannot_return() {
    let is_woken = until_interrupted("expiry", |queue| {
        for _ in 0..ITEMS_PUT {
            let claimed = queue.unchecked_queue().claim(Source::Queue, 1, NEVER);
            assert!(matches!(claimed.unwrap().0, ClaimOutcome::Item(_)));
        }
        assert_eq!(queue.depth(), 0);
        let operate = || queue.peek(1, 0).map(drop);
        interrupt(queue, || queue.depth() > 0, operate)
    });
    assert!(is_woken);
}
