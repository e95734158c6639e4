//! Several threads of each side at one channel: some send, one receives, others drop loans, one closes.
//!
//! Without loom: the real channel, its locks and its wakers. ThreadSanitizer checks what the threads of a side share.
#![cfg(not(loom))]

mod pair;

use _core::connection::channel::{Channel, FrameRole, SendError};
use _core::connection::parcel::{self, PARCEL};
use _core::connection::{buffer::Buffer, peer_extents::ReleaseSender};
use _core::ring::frame::Header;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Time for which a side spins before it sleeps, in nanoseconds.
const SPIN: u64 = 20_000;
const SENDERS: u64 = 3;
const EACH: u64 = 200;
/// Bytes of a buffer: some pages, so that blocks are soon reused.
const BUFFER: usize = 10_000;
/// Longer than any step takes.
const LONG: Duration = Duration::from_secs(60);

/// Send frames, every other one with a buffer in shared memory that is filled with one number.
fn send(channel: &Channel, id: u64) {
    if id % 2 == 0 {
        let body = id.to_ne_bytes();
        channel.send(1, id, &body, || Box::new(body)).unwrap();
    } else {
        let buffer = vec![id as u8; BUFFER];
        let buffers = [(buffer.as_ptr(), buffer.len())];
        // SAFETY: the buffer outlives the call.
        unsafe {
            channel.send_parcel(
                1,
                id,
                b"body",
                &buffers,
                || Box::new(*b"body"),
                FrameRole::Other,
            )
        }
        .unwrap();
    }
    channel.await_room().unwrap();
}

fn check(header: Header, payload: &[u8]) {
    assert_eq!(header.opcode, 1);
    assert_eq!(payload, header.id.to_ne_bytes());
}

/// Return the buffer of a parcel, in a block of the peer or, for lack of memory, in the frame.
fn open(channel: &Channel, payload: &[u8]) -> Option<Buffer> {
    let parsed = parcel::parse(payload).unwrap();
    assert_eq!(parsed.entries.len(), 1);
    channel.loans().open(&parsed.entries[0]).unwrap()
}

/// Take all frames of the peer's threads, and pass the loans on to other threads.
fn take_all(channel: &Channel, droppers: &[Sender<(u64, Buffer)>]) {
    let mut next = [0; SENDERS as usize];
    for taken in 0..SENDERS * EACH {
        let (header, payload) = pair::receive(channel);
        let sender = (header.id / EACH) as usize;
        assert_eq!(header.id % EACH, next[sender], "the order of one sender");
        next[sender] += 1;
        if header.opcode & PARCEL == 0 {
            check(header, &payload);
        } else if let Some(memory) = open(channel, &payload) {
            let dropper = &droppers[taken as usize % droppers.len()];
            dropper.send((header.id, memory)).unwrap();
        } else {
            assert!(payload.ends_with(&[header.id as u8; BUFFER]));
        }
    }
}

/// Check the bytes of each loan, and drop it.
fn drop_all(leases: impl Iterator<Item = (u64, Buffer)>) {
    for (id, memory) in leases {
        let mut bytes = vec![0; memory.len()];
        // SAFETY: as long as the memory.
        unsafe { memory.read(bytes.as_mut_ptr()) };
        assert_eq!(bytes, [id as u8; BUFFER]);
    }
}

/// Run the threads of a side: three send, one receives, two drop loans, all at once.
fn talk(channel: &Arc<Channel>) {
    thread::scope(|scope| {
        for sender in 0..SENDERS {
            scope.spawn(move || (0..EACH).for_each(|n| send(channel, sender * EACH + n)));
        }
        let droppers = [(); 2].map(|()| {
            let (dropper, leases) = std::sync::mpsc::channel();
            scope.spawn(move || drop_all(leases.into_iter()));
            dropper
        });
        take_all(channel, &droppers);
    });
}

/// Nothing is lost, mixed up or overwritten during a read, whichever thread sends, receives and drops.
#[test]
fn many_threads_of_both_sides_share_a_channel() {
    let sides = pair::pair(SPIN);
    let (done, both) = channel();
    thread::scope(|scope| {
        for side in &sides {
            let done = done.clone();
            scope.spawn(move || {
                talk(side);
                done.send(()).unwrap();
            });
        }
        // The side that finishes first continues to process releases, and to send queued frames.
        for _ in 0..sides.len() {
            while both.recv_timeout(Duration::from_millis(5)).is_err() {
                for side in &sides {
                    side.collect_releases().unwrap();
                    side.flush().unwrap();
                }
            }
        }
    });
    // The sweeper may process releases at this moment: then no other thread does.
    let end = Instant::now() + LONG;
    while sides
        .iter()
        .any(|side| side.loans().allocator().usage().1 > 0)
        && Instant::now() < end
    {
        for side in &sides {
            side.flush().unwrap();
            side.collect_releases().unwrap();
        }
    }
    for side in &sides {
        assert_eq!(
            side.loans().allocator().usage().1,
            0,
            "all blocks have come back"
        );
        assert_eq!(side.fault(), None);
    }
}

/// A closed channel wakes its sleeping thread at any moment, and sends nothing more.
#[test]
fn a_closed_channel_wakes_its_sleeping_thread() {
    for _ in 0..200 {
        let [ours, theirs] = pair::pair(SPIN);
        thread::scope(|scope| {
            let (asleep, slept) = channel();
            let sleeper = &ours;
            scope.spawn(move || {
                // Closed before, in between or after: with a frame in transit the first sleep may end by that.
                while sleeper.send(1, 1, b"", || unreachable!()).is_ok() {
                    sleeper.sleep(Duration::from_secs(3600)).unwrap();
                    let mut receiver = sleeper.receiver();
                    if let Some(header) = receiver.peek().unwrap() {
                        receiver.take(&mut vec![0; header.len]).unwrap();
                    }
                }
                asleep.send(()).unwrap();
            });
            let peer = &theirs;
            scope.spawn(move || send(peer, 0));
            ours.close();
            slept.recv_timeout(LONG).expect("the sleeper wakes");
        });
        assert_eq!(
            ours.send(1, 1, b"", || unreachable!()),
            Err(SendError::Closed)
        );
        // A closed channel does not let a thread sleep, and loses no frame of the peer.
        ours.sleep(Duration::from_secs(3600)).unwrap();
    }
}
