//! A reader and a writer of frames, over a ring that a hostile peer writes.
#![no_main]

#[path = "../../tests/hostile/mod.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::ring(bytes));
