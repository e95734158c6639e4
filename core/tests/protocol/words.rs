//! The words of a ring and its two indices.

use crate::model::{Shared, model, thread};
use _core::ring::{Consumer, HeapMemory, Producer};

/// What a reader sees below the tail is what was written there, also across the wrap.
#[test]
fn words_below_the_tail_are_the_ones_written() {
    model(|| {
        let memory: Shared = std::sync::Arc::new(HeapMemory::new(16));
        let theirs = memory.clone();
        let writer = thread::spawn(move || {
            let mut ring = Producer::new(theirs);
            for value in 1..=3u64 {
                while ring.room().unwrap() < 8 {
                    thread::yield_now();
                }
                ring.put_word(0, value);
                ring.publish(8);
            }
        });
        let mut ring = Consumer::new(memory);
        for value in 1..=3u64 {
            while ring.available().unwrap() < 8 {
                thread::yield_now();
            }
            assert_eq!(ring.get_word(0), value);
            ring.release(8);
        }
        writer.join().unwrap();
    });
}
