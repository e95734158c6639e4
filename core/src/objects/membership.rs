//! The membership of this process in an object, of whatever kind: the object's memory, its members, and its wait sets.

use super::error::ObjectError;
use super::members::lock_file::{FileId, LockFile, ObjectMembers};
use super::members::watcher::{self, Watch, Watched};
use super::memory::layout::{AT_POISON, SLEEPERS};
use super::memory::poison_words;
use super::memory::shape::Shape;
use super::parts::Parts;
use crate::fork_guard::OriginProcess;
use crate::memory::mapping::{MappingView, SharedMapping};
use crate::memory::named;
use crate::shared_heap::{Corruption, Field};
use crate::sync::{Ordering, lock};
use crate::wait::cpu_contention::CpuContention;
use crate::wait::doorbell::numbered;
use crate::wait::wait_set::mapped::{LoopSlot as LoopSlotOf, MappedWaitSet};
use crate::wait::wait_set::{Slot, WaitSet as WaitSetOf, WaitSetError};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, Weak};

/// The number in the path of a watcher's doorbell, in the series of the wait sets' numbers.
const WATCHER_DOORBELL: usize = 2;

/// A function that returns true for the slot of a living member.
pub type IsAlive = Box<dyn Fn(u32) -> bool + Send + Sync>;
/// A wait set of an object.
pub type WaitSet = WaitSetOf<MappedWaitSet<Arc<SharedMapping>, IsAlive>>;
/// The slot of a thread in a wait set.
pub type ThreadSlot = Slot<MappedWaitSet<Arc<SharedMapping>, IsAlive>>;
/// The slot of an event loop in a wait set.
pub type LoopSlot = LoopSlotOf<Arc<SharedMapping>, IsAlive>;

/// The membership of this process in an object. Each kind of object has one, and adds what the kind needs.
pub struct Membership {
    name: String,
    /// The name of the memory.
    memory_name: String,
    shape: Shape,
    mapping: Arc<SharedMapping>,
    /// The file of the memory, whose lock tells a clean-up that the memory is needed. None once this process has left.
    file: Mutex<Option<Arc<OwnedFd>>>,
    lock_file: Arc<LockFile>,
    members: Arc<ObjectMembers>,
    origin: OriginProcess,
    /// True once this process has left.
    has_left: AtomicBool,
    /// This object, for the watcher.
    pub(super) weak_self: Weak<dyn Watched>,

    // Waiting.
    pub(super) sets: Vec<Arc<WaitSet>>,
    /// Slots of each wait set that no thread uses now.
    spare_slots: Vec<Mutex<Vec<ThreadSlot>>>,
    /// True while the watcher must check that a woken sleeper reacts, because others sleep on.
    pub(super) is_recheck_requested: AtomicBool,
    /// True if the last release or signal of this process has woken a sleeper.
    pub(super) has_woken: AtomicBool,
    /// Competition for the CPU on which a thread of this process spins. Held by the one that spins.
    pub(super) contention: Mutex<CpuContention>,
    /// The number of times in a row that a thread has spun after a wake-up without success.
    pub(super) failed_spins: AtomicUsize,
    /// The number of times in a row that a loop has spun before its sleep, or would have, without success.
    pub(super) failed_loop_spins: AtomicUsize,

    // Other members.
    /// The watcher's part, once a thread here has slept.
    pub(super) watch: Mutex<Watch>,
    /// True once the watcher watches the other members.
    is_watching: AtomicBool,
    /// True if the recovery of a dead member was incomplete, so that the watcher must try again.
    pub(super) must_retry_recovery: AtomicBool,
    /// Held by the thread that recovers dead members.
    pub(super) recovering: Mutex<()>,
}

impl Membership {
    /// Makes the membership from its parts, with a wait set for each offset of the shape. Nothing is watched so far.
    pub(super) fn new(parts: Parts, weak_self: Weak<dyn Watched>) -> Self {
        let Parts {
            name,
            memory_name,
            shape,
            mapping,
            file,
            members,
            lock_file,
            doorbell_stem,
            origin,
        } = parts;
        let new_set = |(index, at): (usize, usize)| {
            let liveness = members.clone();
            let is_alive: IsAlive = Box::new(move |slot| liveness.is_alive(slot));
            let number = index + usize::from(index >= WATCHER_DOORBELL);
            let doorbell = numbered(&doorbell_stem, number);
            let memory = MappedWaitSet::new(mapping.clone(), at, SLEEPERS, doorbell, is_alive);
            WaitSet::new(memory, members.slot())
        };
        let sets: Vec<_> = shape
            .sets_at()
            .into_iter()
            .enumerate()
            .map(new_set)
            .collect();
        Membership {
            name,
            memory_name,
            shape,
            mapping,
            file: Mutex::new(Some(file)),
            lock_file,
            members,
            origin,
            has_left: AtomicBool::new(false),
            weak_self,
            spare_slots: sets.iter().map(|_| Mutex::default()).collect(),
            sets,
            is_recheck_requested: AtomicBool::new(false),
            has_woken: AtomicBool::new(false),
            contention: Mutex::default(),
            failed_spins: AtomicUsize::new(0),
            failed_loop_spins: AtomicUsize::new(0),
            watch: Mutex::new(Watch::new(numbered(&doorbell_stem, WATCHER_DOORBELL))),
            is_watching: AtomicBool::new(false),
            must_retry_recovery: AtomicBool::new(false),
            recovering: Mutex::new(()),
        }
    }

    // --- identity ---

    /// Returns the name of the object.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name of the object's memory.
    pub(super) fn memory_name(&self) -> &str {
        &self.memory_name
    }

    /// Returns the shape of the object.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns the memory, mapped.
    pub(super) fn mapping(&self) -> &Arc<SharedMapping> {
        &self.mapping
    }

    /// Returns the members.
    pub(super) fn members(&self) -> &Arc<ObjectMembers> {
        &self.members
    }

    /// Returns the lock file.
    pub(super) fn lock_file(&self) -> &LockFile {
        &self.lock_file
    }

    /// Returns true if this is the object's lock file.
    pub(super) fn has_lock_file(&self, file: FileId) -> bool {
        self.lock_file.id() == file
    }

    /// Returns true in the process that is the member, false in a process that was forked from it.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.origin.is_current()
    }

    /// Returns a view that keeps the bytes of a memory mapped, and their address and number. The bytes are those behind
    /// the permits of an object of kind `Memory`. Raises `Left` once this process has left.
    pub fn data(&self) -> Result<(MappingView, *mut u8, usize), ObjectError> {
        let (from, len) = (self.shape.data_at(), self.shape.amount as usize);
        Ok((self.view()?, self.mapping.address(from, len), len))
    }

    /// Returns a view that keeps the memory mapped while the view exists. Raises `Left` once this process has left.
    pub fn view(&self) -> Result<MappingView, ObjectError> {
        self.mapping.view().ok_or(ObjectError::Left)
    }

    // --- usability ---

    /// Raises `Forked` in a process that was forked from the member, `Left` if this process has left, and `Poisoned` if
    /// the object is poisoned or the file of its memory is truncated.
    #[inline]
    pub fn check(&self) -> Result<(), ObjectError> {
        // Relaxed, both: marks alone.
        let is_unusable = self.has_left.load(Ordering::Relaxed)
            || self.mapping.u64_at(AT_POISON).load(Ordering::Relaxed) != 0
            || self.mapping.is_truncated();
        if is_unusable || !self.origin.is_current() {
            return Err(self.unusable_error());
        }
        Ok(())
    }

    /// Returns the reason why the object cannot be used, in the order of `check`. The caller has found that it cannot.
    #[cold]
    fn unusable_error(&self) -> ObjectError {
        if !self.origin.is_current() {
            ObjectError::Forked
        } else if self.has_left() {
            ObjectError::Left
        } else if self.mapping.is_truncated() {
            Corruption::TRUNCATED.into()
        } else {
            poison_words(&self.mapping).read().into()
        }
    }

    /// Returns the result of a read or a change. Raises an error if the file of the memory was truncated, so that it
    /// reads as zeros. A caller that has changed or read the memory returns its result through this function.
    #[inline]
    pub(super) fn unless_cut_off<T>(&self, result: T) -> Result<T, ObjectError> {
        if self.mapping.is_truncated() {
            return Err(self.unusable_error());
        }
        Ok(result)
    }

    /// Makes the object unusable for all members because of this corruption, wakes all sleepers, and returns the error
    /// for the caller. Does nothing but return an error once this process has left or the file was truncated, because
    /// zeros are no corruption then.
    #[cold]
    pub fn poison(&self, corruption: Corruption) -> ObjectError {
        if self.has_left() || self.mapping.is_truncated() {
            return self.unusable_error();
        }
        poison_words(&self.mapping).record(corruption);
        self.wake_all_sets();
        corruption.into()
    }

    // --- sleeping ---

    /// Returns a slot for a thread that is about to sleep; the thread gives it to `keep_slot` afterwards. Raises
    /// `Crowded` if the wait set is full. Panics if there is no such wait set.
    pub(super) fn thread_slot(&self, set: usize) -> Result<ThreadSlot, ObjectError> {
        if let Some(slot) = lock(&self.spare_slots[set]).pop() {
            return Ok(slot);
        }
        self.sets[set]
            .acquire_slot()
            .map_err(|error| self.slot_error(set, error))
    }

    /// Keeps the slot of a thread for the next thread that sleeps. Frees the slot if the object cannot be used.
    pub(super) fn keep_slot(&self, set: usize, slot: ThreadSlot) {
        if self.check().is_ok() {
            lock(&self.spare_slots[set]).push(slot);
        }
    }

    /// Returns a slot for an event loop, with its doorbell; dropping it frees it. Raises `Crowded` if the wait set is
    /// full, `Os` if the doorbell cannot be made, and the errors of `check`.
    pub fn loop_slot(&self, set: usize) -> Result<LoopSlot, ObjectError> {
        self.check()?;
        let slot = self.sets[set]
            .acquire_slot()
            .map_err(|error| self.slot_error(set, error))?;
        slot.into_loop()
            .map_err(ObjectError::os("its doorbell cannot be made"))
    }

    /// Converts the error of a slot of a wait set: `Crowded` if the set is full. An overwritten slot poisons the
    /// object.
    pub fn slot_error(&self, set: usize, error: WaitSetError) -> ObjectError {
        match error {
            WaitSetError::Full { .. } => ObjectError::Crowded,
            WaitSetError::Overwritten { index, found, .. } => self.poison(Corruption {
                field: Field::Sleeper,
                at: self.sets[set].backing().offset(index),
                found,
            }),
        }
    }

    /// Makes the watcher watch the other members, and recovers dead ones at the first call. Idempotent. Raises the
    /// errors of `check`, but none once the watcher watches, and `Os` if the watcher cannot be started.
    #[inline]
    pub(super) fn watch(&self) -> Result<(), ObjectError> {
        if self.is_watching() {
            return Ok(());
        }
        self.start_watching()
    }

    /// Makes the watcher watch the other members, whether or not it does so already.
    #[cold]
    fn start_watching(&self) -> Result<(), ObjectError> {
        self.check()?;
        let Some(object) = self.weak_self.upgrade() else {
            return Ok(());
        };
        let watched = watcher::watch(&object);
        watched.map_err(ObjectError::os(
            "the ends of other members cannot be watched",
        ))
    }

    /// Returns true if the watcher watches the other members.
    #[inline]
    pub(super) fn is_watching(&self) -> bool {
        // Acquire: pairs with the Release below; a thread that sees it need not watch itself.
        self.is_watching.load(Ordering::Acquire)
    }

    /// Notes that the watcher watches the other members.
    pub(super) fn mark_watched(&self) {
        // Release: see above.
        self.is_watching.store(true, Ordering::Release);
    }

    // --- leaving ---

    /// Returns true once this process has left.
    pub fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Relaxed)
    }

    /// Notes that this process leaves: from now on `check` raises `Left`, also in operations that have begun.
    pub(super) fn mark_left(&self) {
        // Relaxed: released by the exchange that releases permits.
        self.has_left.store(true, Ordering::Relaxed);
    }

    /// Frees the spare slots of threads.
    pub(super) fn drop_spare_slots(&self) {
        for spare in &self.spare_slots {
            lock(spare).clear();
        }
    }

    /// Closes the file of the memory, and releases the lock that protects the file from clean-ups. Idempotent.
    pub(super) fn close_file(&self) {
        let file = lock(&self.file).take();
        if let Some(file) = file {
            named::unlock(&*file); // A view may keep it mapped, and so open.
        }
    }

    /// Releases the entry lock, which the caller holds, so that others can join. The first member notifies processes
    /// that wait for the object to appear; if that fails, the lock stays held.
    pub(super) fn admit_others(&self, is_first: bool) -> io::Result<()> {
        // Before others join: if this process dies now, the next one is the first again.
        if is_first {
            self.lock_file.announce()?;
        }
        self.lock_file.unlock_entry()
    }

    /// Releases the memory after this process has left, though handles may still refer to this membership. From then on
    /// the memory reads as zeros, or keeps its contents for as long as a view exists.
    pub(super) fn release_memory(&self) {
        if self.origin.is_current() {
            self.mapping.retire();
        }
    }
}
