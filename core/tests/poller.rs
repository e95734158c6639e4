//! A poller whose channels are added and removed while it polls.
#![cfg(not(loom))]

mod pair;

use _core::connection::channel::{Channel, SendOutcome};
use _core::connection::poller::{Expected, PollResult, Poller};
use _core::packet;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Create a poller of `count` channels that never parks, and the other ends of the channels.
fn poller(count: usize) -> (Poller<usize>, Vec<Arc<Channel>>) {
    let mut poller = Poller::new(1_000_000_000_000);
    poller.spinning = false;
    let clients = (0..count).map(|key| {
        let [server, client] = pair::pair(0);
        assert_eq!(poller.add(server, key), key);
        client
    });
    let clients = clients.collect();
    (poller, clients)
}

/// The poller waits for a packet even without channels, and finds a frame that comes meanwhile.
#[test]
fn an_expected_packet_delays_no_frame() {
    let [ours, theirs] = packet::pair().unwrap();
    let mut poller = Poller::new(1_000_000_000);
    let socket = Expected::Packet(ours.as_raw_fd());
    poller.expect(socket);
    assert_eq!(poller.poll(), PollResult::Nothing);
    let [server, client] = pair::pair(0);
    poller.add(server, 0);
    send(&client);
    packet::send(theirs.as_fd(), b"here", &[]).unwrap();
    poller.expect(socket);
    assert_eq!(take(&mut poller), Some(0));
    poller.expect(socket);
    assert_eq!(take(&mut poller), None);
    assert_eq!(packet::next_len(ours.as_fd()).unwrap(), 4, "it is left");
    drop(ours);
    poller.expect(socket);
    assert_eq!(take(&mut poller), None);
}

fn send(client: &Channel) {
    client.send(1, 1, b"", || Box::new([])).unwrap();
}

/// Take the next frame, and return the key of its channel. Return None once all channels are parked.
fn take(poller: &mut Poller<usize>) -> Option<usize> {
    let index = loop {
        match poller.poll() {
            PollResult::Frame(index) => break index,
            PollResult::Broken(_, violation) => panic!("{violation:?}"),
            PollResult::Nothing if poller.park_all() => return None,
            PollResult::Nothing => {} // Its slice was over.
        }
    };
    let channel = poller.channel(index).unwrap();
    let mut receiver = channel.receiver();
    receiver.peek().unwrap();
    receiver.take(&mut []).unwrap();
    channel.release(&receiver);
    poller.key(index).copied()
}

/// Channels before and after the next one are removed; each remaining one is served.
#[test]
fn removed_channels_do_not_skip_the_turn_of_others() {
    const COUNT: usize = 6;
    for served in 1..=COUNT {
        for stays in 0..COUNT {
            let (mut poller, clients) = poller(COUNT);
            clients.iter().for_each(|client| send(client));
            for key in 0..served {
                assert_eq!(take(&mut poller), Some(key));
            }
            for index in (0..COUNT).filter(|&index| index != stays) {
                poller.remove(index);
            }
            if stays < served {
                send(&clients[stays]);
            }
            assert_eq!(take(&mut poller), Some(stays));
            assert_eq!(take(&mut poller), None);
        }
    }
}

#[test]
fn the_turn_stays_when_another_channel_is_removed() {
    let (mut poller, clients) = poller(4);
    clients.iter().for_each(|client| send(client));
    assert_eq!([take(&mut poller), take(&mut poller)], [Some(0), Some(1)]);
    poller.remove(0);
    send(&clients[1]);
    let order = [take(&mut poller), take(&mut poller), take(&mut poller)];
    assert_eq!(order, [Some(2), Some(3), Some(1)]);
}

/// Return the CPUs that this thread may run on.
fn usable_cpus() -> Vec<usize> {
    // SAFETY: all zeros are a valid set, which the kernel fills.
    let set = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        let size = size_of::<libc::cpu_set_t>();
        assert_eq!(libc::sched_getaffinity(0, size, &raw mut set), 0);
        set
    };
    // SAFETY: the number is within the set.
    let usable = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
    (0..libc::CPU_SETSIZE as usize).filter(usable).collect()
}

/// Pin the calling thread to one CPU.
fn stay_on(cpu: usize) {
    // SAFETY: the number is within the set, which the kernel reads.
    unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        let size = size_of::<libc::cpu_set_t>();
        assert_eq!(libc::sched_setaffinity(0, size, &raw const set), 0);
    }
}

/// Send a request, and wait for the reply.
fn call(client: &Channel) {
    let now = client.check_peer().unwrap();
    let sent = client.send(1, 1, b"", || Box::new([])).unwrap();
    client.spin(sent, now).unwrap();
    pair::receive(client);
}

/// Reply to all requests until a stop is requested.
fn serve(channels: [Arc<Channel>; 2], stop: &AtomicBool) {
    let mut poller = Poller::new(200_000);
    for (key, channel) in channels.into_iter().enumerate() {
        poller.add(channel, key);
    }
    // Relaxed: the thread that requests the stop joins this one.
    while !stop.load(Ordering::Relaxed) {
        match poller.poll() {
            PollResult::Frame(index) => {
                let channel = poller.channel(index).unwrap().clone();
                pair::receive(&channel);
                if channel.send(2, 1, b"", || Box::new([])).unwrap() == SendOutcome::PeerWoken {
                    poller.record_peer_woken();
                }
            }
            PollResult::Broken(_, violation) => panic!("{violation:?}"),
            PollResult::Nothing if poller.park_all() => {
                // The waker of a thread is a semaphore, on which a poller cannot wait.
                thread::sleep(Duration::from_micros(50));
                (0..2).for_each(|index| assert!(poller.wake(index)));
            }
            PollResult::Nothing => {}
        }
    }
}

/// A client on another CPU always has its next request ready. Beside it, a client that the server kept from running
/// made a hundredth of its calls, or less. Other processes may use the CPU meanwhile, so one successful attempt of
/// several suffices.
#[test]
fn a_client_on_the_cpu_of_its_server_is_served_beside_one_that_has_its_own() {
    const CALLS: usize = 500;
    let cpus = usable_cpus();
    let [ours, other, ..] = cpus[..] else {
        eprintln!("not tested: there is one CPU");
        return;
    };
    let tries: Vec<usize> = (0..5).map(|_| beside(CALLS, ours, other)).collect();
    assert!(
        tries.iter().any(|&meanwhile| meanwhile < CALLS * 20),
        "{tries:?} calls of the other one, beside {CALLS}"
    );
}

/// Return the number of calls that a client on the CPU `other` makes while one on the server's CPU `ours` makes
/// `calls_here`.
fn beside(calls_here: usize, ours: usize, other: usize) -> usize {
    let ([server_here, here], [server_there, there]) = (pair::pair(200_000), pair::pair(200_000));
    let (over, closed, calls) = (
        AtomicBool::new(false),
        AtomicBool::new(false),
        AtomicUsize::new(0),
    );
    // Relaxed, all: counted, and not relied upon.
    thread::scope(|scope| {
        scope.spawn(|| {
            stay_on(ours);
            serve([server_here, server_there], &closed);
        });
        let busy = scope.spawn(|| {
            stay_on(other);
            while !over.load(Ordering::Relaxed) {
                call(&there);
                calls.fetch_add(1, Ordering::Relaxed);
            }
        });
        let meanwhile = scope.spawn(|| {
            stay_on(ours);
            (0..10).for_each(|_| call(&here));
            let before = calls.load(Ordering::Relaxed);
            (0..calls_here).for_each(|_| call(&here));
            calls.load(Ordering::Relaxed) - before
        });
        let meanwhile = meanwhile.join();
        over.store(true, Ordering::Relaxed);
        let ended = busy.join();
        closed.store(true, Ordering::Relaxed);
        ended.unwrap();
        meanwhile.unwrap()
    })
}
