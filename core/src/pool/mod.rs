//! Shared memory of a pool and each of its workers, besides their connection.

pub mod progress;
