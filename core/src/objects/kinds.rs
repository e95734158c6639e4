//! The kinds of object, and the objects that this process has open.

use super::error::ObjectError;
use super::event::EventMembership;
use super::lifecycle::audit;
use super::members::Holder;
use super::members::Member;
use super::memory::shape::Shape;
use super::memory::{ObjectAddress, ObjectMemory};
use super::object::{Kinds, Leftover, Object, downcast_ref};
use super::parts::Parts;
use super::queue::QueueMembership;
use super::registry::{Handle, Registry};
use super::semaphore::SemaphoreMembership;
use super::signal::SignalMembership;
use super::store::{StoreMembership, copy_of};
use super::topic::{Overview, TopicMembership};
use crate::memory::region::Kind;
use std::sync::Arc;

/// All kinds of object.
struct AllKinds;

impl Kinds for AllKinds {
    /// Builds the membership of the kind that the shape names. Panics for a connection.
    fn build(&self, parts: Parts) -> Result<Arc<dyn Object>, ObjectError> {
        Ok(match parts.shape.kind {
            Kind::Memory | Kind::Semaphore | Kind::Lock => SemaphoreMembership::build(parts),
            Kind::Event => EventMembership::build(parts),
            Kind::Signal => SignalMembership::build(parts),
            Kind::Queue => QueueMembership::build(parts)?,
            Kind::Topic => TopicMembership::build(parts),
            Kind::Store => StoreMembership::build(parts)?,
            Kind::Connection => unreachable!("a connection has no shape"),
        })
    }

    /// Counts the items of a queue, and names the copy of a store that has no single writer; 0 and None for other
    /// kinds.
    fn inspect_leftover(&self, memory: &ObjectMemory) -> Leftover {
        let (mapping, shape) = (&memory.mapping, memory.shape);
        Leftover {
            items: match shape.kind {
                Kind::Queue => QueueMembership::count_lost(memory),
                _ => 0,
            },
            copy: match shape.kind {
                Kind::Store => copy_of(mapping, shape, &memory.name),
                _ => None,
            },
        }
    }
}

/// The objects that this process has open.
static REGISTRY: Registry = Registry::new(&AllKinds);

/// Opens an object of this shape: creates it if it has no members, joins them otherwise. Without a shape, returns None
/// for an object without members. The errors are those of `Registry::open`.
pub fn open(address: &ObjectAddress, shape: Option<Shape>) -> Result<Option<Handle>, ObjectError> {
    REGISTRY.open(address, shape)
}

/// Leaves all objects, at the end of the process: see `Registry::leave_all`.
pub fn leave_all() {
    REGISTRY.leave_all();
}

/// Returns true if another thread of this process is leaving all objects, because the process exits: waits of this
/// thread must not raise errors.
pub fn is_exiting_elsewhere() -> bool {
    REGISTRY.is_exiting_elsewhere()
}

/// A description of an object, of its members and of their use of the object.
#[derive(Debug)]
pub struct Report {
    /// The shape.
    pub shape: Shape,
    /// Bytes of memory that it has now.
    pub size: u64,
    /// The number of waiting items of a queue.
    pub depth: Option<u64>,
    /// The publishers and the subscribers of a topic.
    pub topic: Option<Overview>,
    /// The living members, each with the number of permits or items that it holds.
    pub members: Vec<(Member, usize)>,
    /// The number of waiting threads and loops.
    pub waiters: usize,
}

/// Returns a report on an object, of which this process need not be a member. Returns None if no process is one. Raises
/// the errors of `Registry::inspect` and of `report`.
pub fn inspect(address: &ObjectAddress) -> Result<Option<Report>, ObjectError> {
    REGISTRY.inspect(address, |object| report(&**object))
}

/// Returns a report on an object that this process has open or inspects, after an audit: corruption poisons the object.
/// Lists living members only. Raises `Left`, `Forked` or `Poisoned` if the object cannot be used, and `Os` if its lock
/// file or memory cannot be read.
pub fn report(object: &dyn Object) -> Result<Report, ObjectError> {
    audit(object)?;
    let membership = object.membership();
    let table = membership.members();
    let mut members = Vec::new();
    for slot in table.used_slots() {
        let member = table.member_at(slot);
        let mut member = member.map_err(ObjectError::os("its lock file cannot be read"))?;
        if slot == table.slot() {
            member.holder = Some(Holder::this_process());
        }
        if member.holder.is_some() {
            let held = object.count_held(member.id);
            members.push((member, held));
        }
    }
    let queue = downcast_ref::<QueueMembership>(object);
    let topic = downcast_ref::<TopicMembership>(object);
    let topic = topic.map(TopicMembership::overview).transpose()?;
    let size = match &topic {
        Some(topic) => topic.size,
        None => {
            let allocated = object.allocated();
            allocated.map_err(ObjectError::os("its memory cannot be read"))?
        }
    };
    membership.unless_cut_off(Report {
        shape: membership.shape(),
        size,
        depth: queue.map(QueueMembership::depth),
        topic,
        members,
        waiters: membership.sets().iter().map(|set| set.sleepers()).sum(),
    })
}
