//! Members and their permits: a slot goes from a dead member to the next one, and no permit is lost or doubled.

use crate::model::{Arc, Mutex, Plain, model_within, thread};
use _core::objects::members::Holder;
use _core::objects::members::{MEMBER_SIZE, MemberId, MemberLocks, Members};
use _core::objects::semaphore::permits::Permits;
use _core::shared_heap::{self, VecWords};
use std::io;

/// Number of slots for which there are members.
const USED: usize = 3;
/// Offset of the permits, behind the slots.
const PERMITS: usize = USED * MEMBER_SIZE;

type Memory = std::sync::Arc<VecWords>;

/// The locks of the first slots, as the kernel has them: the process that holds each; 0 for none.
#[derive(Clone)]
struct Kernel(Arc<Mutex<[u32; USED]>>);

impl Kernel {
    fn new() -> Self {
        Kernel(Arc::new(Mutex::new([0; USED])))
    }

    /// Release the locks of a dead process.
    fn reap(&self, process: u32) {
        for holder in self.0.lock().unwrap().iter_mut() {
            if *holder == process {
                *holder = 0;
            }
        }
    }
}

/// The locks, as one process sees them.
struct Process(Kernel, u32);

impl MemberLocks for Process {
    fn try_lock_slot(&self, slot: u32) -> io::Result<bool> {
        let mut holders = self.0.0.lock().unwrap();
        let holder = &mut holders[slot as usize];
        let is_free = *holder == 0 || *holder == self.1;
        if is_free {
            *holder = self.1;
        }
        Ok(is_free)
    }
    fn unlock_slot(&self, slot: u32) -> io::Result<()> {
        self.0.0.lock().unwrap()[slot as usize] = 0;
        Ok(())
    }
    fn slot_holder(&self, slot: u32) -> io::Result<Option<Holder>> {
        let holder = self.0.0.lock().unwrap()[slot as usize];
        let other = (holder != 0 && holder != self.1).then_some(Holder::Process(holder as i32));
        Ok(other)
    }
}

struct Member {
    members: Members<Memory, Process>,
    permits: Permits<Memory>,
}

impl Member {
    /// Join as the process of this number. Return true if the slot had to be recovered.
    fn join(memory: &Memory, kernel: &Kernel, process: u32) -> (Self, bool) {
        let locks = Process(kernel.clone(), process);
        let attached = Members::attach(memory.clone(), 0, locks).unwrap();
        let (members, remains) = attached.expect("a slot is free");
        let permits = Permits::new(memory.clone(), PERMITS, 1);
        if remains {
            permits.recover(members.slot());
        }
        members.register();
        (Member { members, permits }, remains)
    }

    fn id(&self) -> MemberId {
        self.members.self_id()
    }

    /// Recover the slot of a dead member. Return false if there was nothing to recover.
    fn recover(&self, slot: u32) -> bool {
        if !self.members.is_used(slot)
            || self.members.is_alive(slot)
            || !self.members.begin_recovery(slot).unwrap()
        {
            return false;
        }
        self.permits.recover(slot);
        self.members.end_recovery(slot).unwrap();
        true
    }
}

fn memory() -> Memory {
    std::sync::Arc::new(VecWords::new(PERMITS / 8 + 1))
}

#[test]
fn a_permit_has_one_holder_which_sees_what_was_before() {
    model_within(3, || {
        let (memory, kernel, plain) = (memory(), Kernel::new(), std::sync::Arc::new(Plain::new()));
        let first = Member::join(&memory, &kernel, 1).0;
        let second = Member::join(&memory, &kernel, 2).0;
        let theirs = plain.clone();
        let use_it = |member: &Member, plain: &Plain| {
            if member.permits.try_acquire(0, member.id()) {
                plain.write(plain.read() + 1);
                member.permits.release(0, member.id()).unwrap();
            }
        };
        let other = thread::spawn(move || {
            use_it(&second, &theirs);
            assert_eq!(
                second
                    .permits
                    .find_orphan(|number| second.members.is_member(number)),
                None
            );
        });
        use_it(&first, &plain);
        other.join().unwrap();
        assert_eq!(first.permits.count_free(), 1);
    });
}

#[test]
fn a_permit_of_a_dead_member_is_released_once_while_another_joins() {
    model_within(2, || {
        let (memory, kernel, plain) = (memory(), Kernel::new(), std::sync::Arc::new(Plain::new()));
        let dead = Member::join(&memory, &kernel, 1).0;
        let living = Member::join(&memory, &kernel, 2).0;
        assert!(dead.permits.try_acquire(0, dead.id()));
        let (deaths, theirs) = (kernel.clone(), plain.clone());
        let dying = thread::spawn(move || {
            theirs.write(1);
            deaths.reap(1);
        });
        let (shared, kernels) = (memory.clone(), kernel.clone());
        let joining = thread::spawn(move || {
            let next = Member::join(&shared, &kernels, 3).0;
            next.recover(0);
            let taken = next.permits.try_acquire(0, next.id());
            if taken {
                assert_eq!(plain.read(), 1, "what the dead one did is seen");
            }
            let orphan = next
                .permits
                .find_orphan(|number| next.members.is_member(number));
            assert_eq!(orphan, None);
            (next, taken)
        });
        living.recover(0);
        let orphan = living
            .permits
            .find_orphan(|number| living.members.is_member(number));
        assert_eq!(orphan, None);
        let taken = living.permits.try_acquire(0, living.id());
        dying.join().unwrap();
        let (next, theirs) = joining.join().unwrap();
        assert!(!(taken && theirs), "two have one permit");
        living.recover(0);
        assert_eq!(
            living.permits.count_held_by(living.id()),
            usize::from(taken)
        );
        assert_eq!(next.permits.count_held_by(next.id()), usize::from(theirs));
        assert_eq!(living.permits.count_free(), usize::from(!taken && !theirs));
    });
}

#[test]
fn the_next_member_of_a_slot_has_another_id() {
    model_within(2, || {
        let (memory, kernel) = (memory(), Kernel::new());
        let dead = Member::join(&memory, &kernel, 1).0;
        assert!(dead.permits.try_acquire(0, dead.id()));
        kernel.reap(1);
        let members = [2, 3].map(|process| {
            let (memory, kernel) = (memory.clone(), kernel.clone());
            thread::spawn(move || {
                let member = Member::join(&memory, &kernel, process).0;
                member.recover(0);
                member
            })
        });
        let [first, second] = members.map(|member| member.join().unwrap());
        assert_ne!(first.id(), second.id());
        for member in [&first, &second] {
            assert_ne!(member.id(), dead.id());
            assert!(member.members.is_member(member.id()));
            assert_eq!(member.members.find_corruption(), None);
        }
        assert!(!first.members.is_member(dead.id()));
        assert_eq!(first.permits.count_free(), 1);
    });
}

#[test]
fn a_permit_that_is_acquired_as_its_process_leaves_is_released() {
    model_within(3, || {
        let (memory, kernel) = (memory(), Kernel::new());
        let leaving = Arc::new(Member::join(&memory, &kernel, 1).0);
        let left = Arc::new(crate::model::AtomicU64::new(0));
        let (member, has_left) = (leaving.clone(), left.clone());
        let taking = thread::spawn(move || {
            // Relaxed, like `SemaphoreMembership::acquire`.
            let taken = member.permits.try_acquire(0, member.id());
            if taken && has_left.load(crate::model::Ordering::Relaxed) == 1 {
                let _ = member.permits.release(0, member.id());
            }
        });
        left.store(1, crate::model::Ordering::Relaxed);
        leaving.permits.release_all(leaving.id());
        taking.join().unwrap();
        assert_eq!(leaving.permits.count_free(), 1);
    });
}

#[test]
fn a_member_that_has_left_is_no_member_for_the_contents() {
    model_within(2, || {
        let (memory, kernel) = (memory(), Kernel::new());
        let leaving = Member::join(&memory, &kernel, 1).0;
        let id = leaving.id().0;
        assert_eq!(shared_heap::Members::self_id(&leaving.members), id);
        let joining = thread::spawn(move || Member::join(&memory, &kernel, 2).0);
        leaving.members.leave().unwrap();
        assert_eq!(shared_heap::Members::self_id(&leaving.members), 0);
        let next = joining.join().unwrap();
        assert!(!shared_heap::Members::is_alive(&next.members, id));
    });
}
