//! `Scratch`: private bytes for the time of one call, mostly without an allocation.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// Largest capacity, in bytes, that is kept for the next call.
const MAX_KEPT: usize = 256 << 10;
/// Buffers that a thread keeps: a call uses one for its request and one for its reply.
const MAX_SPARES: usize = 2;

thread_local!(static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) });

/// A buffer that is empty at first. A new buffer is allocated only if this thread has none to spare, because code that
/// the garbage collector runs may use them.
pub(crate) struct Scratch(Vec<u8>);

impl Scratch {
    /// Returns an empty buffer: a spare one of this thread, if there is one.
    #[inline]
    pub(crate) fn new() -> Self {
        Scratch(SPARE.with_borrow_mut(Vec::pop).unwrap_or_default())
    }
}

impl Drop for Scratch {
    #[inline]
    fn drop(&mut self) {
        if self.0.capacity() <= MAX_KEPT {
            self.0.clear();
            SPARE.with_borrow_mut(|spare| {
                if spare.len() < MAX_SPARES {
                    spare.push(std::mem::take(&mut self.0));
                }
            });
        }
    }
}

impl Deref for Scratch {
    type Target = Vec<u8>;

    #[inline]
    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for Scratch {
    #[inline]
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}
