//! Sleepers are woken: a reader for frames, a writer for room.

use crate::model::{Arc, LoopWaker, Shared, model, receive, thread};
use _core::ring::frame::{FrameReader, FrameWriter};
use _core::ring::{Consumer, HeapMemory, Producer, RingMemory};
use _core::wait::flags;

/// A sleeping reader is woken for every frame: no wake-up is lost.
#[test]
fn a_parked_reader_gets_every_frame() {
    model(|| {
        let memory: Shared = std::sync::Arc::new(HeapMemory::new(64));
        let bell = Arc::new(LoopWaker::new());
        let (theirs, their_bell) = (memory.clone(), bell.clone());
        let writer = thread::spawn(move || {
            let mut writer = FrameWriter::new(Producer::new(theirs));
            for id in 0..2 {
                assert!(writer.send(0, id, &[id as u8]).unwrap());
                if flags::take_wake_token(writer.memory().reader_waits()) != flags::AWAKE {
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
                flags::announce(reader.memory().reader_waits(), flags::ON_SOCKET);
                if reader.peek().unwrap().is_none() {
                    bell.sleep();
                }
                flags::withdraw(reader.memory().reader_waits());
            };
            assert_eq!((frame.id, frame.payload), (id, vec![id as u8]));
        }
        writer.join().unwrap();
    });
}

/// A patient reader is not woken for items of a stream, but for the frames behind them.
#[test]
fn a_patient_reader_is_woken_for_other_frames_than_items() {
    model(|| {
        let memory: Shared = std::sync::Arc::new(HeapMemory::new(64));
        let bell = Arc::new(LoopWaker::new());
        let (theirs, their_bell) = (memory.clone(), bell.clone());
        let writer = thread::spawn(move || {
            let mut writer = FrameWriter::new(Producer::new(theirs));
            assert!(writer.send(0, 0, &[0]).unwrap());
            if flags::take_wake_token_for_item(writer.memory().reader_waits()) != flags::AWAKE {
                panic!("rung for an item");
            }
            assert!(writer.send(1, 0, &[]).unwrap());
            match flags::take_wake_token(writer.memory().reader_waits()) {
                flags::AWAKE => {}
                how => {
                    assert_eq!(how, flags::ON_SOCKET);
                    their_bell.ring();
                }
            }
        });
        let mut reader = FrameReader::new(Consumer::new(memory), 64);
        let mut taken = 0;
        while taken < 2 {
            if let Some(frame) = receive(&mut reader) {
                assert_eq!(frame.opcode, taken);
                taken += 1;
                continue;
            }
            flags::announce(reader.memory().reader_waits(), flags::PATIENT);
            if reader.peek().unwrap().is_none() {
                bell.sleep();
            }
            flags::withdraw(reader.memory().reader_waits());
        }
        writer.join().unwrap();
    });
}

/// A writer that sleeps for room is woken, and a frame larger than the ring arrives whole.
#[test]
fn a_frame_larger_than_the_ring_flows_through_two_sleepers() {
    model(|| {
        let memory: Shared = std::sync::Arc::new(HeapMemory::new(32));
        let (data, room) = (Arc::new(LoopWaker::new()), Arc::new(LoopWaker::new()));
        let (theirs, their_data, their_room) = (memory.clone(), data.clone(), room.clone());
        let writer = thread::spawn(move || {
            let mut writer = FrameWriter::new(Producer::new(theirs));
            writer.keep(0, 1, Box::new(vec![7; 40]), true);
            loop {
                if writer.flush().unwrap()
                    && flags::take_wake_token(writer.memory().reader_waits()) != flags::AWAKE
                {
                    their_data.ring();
                }
                if writer.backlog() == 0 {
                    break;
                }
                if writer.announce_wait(flags::ON_SOCKET).unwrap() {
                    their_room.sleep();
                }
            }
        });
        let mut reader = FrameReader::new(Consumer::new(memory), 64);
        let frame = loop {
            if let Some(frame) = receive(&mut reader) {
                break frame;
            }
            flags::announce(reader.memory().reader_waits(), flags::ON_SOCKET);
            let arrived = reader.peek().unwrap().is_some();
            if reader.is_half_empty()
                && flags::take_wake_token(reader.memory().writer_waits()) != flags::AWAKE
            {
                room.ring();
            }
            if !arrived {
                data.sleep();
            }
            flags::withdraw(reader.memory().reader_waits());
        };
        assert_eq!((frame.id, frame.payload), (1, vec![7; 40]));
        writer.join().unwrap();
    });
}
