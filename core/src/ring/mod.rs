//! A ring of bytes between one writer and one reader that do not trust each other.
//!
//! Both indices count bytes since the beginning and never wrap in practice (2^64 bytes); the position of a byte is its
//! index modulo the capacity. `head <= tail <= head + capacity` holds for honest peers. Everything moves in words of
//! eight bytes, so an index is always a multiple of eight.
//!
//! # Orderings
//!
//! | access | ordering | why |
//! |---|---|---|
//! | words, both sides | Relaxed | they are ordered by the index that covers them |
//! | writer stores `tail` | Release | the words before it are visible to a reader that sees it |
//! | reader loads `tail` | Acquire | pairs with it: the words below `tail` are the ones written |
//! | reader stores `head` | Release | its reads of the words are over before the writer sees room |
//! | writer loads `head` | Acquire | pairs with it: the new words are not written before those reads |
//!
//! Each side's own index is private; the copy in memory is never read back.
//!
//! # Growth
//!
//! A ring begins with a part of its memory, and uses more of it once its writer needs room. A frame announces the
//! growth, at its position among the others ([`frame`]), so neither side loads anything else for it. With `used` bytes
//! in use, byte `i` lies at `(i + shift) mod used`, with a `shift` such that the first byte after the growth lies where
//! the new memory begins. So no unread byte is overwritten before the reader has passed it.

mod consumer;
pub mod frame;
mod heap_memory;
mod memory;
mod positions;
mod producer;
#[cfg(all(test, not(loom)))]
mod tests;

pub use consumer::Consumer;
pub use heap_memory::HeapMemory;
pub use memory::{GROWTH, RingMemory, WORD, padded};
pub use producer::Producer;
