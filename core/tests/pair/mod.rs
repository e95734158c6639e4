//! Both sides of a connection in one process, each with a mapping of its own, in files whose names are removed at once.

use _core::connection::channel::{Channel, SleepMode};
use _core::connection::segment::{Direction, Segment, size_for};
use _core::packet;
use _core::ring::frame::Header;
use _core::wait::waker::{LoopWaker, Semaphore, Semaphores, Wakers};
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, FromRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Bytes of a ring: small, so that it is often full.
pub const CAPACITY: usize = 4096;

/// Largest frame, in bytes.
pub const MAX_FRAME: usize = 1 << 20;

/// Open a semaphore twice, and remove its name.
fn semaphores() -> [Semaphore; 2] {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: each call gets another number.
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("/shmrpc-core-threads-{}-{number}", std::process::id());
    let name = CString::new(name).unwrap();
    // SAFETY: a valid C string; with O_CREAT a mode and a value follow.
    let made = unsafe { libc::sem_open(name.as_ptr(), libc::O_CREAT, 0o600, 0) };
    assert_ne!(made, libc::SEM_FAILED);
    // SAFETY: no memory is involved.
    let owner = unsafe { libc::geteuid() };
    let opened = [(); 2].map(|()| Semaphore::open(&name, owner).unwrap());
    // SAFETY: opened above and not used again; a valid C string.
    unsafe {
        libc::sem_close(made);
        libc::sem_unlink(name.as_ptr());
    }
    opened
}

/// Create the server's side and the client's. Both sleep in threads, and spin for up to `spin` nanoseconds before.
pub fn pair(spin: u64) -> [Arc<Channel>; 2] {
    pair_that_sleeps(SleepMode::Thread, spin)
}

/// Create a pair whose server sleeps in this way.
pub fn pair_that_sleeps(server_sleep: SleepMode, spin: u64) -> [Arc<Channel>; 2] {
    // SAFETY: a valid C string; the descriptor that comes back is ours alone.
    let file = unsafe { File::from_raw_fd(libc::memfd_create(c"test".as_ptr(), 0)) };
    file.set_len(size_for(CAPACITY) as u64).unwrap();
    let regions = [
        Segment::create(file.as_fd(), CAPACITY).unwrap(),
        Segment::open(file.as_fd(), CAPACITY).unwrap(),
    ];
    let [server_bell, client_bell] = packet::pair().unwrap().map(LoopWaker::new);
    let ([server, servers], [client, clients]) = (semaphores(), semaphores());
    let bells = |bell, ours, theirs| Wakers {
        loop_waker: bell,
        semaphores: Some(Semaphores { ours, theirs }),
    };
    let [server_news, client_news] = packet::pair().unwrap();
    let [server_region, client_region] = regions;
    let side = |region, direction, bells, news, sleep| {
        let memory = 1 << 24;
        Channel::new(
            region, direction, bells, sleep, MAX_FRAME, spin, news, memory,
        )
    };
    [
        side(
            server_region,
            Direction::ServerToClient,
            bells(server_bell, server, clients),
            server_news,
            server_sleep,
        ),
        side(
            client_region,
            Direction::ClientToServer,
            bells(client_bell, client, servers),
            client_news,
            SleepMode::Thread,
        ),
    ]
}

/// Sleep until the next frame comes, and return it.
pub fn receive(channel: &Channel) -> (Header, Vec<u8>) {
    loop {
        let mut receiver = channel.receiver();
        if let Some(header) = receiver.peek().unwrap() {
            let mut payload = vec![0; header.len];
            receiver.take(&mut payload).unwrap();
            channel.release(&receiver);
            return (header, payload);
        }
        drop(receiver);
        channel.sleep(Duration::from_secs(60)).unwrap();
    }
}
