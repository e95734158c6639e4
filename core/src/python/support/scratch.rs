//! `Scratch`: private bytes for the time of one call, without an allocation each time.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// More than this, in bytes, is not kept for the next time.
const KEPT: usize = 256 << 10;
/// As many as a call has at a time: its request and its answer.
const SPARES: usize = 2;

thread_local!(static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) });

/// An empty buffer. If this thread already has those that are kept, as code that the garbage collector runs may, it is a
/// new one.
pub(crate) struct Scratch(Vec<u8>);

impl Scratch {
    #[inline]
    pub(crate) fn new() -> Self {
        Scratch(SPARE.with_borrow_mut(Vec::pop).unwrap_or_default())
    }
}

impl Drop for Scratch {
    #[inline]
    fn drop(&mut self) {
        if self.0.capacity() <= KEPT {
            self.0.clear();
            SPARE.with_borrow_mut(|spare| {
                if spare.len() < SPARES {
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
