//! Topics as shared objects: what members publish and read, and which sleepers they wake.

mod membership;
mod object;
mod overview;
mod publication;
mod subscription;
#[cfg(all(test, not(loom)))]
mod tests;

pub use membership::{ITEMS, Log, ROOM, TopicMembership};
pub use overview::{Overview, PublisherSeen, SubscriberSeen};
pub use publication::{MAX_MEMORY, Publication, PublishOutcome, RoomWait};
pub use subscription::{Message, Payload, Pin, ReceiveOutcome, Subscription};
