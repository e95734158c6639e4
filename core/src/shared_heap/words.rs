//! Where shared words lie.

#[cfg(not(loom))]
use crate::memory::bytes as many;
#[cfg(not(loom))]
use crate::sync::fence;
use crate::sync::{AtomicU64, Ordering};
use std::sync::Arc;

/// Memory that members share, as words of eight bytes.
pub trait Words {
    /// Its bytes.
    fn size(&self) -> usize;
    /// The word that begins `at` bytes from the beginning. None if it is not aligned or not within the memory: any
    /// value may come.
    fn word(&self, at: u64) -> Option<&AtomicU64>;
    /// Whether a member has cut it off: what was read before this question may never have been written.
    #[inline]
    fn is_cut_off(&self) -> bool {
        false
    }
    /// Appends `len` bytes from `at` on, a multiple of 8, to `out`. False if they are not within the memory.
    #[inline]
    fn copy_out(&self, at: u64, len: u64, out: &mut Vec<u8>) -> bool {
        let end = out.len() + len as usize;
        for index in 0..len.div_ceil(8) {
            let Some(word) = self.word(at + 8 * index) else {
                return false;
            };
            // Relaxed: whoever copies knows what orders it.
            out.extend_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        out.truncate(end);
        true
    }
    /// Copies these bytes to `at`, a multiple of 8; what is left of the last word may be anything. False if they are not
    /// within the memory.
    #[inline]
    fn copy_in(&self, at: u64, bytes: &[u8]) -> bool {
        for (index, chunk) in bytes.chunks(8).enumerate() {
            let mut value = [0; 8];
            value[..chunk.len()].copy_from_slice(chunk);
            let Some(word) = self.word(at + 8 * index as u64) else {
                return false;
            };
            // Release: as all stores to shared words, in the order of the program.
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
    fn is_cut_off(&self) -> bool {
        (**self).is_cut_off()
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
    fn is_cut_off(&self) -> bool {
        self.is_cut_off()
    }

    #[inline]
    fn copy_out(&self, at: u64, len: u64, out: &mut Vec<u8>) -> bool {
        let size = self.size() as u64;
        if len > size || at > size - len {
            return false;
        }
        let (from, len) = (self.address(at as usize, len as usize), len as usize);
        // SAFETY: `from` is within the mapping, where `out` is not.
        unsafe { many::append_from(out, from, len) };
        true
    }

    #[inline]
    fn copy_in(&self, at: u64, bytes: &[u8]) -> bool {
        let (size, len) = (self.size() as u64, bytes.len() as u64);
        if len > size || at > size - len {
            return false;
        }
        // Release: what the program has stored before is seen by whoever sees these bytes.
        fence(Ordering::Release);
        let to = self.address(at as usize, bytes.len());
        // SAFETY: `to` is within the mapping, and `bytes` are ours, and not there.
        unsafe { many::copy(to, bytes.as_ptr(), bytes.len()) };
        true
    }
}

/// Words in private memory, for tests and for loom.
pub struct VecWords(Vec<AtomicU64>);

impl VecWords {
    /// This many zeros.
    pub fn new(words: usize) -> Self {
        VecWords((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    /// What a word holds while nobody changes it.
    pub fn load(&self, at: u64) -> u64 {
        let word = self.word(at).expect("a word of this memory");
        // Relaxed: nobody changes it.
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
