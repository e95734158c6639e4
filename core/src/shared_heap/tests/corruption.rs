//! A hostile process overwrites the whole memory: each operation ends in time, with a result or an error.

use super::*;
use crate::shared_heap::HeapError;
use crate::shared_heap::access::{ReadWords, WriteWords};
use crate::shared_heap::allocator::Reservation;
use std::sync::atomic::AtomicBool;

const ME: u64 = 1 << 32 | 1;
const MIB: u64 = 1 << 20;
const PATIENCE: u64 = 20_000_000;

/// Returns a value for a hostile write: close to the correct one, or random.
fn corrupt(shared: &Shared, rng: &mut TestRng, at: u64) -> u64 {
    let found = shared.load(at);
    match rng.below(8) {
        0 => rng.next(),
        1 => 0,
        2 => u64::MAX,
        3 => found ^ 1 << rng.below(64),
        4 => found.wrapping_add(rng.below(5)).wrapping_sub(2),
        5 => rng.below(4096),
        6 => rng.below(1 << 20) << 32 | rng.below(16),
        _ => shared.load(rng.below(shared.mapping.size() as u64 / 8) * 8),
    }
}

/// Returns an offset, mostly in the metadata.
fn somewhere(shared: &Shared, rng: &mut TestRng) -> u64 {
    let size = shared.mapping.size() as u64;
    match rng.below(8) {
        0 => START + rng.below(40) * 8,
        1 => START + 4096 + rng.below(512) * 8,
        2 => START + 8192 + rng.below(512) * 8,
        3 => START + 12288 + rng.below(64) * 8,
        4..7 => START + 77824 + rng.below(2 * 600) * 8,
        _ => rng.below(size / 8) * 8,
    }
}

struct Victim {
    blocks: Blocks,
    reserved: Vec<Reservation>,
    offsets: Vec<u64>,
}

impl Victim {
    /// Runs one operation. Returns true if the memory is still usable.
    fn step(&mut self, shared: &Shared, rng: &mut TestRng) -> bool {
        let Victim {
            blocks,
            reserved,
            offsets,
        } = self;
        let deadline = clock::now() + PATIENCE;
        let done = match rng.below(8) {
            0 | 1 => blocks
                .reserve(rng.any_size(20), deadline)
                .map(|block| reserved.push(block)),
            2 if !reserved.is_empty() => {
                let block = reserved.swap_remove(rng.below(reserved.len() as u64) as usize);
                offsets.push(block.offset());
                blocks.undo_log().transact(deadline, |t| {
                    let was = t.get(0)?;
                    t.set(0, was.wrapping_add(1))?;
                    blocks.commit(t, &block)
                })
            }
            3 => blocks
                .allocate(rng.any_size(16), deadline)
                .map(|offset| offsets.push(offset)),
            4 | 5 if !offsets.is_empty() => {
                let index = rng.below(offsets.len() as u64) as usize;
                blocks.free(offsets.swap_remove(index), deadline)
            }
            6 => {
                let (gone, me) = (
                    rng.below(4) << 32 | rng.below(4),
                    blocks.undo_log().members().self_id(),
                );
                let is_gone = |owner| owner == gone && owner != me;
                blocks.recover(is_gone, deadline).map(drop)
            }
            _ => blocks.usage(deadline).map(drop),
        };
        let late = clock::now().saturating_sub(deadline + PATIENCE);
        assert!(late < LONG, "{late} ns late");
        let memory = File::from(shared.file.try_clone().unwrap())
            .metadata()
            .unwrap();
        let memory = std::os::unix::fs::MetadataExt::blocks(&memory) * 512;
        assert!(
            memory < 2 * shared.max_memory + 4 * MIB,
            "the memory has grown to {memory}"
        );
        match done {
            Err(HeapError::Poisoned(found)) => {
                assert!(found.to_string().contains("overwritten shared memory"));
                false
            }
            _ => true,
        }
    }
}

fn victim(shared: &Shared) -> Victim {
    Victim {
        blocks: shared.blocks(ME),
        reserved: Vec::new(),
        offsets: Vec::new(),
    }
}

#[test]
fn corruption_at_rest_ends_in_results_or_errors() {
    let mut rng = TestRng(0xdead_beef);
    let (mut poisoned, mut overwrites) = (0, 0);
    for _ in 0..scaled(200, 20_000) {
        let shared = Shared::new(8 * MIB);
        let mut victim = victim(&shared);
        for _ in 0..rng.below(60) {
            assert!(victim.step(&shared, &mut rng), "without corruption");
        }
        for _ in 0..60 {
            for _ in 0..rng.below(3) {
                let at = somewhere(&shared, &mut rng);
                let value = corrupt(&shared, &mut rng, at);
                shared.store(at, value);
                overwrites += 1;
            }
            if !victim.step(&shared, &mut rng) {
                poisoned += 1;
                break;
            }
        }
    }
    println!("{overwrites} overwrites, {poisoned} memories poisoned");
    assert!(poisoned > 0);
}

#[test]
fn corruption_during_operations_ends_in_results_or_errors() {
    let mut rng = TestRng(0xfeed);
    for round in 0..scaled(20, 2_000) {
        let shared = Shared::new(8 * MIB);
        let mut victim = victim(&shared);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (shared, over) = (&shared, &over);
            scope.spawn(move || {
                let mut rng = TestRng(round + 1);
                while !over.load(Ordering::Relaxed) {
                    let at = somewhere(shared, &mut rng);
                    // Rarely the poison, because it ends the run at once.
                    if !(START + 8..START + 32).contains(&at) {
                        let value = corrupt(shared, &mut rng, at);
                        shared.store(at, value);
                    }
                    for _ in 0..rng.below(300) {
                        std::hint::spin_loop();
                    }
                }
            });
            let end = clock::now() + 20_000_000;
            while clock::now() < end {
                if !victim.step(shared, &mut rng) {
                    for at in [8, 16, 24] {
                        shared.store(START + at, 0);
                    }
                }
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}
