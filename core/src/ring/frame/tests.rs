use super::*;
use crate::ring::HeapMemory;
use crate::ring::{Consumer, Producer, RingMemory};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::violation::Violation;
use crate::wait::flags;
use std::sync::Arc;

type Writer = FrameWriter<Arc<HeapMemory>>;
type Reader = FrameReader<Arc<HeapMemory>>;

fn pair(capacity: usize, max_frame: usize) -> (Writer, Reader) {
    let memory = Arc::new(HeapMemory::new(capacity));
    let writer = FrameWriter::new(Producer::new(memory.clone()));
    (writer, FrameReader::new(Consumer::new(memory), max_frame))
}

fn receive(reader: &mut Reader) -> Option<(u32, u64, Vec<u8>)> {
    let header = reader.peek().unwrap()?;
    let mut payload = vec![0; header.len];
    reader.take(&mut payload);
    Some((header.opcode, header.id, payload))
}

#[test]
fn frames_keep_their_order_and_their_bytes_whatever_their_size() {
    let (mut writer, mut reader) = pair(256, 1 << 20);
    let sizes = [
        0, 1, 7, 8, 9, 100, 112, 113, 239, 240, 241, 256, 1000, 5, 70_000, 3,
    ];
    let frames: Vec<Vec<u8>> = sizes
        .iter()
        .map(|&n| (0..n).map(|i| (i * 31 + n) as u8).collect())
        .collect();
    for (id, payload) in frames.iter().enumerate() {
        if writer.backlog() > 0 || !writer.send(9, id as u64, payload).unwrap() {
            writer.keep(9, id as u64, Box::new(payload.clone()), true);
        }
    }
    let mut received = Vec::new();
    for _ in 0..10_000 {
        while let Some(frame) = receive(&mut reader) {
            received.push(frame);
        }
        writer.flush().unwrap();
    }
    assert_eq!(writer.backlog(), 0);
    assert_eq!(received.len(), frames.len());
    for (id, (got, want)) in received.iter().zip(&frames).enumerate() {
        assert_eq!((got.0, got.1, &got.2), (9, id as u64, want));
    }
}

#[test]
fn a_frame_over_the_limit_is_refused_before_memory_is_allocated() {
    let (mut writer, mut reader) = pair(64, 16);
    assert!(writer.send(1, 1, &[0; 17]).unwrap());
    assert_eq!(reader.peek(), Err(Violation::Oversize { len: 17, max: 16 }));
}

#[test]
fn a_frame_of_up_to_half_the_ring_is_never_cut() {
    let (mut writer, mut reader) = pair(128, 1000);
    assert!(writer.send(1, 1, &[1; 64]).unwrap());
    assert!(!writer.send(1, 2, &[2; 48]).unwrap());
    writer.keep(1, 2, Box::new(vec![2; 48]), true);
    assert!(!writer.flush().unwrap());
    assert!(writer.announce_wait(flags::ON_SOCKET).unwrap());
    assert_eq!(receive(&mut reader), Some((1, 1, vec![1; 64])));
    assert!(!writer.announce_wait(flags::ON_SOCKET).unwrap());
    assert!(writer.flush().unwrap());
    assert_eq!(receive(&mut reader), Some((1, 2, vec![2; 48])));
}

#[test]
fn pending_frames_are_counted_and_can_be_cancelled_until_their_first_byte_is_sent() {
    let (mut writer, mut reader) = pair(128, 1000);
    assert!(writer.send(1, 1, &[1; 100]).unwrap());
    writer.keep(1, 2, Box::new(vec![2; 300]), true);
    writer.keep(1, 3, Box::new(vec![3; 40]), true);
    writer.keep(9, 4, Box::new(vec![4; 2]), true);
    writer.keep(1, 4, Box::new(vec![4; 1]), true);
    let kept = |writer: &mut Writer| {
        let unread = writer.unread().unwrap();
        (unread.read, unread.frames, unread.bytes)
    };
    assert_eq!(kept(&mut writer), (0, 4, 343));
    assert_eq!(writer.unread().unwrap().in_ring, 120);
    receive(&mut reader).unwrap();
    writer.flush().unwrap(); // A piece of the second frame went.
    assert_eq!(kept(&mut writer), (120, 4, 343));
    let begins = |opcode| opcode == 1;
    for id in [1, 2, 4, 5] {
        assert!(writer.cancel_pending(id, begins).is_none(), "{id}");
    }
    let (opcode, payload) = writer.cancel_pending(3, begins).unwrap();
    assert_eq!((opcode, (*payload).as_ref()), (1, &[3; 40][..]));
    assert_eq!(kept(&mut writer), (120, 3, 303));
    let mut ids = Vec::new();
    for _ in 0..100 {
        ids.extend(receive(&mut reader).map(|frame| frame.1));
        writer.flush().unwrap();
    }
    assert_eq!(ids, [2, 4, 4]);
    let unread = writer.unread().unwrap();
    assert_eq!((unread.in_ring, unread.frames, unread.bytes), (0, 0, 0));
}

#[test]
fn all_pending_frames_of_a_call_can_be_cancelled_except_a_partly_sent_one() {
    let (mut writer, mut reader) = pair(128, 1000);
    assert!(writer.send(1, 1, &[1; 100]).unwrap());
    for (opcode, id, len) in [(1, 2, 300), (1, 3, 1), (1, 2, 5), (9, 2, 6), (7, 2, 7)] {
        writer.keep(
            opcode,
            id,
            Box::new(vec![id as u8; len]),
            id == 2 && opcode != 7,
        );
    }
    receive(&mut reader).unwrap();
    writer.flush().unwrap(); // A piece of the next frame went.
    assert!(writer.is_awaited());
    let unsent = writer.cancel_all_pending(2, |opcode| opcode != 7);
    let unsent: Vec<_> = unsent
        .iter()
        .map(|(opcode, payload)| (*opcode, (**payload).as_ref().len()))
        .collect();
    assert_eq!(unsent, [(1, 5), (9, 6)]);
    assert_eq!((writer.backlog(), writer.kept()), (3, 308));
    assert!(!writer.is_awaited());
    let mut received = Vec::new();
    for _ in 0..100 {
        received
            .extend(receive(&mut reader).map(|(opcode, id, payload)| (opcode, id, payload.len())));
        writer.flush().unwrap();
    }
    assert_eq!(received, [(1, 2, 300), (1, 3, 1), (7, 2, 7)]);
    assert_eq!((writer.backlog(), writer.kept()), (0, 0));
}

#[test]
fn a_header_changed_after_it_was_read_changes_nothing() {
    let (mut writer, mut reader) = pair(128, 64);
    assert!(writer.send(1, 1, &[5; 16]).unwrap());
    let header = reader.peek().unwrap().unwrap();
    reader.memory().store_word(0, u64::MAX);
    assert_eq!(reader.peek().unwrap(), Some(header));
    assert_eq!(receive(&mut reader), Some((1, 1, vec![5; 16])));
}

#[test]
fn the_highest_id_counts_only_frames_that_were_taken() {
    let (mut writer, mut reader) = pair(256, 64);
    for id in [3, 5, 4, 9] {
        assert!(writer.send(1, id, &[]).unwrap());
    }
    assert_eq!(reader.reached(), 0);
    for reached in [3, 5, 5] {
        receive(&mut reader).unwrap();
        assert_eq!(reader.reached(), reached);
    }
}

fn growing(first: usize, capacity: usize) -> (Arc<HeapMemory>, Writer, Reader) {
    let memory = Arc::new(HeapMemory::growing(first, capacity));
    let writer = FrameWriter::new(Producer::new(memory.clone()));
    let reader = FrameReader::new(Consumer::new(memory.clone()), 1 << 20);
    (memory, writer, reader)
}

#[test]
fn a_ring_grows_when_there_is_no_room_and_loses_nothing() {
    for seed in 1..200u64 {
        let (_, mut writer, mut reader) = growing(64, 4096);
        let (mut rng, mut sent, mut got) = (seed, 0u64, 0u64);
        let payload = |id: u64| vec![id as u8; (id * seed * 7 % 61) as usize * (seed as usize % 9)];
        while got < 500 {
            rng = rng.wrapping_mul(6364136223846793005).wrapping_add(seed);
            if rng >> 61 < 4 && sent < 500 {
                let body = payload(sent);
                if !writer.send(1, sent, &body).unwrap() {
                    writer.keep(1, sent, Box::new(body), true);
                }
                sent += 1;
            } else if let Some(frame) = receive(&mut reader) {
                assert_eq!(frame, (1, got, payload(got)));
                got += 1;
            }
            writer.flush().unwrap();
        }
        assert!(writer.ring.used() > 64 && reader.ring.used() == writer.ring.used());
    }
}

#[test]
fn a_ring_stays_small_as_long_as_there_is_room() {
    let (_, mut writer, mut reader) = growing(128, 4096);
    for id in 0..1000 {
        assert!(writer.send(1, id, &[3; 40]).unwrap());
        assert_eq!(receive(&mut reader), Some((1, id, vec![3; 40])));
    }
    assert_eq!((writer.ring.used(), reader.ring.used()), (128, 128));
}

#[test]
fn unread_frames_survive_the_growth_of_a_ring() {
    let (_, mut writer, mut reader) = growing(128, 1024);
    assert!(writer.send(1, 0, &[1; 80]).unwrap());
    assert_eq!(receive(&mut reader), Some((1, 0, vec![1; 80])));
    // Across the end of what is in use, which lies across the ring's then.
    assert!(writer.send(1, 1, &[2; 96]).unwrap());
    let mut sent = 2;
    while writer.send(1, sent, &[sent as u8; 40]).unwrap() {
        sent += 1;
    }
    assert_eq!(writer.ring.used(), 1024);
    assert_eq!(receive(&mut reader), Some((1, 1, vec![2; 96])));
    for id in 2..sent {
        assert_eq!(receive(&mut reader), Some((1, id, vec![id as u8; 40])));
    }
    assert_eq!(reader.ring.used(), 1024);
    assert!(writer.send(1, sent, &[5; 500]).unwrap());
}

#[test]
fn an_impossible_growth_is_refused() {
    for to in [0, 1, 64, 128, 192, 2048, u64::MAX, 1 << 63] {
        let (memory, mut writer, mut reader) = growing(128, 1024);
        assert!(writer.send(GROW, to, &[]).unwrap());
        let most = memory.capacity() as u64;
        let used = 128;
        assert_eq!(reader.peek(), Err(Violation::Growth { used, to, most }));
    }
    let (_, mut writer, mut reader) = growing(128, 1024);
    assert!(writer.send(GROW, 512, &[0]).unwrap());
    assert_eq!(reader.peek(), Err(Violation::Oversize { len: 1, max: 0 }));
}

/// A ring for which there is no more memory, until there is.
struct Short {
    memory: HeapMemory,
    refuses: std::sync::atomic::AtomicBool,
    asked: std::sync::atomic::AtomicU32,
}

impl RingMemory for Short {
    fn capacity(&self) -> usize {
        self.memory.capacity()
    }
    fn first(&self) -> usize {
        self.memory.first()
    }
    fn populate(&self, _from: usize, _to: usize) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed);
        !self.refuses.load(Ordering::Relaxed)
    }
    fn load_word(&self, index: usize) -> u64 {
        self.memory.load_word(index)
    }
    fn store_word(&self, index: usize, value: u64) {
        self.memory.store_word(index, value);
    }
    fn tail(&self) -> &AtomicU64 {
        self.memory.tail()
    }
    fn head(&self) -> &AtomicU64 {
        self.memory.head()
    }
    fn reader_waits(&self) -> &AtomicU32 {
        self.memory.reader_waits()
    }
    fn writer_waits(&self) -> &AtomicU32 {
        self.memory.writer_waits()
    }
}

#[test]
fn without_memory_to_grow_frames_go_in_pieces_and_growth_is_retried() {
    let memory = Arc::new(Short {
        memory: HeapMemory::growing(128, 1024),
        refuses: true.into(),
        asked: 0.into(),
    });
    let mut writer = FrameWriter::new(Producer::new(memory.clone()));
    let mut reader = FrameReader::new(Consumer::new(memory.clone()), 1 << 20);
    for id in 0..300 {
        if id == 200 {
            memory.refuses.store(false, Ordering::Relaxed);
        }
        let sent = vec![id as u8; 400];
        if !writer.send(1, id, &sent).unwrap() {
            writer.keep(1, id, Box::new(sent.clone()), true);
        }
        let header = loop {
            if let Some(header) = reader.peek().unwrap() {
                break header;
            }
            writer.flush().unwrap();
        };
        let mut payload = vec![0; header.len];
        reader.take(&mut payload);
        assert_eq!((header.id, payload), (id, sent));
    }
    assert_eq!(writer.ring.used(), 1024);
    assert!(memory.asked.load(Ordering::Relaxed) < 20);
}

#[test]
fn a_violation_leaves_the_pending_frames_to_the_caller() {
    let memory = Arc::new(HeapMemory::new(64));
    let mut writer = FrameWriter::new(Producer::new(memory.clone()));
    assert!(writer.send(1, 1, &[0; 48]).unwrap());
    writer.keep(1, 2, Box::new(vec![0; 8]), true);
    memory.head().store(8 << 10, Ordering::Relaxed);
    assert!(writer.flush().is_err());
    assert_eq!((writer.backlog(), writer.kept()), (1, 8));
    let (_, payload) = writer.cancel_pending(2, |_| true).unwrap();
    assert_eq!(((*payload).as_ref().len(), writer.kept()), (8, 0));
}
