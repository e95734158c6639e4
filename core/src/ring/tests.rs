use super::*;
use crate::sync::Ordering;
use crate::violation::Violation;
use std::sync::Arc;

fn pair(
    capacity: usize,
) -> (
    Arc<HeapMemory>,
    Producer<Arc<HeapMemory>>,
    Consumer<Arc<HeapMemory>>,
) {
    let memory = Arc::new(HeapMemory::new(capacity));
    (
        memory.clone(),
        Producer::new(memory.clone()),
        Consumer::new(memory),
    )
}

#[test]
fn bytes_come_out_as_they_went_in_across_the_wrap() {
    let (_, mut writer, mut reader) = pair(32);
    for round in 0..100u8 {
        let bytes: Vec<u8> = (0..round % 25).map(|i| i ^ round).collect();
        let len = padded(bytes.len());
        assert!(writer.room().unwrap() >= len);
        writer.put(0, &bytes);
        writer.publish(len);
        assert_eq!(reader.available().unwrap(), len);
        let mut out = vec![0; bytes.len()];
        reader.get(0, &mut out);
        reader.release(len);
        assert_eq!(out, bytes);
    }
}

#[test]
fn a_full_ring_has_no_room_until_it_is_read() {
    let (_, mut writer, mut reader) = pair(16);
    writer.put(0, &[1; 16]);
    writer.publish(16);
    assert_eq!(writer.room(), Ok(0));
    reader.available().unwrap();
    reader.release(8);
    assert_eq!(writer.room(), Ok(8));
}

#[test]
fn an_impossible_tail_is_refused() {
    let (memory, _, mut reader) = pair(64);
    for (claim, what) in [
        (65, Violation::Misaligned { index: 65, unit: 8 }),
        (
            72,
            Violation::OutOfRange {
                index: 72,
                low: 0,
                high: 64,
            },
        ),
        (
            u64::MAX - 7,
            Violation::OutOfRange {
                index: u64::MAX - 7,
                low: 0,
                high: 64,
            },
        ),
    ] {
        memory.tail().store(claim, Ordering::Relaxed);
        assert_eq!(reader.available(), Err(what));
    }
}

#[test]
fn a_tail_that_goes_back_is_refused() {
    let (memory, mut writer, mut reader) = pair(64);
    writer.publish(32);
    assert_eq!(reader.available(), Ok(32));
    memory.tail().store(16, Ordering::Relaxed);
    assert_eq!(
        reader.available(),
        Err(Violation::OutOfRange {
            index: 16,
            low: 32,
            high: 64
        })
    );
}

#[test]
fn a_head_beyond_what_was_written_is_refused() {
    let (memory, mut writer, _) = pair(64);
    writer.publish(32);
    memory.head().store(40, Ordering::Relaxed);
    assert_eq!(
        writer.room(),
        Err(Violation::OutOfRange {
            index: 40,
            low: 0,
            high: 32
        })
    );
}
