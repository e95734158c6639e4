//! Access to shared memory as words.

#[cfg(not(loom))]
use crate::memory::bytes as many;
#[cfg(not(loom))]
use crate::sync::fence;
use crate::sync::{AtomicU64, Ordering};
use std::sync::Arc;

/// Memory that members share, as words of eight bytes.
pub trait Words {
    /// Returns the size in bytes.
    fn size(&self) -> usize;
    /// Returns the word that begins `at` bytes from the beginning. None if `at`, which may be any value, is not aligned
    /// or not within the memory.
    fn word(&self, at: u64) -> Option<&AtomicU64>;
    /// Returns true if a member has truncated the memory: then earlier reads may have returned zeros that no member
    /// wrote.
    #[inline]
    fn is_truncated(&self) -> bool {
        false
    }
    /// Appends `len` bytes from `at` on, a multiple of 8, to `out`. Returns false if they are not within the memory;
    /// `out` then may have a part of them.
    #[inline]
    fn copy_out(&self, at: u64, len: u64, out: &mut Vec<u8>) -> bool {
        let end = out.len() + len as usize;
        for index in 0..len.div_ceil(8) {
            let Some(word) = self.word(at + 8 * index) else {
                return false;
            };
            // Relaxed: the caller orders the copy.
            out.extend_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        out.truncate(end);
        true
    }
    /// Copies these bytes to `at`, a multiple of 8. The rest of the last word is undefined. Returns false if they are
    /// not within the memory; a part of them may be copied then.
    #[inline]
    fn copy_in(&self, at: u64, bytes: &[u8]) -> bool {
        for (index, chunk) in bytes.chunks(8).enumerate() {
            let mut value = [0; 8];
            value[..chunk.len()].copy_from_slice(chunk);
            let Some(word) = self.word(at + 8 * index as u64) else {
                return false;
            };
            // Release: like all stores to shared words, in program order.
            word.store(u64::from_ne_bytes(value), Ordering::Release);
        }
        true
    }
}

impl<W: Words> Words for Arc<W> {
    #[inline]
    fn size(&self) -> usize {
        (**self).size()
    }
    #[inline]
    fn word(&self, at: u64) -> Option<&AtomicU64> {
        (**self).word(at)
    }
    #[inline]
    fn is_truncated(&self) -> bool {
        (**self).is_truncated()
    }
    #[inline]
    fn copy_out(&self, at: u64, len: u64, out: &mut Vec<u8>) -> bool {
        (**self).copy_out(at, len, out)
    }
    #[inline]
    fn copy_in(&self, at: u64, bytes: &[u8]) -> bool {
        (**self).copy_in(at, bytes)
    }
}

#[cfg(not(loom))]
impl Words for crate::memory::mapping::SharedMapping {
    #[inline]
    fn size(&self) -> usize {
        self.size()
    }

    #[inline]
    fn word(&self, at: u64) -> Option<&AtomicU64> {
        let within =
            at % 8 == 0 && at <= (self.size() as u64).saturating_sub(8) && self.size() >= 8;
        within.then(|| self.u64_at(at as usize))
    }

    #[inline]
    fn is_truncated(&self) -> bool {
        self.is_truncated()
    }

    /// Appends the bytes; nothing if they are not within the memory. `at` may be any value.
    #[inline]
    fn copy_out(&self, at: u64, len: u64, out: &mut Vec<u8>) -> bool {
        let size = self.size() as u64;
        if len > size || at > size - len {
            return false;
        }
        let (from, len) = (self.address(at as usize, len as usize), len as usize);
        // SAFETY: `from` is within the mapping, and `out` is private memory.
        unsafe { many::append_from(out, from, len) };
        true
    }

    /// Copies the bytes; none if they are not within the memory. `at` may be any value.
    #[inline]
    fn copy_in(&self, at: u64, bytes: &[u8]) -> bool {
        let (size, len) = (self.size() as u64, bytes.len() as u64);
        if len > size || at > size - len {
            return false;
        }
        // Release: a member that sees these bytes also sees all earlier stores.
        fence(Ordering::Release);
        let to = self.address(at as usize, bytes.len());
        // SAFETY: `to` is within the mapping, and `bytes` are private memory.
        unsafe { many::copy(to, bytes.as_ptr(), bytes.len()) };
        true
    }
}

/// Words in private memory, for tests and for loom.
pub struct VecWords(Vec<AtomicU64>);

impl VecWords {
    /// Creates this many zero words.
    pub fn new(words: usize) -> Self {
        VecWords((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    /// Returns the value of a word that no thread changes meanwhile. Panics if there is no such word.
    pub fn load(&self, at: u64) -> u64 {
        let word = self.word(at).expect("a word of this memory");
        // Relaxed: no thread changes it.
        word.load(crate::sync::Ordering::Relaxed)
    }
}

impl Words for VecWords {
    fn size(&self) -> usize {
        self.0.len() * 8
    }

    fn word(&self, at: u64) -> Option<&AtomicU64> {
        if at % 8 != 0 {
            return None;
        }
        self.0.get(usize::try_from(at / 8).ok()?)
    }
}
