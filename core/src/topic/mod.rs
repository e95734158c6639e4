//! A topic in memory that equals share: each publisher writes once, and any number of subscribers read, each at its own
//! pace.
//!
//! * A [`log`] is the memory of one publisher, which it alone can write: an index of its records, a ring with the small
//!   ones, and [`blocks`] with the large ones.
//! * The [`directory`] is what all members write: which publishers there are, who subscribes, and how far each subscriber
//!   has read.
//! * A [`publisher`] has a private `limit`, up to which it writes without a look at others, unless a subscriber has come.
//!   Out of that, it looks at the heads of its subscribers, and gives up what all have read who must be waited for.
//! * A [`subscriber`] has a head for each publisher, and copies records out, or pins a large one and looks at it in place.
//!
//! # What is given up, and who sees it
//!
//! A record may be written over once it is below `floor`, which is stored *before* that. Two pairs of a store and a
//! look, each with a sequentially consistent fence between, see to it that of two sides at least one sees the other:
//!
//! ```text
//!   publisher                                subscriber
//!   floor = f, or cut = claim                claim = joining, cell = head      or pin = record
//!   fence                                    fence
//!   look at new claims, and at pins          is floor (or cut) above it? then not
//!
//!   waits = seat, target                     head = h
//!   fence                                    fence
//!   look at the heads, sleep                 does it wait for us, and for no more than h? wake it
//! ```
//!
//! A publisher that comes and a subscriber that joins at the same time need none of their own. Whoever sleeps has
//! announced it before its last look at the version, and a new publisher wakes all that sleep. Until an active subscriber
//! has attached itself, it counts as one that has read nothing of what is kept; and a publisher looks at the claims, after a
//! fence, before it gives anything up.
//!
//! Who *must be waited for* (`Policy::Block`, and `Policy::Disconnect` within its lag) need not look at the floor: it
//! reads what is there until the publisher has said in `cut` that it does not wait for it any more. `Policy::KeepLast`
//! looks at the floor after it has copied, and counts what it has missed.
//!
//! # Whom to trust
//!
//! Subscribers can write the directory and nothing of a log. What they say of themselves is bounded by their publisher:
//! a head that cannot be true cuts that subscriber off. A publisher may write anything into its log: what a subscriber
//! reads is bounded by the size of the log, which is sealed, and ends its attachment if it cannot be true.

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
