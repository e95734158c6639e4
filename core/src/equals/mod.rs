//! Names whose members are equals: whoever opens one first makes it, the others join, the last one takes it away, and no
//! death of any of them keeps what the others need.

pub mod arrivals;
mod layout;
pub mod lock_file;
pub mod members;
pub mod membership;
pub mod registry;
pub mod waiting;
mod watcher;

pub use layout::{MOST_BYTES, MOST_PERMITS, SLEEPERS, Shape};
