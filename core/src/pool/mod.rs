//! What a pool of processes shares with each of its workers besides a connection.

pub mod progress;
