//! The cost of transactions and blocks in shared memory: `cargo run --release --example shared_memory`.

use _core::memory::mapping::SharedMapping;
use _core::shared_heap::Members;
use _core::shared_heap::access::{ReadWords, WriteWords};
use _core::shared_heap::allocator::{Allocator, file_size};
use _core::shared_heap::backing_file::PAGE;
use _core::shared_heap::owner_lock::NEVER;
use std::fs::File;
use std::hint::black_box;
use std::os::fd::{AsFd, FromRawFd};
use std::sync::Arc;
use std::time::Instant;

const MAX_MEMORY: u64 = 256 << 20;
const ROUNDS: u64 = 20;

/// The only member.
struct Alone;

impl Members for Alone {
    fn self_id(&self) -> u64 {
        1 << 32 | 1
    }
    fn is_alive(&self, _member: u64) -> bool {
        true
    }
}

/// Print the fastest of a few rounds, in nanoseconds for each of `count`: the others are slower because of other work of
/// the machine.
fn measure(name: &str, count: u64, mut work: impl FnMut()) {
    let round = count / ROUNDS;
    let times = (0..ROUNDS).map(|_| {
        let begin = Instant::now();
        for _ in 0..round {
            work();
        }
        begin.elapsed().as_nanos() as f64 / round as f64
    });
    let time = times.fold(f64::INFINITY, f64::min);
    println!("{name:42} {time:8.1} ns {:8.2} M/s", 1e3 / time);
}

fn main() {
    let start = PAGE;
    let size = file_size(start, MAX_MEMORY);
    // SAFETY: a valid C string; what comes back is ours alone.
    let file = unsafe { File::from_raw_fd(libc::memfd_create(c"example".as_ptr(), 0)) };
    file.set_len(size).expect("a sparse file");
    let words = SharedMapping::new(file.as_fd(), size as usize).expect("a mapping");
    let file = Arc::new(file.into());
    let blocks = Allocator::new(words, &file, start, MAX_MEMORY, Alone);
    let blocks = blocks.expect("a few pages of memory");
    let journal = blocks.undo_log();
    let add = |words: u64| {
        let added = journal.transact(NEVER, |t| {
            for at in 0..words {
                let was = t.get(at * 8)?;
                t.set(at * 8, was + 1)?;
            }
            Ok(())
        });
        added.expect("the memory is not corrupt");
    };
    measure("a lease, and nothing changed", 5_000_000, || add(0));
    measure("a transaction of one increment", 5_000_000, || add(1));
    measure("of eight", 2_000_000, || add(8));
    measure("a look at two words, without the lease", 5_000_000, || {
        let pair = journal.read(NEVER, |t| Ok((t.get(0)?, t.get(8)?)));
        black_box(pair.expect("the memory is not corrupt"));
    });
    for len in [16, 100, 1000, 10_000, 20_000, 100_000] {
        let name = format!("allocate and free {len} bytes");
        measure(&name, 1_000_000, || {
            let offset = blocks.allocate(len, NEVER).expect("room");
            blocks.free(offset, NEVER).expect("a block");
        });
    }
    let name = "reserve, commit and free 100 bytes";
    measure(name, 1_000_000, || {
        let block = blocks.reserve(100, NEVER).expect("room");
        let committed = journal.transact(NEVER, |t| blocks.commit(t, &block));
        committed.expect("the memory is not corrupt");
        blocks.free(block.offset(), NEVER).expect("a block");
    });
    let mut ring = vec![0; 10_000];
    let mut seed = 1u64;
    measure(
        "one of 10,000 blocks by another, any size",
        1_000_000,
        || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            let index = (seed >> 33) as usize % ring.len();
            if ring[index] != 0 {
                blocks.free(ring[index], NEVER).expect("a block");
            }
            let len = 16 + (seed >> 20) % 4000;
            ring[index] = blocks.allocate(len, NEVER).expect("room");
        },
    );
    measure("allocate and free 16 MiB", 100, || {
        let offset = blocks.allocate(16 << 20, NEVER).expect("room");
        blocks.free(offset, NEVER).expect("a block");
    });
}
