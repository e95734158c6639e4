//! The ring and the wait protocol between two threads.
//!
//! Under loom, every interleaving with up to two preemptions, and every value that the memory
//! model lets a load return: `RUSTFLAGS="--cfg loom" cargo test --release --test protocol`.
//! Without it the same tests run on the machine's own threads, again and again.

use _core::frame::{FrameReader, FrameWriter};
use _core::ring::{Consumer, HeapMemory, Producer, RingMemory};
use _core::wait;
#[cfg(loom)]
use loom::{
    sync::{Arc, Condvar, Mutex},
    thread,
};
#[cfg(not(loom))]
use std::{
    sync::{Arc, Condvar, Mutex},
    thread,
};

/// A bell as the kernel gives it: a ring before the sleep is not lost.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn new() -> Self {
        Bell {
            rung: Mutex::new(false),
            changed: Condvar::new(),
        }
    }
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }
    /// Loom reports a deadlock if nobody ever rings.
    fn sleep(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

#[cfg(not(loom))]
fn model(check: impl Fn() + Send + Sync + 'static) {
    for _ in 0..2_000 {
        check();
    }
}

#[cfg(loom)]
fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(check);
}

type Shared = std::sync::Arc<HeapMemory>;

fn receive(reader: &mut FrameReader<Shared>) -> Option<(u64, Vec<u8>)> {
    let header = reader.peek().unwrap()?;
    let mut payload = vec![0; header.len];
    reader.take(&mut payload);
    Some((header.id, payload))
}

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

/// A reader that sleeps is woken for every frame: no wake-up is lost.
#[test]
fn a_parked_reader_gets_every_frame() {
    model(|| {
        let memory: Shared = std::sync::Arc::new(HeapMemory::new(64));
        let bell = Arc::new(Bell::new());
        let (theirs, their_bell) = (memory.clone(), bell.clone());
        let writer = thread::spawn(move || {
            let mut writer = FrameWriter::new(Producer::new(theirs));
            for id in 0..2 {
                assert!(writer.send(0, id, &[id as u8]).unwrap());
                if wait::claim(writer.memory().reader_waits()) != wait::AWAKE {
                    their_bell.ring();
                }
            }
        });
        let mut reader = FrameReader::new(Consumer::new(memory), 64);
        for id in 0..2 {
            let frame = loop {
                if let Some(frame) = receive(&mut reader) {
                    break frame;
                }
                wait::announce(reader.memory().reader_waits(), wait::ON_EVENTFD);
                if reader.peek().unwrap().is_none() {
                    bell.sleep();
                }
                wait::withdraw(reader.memory().reader_waits());
            };
            assert_eq!(frame, (id, vec![id as u8]));
        }
        writer.join().unwrap();
    });
}

/// A writer that sleeps for room is woken, and a frame larger than the ring arrives whole.
#[test]
fn a_frame_larger_than_the_ring_flows_through_two_sleepers() {
    model(|| {
        let memory: Shared = std::sync::Arc::new(HeapMemory::new(32));
        let (data, room) = (Arc::new(Bell::new()), Arc::new(Bell::new()));
        let (theirs, their_data, their_room) = (memory.clone(), data.clone(), room.clone());
        let writer = thread::spawn(move || {
            let mut writer = FrameWriter::new(Producer::new(theirs));
            writer.keep(0, 1, Box::new(vec![7; 40]));
            loop {
                if writer.flush().unwrap()
                    && wait::claim(writer.memory().reader_waits()) != wait::AWAKE
                {
                    their_data.ring();
                }
                if writer.backlog() == 0 {
                    break;
                }
                if writer.must_wait(wait::ON_EVENTFD).unwrap() {
                    their_room.sleep();
                }
            }
        });
        let mut reader = FrameReader::new(Consumer::new(memory), 64);
        let frame = loop {
            if let Some(frame) = receive(&mut reader) {
                break frame;
            }
            wait::announce(reader.memory().reader_waits(), wait::ON_EVENTFD);
            let arrived = reader.peek().unwrap().is_some();
            if reader.has_room() && wait::claim(reader.memory().writer_waits()) != wait::AWAKE {
                room.ring();
            }
            if !arrived {
                data.sleep();
            }
            wait::withdraw(reader.memory().reader_waits());
        };
        assert_eq!(frame, (1, vec![7; 40]));
        writer.join().unwrap();
    });
}
