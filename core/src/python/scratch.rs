//! `Scratch`: private bytes for the time of one call, without an allocation each time.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

/// More than this, in bytes, is not kept for the next time.
const KEPT: usize = 256 << 10;

thread_local!(static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) });

/// An empty buffer. If this thread already has one, as code that the garbage collector runs may, it is a new one.
pub(super) struct Scratch(Vec<u8>);

impl Scratch {
    #[inline]
    pub(super) fn new() -> Self {
        Scratch(SPARE.take())
    }
}

impl Drop for Scratch {
    #[inline]
    fn drop(&mut self) {
        if self.0.capacity() <= KEPT {
            self.0.clear();
            SPARE.set(std::mem::take(&mut self.0));
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
