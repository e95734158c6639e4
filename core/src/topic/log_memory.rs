//! The memory of a log: words, and bytes that are copied in and out.

use crate::shared_heap::{VecWords, Words};
use crate::sync::Ordering;
use std::io;

/// The memory of a log. Copies of bytes that were checked to be within it tolerate concurrent changes.
pub trait LogMemory: Words {
    /// Copy `bytes` to the offset `at`, a multiple of 8. The rest of the last word may be cleared.
    ///
    /// # Panics
    /// If they are not within the memory, or the log is that of another process.
    fn write(&self, at: u64, bytes: &[u8]);
    /// Append `len` bytes from the offset `at`, a multiple of 8, to `out`.
    ///
    /// # Panics
    /// If they are not within the memory.
    fn read(&self, at: u64, len: u64, out: &mut Vec<u8>);
    /// Allocate memory for the `len` bytes from the offset `at` on, and keep their content. Fails with EPERM for the
    /// log of another process, and if the system has too little memory: a part of them may have memory then.
    fn populate(&self, at: u64, len: u64) -> io::Result<()>;
}

/// For tests and loom: copies by words, so that a read of bytes that change meanwhile is no undefined behaviour.
impl LogMemory for VecWords {
    fn write(&self, at: u64, bytes: &[u8]) {
        for (index, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let to = self.word(at + 8 * index as u64).expect("within the memory");
            // Relaxed: published with the record.
            to.store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
    }

    fn read(&self, at: u64, len: u64, out: &mut Vec<u8>) {
        let begin = out.len();
        for index in 0..len.div_ceil(8) {
            let from = self.word(at + 8 * index).expect("within the memory");
            // Relaxed: published with the record; the reader detects an overwritten record afterwards.
            out.extend_from_slice(&from.load(Ordering::Relaxed).to_ne_bytes());
        }
        out.truncate(begin + len as usize);
    }

    fn populate(&self, _at: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
}

impl<S: LogMemory> LogMemory for std::sync::Arc<S> {
    #[inline]
    fn write(&self, at: u64, bytes: &[u8]) {
        (**self).write(at, bytes);
    }
    #[inline]
    fn read(&self, at: u64, len: u64, out: &mut Vec<u8>) {
        (**self).read(at, len, out);
    }
    fn populate(&self, at: u64, len: u64) -> io::Result<()> {
        (**self).populate(at, len)
    }
}
