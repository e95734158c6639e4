//! Where shared words lie.

use crate::sync::AtomicU64;
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
}

/// Words in private memory, for tests and for loom.
pub struct HeapWords(Vec<AtomicU64>);

impl HeapWords {
    /// So many zeros.
    pub fn new(words: usize) -> Self {
        HeapWords((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    /// What a word holds while nobody changes it.
    pub fn load(&self, at: u64) -> u64 {
        let word = self.word(at).expect("a word of this memory");
        // Relaxed: nobody changes it.
        word.load(crate::sync::Ordering::Relaxed)
    }
}

impl Words for HeapWords {
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
