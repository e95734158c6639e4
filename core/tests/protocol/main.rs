//! Concurrent use by two threads: the ring, the wait protocol, the wait set, loans, shutdown, transactions, topics, and
//! the members of an object with their permits.
//!
//! Under loom, every interleaving with up to three preemptions, and every value that the memory model lets a load
//! return: `RUSTFLAGS="--cfg loom" cargo test --release --test protocol`. Without loom the same tests run on the
//! machine's own threads, again and again.

mod loans;
mod members;
mod model;
mod shutdown;
mod topic;
mod transactions;
mod wait_set;
mod waiting;
mod words;
