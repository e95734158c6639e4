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
fn corrupt(memory: &Memory, dice: &mut Dice, at: u64) -> u64 {
    let found = load(memory, at);
    match dice.below(9) {
        0 => dice.next(),
        1 => 0,
        2 => u64::MAX,
        3 => found ^ 1 << dice.below(64),
        4 => found.wrapping_add(dice.below(5)).wrapping_sub(2),
        5 => dice.below(MAX_CLAIMS + 2),
        6 => dice.below(memory.mapping.size() as u64 + 64),
        7 => found.wrapping_add(8 * dice.below(5)).wrapping_sub(16),
        _ => load(memory, dice.below(SIZE / 8) * 8),
    }
}

fn load(memory: &Memory, at: u64) -> u64 {
    memory.mapping.word(at).unwrap().load(Ordering::Relaxed)
}

/// An offset in the header, in the first claims, or in chunks, mostly the linked ones.
fn somewhere(memory: &Memory, dice: &mut Dice) -> u64 {
    let size = memory.mapping.size() as u64;
    let near = |at: u64, dice: &mut Dice| (at.min(size - 4096) & !7) + 8 * dice.below(40);
    match dice.below(8) {
        0..3 => 8 * dice.below(17),
        3 | 4 => CLAIMS + 8 * dice.below(8 * 12),
        5 => near(load(memory, HEAD_CHUNK), dice),
        6 => near(load(memory, HEAD_AT), dice),
        _ => near(load(memory, TAIL_CHUNK), dice),
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
    fn step(&mut self, memory: &Memory, dice: &mut Dice) -> bool {
        let deadline = clock::now() + PATIENCE;
        let done = self.act(dice, deadline);
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

    fn act(&mut self, dice: &mut Dice, deadline: u64) -> Result<(), HeapError> {
        let Victim {
            queue,
            claims,
            kept,
            chunks,
        } = self;
        let source = if dice.below(6) == 0 {
            Source::DeadLetters
        } else {
            Source::Queue
        };
        match dice.below(12) {
            0..3 => queue.put(&item(1, any_len(dice)), 1, deadline).map(drop),
            3 => {
                if let Some(chunk) = queue.reserve(8 + any_len(dice), deadline)? {
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
                    .pop(source, 1 + dice.below(50) as usize, &mut out, deadline)?
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
                let limit = dice.below(2) * 1_000;
                if let ClaimOutcome::Item(claim) = queue.claim(source, limit, deadline)?.0 {
                    let bytes = queue.bytes(claim.at, claim.len)?;
                    let size = queue.words().size();
                    assert!(claim.len <= size as u64 && !bytes.is_null());
                    claims.push(claim);
                }
                Ok(())
            }
            9 if !claims.is_empty() => {
                let claim = claims.swap_remove(dice.below(claims.len() as u64) as usize);
                if dice.below(2) == 0 {
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
            10 => queue.expire(deadline).map(drop),
            _ => match dice.below(4) {
                0 => queue.recover(dice.below(3) as u32, deadline).map(drop),
                1 => queue.task_done(1, deadline).map(drop),
                2 => queue.shut_down(dice.below(8) == 0, deadline),
                _ => queue.stats(deadline).map(drop),
            },
        }
    }
}

#[test]
fn corrupt_words_between_operations_cause_results_or_errors() {
    let mut dice = Dice(0xbad_5eed);
    let (mut poisoned, mut lies) = (0, 0);
    for _ in 0..scaled(400, 40_000) {
        let memory = Memory::new(LIMITS);
        let mut victim = Victim::new(&memory);
        for _ in 0..dice.below(100) {
            assert!(victim.step(&memory, &mut dice), "without corruption");
        }
        for _ in 0..60 {
            for _ in 0..dice.below(3) {
                let at = somewhere(&memory, &mut dice);
                let value = corrupt(&memory, &mut dice, at);
                memory
                    .mapping
                    .word(at)
                    .unwrap()
                    .store(value, Ordering::Relaxed);
                lies += 1;
            }
            if !victim.step(&memory, &mut dice) {
                poisoned += 1;
                break;
            }
        }
    }
    println!("{lies} lies, {poisoned} queues poisoned");
    assert!(poisoned > 0);
}

#[test]
fn corrupt_words_during_operations_cause_results_or_errors() {
    let mut dice = Dice(0xfa15e);
    for round in 0..scaled(30, 3_000) {
        let memory = Memory::new(LIMITS);
        let mut victim = Victim::new(&memory);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (memory, over) = (&memory, &over);
            scope.spawn(move || {
                let mut dice = Dice(round + 1);
                while !over.load(Ordering::Relaxed) {
                    let at = somewhere(memory, &mut dice);
                    let value = corrupt(memory, &mut dice, at);
                    memory
                        .mapping
                        .word(at)
                        .unwrap()
                        .store(value, Ordering::Relaxed);
                    for _ in 0..dice.below(300) {
                        std::hint::spin_loop();
                    }
                }
            });
            let end = clock::now() + 20_000_000;
            while clock::now() < end {
                if !victim.step(memory, &mut dice) {
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
