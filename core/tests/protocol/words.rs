//! The words of a ring and its two indices.

use crate::model::{Shared, model, receive, thread};
use _core::ring::frame::{FrameReader, FrameWriter};
use _core::ring::{Consumer, GROWTH, HeapMemory, Producer};

/// A reader sees below the tail what was written there, also across the wrap.
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

/// Unread bytes are not overwritten when a ring grows, and later ones lie where the reader expects them.
#[test]
fn words_of_a_ring_that_grows_are_the_ones_written() {
    let payload = |id: u64| vec![id as u8; 4 * (id as usize - 1)];
    model(move || {
        let memory: Shared = std::sync::Arc::new(HeapMemory::growing(GROWTH + 16, 64));
        let theirs = memory.clone();
        let writer = thread::spawn(move || {
            let mut writer = FrameWriter::new(Producer::new(theirs));
            // The first one fits, and may still be there when the others make the ring grow.
            for id in 1..=3u64 {
                while !writer.send(0, id, &payload(id)).unwrap() {
                    thread::yield_now();
                }
            }
        });
        let mut reader = FrameReader::new(Consumer::new(memory), 64);
        for id in 1..=3 {
            let frame = loop {
                match receive(&mut reader) {
                    Some(frame) => break frame,
                    None => thread::yield_now(),
                }
            };
            assert_eq!((frame.id, frame.payload), (id, payload(id)));
        }
        writer.join().unwrap();
    });
}
