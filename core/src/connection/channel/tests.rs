use super::*;
use crate::connection::segment::size_for;
use crate::wait::bell::{Bell, Semaphore};
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::thread;
use std::time::Duration;

const CAPACITY: usize = 4096;
const SPIN: u64 = 50_000;

/// The names of two semaphores, unlinked at the end.
struct Names([CString; 2]);

impl Names {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let names = ["a", "b"].map(|side| {
            let name = format!("/shmrpc-core-test-{}-{number}-{side}", std::process::id());
            CString::new(name).unwrap()
        });
        for name in &names {
            // SAFETY: a valid C string; with O_CREAT a mode and a value follow.
            let made = unsafe { libc::sem_open(name.as_ptr(), libc::O_CREAT, 0o600, 0) };
            assert_ne!(made, libc::SEM_FAILED);
            // SAFETY: opened a line above, not used again.
            unsafe { libc::sem_close(made) };
        }
        Names(names)
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        for name in &self.0 {
            // SAFETY: a valid C string.
            unsafe { libc::sem_unlink(name.as_ptr()) };
        }
    }
}

fn socket_pair() -> [OwnedFd; 2] {
    let mut fds = [0; 2];
    // SAFETY: room for two descriptors, which are ours alone.
    unsafe {
        assert_eq!(
            libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, fds.as_mut_ptr()),
            0
        );
        fds.map(|fd| OwnedFd::from_raw_fd(fd))
    }
}

/// Both sides of a connection whose sides sleep in threads.
fn pair(spin: u64) -> (Arc<Channel>, Arc<Channel>) {
    // SAFETY: a valid C string; the descriptor that comes back is ours alone.
    let file = unsafe { File::from_raw_fd(libc::memfd_create(c"test".as_ptr(), 0)) };
    file.set_len(size_for(CAPACITY) as u64).unwrap();
    let names = Names::new();
    let [rung, sockets] = [socket_pair(), socket_pair()];
    // SAFETY: no memory is involved.
    let owner = unsafe { libc::geteuid() };
    let bells = |side: usize| Bells {
        bell: Bell::new(rung[side].try_clone().unwrap()),
        ours: Semaphore::open(&names.0[side], owner).unwrap(),
        theirs: Semaphore::open(&names.0[1 - side], owner).unwrap(),
    };
    let side = |server: bool| {
        let (segment, direction, ours) = if server {
            (
                Segment::create(file.as_fd(), CAPACITY),
                Direction::ServerToClient,
                0,
            )
        } else {
            (
                Segment::open(file.as_fd(), CAPACITY),
                Direction::ClientToServer,
                1,
            )
        };
        let sleep = Sleep::Thread;
        let socket = sockets[usize::from(server)].try_clone().unwrap();
        Channel::new(
            segment.unwrap(),
            direction,
            bells(ours),
            sleep,
            1 << 20,
            spin,
            socket,
            1 << 26,
        )
    };
    (side(true), side(false))
}

fn send(channel: &Channel, id: u64, payload: &[u8]) -> Sent {
    channel
        .send(1, id, payload, || Box::new(payload.to_vec()))
        .unwrap()
}

fn receive(channel: &Channel) -> (u64, Vec<u8>) {
    loop {
        let mut receiver = channel.receiver();
        if let Some(header) = receiver.peek().unwrap() {
            let mut payload = vec![0; header.len];
            receiver.take(&mut payload).unwrap();
            channel.release(&receiver);
            return (header.id, payload);
        }
        drop(receiver);
        channel.sleep(Duration::from_secs(10)).unwrap();
    }
}

/// Echoes frames of many sizes through two sleepers; every one comes back as it was.
fn echo(spin: u64) {
    let (server, client) = pair(spin);
    let echoing = thread::spawn(move || {
        for _ in 0..300 {
            let (id, payload) = receive(&server);
            send(&server, id, &payload);
        }
        while server.is_stalled() {
            server.sleep(Duration::from_millis(10)).unwrap();
        }
    });
    for id in 0..300u64 {
        let payload: Vec<u8> = (0..id * id % 20_011).map(|i| (i ^ id) as u8).collect();
        let sent = send(&client, id, &payload);
        client.spin(sent, clock::now()).unwrap();
        assert_eq!(receive(&client), (id, payload));
    }
    echoing.join().unwrap();
}

#[test]
fn frames_of_any_size_come_back_when_both_sides_sleep() {
    echo(0);
}

#[test]
fn frames_of_any_size_come_back_when_both_sides_spin() {
    echo(SPIN);
}

#[test]
fn large_frames_both_ways_at_once_do_not_block_each_other() {
    let (server, client) = pair(0);
    let payload = vec![7; 100 * CAPACITY];
    let theirs = payload.clone();
    let other = thread::spawn(move || {
        send(&server, 1, &theirs);
        let received = receive(&server);
        while server.is_stalled() {
            server.sleep(Duration::from_millis(10)).unwrap();
        }
        received
    });
    send(&client, 2, &payload);
    assert_eq!(receive(&client), (1, payload.clone()));
    while client.is_stalled() {
        client.sleep(Duration::from_millis(10)).unwrap();
    }
    assert_eq!(other.join().unwrap(), (2, payload));
}

#[test]
fn a_peer_that_sleeps_is_rung_once() {
    let (server, client) = pair(0);
    assert!(server.park(true).unwrap());
    assert_eq!(send(&client, 1, b"x"), Sent::Rang);
    assert_eq!(send(&client, 2, b"x"), Sent::Hot);
    assert!(!server.park(true).unwrap());
}

#[test]
fn calls_are_begun_in_the_order_of_their_ids() {
    let (server, client) = pair(0);
    let begin = |id| client.publish(1, id, b"x", || Box::new(*b"x"), true);
    begin(2).unwrap();
    assert_eq!(begin(1), Err(SendError::Overtaken));
    // SAFETY: there are no buffers.
    let parcel = unsafe { client.send_parcel(1, 1, b"x", &[], || Box::new(*b"x"), true) };
    assert_eq!(parcel, Err(SendError::Overtaken));
    send(&client, 1, b"of a call that was begun before");
    begin(3).unwrap();
    for id in [2, 1, 3] {
        assert_eq!(receive(&server).0, id);
    }
}

#[test]
fn what_cannot_be_sent_is_said_and_harms_nothing() {
    let (server, client) = pair(0);
    let large = vec![0; (1 << 20) + 1];
    let refused = client.send(1, 1, &large, || unreachable!());
    let (len, max) = (large.len(), 1 << 20);
    assert_eq!(refused, Err(SendError::Oversize { len, max }));
    send(&client, 2, b"fits");
    assert_eq!(receive(&server), (2, b"fits".to_vec()));
    client.close();
    assert_eq!(
        client.send(1, 3, b"", || unreachable!()),
        Err(SendError::Closed)
    );
}
