//! Queues whose members belong to one process: compared with a model, and with corrupt words.

mod backpressure;
mod corruption;
mod model;
mod shutdown;

use super::*;
use crate::memory::mapping::SharedMapping;
use crate::sync::Ordering;
use crate::testing::{LONG, TestRng, file_in_memory, scaled, soon};
use std::fs::File;
use std::os::fd::AsFd;

const MIB: u64 = 1 << 20;
/// A member that lives as long as the test, and is recovered by its number.
struct Member(u64);

impl Members for Member {
    fn self_id(&self) -> u64 {
        self.0
    }

    fn is_alive(&self, _member: u64) -> bool {
        true
    }
}

type Ours = Queue<Arc<SharedMapping>, Member>;

/// The memory of a queue.
struct Memory {
    file: Arc<OwnedFd>,
    mapping: Arc<SharedMapping>,
    limits: Limits,
}

impl Memory {
    fn new(limits: Limits) -> Self {
        let file = file_in_memory();
        let (_, size) = sizes(0, limits);
        file.set_len(size).unwrap();
        let mapping = SharedMapping::new(file.as_fd(), size as usize).unwrap();
        Memory {
            file: Arc::new(file.into()),
            mapping: Arc::new(mapping),
            limits,
        }
    }

    fn queue(&self, member: u64) -> Ours {
        let (file, mapping) = (self.file.clone(), self.mapping.clone());
        Queue::new(mapping, &file, 0, self.limits, Member(member)).unwrap()
    }

    /// Return the bytes of memory of the file.
    fn held(&self) -> u64 {
        let file = File::from(self.file.try_clone().unwrap());
        std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()) * 512
    }
}

/// Return the number of the member of a slot.
fn number(slot: u64, generation: u64) -> u64 {
    generation << 32 | (slot + 1)
}

/// Create an item as it lies in a queue: its number, repeated, in a payload of `len` bytes.
fn item(number: u64, len: u64) -> Vec<u8> {
    let mut bytes = Head::new(len, Form::Raw).0.to_ne_bytes().to_vec();
    while (bytes.len() as u64) < 8 + len {
        bytes.extend_from_slice(&number.to_ne_bytes());
    }
    bytes.truncate(8 + len as usize);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

/// Return the length of a payload, mostly a short one.
fn any_len(rng: &mut TestRng) -> u64 {
    8 + match rng.below(20) {
        0 => rng.below(200_000),
        1..4 => rng.below(SMALL),
        _ => rng.below(100),
    }
}

/// Return a copy of the payload of a claim.
fn payload(queue: &Ours, claim: &Claim) -> Result<Vec<u8>, HeapError> {
    let from = queue.bytes(claim.at, claim.len)?;
    // SAFETY: this many bytes are within the mapping, which the queue keeps.
    Ok(unsafe { std::slice::from_raw_parts(from, claim.len as usize) }.to_vec())
}
