//! A queue that another member overwrites while a member uses it.

use super::descriptors::memfd;
use super::{AT_ONCE, Alone, Script};
use _core::memory::mapping::SharedMapping;
use _core::queue::parcel::{MOST_BUFFERS, Parts};
use _core::queue::{
    ByteMemory, Chunk, Claim, ClaimEnd, ClaimOutcome, Form, Head, Limits, Queue, SMALL, Wakeups,
};
use _core::queue::{PopOutcome, Source, sizes};
use _core::shared_heap::{HeapError, Words};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const LIMITS: Limits = Limits {
    items: 50,
    memory: 1 << 20,
    deliveries: 3,
};
/// Offsets of words with the position of a chunk, or of an item in one: see `queue/layout.rs`.
const POINTERS: [u64; 4] = [64, 72, 80, 88];
const CLAIMS: u64 = 4096;

type Ours = Queue<Arc<SharedMapping>, Alone>;

/// Use a queue while another member writes what the bytes say.
pub fn queue(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let (_, size) = sizes(0, LIMITS);
    let file = Arc::new(memfd(size, 0, false));
    let words = Arc::new(SharedMapping::new(file.as_fd(), size as usize).expect("a mapping"));
    let queue = Queue::new(words.clone(), &file, 0, LIMITS, Alone).expect("a few pages");
    let mut has = Has::default();
    while !script.is_over() {
        if script.byte() % 4 == 0 {
            let at = somewhere(&words, &mut script);
            if let Some(word) = words.word(at) {
                let value = corrupt(&mut script, word.load(Ordering::Relaxed));
                word.store(value, Ordering::Relaxed);
            }
            continue;
        }
        let done = has.act(&queue, &words, &mut script);
        let memory = File::from(file.try_clone().expect("a descriptor"));
        let memory = memory.metadata().expect("a file").blocks() * 512;
        assert!(memory <= size, "it has grown to {memory}");
        if let Err(HeapError::Poisoned(_)) = done {
            let next = queue.is_all_done(AT_ONCE);
            assert!(matches!(next, Err(HeapError::Poisoned(_))), "{next:?}");
            return;
        }
    }
}

/// The claims and chunks of the member.
#[derive(Default)]
struct Has {
    claims: Vec<Claim>,
    /// Acknowledged items whose memory is still read.
    over: Vec<Claim>,
    chunks: Vec<Chunk>,
}

impl Has {
    fn act(
        &mut self,
        queue: &Ours,
        words: &SharedMapping,
        script: &mut Script,
    ) -> Result<(), HeapError> {
        let source = match script.byte() % 8 {
            0 => Source::DeadLetters,
            _ => Source::Queue,
        };
        match script.byte() % 16 {
            0..3 => {
                let (items, count) = items(script);
                queue.put(&items, count, AT_ONCE).map(drop)
            }
            3 => {
                let len = len(script);
                let reserved = queue.reserve_or_request_wakeup(8 + len, AT_ONCE)?;
                self.chunks.extend(reserved);
                Ok(())
            }
            4 => {
                let mut chunk = self.chunks.pop();
                let Some(at) = chunk.as_ref().map(Chunk::items) else {
                    return Ok(());
                };
                let head = words.word(at).expect("within the memory");
                head.store(Head::new(0, Form::Raw).0, Ordering::Relaxed);
                let linked = queue.link(&mut chunk, 8, 1, AT_ONCE).map(drop);
                self.chunks.extend(chunk);
                linked
            }
            5 => {
                if let Some(chunk) = self.chunks.pop() {
                    queue.free_chunk(chunk, AT_ONCE);
                }
                Ok(())
            }
            6 | 7 => take(queue, source, script),
            8 | 9 => {
                let limit = u64::from(script.byte() % 2);
                if let (ClaimOutcome::Item(claim), _) = queue.claim(source, limit, AT_ONCE)? {
                    check_claim(queue, words, &claim)?;
                    self.claims.push(claim);
                }
                Ok(())
            }
            10 | 11 => {
                if self.claims.is_empty() {
                    return Ok(());
                }
                let index = script.byte() as usize % self.claims.len();
                let claim = self.claims.swap_remove(index);
                match script.byte() % 4 {
                    0 => queue.give_back(&claim, AT_ONCE).map(drop),
                    1 => queue
                        .acknowledge(&claim, ClaimEnd::HandedOver, false, AT_ONCE)
                        .map(drop),
                    2 => {
                        queue.defer_claim(claim, false);
                        queue.finish_deferred(AT_ONCE, &mut Wakeups::default())
                    }
                    _ => {
                        self.over.push(claim);
                        queue
                            .acknowledge(&claim, ClaimEnd::Done, true, AT_ONCE)
                            .map(drop)
                    }
                }
            }
            12 => match self.over.pop() {
                Some(claim) => queue.release_memory(&claim, AT_ONCE).map(drop),
                None => queue.expire(AT_ONCE, &mut Wakeups::default()).map(drop),
            },
            13 => queue.peek(script.byte().into(), AT_ONCE).map(drop),
            14 => queue
                .recover(u32::from(script.byte() % 3), AT_ONCE)
                .map(drop),
            _ => match script.byte() % 4 {
                0 => queue.task_done(script.byte().into(), AT_ONCE).map(drop),
                1 => queue.stats(AT_ONCE).map(drop),
                2 => {
                    queue.trim(Default::default(), AT_ONCE);
                    Ok(())
                }
                _ => queue.shut_down(script.byte() % 8 == 0, AT_ONCE),
            },
        }
    }
}

/// Pop some items, and check that the copied bytes are items, one behind the other.
fn take(queue: &Ours, source: Source, script: &mut Script) -> Result<(), HeapError> {
    let (most, mut out) = (1 + script.byte() as usize, Vec::new());
    if let (PopOutcome::Items(count), _) = queue.pop(source, most, &mut out, AT_ONCE)? {
        let mut at = 0;
        for _ in 0..count {
            let head = Head(u64::from_ne_bytes(
                out[at..at + 8].try_into().expect("eight"),
            ));
            at = (at + 8 + head.size() as usize).next_multiple_of(8);
            assert!(head.form().is_some() && at <= out.len());
        }
        assert!(count <= most && at == out.len());
    }
    Ok(())
}

/// Read all of an item, and of the parts that it claims to have.
fn check_claim(queue: &Ours, words: &SharedMapping, claim: &Claim) -> Result<(), HeapError> {
    let from = queue.bytes(claim.at, claim.len)?;
    let mut copy = vec![0; claim.len as usize];
    // SAFETY: so many bytes are within the mapping, by the word of the queue.
    unsafe { std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), copy.len()) };
    assert!(words.bytes(claim.at, claim.len).is_some());
    let parts = Parts::read(claim.len, |at, to| {
        to.copy_from_slice(&copy[at as usize..at as usize + to.len()]);
    });
    if let Some(parts) = parts {
        assert!(parts.buffers.len() <= MOST_BUFFERS);
        for (at, len) in parts.buffers.into_iter().chain([parts.body]) {
            assert!(at + len <= claim.len);
        }
    }
    Ok(())
}

/// Create some equal items.
fn items(script: &mut Script) -> (Vec<u8>, u64) {
    let (len, count) = (len(script), 1 + u64::from(script.byte() % 6));
    let count = if len > SMALL { 1 } else { count };
    let mut items = Vec::new();
    for _ in 0..count {
        items.extend_from_slice(&Head::new(len, Form::Value).0.to_ne_bytes());
        items.resize(
            (items.len() + len as usize).next_multiple_of(8),
            script.byte(),
        );
    }
    (items, count)
}

/// Return the length of an item, mostly a short one.
fn len(script: &mut Script) -> u64 {
    match script.byte() {
        small @ 0..192 => u64::from(small),
        large => u64::from(large - 192) * 2000,
    }
}

/// Return an offset in the header, in the first claims, in the allocator, or in chunks.
fn somewhere(words: &SharedMapping, script: &mut Script) -> u64 {
    let size = words.size() as u64;
    let (kind, index) = (script.byte(), u64::from(script.byte()) * 8);
    match kind {
        0..80 => index % 136,
        80..88 => 192 + index % 24,
        88..144 => CLAIMS + index % 512,
        144..208 => {
            let pointer = words.word(POINTERS[kind as usize % 4]);
            let at = pointer.expect("a word").load(Ordering::Relaxed) & !7;
            at.min(size - 4096) + index % 136
        }
        208..216 => _core::queue::layout::SIZE + index % 112,
        216..224 => _core::queue::layout::SIZE + 4096 + index % 192,
        224..240 => _core::queue::layout::SIZE + 77824 + index % 512,
        _ => (script.u64() % size) & !7,
    }
}

/// Return a value close to the current one, or an arbitrary one.
fn corrupt(script: &mut Script, found: u64) -> u64 {
    match script.byte() {
        0..32 => 0,
        32..64 => u64::MAX,
        64..96 => found.wrapping_add(1),
        96..128 => found.wrapping_sub(1),
        128..160 => u64::from(script.byte()),
        160..192 => found ^ 1 << (script.byte() % 64),
        192..224 => found.wrapping_add_signed(i64::from(script.byte() as i8) * 8),
        224..240 => u64::from(script.u32()),
        _ => script.u64(),
    }
}
