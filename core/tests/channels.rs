//! Channels of both sides: frames of any size, single wake-ups of sleepers, and frames that are not sent.
#![cfg(not(loom))]

mod pair;

use _core::connection::channel::{Channel, FrameRole, SendError, SendOutcome, SleepMode};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const SPIN: u64 = 50_000;

/// Create the server's side and the client's, which spin for up to `spin` nanoseconds.
fn pair(spin: u64) -> (Arc<Channel>, Arc<Channel>) {
    let [server, client] = pair::pair(spin);
    (server, client)
}

fn send(channel: &Channel, id: u64, payload: &[u8]) -> SendOutcome {
    channel
        .send(1, id, payload, || Box::new(payload.to_vec()))
        .unwrap()
}

fn receive(channel: &Channel) -> (u64, Vec<u8>) {
    let (header, payload) = pair::receive(channel);
    (header.id, payload)
}

/// Echo frames of many sizes through two sleepers, and check that each comes back unchanged.
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
        client.spin(sent, client.check_peer().unwrap()).unwrap();
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
    let payload = vec![7; 100 * pair::CAPACITY];
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
fn a_sleeping_peer_is_woken_once() {
    let (server, client) = pair(0);
    assert!(server.park(true, false).unwrap());
    assert_eq!(send(&client, 1, b"x"), SendOutcome::PeerWoken);
    assert_eq!(send(&client, 2, b"x"), SendOutcome::PeerAwake);
    assert!(!server.park(true, false).unwrap());
}

#[test]
fn a_patient_peer_is_woken_for_other_frames_than_items_or_by_a_nudge() {
    let [server, client] = pair::pair_that_sleeps(SleepMode::Loop, 0);
    let item = |id| client.publish(1, id, b"x", || Box::new(*b"x"), FrameRole::StreamItem);
    assert!(server.park(true, false).unwrap());
    assert_eq!(item(1), Ok(SendOutcome::PeerWoken));
    receive(&server);
    assert!(server.park(true, true).unwrap());
    assert_eq!(item(2), Ok(SendOutcome::PeerAwake));
    receive(&server);
    assert!(server.park(true, true).unwrap());
    assert_eq!(item(3), Ok(SendOutcome::PeerAwake));
    assert_eq!(send(&client, 3, b"x"), SendOutcome::PeerWoken);
    receive(&server);
    receive(&server);
    assert!(server.park(true, true).unwrap());
    client.nudge();
    assert_eq!(send(&client, 4, b"x"), SendOutcome::PeerAwake); // The peer was woken.
}

#[test]
fn a_patient_peer_sees_all_frames_before_its_announcement() {
    let [server, client] = pair::pair_that_sleeps(SleepMode::Loop, 0);
    send(&client, 1, b"");
    assert!(server.receiver().peek().unwrap().is_some()); // The server knows of this frame.
    assert_eq!(
        send(&client, 2, b""),
        SendOutcome::PeerAwake,
        "no wake-up is sent"
    );
    assert!(!server.park(true, true).unwrap());
    assert_eq!(receive(&server).0, 1);
    assert!(!server.wake_waiting_writer(), "there is another one");
    assert_eq!(receive(&server).0, 2);
    assert!(server.wake_waiting_writer());
    assert_eq!(
        send(&client, 3, b""),
        SendOutcome::PeerWoken,
        "it sleeps still"
    );
}

#[test]
fn calls_are_begun_in_the_order_of_their_ids() {
    let (server, client) = pair(0);
    let begin = |id| client.publish(1, id, b"x", || Box::new(*b"x"), FrameRole::Begin);
    begin(2).unwrap();
    assert_eq!(begin(1), Err(SendError::Overtaken));
    // SAFETY: there are no buffers.
    let parcel =
        unsafe { client.send_parcel(1, 1, b"x", &[], || Box::new(*b"x"), FrameRole::Begin) };
    assert_eq!(parcel, Err(SendError::Overtaken));
    send(&client, 1, b"of a call that was begun before");
    begin(3).unwrap();
    for id in [2, 1, 3] {
        assert_eq!(receive(&server).0, id);
    }
}

#[test]
fn an_oversized_frame_is_an_error_and_harmless() {
    let (server, client) = pair(0);
    let large = vec![0; pair::MAX_FRAME + 1];
    let refused = client.send(1, 1, &large, || unreachable!());
    let (len, max) = (large.len(), pair::MAX_FRAME);
    assert_eq!(refused, Err(SendError::Oversize { len, max }));
    send(&client, 2, b"fits");
    assert_eq!(receive(&server), (2, b"fits".to_vec()));
    client.close();
    assert_eq!(
        client.send(1, 3, b"", || unreachable!()),
        Err(SendError::Closed)
    );
}
