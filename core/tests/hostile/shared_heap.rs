//! Shared memory that another member overwrites, and the operations of a member in it.

use super::descriptors::memfd;
use super::{AT_ONCE, Alone, Script};
use _core::memory::mapping::SharedMapping;
use _core::shared_heap::access::{ReadWords, WriteWords};
use _core::shared_heap::allocator::{Allocator, Reservation, file_size};
use _core::shared_heap::backing_file::PAGE;
use _core::shared_heap::undo_log::SIZE;
use _core::shared_heap::{HeapError, Members, Words};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const MAX_MEMORY: u64 = 1 << 20;

/// Runs the operations of a member while another one overwrites the memory, as the bytes say.
pub fn shared_heap(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let size = file_size(0, MAX_MEMORY);
    let file = Arc::new(memfd(size, 0, false));
    let words = Arc::new(SharedMapping::new(file.as_fd(), size as usize).expect("a mapping"));
    let blocks = Allocator::new(words.clone(), &file, 0, MAX_MEMORY, Alone);
    let blocks = blocks.expect("a few pages");
    let mut reserved: Vec<Reservation> = Vec::new();
    let mut offsets: Vec<u64> = Vec::new();
    while !script.is_over() {
        let done = match script.byte() % 10 {
            0 | 1 => {
                let at = somewhere(&mut script, size);
                if let Some(word) = words.word(at) {
                    let value = claim(&mut script, word.load(Ordering::Relaxed));
                    word.store(value, Ordering::Relaxed);
                }
                Ok(())
            }
            2 => blocks
                .reserve(len(&mut script), AT_ONCE)
                .map(|block| reserved.push(block)),
            3 => reserved.pop().map_or(Ok(()), |block| {
                offsets.push(block.offset());
                blocks
                    .undo_log()
                    .transact(AT_ONCE, |t| blocks.commit(t, &block))
            }),
            4 => reserved
                .pop()
                .map_or(Ok(()), |block| blocks.release(&block, AT_ONCE)),
            5 => blocks
                .allocate(len(&mut script), AT_ONCE)
                .map(|offset| offsets.push(offset)),
            6 => offsets
                .pop()
                .map_or(Ok(()), |offset| blocks.free(offset, AT_ONCE)),
            7 => {
                let at = somewhere(&mut script, size);
                blocks.free(at, AT_ONCE)
            }
            8 => {
                let gone = u64::from(script.byte());
                let me = blocks.undo_log().members().self_id();
                let is_gone = |owner| owner == gone && owner != me;
                blocks.recover(is_gone, AT_ONCE).map(drop)
            }
            _ => blocks.undo_log().transact(AT_ONCE, |t| {
                let at = somewhere(&mut script, size);
                let was = t.get(at)?;
                t.set(at, claim(&mut script, was))
            }),
        };
        let memory = File::from(file.try_clone().expect("a descriptor"));
        let memory = memory.metadata().expect("a file").blocks() * 512;
        assert!(memory <= size, "the memory has grown to {memory}");
        if let Err(HeapError::Poisoned(_)) = done {
            let next = blocks.usage(AT_ONCE);
            assert!(matches!(next, Err(HeapError::Poisoned(_))), "{next:?}");
            return;
        }
    }
}

fn len(script: &mut Script) -> u64 {
    match script.byte() {
        small @ 0..128 => u64::from(small) * 8,
        255 => script.u64(),
        large => u64::from(large) * 1000,
    }
}

/// Returns an offset, mostly of the metadata, the page map or the first pages.
fn somewhere(script: &mut Script, size: u64) -> u64 {
    let index = u64::from(script.byte()) * 8;
    match script.byte() {
        0..64 => index % 256,
        64..128 => SIZE + index,
        128..160 => 2 * SIZE + index,
        160..176 => 3 * SIZE + index,
        176..224 => (77824u64).next_multiple_of(PAGE) + index,
        224..240 => (77824u64).next_multiple_of(PAGE) + PAGE * 3 + index * 2,
        240..250 => script.u64() % size / 8 * 8,
        _ => script.u64(),
    }
}

/// Returns a value: close to the correct one, or random.
fn claim(script: &mut Script, found: u64) -> u64 {
    match script.byte() {
        0..32 => 0,
        32..64 => u64::MAX,
        64..96 => found.wrapping_add(1),
        96..128 => found.wrapping_sub(1),
        128..192 => u64::from(script.byte()),
        192..224 => found ^ 1 << (script.byte() % 64),
        224..240 => u64::from(script.u32()) << 32 | u64::from(script.byte() % 9),
        _ => script.u64(),
    }
}
