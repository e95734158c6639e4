//! The end of a publication whose process leaves.

use super::TopicMembership;
use super::membership::LocalPublication;
use crate::objects::kinds;
use crate::objects::memory::ObjectAddress;
use crate::objects::memory::shape::Shape;
use crate::objects::object::downcast;
use crate::testing::fork;
use crate::topic::Policy;
use crate::topic::log_layout::PublisherLimits;
use crate::topic::publisher::OnFull;
use crate::topic::subscriber::History;
use std::sync::Arc;

const LIMITS: PublisherLimits = PublisherLimits {
    high: 64,
    low: 32,
    memory: 1 << 20,
};

#[test]
fn a_publisher_that_leaves_does_not_wait_for_a_killed_subscriber() {
    let name = format!("publication-{}", std::process::id());
    let lock_file = std::env::temp_dir().join(format!("{name}@shared.lock"));
    let address = ObjectAddress { name, lock_file };
    let open = || kinds::open(&address, Some(Shape::of_topic(false)));
    let handle = open().unwrap().expect("it is created");
    let topic: Arc<TopicMembership> = downcast(handle.object()).expect("a topic");
    let killed = fork(|| {
        let handle = open().unwrap().expect("it exists");
        let topic: Arc<TopicMembership> = downcast(handle.object()).expect("a topic");
        let subscribed = topic.subscribe((Policy::Block, 0), History::Oldest);
        std::mem::forget((handle, topic, subscribed.unwrap()));
    });
    assert_eq!(killed.wait(), 0);
    let publication = topic.publish(LIMITS).unwrap();
    let record = std::iter::once((0, &[0u8; 8][..], false));
    assert_eq!(publication.publish(record, OnFull::Fail).unwrap().count, 1);
    assert_eq!(topic.members().used_slots().count(), 2);
    // The first step of `leave`, which then calls `release_held`.
    topic.mark_left();
    publication.finish();
    assert_eq!(topic.members().used_slots().count(), 1);
}
