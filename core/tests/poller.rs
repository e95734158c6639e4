//! A poller whose channels come and go while it goes round.
#![cfg(not(loom))]

#[expect(dead_code)] // Its `receive`: here a poller does that.
mod pair;

use _core::connection::channel::Channel;
use _core::connection::poller::{Found, Poller};
use std::sync::Arc;

/// A poller of so many channels, which finds what is there and lays none to rest; and their other ends.
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

fn send(client: &Channel) {
    client.send(1, 1, b"", || Box::new([])).unwrap();
}

/// Takes the next frame; the key of its channel. None once all channels sleep.
fn take(poller: &mut Poller<usize>) -> Option<usize> {
    let index = loop {
        match poller.find() {
            Found::Frame(index) => break index,
            Found::Broken(_, violation) => panic!("{violation:?}"),
            Found::Nothing if poller.rest() => return None,
            Found::Nothing => {} // Its slice was over.
        }
    };
    let channel = poller.channel(index).unwrap();
    let mut receiver = channel.receiver();
    receiver.peek().unwrap();
    receiver.take(&mut []).unwrap();
    channel.release(&receiver);
    poller.key(index).copied()
}

/// Those that have the turn before leave, and so do those after; whoever stays is served.
#[test]
fn channels_that_go_while_the_turn_is_elsewhere_take_it_from_nobody() {
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
fn the_turn_goes_on_from_where_it_was_when_another_channel_goes() {
    let (mut poller, clients) = poller(4);
    clients.iter().for_each(|client| send(client));
    assert_eq!([take(&mut poller), take(&mut poller)], [Some(0), Some(1)]);
    poller.remove(0);
    send(&clients[1]);
    let order = [take(&mut poller), take(&mut poller), take(&mut poller)];
    assert_eq!(order, [Some(2), Some(3), Some(1)]);
}
