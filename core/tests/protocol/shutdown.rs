//! A closed channel: no thread sleeps on it forever, and frames that were sent before are received.

use crate::model::{Arc, LoopWaker, Mutex, Shared, model, receive, thread};
use _core::ring::frame::{FrameReader, FrameWriter};
use _core::ring::{Consumer, HeapMemory, Producer, RingMemory};
use _core::wait::flags;
use _core::wait::shutdown_flag::ShutdownFlag;

/// A reader sleeps, or is about to, while the peer sends and another thread of its own closes.
#[test]
fn a_sleeper_on_a_closed_channel_wakes() {
    model(|| {
        let memory: Shared = std::sync::Arc::new(HeapMemory::new(32));
        let (closing, bell) = (Arc::new(ShutdownFlag::new()), Arc::new(LoopWaker::new()));
        let (theirs, their_bell) = (memory.clone(), bell.clone());
        let peer = thread::spawn(move || {
            let mut writer = FrameWriter::new(Producer::new(theirs));
            assert!(writer.send(0, 1, &[1]).unwrap());
            if flags::take_wake_token(writer.memory().reader_waits()) != flags::AWAKE {
                their_bell.ring();
            }
        });
        let (closes, rings) = (closing.clone(), bell.clone());
        let closer = thread::spawn(move || closes.close(|| rings.ring()));
        let mut reader = FrameReader::new(Consumer::new(memory), 64);
        while !closing.is_closed() {
            flags::announce(reader.memory().reader_waits(), flags::ON_SEMAPHORE);
            if receive(&mut reader).is_none() {
                closing.sleep(|| bell.sleep());
            }
            flags::withdraw(reader.memory().reader_waits());
        }
        peer.join().unwrap();
        closer.join().unwrap();
    });
}

/// After the end of a connection the reader takes what is in the ring: all that was sent, and nothing else.
#[test]
fn frames_sent_before_a_close_are_received() {
    model(|| {
        let memory: Shared = std::sync::Arc::new(HeapMemory::new(64));
        let closing = Arc::new(ShutdownFlag::new());
        // The socket, whose end is the end of the connection; the kernel wakes threads that wait for it.
        let (ended, bell) = (Arc::new(Mutex::new(false)), Arc::new(LoopWaker::new()));
        let (theirs, open, their_bell) = (memory.clone(), closing.clone(), bell.clone());
        let sender = thread::spawn(move || {
            let mut writer = FrameWriter::new(Producer::new(theirs));
            let mut sent = 0;
            while sent < 2 && !open.is_closed() {
                assert!(writer.send(0, sent, &[]).unwrap());
                if flags::take_wake_token(writer.memory().reader_waits()) != flags::AWAKE {
                    their_bell.ring();
                }
                sent += 1;
            }
            sent
        });
        let (their_end, their_bell) = (ended.clone(), bell.clone());
        let closer = thread::spawn(move || {
            closing.close(|| {});
            let sent = sender.join().unwrap();
            *their_end.lock().unwrap() = true;
            their_bell.ring();
            sent
        });
        let mut reader = FrameReader::new(Consumer::new(memory), 64);
        let mut taken = 0;
        loop {
            flags::announce(reader.memory().reader_waits(), flags::ON_SOCKET);
            // Before the last load of the ring: what is sent before the end is then in it.
            let last = *ended.lock().unwrap();
            let frame = receive(&mut reader);
            if frame.is_none() && !last {
                bell.sleep();
            }
            flags::withdraw(reader.memory().reader_waits());
            match frame {
                Some(frame) => {
                    assert_eq!(frame.id, taken);
                    taken += 1;
                }
                None if last => break,
                None => {}
            }
        }
        assert_eq!(taken, closer.join().unwrap());
    });
}
