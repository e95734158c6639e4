//! Members and their permits: a slot goes from the dead to the next one, and no permit is lost or doubled.

use crate::model::{Arc, Mutex, Plain, model_within, thread};
use _core::objects::members::{Holder, MEMBER_SIZE, Members, Number, Proofs};
use _core::objects::permits::Permits;
use _core::shared_heap::VecWords;
use std::io;

/// How many slots there are any members for.
const USED: usize = 3;
/// Where the permits lie, behind those.
const PERMITS: usize = USED * MEMBER_SIZE;

type Memory = std::sync::Arc<VecWords>;

/// What the kernel knows: which process has the byte of each of the first slots; 0 is none.
#[derive(Clone)]
struct Kernel(Arc<Mutex<[u32; USED]>>);

impl Kernel {
    fn new() -> Self {
        Kernel(Arc::new(Mutex::new([0; USED])))
    }

    /// A process is dead: the kernel drops its bytes.
    fn reap(&self, process: u32) {
        for holder in self.0.lock().unwrap().iter_mut() {
            if *holder == process {
                *holder = 0;
            }
        }
    }
}

/// The bytes, as one process has them.
struct Process(Kernel, u32);

impl Proofs for Process {
    fn take(&self, slot: u32) -> io::Result<bool> {
        let mut holders = self.0.0.lock().unwrap();
        let holder = &mut holders[slot as usize];
        let is_free = *holder == 0 || *holder == self.1;
        if is_free {
            *holder = self.1;
        }
        Ok(is_free)
    }
    fn give_back(&self, slot: u32) -> io::Result<()> {
        self.0.0.lock().unwrap()[slot as usize] = 0;
        Ok(())
    }
    fn holder(&self, slot: u32) -> io::Result<Option<Holder>> {
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
    /// Joins, as a process of this number does; whether its slot had remains.
    fn join(memory: &Memory, kernel: &Kernel, process: u32) -> (Self, bool) {
        let proofs = Process(kernel.clone(), process);
        let joined = Members::join(memory.clone(), 0, proofs).unwrap();
        let (members, remains) = joined.expect("a slot is free");
        let permits = Permits::new(memory.clone(), PERMITS, 1);
        if remains {
            permits.recover(members.slot());
        }
        members.enter();
        (Member { members, permits }, remains)
    }

    fn us(&self) -> Number {
        self.members.us()
    }

    /// Gives back what the dead member of this slot had; whether it was there to be given back.
    fn recover(&self, slot: u32) -> bool {
        if !self.members.is_used(slot)
            || self.members.lives(slot)
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
fn whoever_has_the_permit_is_alone_and_sees_what_was_before() {
    model_within(3, || {
        let (memory, kernel, plain) = (memory(), Kernel::new(), std::sync::Arc::new(Plain::new()));
        let first = Member::join(&memory, &kernel, 1).0;
        let second = Member::join(&memory, &kernel, 2).0;
        let theirs = plain.clone();
        let use_it = |member: &Member, plain: &Plain| {
            if member.permits.take(0, member.us()) {
                plain.write(plain.read() + 1);
                member.permits.give_back(0, member.us()).unwrap();
            }
        };
        let other = thread::spawn(move || {
            use_it(&second, &theirs);
            assert_eq!(
                second
                    .permits
                    .stranger(|number| second.members.is_member(number)),
                None
            );
        });
        use_it(&first, &plain);
        other.join().unwrap();
        assert_eq!(first.permits.free(), 1);
    });
}

#[test]
fn what_a_dead_member_had_is_given_back_once_while_another_joins() {
    model_within(2, || {
        let (memory, kernel, plain) = (memory(), Kernel::new(), std::sync::Arc::new(Plain::new()));
        let dead = Member::join(&memory, &kernel, 1).0;
        let living = Member::join(&memory, &kernel, 2).0;
        assert!(dead.permits.take(0, dead.us()));
        let (deaths, theirs) = (kernel.clone(), plain.clone());
        let dying = thread::spawn(move || {
            theirs.write(1);
            deaths.reap(1);
        });
        let (shared, kernels) = (memory.clone(), kernel.clone());
        let joining = thread::spawn(move || {
            let next = Member::join(&shared, &kernels, 3).0;
            next.recover(0);
            let taken = next.permits.take(0, next.us());
            if taken {
                assert_eq!(plain.read(), 1, "what the dead one did is seen");
            }
            let is_strange = next
                .permits
                .stranger(|number| next.members.is_member(number));
            assert_eq!(is_strange, None);
            (next, taken)
        });
        living.recover(0);
        let is_strange = living
            .permits
            .stranger(|number| living.members.is_member(number));
        assert_eq!(is_strange, None);
        let taken = living.permits.take(0, living.us());
        dying.join().unwrap();
        let (next, theirs) = joining.join().unwrap();
        assert!(!(taken && theirs), "two have one permit");
        living.recover(0);
        assert_eq!(living.permits.held_by(living.us()), usize::from(taken));
        assert_eq!(next.permits.held_by(next.us()), usize::from(theirs));
        assert_eq!(living.permits.free(), usize::from(!taken && !theirs));
    });
}

#[test]
fn the_next_member_of_a_slot_has_another_number() {
    model_within(2, || {
        let (memory, kernel) = (memory(), Kernel::new());
        let dead = Member::join(&memory, &kernel, 1).0;
        assert!(dead.permits.take(0, dead.us()));
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
        assert_ne!(first.us(), second.us());
        for member in [&first, &second] {
            assert_ne!(member.us(), dead.us());
            assert!(member.members.is_member(member.us()));
            assert_eq!(member.members.corruption(), None);
        }
        assert!(!first.members.is_member(dead.us()));
        assert_eq!(first.permits.free(), 1);
    });
}

#[test]
fn a_permit_that_is_taken_as_its_process_leaves_is_given_back() {
    model_within(3, || {
        let (memory, kernel) = (memory(), Kernel::new());
        let leaving = Arc::new(Member::join(&memory, &kernel, 1).0);
        let left = Arc::new(crate::model::AtomicU64::new(0));
        let (member, has_left) = (leaving.clone(), left.clone());
        let taking = thread::spawn(move || {
            // As `Membership::take_permit`: Relaxed.
            let taken = member.permits.take(0, member.us());
            if taken && has_left.load(crate::model::Ordering::Relaxed) == 1 {
                let _ = member.permits.give_back(0, member.us());
            }
        });
        left.store(1, crate::model::Ordering::Relaxed);
        leaving.permits.give_back_at_last(leaving.us());
        taking.join().unwrap();
        assert_eq!(leaving.permits.free(), 1);
    });
}
