//! Extent updates, with descriptors of all kinds.
#![no_main]

#[path = "../../tests/hostile/mod.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::extent_updates(bytes));
