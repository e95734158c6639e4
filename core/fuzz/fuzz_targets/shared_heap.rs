//! Transactions and blocks in memory that another member writes over.
#![no_main]

#[path = "../../tests/hostile/mod.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::shared_heap::shared_heap(bytes));
