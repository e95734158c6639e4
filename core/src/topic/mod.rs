//! A topic in shared memory: each publisher writes a record once, and any number of subscribers read it, each at its
//! own pace.
//!
//! * A [`log`] is the memory of one publisher, which only it can write: an index of its records, a ring with the small
//!   records, and [`blocks`] with the large ones.
//! * The [`directory`] is written by all members: it lists the publishers and the subscribers, and how far each
//!   subscriber has read.
//! * A [`publisher`] has a private `limit`, up to which it writes without reading shared words, unless a subscriber has
//!   joined. At the limit it reads the heads of its subscribers, and reclaims the records that all subscribers with a
//!   claim to them have read.
//! * A [`subscriber`] has a head for each publisher. It copies records out, or pins a large one and reads it in place.
//!
//! # What is reclaimed, and how both sides learn of it
//!
//! A record may be overwritten once it is below `floor`, which is stored *before* that. Two pairs of a store and a
//! load, each with a sequentially consistent fence in between, ensure that at least one of two sides sees the other's
//! store:
//!
//! ```text
//!   publisher                                subscriber
//!   floor = f, or cut = word                 word = joining, cell = head      or pin = record
//!   fence                                    fence
//!   load the new seat words and the pins     floor (or cut) above it? do not read it
//!
//!   waits = seat, target                     head = h
//!   fence                                    fence
//!   load the heads, sleep                    publisher waits for this seat, up to h? wake it
//! ```
//!
//! A publisher that starts while a subscriber joins needs no pair of its own. A subscriber announces its sleep before
//! it loads the version for the last time, and a new publisher wakes all sleepers. An active subscriber that has not
//! attached itself counts as one that has read nothing; and a publisher loads the seat words, after a fence, before it
//! reclaims anything.
//!
//! A subscriber that the publisher *must wait for* (`Policy::Block`, and `Policy::Disconnect` within its lag) need not
//! load the floor: it reads until the publisher stores in `cut` that it no longer waits. With `Policy::KeepLast` a
//! subscriber loads the floor after each copy, and counts the records that it has missed.
//!
//! # Trust
//!
//! Subscribers can write the directory and no part of a log. A publisher checks the bounds of the values that they
//! store: an impossible head cuts that subscriber off. A publisher may write anything into its log: a subscriber checks
//! the bounds against the size of the log, which is sealed, and detaches itself from a log with impossible values.

pub mod blocks;
pub mod directory;
pub mod log;
pub mod log_layout;
mod log_memory;
#[cfg(not(loom))]
pub mod mapped_log;
mod policy;
pub mod publisher;
pub mod subscriber;

#[cfg(all(test, not(loom)))]
mod tests;

pub use log_memory::LogMemory;
pub use policy::Policy;
