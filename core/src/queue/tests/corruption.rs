//! Arbitrary writes over a queue's header, claims, chunks and items: each operation ends with a result or an error, in
//! time and within the bounds of its memory.

use super::*;
use std::sync::atomic::AtomicBool;

const PATIENCE: u64 = 20_000_000;
const LIMITS: Limits = Limits {
    items: 0,
    memory: 2 * MIB,
    deliveries: 3,
};

/// A word of a hostile process: close to the true one, or arbitrary.
fn corrupt(memory: &Memory, rng: &mut TestRng, at: u64) -> u64 {
    let found = load(memory, at);
    match rng.below(9) {
        0 => rng.next(),
        1 => 0,
        2 => u64::MAX,
        3 => found ^ 1 << rng.below(64),
        4 => found.wrapping_add(rng.below(5)).wrapping_sub(2),
        5 => rng.below(MAX_CLAIMS + 2),
        6 => rng.below(memory.mapping.size() as u64 + 64),
        7 => found.wrapping_add(8 * rng.below(5)).wrapping_sub(16),
        _ => load(memory, rng.below(SIZE / 8) * 8),
    }
}

fn load(memory: &Memory, at: u64) -> u64 {
    memory.mapping.word(at).unwrap().load(Ordering::Relaxed)
}

/// An offset in the header, in the first claims, or in chunks, mostly the linked ones.
fn somewhere(memory: &Memory, rng: &mut TestRng) -> u64 {
    let size = memory.mapping.size() as u64;
    let near = |at: u64, rng: &mut TestRng| (at.min(size - 4096) & !7) + 8 * rng.below(40);
    match rng.below(8) {
        0..3 => 8 * rng.below(17),
        3 | 4 => CLAIMS + 8 * rng.below(8 * 12),
        5 => near(load(memory, HEAD_CHUNK), rng),
        6 => near(load(memory, HEAD_AT), rng),
        _ => near(load(memory, TAIL_CHUNK), rng),
    }
}

struct Victim {
    queue: Ours,
    claims: Vec<Claim>,
    kept: Vec<Claim>,
    chunks: Vec<Chunk>,
}

impl Victim {
    fn new(memory: &Memory) -> Self {
        Victim {
            queue: memory.queue(number(0, 1)),
            claims: Vec::new(),
            kept: Vec::new(),
            chunks: Vec::new(),
        }
    }

    /// Perform a random operation. Return true if the memory is still usable.
    fn step(&mut self, memory: &Memory, rng: &mut TestRng) -> bool {
        let deadline = clock::now() + PATIENCE;
        let done = self.act(rng, deadline);
        let late = clock::now().saturating_sub(deadline + PATIENCE);
        assert!(late < LONG, "{late} ns late");
        let held = memory.held();
        assert!(held < 2 * LIMITS.memory + 4 * MIB, "it has grown to {held}");
        match done {
            Err(HeapError::Poisoned(found)) => {
                assert!(found.to_string().contains("overwritten shared memory"));
                false
            }
            _ => true,
        }
    }

    fn act(&mut self, rng: &mut TestRng, deadline: u64) -> Result<(), HeapError> {
        let Victim {
            queue,
            claims,
            kept,
            chunks,
        } = self;
        let source = if rng.below(6) == 0 {
            Source::DeadLetters
        } else {
            Source::Queue
        };
        match rng.below(12) {
            0..3 => queue.put(&item(1, any_len(rng)), 1, deadline).map(drop),
            3 => {
                if let Some(chunk) = queue.reserve(8 + any_len(rng), deadline)? {
                    chunks.push(chunk);
                }
                Ok(())
            }
            4 if !chunks.is_empty() => {
                let mut chunk = chunks.pop();
                let at = chunk.as_ref().map_or(0, Chunk::items);
                let head = queue.words().word(at).expect("within the memory");
                head.store(Head::new(0, Form::Raw).0, Ordering::Relaxed);
                queue.link(&mut chunk, 8, 1, deadline).map(drop)
            }
            5 | 6 => {
                let mut out = Vec::new();
                let taken = queue
                    .pop(source, 1 + rng.below(50) as usize, &mut out, deadline)?
                    .0;
                let most = 2 * MAX_POP_BYTES + SMALL as usize;
                assert!(out.len() <= most, "{} bytes were taken", out.len());
                if let PopOutcome::Items(count) = taken {
                    // A reader parses the items by their heads.
                    let mut at = 0;
                    for _ in 0..count {
                        let head = Head(crate::bytes::u64_at(&out, at));
                        at = (at + 8 + head.size() as usize).next_multiple_of(8);
                        assert!(head.form().is_some() && at <= out.len());
                    }
                }
                Ok(())
            }
            7 | 8 => {
                let limit = rng.below(2) * 1_000;
                if let ClaimOutcome::Item(claim) = queue.claim(source, limit, deadline)?.0 {
                    let bytes = queue.bytes(claim.at, claim.len)?;
                    let size = queue.words().size();
                    assert!(claim.len <= size as u64 && !bytes.is_null());
                    claims.push(claim);
                }
                Ok(())
            }
            9 if !claims.is_empty() => {
                let claim = claims.swap_remove(rng.below(claims.len() as u64) as usize);
                if rng.below(2) == 0 {
                    return queue.give_back(&claim, deadline).map(drop);
                }
                kept.push(claim);
                queue
                    .acknowledge(&claim, ClaimEnd::Done, true, deadline)
                    .map(drop)
            }
            10 if !kept.is_empty() => queue
                .release_memory(&kept.swap_remove(0), deadline)
                .map(drop),
            10 => queue.expire(deadline, &mut Wakeups::default()).map(drop),
            _ => match rng.below(4) {
                0 => queue.recover(rng.below(3) as u32, deadline).map(drop),
                1 => queue.task_done(1, deadline).map(drop),
                2 => queue.shut_down(rng.below(8) == 0, deadline),
                _ => queue.stats(deadline).map(drop),
            },
        }
    }
}

#[test]
fn corrupt_words_between_operations_cause_results_or_errors() {
    let mut rng = TestRng(0xbad_5eed);
    let (mut poisoned, mut overwrites) = (0, 0);
    for _ in 0..scaled(400, 40_000) {
        let memory = Memory::new(LIMITS);
        let mut victim = Victim::new(&memory);
        for _ in 0..rng.below(100) {
            assert!(victim.step(&memory, &mut rng), "without corruption");
        }
        for _ in 0..60 {
            for _ in 0..rng.below(3) {
                let at = somewhere(&memory, &mut rng);
                let value = corrupt(&memory, &mut rng, at);
                memory
                    .mapping
                    .word(at)
                    .unwrap()
                    .store(value, Ordering::Relaxed);
                overwrites += 1;
            }
            if !victim.step(&memory, &mut rng) {
                poisoned += 1;
                break;
            }
        }
    }
    println!("{overwrites} overwrites, {poisoned} queues poisoned");
    assert!(poisoned > 0);
}

#[test]
fn corrupt_words_during_operations_cause_results_or_errors() {
    let mut rng = TestRng(0xfa15e);
    for round in 0..scaled(30, 3_000) {
        let memory = Memory::new(LIMITS);
        let mut victim = Victim::new(&memory);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (memory, over) = (&memory, &over);
            scope.spawn(move || {
                let mut rng = TestRng(round + 1);
                while !over.load(Ordering::Relaxed) {
                    let at = somewhere(memory, &mut rng);
                    let value = corrupt(memory, &mut rng, at);
                    memory
                        .mapping
                        .word(at)
                        .unwrap()
                        .store(value, Ordering::Relaxed);
                    for _ in 0..rng.below(300) {
                        std::hint::spin_loop();
                    }
                }
            });
            let end = clock::now() + 20_000_000;
            while clock::now() < end {
                if !victim.step(memory, &mut rng) {
                    for at in [8, 16, 24] {
                        let word = memory.mapping.word(SIZE + at).unwrap();
                        word.store(0, Ordering::Relaxed);
                    }
                }
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}
