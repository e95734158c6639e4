//! This process as a member of a name: what it shares with the others, and what of it is its own.

use super::fairness::Fairness;
use super::layout::{
    AT_AMOUNT, AT_BOUNDS, AT_EVENT, AT_KEPT, AT_LOOKING, AT_MEMBERS, AT_PERMITS, AT_POISON,
    AT_SIGNALS, SLEEPERS, Shape,
};
use super::lock_file::{FileId, LockFile};
use super::looking::is_looked_for;
use super::members::{self, Holder};
use super::permits::Permits;
use super::queueing::Contents;
use super::registry::Report;
use super::stores;
use super::topics::Topic;
use super::watcher::{self, Watch};
use crate::crash;
use crate::fork_guard::Origin;
use crate::memory::mapping::{MappingView, SharedMapping};
use crate::memory::named;
use crate::memory::region::Kind;
use crate::queue::MAX_CLAIMS;
use crate::shared_heap::{Corruption, Field, Poison};
use crate::sync::{AtomicU64, Ordering, fence, lock};
use crate::wait::cpu_contention::CpuContention;
use crate::wait::doorbell::{Ringer, numbered};
use crate::wait::wait_set::mapped::{LoopSlot, MappedWaitSet};
use crate::wait::wait_set::{Slot, WaitSet, WaitSetError};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::AtomicU64 as PrivateU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;
use thiserror::Error;

/// The members of a name.
pub(super) type Members = members::Members<Arc<SharedMapping>, Arc<LockFile>>;
/// The number in the path of a watcher's doorbell, where wait sets have theirs.
const WATCHER: usize = 2;
/// How often in a row a release may leave the permit to whoever looks for it, while others sleep: the turns of two
/// processes that run end then.
const MOST_TURNS: usize = 400;

/// Says of a member's slot whether it lives.
pub type Lives = Box<dyn Fn(u32) -> bool + Send + Sync>;
/// A wait set of a name.
pub type Set = WaitSet<MappedWaitSet<Arc<SharedMapping>, Lives>>;
/// A thread's place in it.
pub type Sleeper = Slot<MappedWaitSet<Arc<SharedMapping>, Lives>>;
/// A loop's place in it.
pub type LoopSleeper = LoopSlot<Arc<SharedMapping>, Lives>;

/// The most signals that nobody has waited for.
const MOST_SIGNALS: u64 = 1 << 62;
/// How often it is looked again for a permit whose holder is no member, and how long after the time before.
const LOOKS: usize = 10;
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

/// Why a name cannot be used, or opened.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the texts say what the fields hold")]
pub enum NameError {
    #[error("{what}: {error}")]
    Os { what: String, error: io::Error },
    #[error(
        "is {found} for the processes that have it open, and not {asked}; say the same, or take another name"
    )]
    Mismatch { found: String, asked: String },
    #[error(
        "was left as {found} by processes that were killed, and is not {asked}: open it as it is, or remove it by shmrpc cleanup"
    )]
    LeftOver { found: String, asked: String },
    #[error(
        "is published by another handle of this process with {found}, and not with {asked}; say the same"
    )]
    Limits { found: String, asked: String },
    #[error("cannot be opened by this version of shmrpc: its memory {0}")]
    Foreign(String),
    #[error("is being opened or closed by {}, which has not ended that within {seconds} s; is it stopped?", words_of(*.holder))]
    Busy { holder: Holder, seconds: f64 },
    #[error("has {0} already, which is the most")]
    Full(&'static str),
    #[error("cannot be used any more: {0}; once all have closed it, it can be opened anew")]
    Poisoned(#[from] Corruption),
    #[error(
        "was replaced by a copy while this process held it up, and has gone on without it: what this process was about to \
         change then may or may not be done; close all that it has of it here, and open it again"
    )]
    Fenced,
    #[error("is one of user {0}; a name is shared by the processes of one user")]
    OfUser(libc::uid_t),
    #[error("is closed")]
    Left,
    #[error("was opened in another process, from which this one was forked; open it again here")]
    Forked,
    #[error("{}", read_only(*.owner))]
    ReadOnly { owner: Option<Holder> },
    #[error(
        "is changed by its owner{} whenever it is looked at: either that stands still in the middle of a change, or it changes it \
         without a pause; then read less at once, or open it with more patience", comma(*.owner)
    )]
    Restless { owner: Option<Holder> },
    #[error("{0}")]
    NotHeld(&'static str),
    #[error("has {SLEEPERS} sleepers already, which is the most")]
    Crowded,
    #[error(
        "has no place for another claim: {MAX_CLAIMS} items are claimed, looked at after that, or dead letters \
         ({dead} of them), which is the most; end claims by ack() or give_back(), or take dead letters out"
    )]
    Claimed { dead: u64 },
    #[error("{} is in the middle of changing it, and does not end; is it stopped?", words_of(*.holder))]
    Changing { holder: Holder },
    #[error("{0}")]
    TooLarge(String),
}

pub(super) fn words_of(holder: Holder) -> String {
    match holder {
        Holder::Process(pid) if pid.unsigned_abs() == std::process::id() => {
            "another task or thread of this process".to_owned()
        }
        Holder::Process(pid) => format!("process {pid}"),
        Holder::Elsewhere => "a process of another container".to_owned(),
    }
}

fn comma(owner: Option<Holder>) -> String {
    owner.map_or_else(String::new, |owner| format!(", {},", words_of(owner)))
}

fn read_only(owner: Option<Holder>) -> String {
    match owner {
        Some(owner) => format!(
            "is changed by its owner alone, {}: it was opened with writable='owner', and this process can only read it",
            words_of(owner)
        ),
        None => {
            "has no owner any more, and this process can only read it: open it with writable='owner' to become its owner"
                .to_owned()
        }
    }
}

impl NameError {
    /// Whether its text says what the name does, and so goes on where the name was said.
    pub fn is_predicate(&self) -> bool {
        match self {
            NameError::Mismatch { .. }
            | NameError::LeftOver { .. }
            | NameError::Limits { .. }
            | NameError::Foreign(_)
            | NameError::Busy { .. }
            | NameError::Full(_)
            | NameError::Poisoned(_)
            | NameError::Fenced
            | NameError::OfUser(_)
            | NameError::Left
            | NameError::Forked
            | NameError::Crowded
            | NameError::ReadOnly { .. }
            | NameError::Restless { .. }
            | NameError::Claimed { .. } => true,
            NameError::Os { .. }
            | NameError::NotHeld(_)
            | NameError::Changing { .. }
            | NameError::TooLarge(_) => false,
        }
    }

    /// Memory for `what` cannot be had: because there is no room, or for another reason.
    pub(super) fn no_memory(what: &str) -> impl FnOnce(io::Error) -> NameError + use<> {
        let what = what.to_owned();
        move |error| NameError::Os {
            what: match error.raw_os_error() {
                Some(libc::ENOSPC | libc::ENOMEM | libc::EDQUOT | libc::EFBIG) => {
                    format!("there is no room for {what} in /dev/shm")
                }
                _ => format!("memory for {what} cannot be had in /dev/shm"),
            },
            error,
        }
    }

    pub(super) fn os(what: impl Into<String>) -> impl FnOnce(io::Error) -> NameError {
        let what = what.into();
        move |error| NameError::Os { what, error }
    }
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// A permit.
    Permit,
    /// A signal.
    Signal,
    /// That an event is set, or was set since its word was this.
    Event(u64),
}

impl Want {
    /// The wait set of those that wait for it.
    pub fn set(self) -> usize {
        usize::from(self == Want::Signal)
    }
}

/// The outcome for a task or thread that acquires a lock which it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// It holds it once more.
    Nest,
    /// An error: it would wait for itself.
    Refuse,
    /// Another task waits in its place until it releases the lock.
    Wait,
}

/// The memory of a name, mapped.
pub(super) struct Memory {
    pub(super) name: String,
    pub(super) file: File,
    pub(super) mapping: Arc<SharedMapping>,
    pub(super) shape: Shape,
}

/// A member of a name: this process.
pub struct Membership {
    name: String,
    /// The name of its memory.
    memory: String,
    origin: Origin,
    shape: Shape,
    mapping: Arc<SharedMapping>,
    /// The file of the memory, whose lock tells a clean-up that the memory is needed. None once this process has left.
    file: Mutex<Option<Arc<OwnedFd>>>,
    pub(super) lock_file: Arc<LockFile>,
    members: Arc<Members>,
    permits: Permits<Arc<SharedMapping>>,
    pub(super) fairness: Fairness,
    sets: Vec<Arc<Set>>,
    /// What a queue has.
    pub(super) queue: Option<Contents>,
    /// What a topic has.
    pub(super) topic: Option<Topic>,
    /// What a store has.
    pub(super) store: Option<stores::Contents>,
    /// The permits that we have, by their places, where there is more than one.
    held: Mutex<Vec<u32>>,
    /// Where to look first for a permit that is free: a hint.
    hint: AtomicUsize,
    /// Which task or thread of this process has the lock, by a number that its users give it, and how often it has taken
    /// it. Changed by whoever holds the lock alone.
    owner: PrivateU64,
    depth: PrivateU64,
    /// Permits whose handles are gone, each by the task or thread that left it. The name stays open for them.
    kept: Mutex<Vec<u64>>,
    /// True if `kept` is not empty.
    has_kept: AtomicBool,
    left: AtomicBool,
    /// Somebody was woken while others slept on, and the watcher is to see that it has heard.
    pub(super) is_pledged: AtomicBool,
    /// How often in a row a release has woken nobody, since somebody looked.
    turns: AtomicUsize,
    /// Memory of the queue is free, and the watcher is to see whether it can be given back.
    pub(super) has_spare: AtomicBool,
    /// Whether somebody slept when this process last released or signalled.
    pub(super) has_woken: AtomicBool,
    /// Until then, in nanoseconds of CLOCK_MONOTONIC, nobody waits long for a lease: it was kept for too long before.
    pub(super) impatient_until: PrivateU64,
    /// Whether others compete for the CPU on which a thread of ours looks again and again.
    pub(super) contention: Mutex<CpuContention>,
    /// Whether something of a dead member could not be given back so far.
    pub(super) has_remains: AtomicBool,
    /// Held by the thread that recovers what is left of the dead.
    recovering: Mutex<()>,
    /// Whether the watcher watches the other members.
    pub(super) is_watching: AtomicBool,
    /// How often in a row a thread has then looked for the answer in vain, before it slept.
    pub(super) spun_in_vain: AtomicUsize,
    /// How often in a row a loop has looked in vain before it slept, or would have.
    pub(super) looked_in_vain: AtomicUsize,
    /// For the watcher.
    us: Weak<Membership>,
    /// Threads' places in the wait sets that no thread uses now.
    spare: Vec<Mutex<Vec<Sleeper>>>,
    /// What we have of the other members, once somebody here has slept.
    pub(super) watch: Mutex<Watch>,
}

impl Membership {
    /// Joins the members of a name whose door is held. `wants`: to be the owner of a store that has none.
    pub(super) fn join(
        name: String,
        memory: Memory,
        lock_file: Arc<LockFile>,
        stem: &Path,
        wants: bool,
    ) -> Result<Arc<Self>, NameError> {
        let mapping = memory.mapping.clone();
        let joined = Members::join(mapping, AT_MEMBERS, lock_file.clone());
        let joined = joined.map_err(NameError::os("its lock file cannot be locked"))?;
        let (members, remains) = joined.ok_or(NameError::Full("256 members"))?;
        crash::point!(MemberLocked);
        let membership = Membership::new(name, memory, lock_file, members, stem)?;
        if remains {
            membership.recover(membership.members.slot());
        }
        if let Some(contents) = &membership.store {
            // It has nothing so far, whatever the last member of the slot had.
            contents.store.report_mapped(membership.members.slot(), 0);
        }
        membership.members.enter();
        crash::point!(MemberEntered);
        match membership.shape.is_owned() {
            true => {
                if wants {
                    membership.own_store()?;
                }
                membership.read_store()?;
                membership.begin_following()?;
            }
            false => membership.finish_replacing()?,
        }
        if remains {
            // Only a member can take a lease.
            let slot = membership.members.slot();
            if !membership.recover_contents(slot) {
                let error = io::Error::from_raw_os_error(libc::EBUSY);
                let what = "what a dead member has left in it cannot be given back";
                return Err(NameError::os(what)(error));
            }
        }
        membership.tell_watchers();
        membership.recover_dead();
        Ok(membership)
    }

    /// Looks at a name without becoming its member.
    pub(super) fn visit(
        name: String,
        memory: Memory,
        lock_file: Arc<LockFile>,
        stem: &Path,
    ) -> Result<Arc<Self>, NameError> {
        let mapping = memory.mapping.clone();
        let members = Members::visit(mapping, AT_MEMBERS, lock_file.clone());
        Membership::new(name, memory, lock_file, members, stem)
    }

    fn new(
        name: String,
        memory: Memory,
        lock_file: Arc<LockFile>,
        members: Members,
        stem: &Path,
    ) -> Result<Arc<Self>, NameError> {
        let Memory {
            name: memory,
            file,
            mapping,
            shape,
        } = memory;
        let (members, file) = (Arc::new(members), Arc::new(OwnedFd::from(file)));
        let set = |(which, at): (usize, usize)| {
            let judge = members.clone();
            let lives: Lives = Box::new(move |slot| judge.lives(slot));
            let stem = numbered(stem, if which < WATCHER { which } else { which + 1 });
            let memory = MappedWaitSet::new(mapping.clone(), at, SLEEPERS, stem, lives);
            WaitSet::new(memory, members.slot())
        };
        let sets: Vec<_> = shape.sets().into_iter().enumerate().map(set).collect();
        let queue = match shape.kind {
            Kind::Queue => Some(Contents::new(&mapping, &file, shape, &members)?),
            _ => None,
        };
        let topic = match shape.kind {
            Kind::Topic => Some(Topic::new(&mapping, &file, shape)),
            _ => None,
        };
        let store = match shape.kind {
            Kind::Store => Some(stores::Contents::new(
                &mapping, &file, shape, &members, &memory,
            )?),
            _ => None,
        };
        let origin = Origin::here();
        let origin = origin.map_err(NameError::os("this process cannot be told from others"))?;
        Ok(Arc::new_cyclic(|us| Membership {
            name,
            memory,
            origin,
            us: us.clone(),
            is_pledged: AtomicBool::new(false),
            turns: AtomicUsize::new(0),
            has_spare: AtomicBool::new(false),
            has_woken: AtomicBool::new(false),
            impatient_until: PrivateU64::new(0),
            contention: Mutex::default(),
            has_remains: AtomicBool::new(false),
            recovering: Mutex::new(()),
            is_watching: AtomicBool::new(false),
            spun_in_vain: AtomicUsize::new(0),
            looked_in_vain: AtomicUsize::new(0),
            permits: Permits::new(mapping.clone(), AT_PERMITS, shape.permits()),
            fairness: Fairness::new(mapping.clone(), AT_KEPT),
            shape,
            spare: sets.iter().map(|_| Mutex::default()).collect(),
            sets,
            queue,
            topic,
            store,
            mapping,
            file: Mutex::new(Some(file)),
            lock_file,
            members,
            held: Mutex::default(),
            hint: AtomicUsize::new(0),
            owner: Default::default(),
            depth: Default::default(),
            kept: Mutex::default(),
            has_kept: AtomicBool::new(false),
            left: AtomicBool::new(false),
            watch: Mutex::new(Watch::new(numbered(stem, WATCHER))),
        }))
    }

    /// Lets others through the door: we are in. The first one tells those that wait for the name, who knock then.
    pub(super) fn come_in(&self, is_first: bool) -> io::Result<()> {
        // Before anybody else comes in: if we die now, the next one is the first again.
        if is_first {
            self.lock_file.announce()?;
        }
        self.lock_file.pass()
    }

    /// Whether this is its lock file.
    pub(super) fn is_at(&self, file: FileId) -> bool {
        self.lock_file.id() == file
    }

    /// Whether this is the process that is the member, and none that was forked from it.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.origin.is_here()
    }

    /// Its memory, mapped.
    pub(super) fn mapping(&self) -> &Arc<SharedMapping> {
        &self.mapping
    }

    /// The name of its memory.
    pub(super) fn memory(&self) -> &str {
        &self.memory
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The bytes of a memory: where they begin, and how many. They stay mapped as long as the view is there.
    pub fn data(&self) -> Result<(MappingView, *mut u8, usize), NameError> {
        let (from, len) = (self.shape.data(), self.shape.amount as usize);
        Ok((self.view()?, self.mapping.address(from, len), len))
    }

    /// A view of the memory: what is there stays mapped as long as the view is there.
    pub fn view(&self) -> Result<MappingView, NameError> {
        self.mapping.view().ok_or(NameError::Left)
    }

    /// An error if it cannot be used here, or no more.
    #[inline]
    pub fn check(&self) -> Result<(), NameError> {
        // Relaxed, both: marks alone.
        let bad = self.left.load(Ordering::Relaxed)
            || self.mapping.u64_at(AT_POISON).load(Ordering::Relaxed) != 0
            || self.mapping.is_cut_off();
        if bad || !self.origin.is_here() {
            return Err(self.why_unusable());
        }
        Ok(())
    }

    #[cold]
    fn why_unusable(&self) -> NameError {
        if !self.origin.is_here() {
            NameError::Forked
        } else if self.left.load(Ordering::Relaxed) {
            NameError::Left
        } else if self.mapping.is_cut_off() {
            Corruption::CUT_OFF.into()
        } else {
            poison(&self.mapping).read().into()
        }
    }

    /// What was taken or changed, if it was there: a file that somebody has cut off reads as zeros.
    #[inline]
    fn there<T>(&self, result: T) -> Result<T, NameError> {
        if self.mapping.is_cut_off() {
            return Err(self.why_unusable());
        }
        Ok(result)
    }

    /// Lets nobody use the name any more, since this stands in it. What this process is told, unless it has left, whose
    /// remains are no lie.
    #[cold]
    pub fn poisoned(&self, corruption: Corruption) -> NameError {
        if self.has_left() || self.mapping.is_cut_off() {
            return self.why_unusable();
        }
        poison(&self.mapping).record(corruption);
        self.wake_everybody();
        corruption.into()
    }

    // --- what is waited for ---

    /// Takes what is wanted, if it is there.
    #[inline]
    pub fn try_take(&self, want: Want) -> Result<bool, NameError> {
        self.check()?;
        let taken = match want {
            Want::Permit => self.try_permit(),
            Want::Signal => self.try_signal()?,
            Want::Event(since) => self.has_passed(since),
        };
        self.there(taken)
    }

    #[inline]
    fn try_permit(&self) -> bool {
        self.fairness.left().is_none() && self.take_a_permit()
    }

    /// As [`try_take`](Self::try_take) a permit, for one that has waited for long: also one that is kept for such.
    pub fn insist(&self) -> Result<bool, NameError> {
        self.check()?;
        let taken = self.take_a_permit();
        match taken {
            true => self.fairness.clear(),
            false => self.fairness.want(),
        }
        self.there(taken)
    }

    /// For how long a permit is kept for those who have waited for long, if it is.
    pub fn kept_for(&self) -> Option<Duration> {
        self.fairness.left()
    }

    #[inline]
    fn take_a_permit(&self) -> bool {
        if self.has_one_permit() {
            return self.take_permit(0);
        }
        self.try_permits()
    }

    fn try_permits(&self) -> bool {
        let count = self.permits.count();
        // Relaxed: a hint.
        let first = self.hint.load(Relaxed);
        let mut places = (0..count).map(|step| (first + step) % count);
        let Some(place) = places.find(|&place| self.take_permit(place)) else {
            return false;
        };
        self.hint.store((place + 1) % count, Relaxed);
        lock(&self.held).push(place as u32);
        true
    }

    #[inline]
    fn take_permit(&self, place: usize) -> bool {
        let taken = self.permits.take(place, self.members.us());
        if taken {
            crash::point!(PermitTaken);
            // Relaxed: seen by the exchange, see `Permits::give_back_at_last`.
            if self.has_left() {
                return self.take_back(place);
            }
        }
        taken
    }

    /// Another thread has left meanwhile, and nobody would give this permit back.
    #[cold]
    fn take_back(&self, place: usize) -> bool {
        let _ = self.permits.give_back(place, self.members.us());
        self.sets[0].wake_one();
        false
    }

    /// Takes the one permit of a lock for a task or thread of this number, which is not 0; `again` if it has it. `is_long`:
    /// as [`insist`](Self::insist) does.
    pub fn try_lock(&self, owner: u64, again: Again, is_long: bool) -> Result<bool, NameError> {
        // Relaxed, here and below: only of interest to the holder, who sees what it has stored.
        if self.owner.load(Relaxed) == owner {
            self.check()?;
            return match again {
                Again::Nest => {
                    self.depth.fetch_add(1, Relaxed);
                    Ok(true)
                }
                Again::Wait => Ok(false),
                Again::Refuse => Err(NameError::NotHeld(match self.shape().kind {
                    Kind::Lock => {
                        "this task or thread holds it already, and would wait for itself; open it with reentrant=True"
                    }
                    _ => {
                        "this task or thread holds its lock already, and would wait for itself; release it before, or use \
                         a shmrpc.Lock with reentrant=True"
                    }
                })),
            };
        }
        let taken = match is_long {
            true => self.insist()?,
            false => self.try_take(Want::Permit)?,
        };
        if taken {
            self.own(owner);
        }
        Ok(taken)
    }

    /// The permit of the lock was taken for this task or thread.
    pub fn own(&self, owner: u64) {
        self.depth.store(1, Relaxed);
        self.owner.store(owner, Relaxed);
    }

    /// Gives the permit of a lock back.
    pub fn unlock(&self, owner: u64) -> Result<(), NameError> {
        self.check()?;
        if self.owner.load(Relaxed) != owner {
            let text = "this task or thread does not hold it, and cannot release it";
            return Err(NameError::NotHeld(text));
        }
        if self.depth.fetch_sub(1, Relaxed) > 1 {
            return Ok(());
        }
        self.owner.store(0, Relaxed);
        self.give_back(0)
    }

    /// Gives a permit back and wakes the next that waits for one.
    #[inline]
    pub fn release(&self) -> Result<(), NameError> {
        self.check()?;
        let place = if self.has_one_permit() {
            let is_ours = self.permits.is_held(0, self.members.us());
            self.there(is_ours)?.then_some(0)
        } else {
            lock(&self.held).pop()
        };
        let Some(place) = place else {
            return Err(NameError::NotHeld("this process has no permit to release"));
        };
        self.give_back(place as usize)
    }

    /// Keeps the name open for as long as this process has a permit: a task or thread of this number has left one, whose
    /// handle is gone.
    pub fn keep_permit(&self, owner: u64) {
        let mut kept = lock(&self.kept);
        if kept.len() < self.permits_held() {
            kept.push(owner);
            // Relaxed: a hint for all but the thread that stored it.
            self.has_kept.store(true, Relaxed);
        }
    }

    /// Lets a task or thread have the permit that it has left: it would wait for itself. False if it has left none.
    pub fn regain_permit(&self, owner: u64) -> bool {
        if !self.has_kept.load(Relaxed) {
            return false;
        }
        let mut kept = lock(&self.kept);
        let found = kept.iter().position(|&each| each == owner);
        if let Some(at) = found {
            kept.swap_remove(at);
            self.has_kept.store(!kept.is_empty(), Relaxed);
        }
        found.is_some()
    }

    /// Returns true if permits are kept whose handles are gone.
    #[inline]
    pub fn has_kept_permits(&self) -> bool {
        self.has_kept.load(Relaxed)
    }

    /// Forgets a kept permit, because one is about to be released by a handle that has not acquired it: the permit of this
    /// task or thread, if it has left one. The owner cannot regain that permit.
    pub fn forget_permit(&self, owner: u64) {
        let mut kept = lock(&self.kept);
        let found = kept.iter().position(|&each| each == owner);
        if let Some(at) = found.or(kept.len().checked_sub(1)) {
            kept.swap_remove(at);
        }
        self.has_kept.store(!kept.is_empty(), Relaxed);
    }

    /// Returns true if the name must stay open without a handle.
    pub(super) fn keeps_permits(&self) -> bool {
        self.has_kept.load(Relaxed) && self.permits_held() > 0
    }

    /// Returns the number of permits that this process has.
    fn permits_held(&self) -> usize {
        match self.has_one_permit() {
            true => self.permits.is_held(0, self.members.us()).into(),
            false => lock(&self.held).len(),
        }
    }

    /// A permit was given back: no more are kept than there are.
    #[cold]
    fn keep_fewer(&self) {
        let mut kept = lock(&self.kept);
        kept.truncate(self.permits_held());
        self.has_kept.store(!kept.is_empty(), Relaxed);
    }

    #[inline]
    fn give_back(&self, place: usize) -> Result<(), NameError> {
        let is_kept = self.fairness.keep();
        self.free_permit(place)?;
        if self.has_kept.load(Relaxed) {
            self.keep_fewer();
        }
        // Relaxed: a hint.
        self.hint.store(place, Relaxed);
        crash::point!(PermitFreed);
        match self.has_one_permit() && !is_kept {
            true => self.leave_or_wake(),
            false => drop(self.wake_next(0)),
        }
        Ok(())
    }

    #[inline]
    fn free_permit(&self, place: usize) -> Result<(), NameError> {
        let freed = self.permits.give_back(place, self.members.us());
        freed.map_err(|found| {
            self.poisoned(Corruption {
                field: Field::Permit,
                at: self.permits.offset(place),
                found,
            })
        })
    }

    #[inline]
    pub(super) fn has_one_permit(&self) -> bool {
        self.permits.count() == 1
    }

    /// How many permits are free.
    pub fn free_permits(&self) -> usize {
        self.permits.free()
    }

    /// Returns the number of free permits, or an error if the name cannot be used.
    pub fn check_free_permits(&self) -> Result<usize, NameError> {
        self.check()?;
        self.there(self.free_permits())
    }

    /// Adds signals, and wakes as many that wait for one. An error if there would be more than there may be.
    pub fn signal(&self, count: u64) -> Result<(), NameError> {
        self.check()?;
        // Release: what is before the signal is seen by whoever takes it. Relaxed: nothing follows.
        let add = |now: u64| now.checked_add(count).filter(|&sum| sum <= MOST_SIGNALS);
        let signals = self.mapping.u64_at(AT_SIGNALS);
        if let Err(found) = signals.fetch_update(Ordering::Release, Ordering::Relaxed, add) {
            if found > MOST_SIGNALS {
                return Err(self.too_many_signals(found));
            }
            return Err(NameError::TooLarge(format!(
                "cannot add {count} signals to {found} that nobody has waited for: at most {MOST_SIGNALS} are kept; \
                 take some with wait() or drain()"
            )));
        }
        self.there(())?;
        crash::point!(Signalled);
        // No more than can sleep: one that sleeps again has found no signal.
        for _ in 0..count.min(SLEEPERS as u64) {
            if !self.wake_next(1) {
                break;
            }
        }
        Ok(())
    }

    #[cold]
    fn too_many_signals(&self, found: u64) -> NameError {
        self.poisoned(Corruption {
            field: Field::Signals,
            at: AT_SIGNALS as u64,
            found,
        })
    }

    #[inline]
    fn try_signal(&self) -> Result<bool, NameError> {
        let less = |now: u64| now.checked_sub(1).filter(|_| now <= MOST_SIGNALS);
        let signals = self.mapping.u64_at(AT_SIGNALS);
        // Acquire: pairs with the Release of `signal`. Relaxed: none is there.
        match signals.fetch_update(Ordering::Acquire, Ordering::Relaxed, less) {
            Ok(_) => {
                crash::point!(SignalTaken);
                Ok(true)
            }
            Err(0) => Ok(false),
            Err(found) => Err(self.too_many_signals(found)),
        }
    }

    /// Drops the signals that nobody has waited for; how many.
    pub fn drain(&self) -> Result<u64, NameError> {
        self.check()?;
        // Acquire: as in `try_signal`.
        match self.mapping.u64_at(AT_SIGNALS).swap(0, Ordering::Acquire) {
            found @ 0..=MOST_SIGNALS => self.there(found),
            found => Err(self.too_many_signals(found)),
        }
    }

    /// How many signals nobody has waited for.
    pub fn signals(&self) -> u64 {
        self.mapping.u64_at(AT_SIGNALS).load(Ordering::Relaxed)
    }

    /// Sets the event and wakes all that wait for it.
    pub fn set_event(&self) -> Result<(), NameError> {
        self.check()?;
        let set = |now: u64| (now & 1 == 0).then(|| now.wrapping_add(3));
        let event = self.mapping.u64_at(AT_EVENT);
        // Release: what is before it is seen by whoever is woken. Relaxed: it is set already.
        if event
            .fetch_update(Ordering::Release, Ordering::Relaxed, set)
            .is_ok()
        {
            crash::point!(EventSet);
            self.sets[0].wake_all();
        }
        self.there(())
    }

    /// Clears the event.
    pub fn clear_event(&self) -> Result<(), NameError> {
        self.check()?;
        // Relaxed: nothing is handed over.
        self.mapping
            .u64_at(AT_EVENT)
            .fetch_and(!1, Ordering::Relaxed);
        self.there(())
    }

    /// The word of the event: odd while it is set.
    pub fn event(&self) -> Result<u64, NameError> {
        self.check()?;
        // Acquire: pairs with the Release of `set_event`.
        self.there(self.mapping.u64_at(AT_EVENT).load(Ordering::Acquire))
    }

    fn has_passed(&self, since: u64) -> bool {
        // Acquire: pairs with the Release of `set_event`.
        let now = self.mapping.u64_at(AT_EVENT).load(Ordering::Acquire);
        now & 1 == 1 || now >> 1 != since >> 1
    }

    // --- the others ---

    /// What can be seen of the name.
    pub fn report(&self) -> Result<Report, NameError> {
        self.audit()?;
        let mut members = Vec::new();
        for slot in self.members.used() {
            let mut member = self
                .members
                .member(slot)
                .map_err(NameError::os("its lock file cannot be read"))?;
            if slot == self.members.slot() {
                let process = std::process::id() as libc::pid_t;
                member.holder = Some(Holder::Process(process));
            }
            if member.holder.is_some() {
                let held = match &self.queue {
                    Some(queue) => queue.count_held(member.number.0),
                    None => self.permits.held_by(member.number),
                };
                members.push((member, held));
            }
        }
        let topic = self.topic.as_ref().map(|_| self.overview()).transpose()?;
        self.there(Report {
            shape: self.shape,
            size: match (&self.queue, &topic, &self.store) {
                (Some(queue), _, _) => queue
                    .allocated()
                    .map_err(NameError::os("its memory cannot be read"))?,
                (_, Some(topic), _) => topic.size,
                (_, _, Some(store)) => self
                    .allocated_in(store)
                    .map_err(NameError::os("its memory cannot be read"))?,
                _ => self.mapping.size() as u64,
            },
            depth: self.queue.as_ref().map(Contents::depth),
            topic,
            members,
            waiters: self.sets.iter().map(|set| set.sleepers()).sum(),
        })
    }

    /// Poisons the name if our entry is not ours, or a permit has a holder that is no member: nobody would ever give
    /// that back.
    pub fn audit(&self) -> Result<(), NameError> {
        self.check()?;
        if let Some(corruption) = self.members.corruption() {
            return Err(self.poisoned(corruption));
        }
        let Some(stranger) = self.stranger() else {
            return Ok(());
        };
        // One that leaves may have taken it meanwhile, and gives it back at once.
        for _ in 0..LOOKS {
            thread::sleep(BETWEEN_LOOKS);
            if self.stranger() != Some(stranger) {
                return Ok(());
            }
        }
        let (place, found) = stranger;
        Err(self.poisoned(Corruption {
            field: Field::OrphanedPermit,
            at: self.permits.offset(place),
            found,
        }))
    }

    fn stranger(&self) -> Option<(usize, u64)> {
        self.permits
            .stranger(|number| self.members.is_member(number))
    }

    /// Gives back what dead members had.
    pub(super) fn recover_dead(&self) {
        let dead = |&slot: &u32| !self.members.lives(slot);
        // One thread at a time: the kernel gives each thread of a process the same byte, and whoever is late would take from
        // the next member of the slot.
        let _alone = lock(&self.recovering);
        let mut any = false;
        self.has_remains.store(false, Relaxed);
        for slot in self.members.used().filter(dead) {
            // If another process is at it, or the system refuses, its end will be noticed again.
            if let Ok(true) = self.members.begin_recovery(slot) {
                crash::point!(RecoveryBegun);
                self.recover(slot);
                let is_whole = self.recover_contents(slot);
                crash::point!(Recovered);
                if is_whole {
                    let _ = self.members.end_recovery(slot);
                } else {
                    // The watcher tries it again.
                    self.has_remains.store(true, Relaxed);
                    let _ = self.members.put_off_recovery(slot);
                }
                any = true;
            }
        }
        if any {
            for set in &self.sets {
                set.rewake();
            }
            self.wake_everybody();
        }
    }

    /// Gives back what dead members of a slot had of the queue or the store; false if that is to be tried again.
    fn recover_contents(&self, slot: u32) -> bool {
        self.queue.as_ref().is_none_or(|queue| queue.recover(slot)) && self.recover_store(slot)
    }

    /// Gives back what the last member of a slot had, whose byte we have.
    fn recover(&self, slot: u32) {
        self.permits.recover(slot);
        for set in &self.sets {
            set.sweep(|member| member != slot);
        }
        if let Some(topic) = &self.topic {
            topic.recover(slot, self.members.us());
        }
    }

    /// Wakes the next one that sleeps; false if nobody does.
    ///
    /// It may not hear: its loop computes, or it is stopped. If others sleep on, the watcher looks whether what it was
    /// woken for is there still, and then wakes the next.
    #[inline]
    pub fn wake_next(&self, set: usize) -> bool {
        let woken = self.sets[set].wake_one();
        // Relaxed: a hint.
        self.has_woken.store(woken, Relaxed);
        if woken && !self.is_pledged.load(Relaxed) && self.sets[set].sleepers() > 1 {
            self.pledge();
        }
        woken
    }

    /// The only permit was freed: leaves it to whoever looks for it, or wakes the next one that sleeps.
    #[inline]
    fn leave_or_wake(&self) {
        // Relaxed, all: hints.
        let turns = self.turns.load(Relaxed);
        let mut is_left = false;
        let woken = self.sets[0].wake_one_unless(|| {
            is_left = turns < MOST_TURNS && is_looked_for(self.looking());
            is_left
        });
        self.turns
            .store(if is_left { turns + 1 } else { 0 }, Relaxed);
        self.has_woken.store(woken, Relaxed);
        // As in `wake_next`: whoever looks may be stopped.
        let others_sleep = is_left || woken && self.sets[0].sleepers() > 1;
        if others_sleep && !self.is_pledged.load(Relaxed) {
            self.pledge();
        }
    }

    /// We wait for the only permit no longer, and somebody may have left it to us.
    pub(super) fn hand_on(&self) {
        // SeqCst: that we do not look any more is before our last look at the permit. See `looking.rs`.
        fence(Ordering::SeqCst);
        if self.free_permits() > 0 {
            self.wake_next(0);
        }
    }

    /// Until when somebody looks for the only permit.
    pub(super) fn looking(&self) -> &AtomicU64 {
        self.mapping.u64_at(AT_LOOKING)
    }

    #[cold]
    fn pledge(&self) {
        // Relaxed: the watcher learns of it by a system call.
        if !self.is_pledged.swap(true, Relaxed)
            && let Some(us) = self.us.upgrade()
        {
            // Without a watcher whoever was woken has the turn, however long it takes.
            let _ = watcher::expect(&us);
        }
    }

    /// Lets the watcher look after a while whether memory can be given back.
    #[cold]
    pub(super) fn expect_spare(&self) {
        // Relaxed: as in `pledge`.
        if !self.has_spare.swap(true, Relaxed)
            && let Some(us) = self.us.upgrade()
        {
            // Without a watcher the memory is there until the last member leaves.
            let _ = watcher::expect(&us);
        }
    }

    /// Lets the watcher end after a while what could not be ended for a process that changes the queue.
    #[cold]
    pub(super) fn expect_leftovers(&self) {
        if let Some(us) = self.us.upgrade() {
            // Without a watcher it is ended when we leave.
            let _ = watcher::expect(&us);
        }
    }

    /// Gives back what memory can be given back.
    pub(super) fn settle(&self) {
        let again = self.queue.as_ref().is_some_and(Contents::settle);
        self.has_spare.store(again, Relaxed);
    }

    /// Wakes the next ones, if what others were woken for some time ago is there still.
    pub(super) fn redeem(&self) {
        self.is_pledged.store(false, Relaxed);
        if self.free_permits() > 0 || self.queue.as_ref().is_some_and(Contents::has_items) {
            self.wake_next(0);
        }
        let has_room = self.queue.as_ref().is_some_and(Contents::has_room);
        if has_room || self.signals() > 0 {
            self.wake_next(1);
        }
    }

    /// Wakes all that sleep in one of the wait sets.
    pub(super) fn wake_all(&self, set: usize) {
        self.sets[set].wake_all();
    }

    /// How many sleep in one of the wait sets.
    pub(super) fn sleeping_in(&self, set: usize) -> usize {
        self.sets.get(set).map_or(0, |set| set.sleepers())
    }

    /// Wakes all that sleep, here and elsewhere: they look again.
    pub fn wake_everybody(&self) {
        for set in &self.sets {
            set.wake_all();
        }
    }

    /// Tells those that watch the members that we are one.
    pub(super) fn tell_watchers(&self) {
        let watch = lock(&self.watch);
        let mut ringer = None;
        for slot in self.members.watching() {
            if ringer.is_none() {
                ringer = Ringer::new().ok();
            }
            if let Some(ringer) = &ringer {
                ringer.ring(&watch.doorbell_of(slot));
            }
        }
    }

    pub(super) fn others(&self) -> &Arc<Members> {
        &self.members
    }

    // --- sleeping ---

    /// A place for a thread that is about to sleep.
    pub(super) fn sleeper(&self, set: usize) -> Result<Sleeper, NameError> {
        if let Some(sleeper) = lock(&self.spare[set]).pop() {
            return Ok(sleeper);
        }
        self.sets[set]
            .acquire_slot()
            .map_err(|error| self.no_place(set, error))
    }

    /// Keeps a thread's place for the next one.
    pub(super) fn keep(&self, set: usize, sleeper: Sleeper) {
        if self.check().is_ok() {
            lock(&self.spare[set]).push(sleeper);
        }
    }

    /// A place for a loop.
    pub fn loop_sleeper(&self, set: usize) -> Result<LoopSleeper, NameError> {
        self.check()?;
        let slot = self.sets[set]
            .acquire_slot()
            .map_err(|error| self.no_place(set, error))?;
        slot.into_loop()
            .map_err(NameError::os("its doorbell cannot be made"))
    }

    /// What is wrong when a place among the sleepers cannot be had or used.
    pub fn no_place(&self, set: usize, error: WaitSetError) -> NameError {
        match error {
            WaitSetError::Full { .. } => NameError::Crowded,
            WaitSetError::Overwritten { index, found, .. } => self.poisoned(Corruption {
                field: Field::Sleeper,
                at: self.sets[set].backing().offset(index),
                found,
            }),
        }
    }

    /// Whether this process has left.
    pub fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// Watches the other members from now on.
    pub(super) fn watch(self: &Arc<Self>) -> Result<(), NameError> {
        // Acquire: pairs with the Release below, which few threads wait for.
        if self.is_watching.load(std::sync::atomic::Ordering::Acquire) {
            return Ok(());
        }
        watcher::watch(self).map_err(NameError::os("the ends of other members cannot be watched"))
    }

    /// The same, for what has no `Arc` of us.
    #[cold]
    pub(super) fn watch_us(&self) -> Result<(), NameError> {
        self.check()?;
        self.us.upgrade().map_or(Ok(()), |us| us.watch())
    }

    // --- leaving ---

    /// Leaves: gives everything back, and if nobody else has the name, takes it away, as `remove` does. `patience` at the
    /// door.
    pub(super) fn leave(&self, remove: &dyn Fn(&LockFile), patience: Duration) {
        // Relaxed: released by what gives the permits back.
        self.left.store(true, Ordering::Relaxed);
        if !self.origin.is_here() {
            return;
        }
        lock(&self.watch).end();
        if let Some(queue) = &self.queue {
            queue.abandon();
        }
        if let Some(topic) = &self.topic {
            topic.abandon(self.members.us());
        }
        // Nobody moves to a copy meanwhile: the door would be left open.
        let _stays = self.store.as_ref().map(|store| store.stay());
        if let Some(store) = &self.store {
            store.abandon(self.members.us());
        }
        self.permits.give_back_at_last(self.members.us());
        crash::point!(LeaveBegun);
        self.wake_everybody(); // Our own waits end, others look at the permits that came back.
        for spare in &self.spare {
            lock(spare).clear();
        }
        if let Ok(Ok(())) = self.lock_file.enter(patience) {
            let _ = self.members.leave();
            crash::point!(MemberLeft);
            if let Ok(false) = self.lock_file.has_others() {
                remove(&self.lock_file);
            }
        }
        self.lock_file.close();
        let file = lock(&self.file).take();
        if let Some(file) = file {
            named::unshare(&*file); // A view may keep it mapped, and so open.
        }
        if let Some(store) = &self.store {
            store.close_file();
        }
        for set in &self.sets {
            set.backing().forget_ringer();
        }
    }

    /// Gives the memory back, once this process has left, though handles may still refer to this: what looks at the memory
    /// finds zeros, or what was there as long as a view keeps that.
    pub(super) fn release_memory(&self) {
        if self.origin.is_here() {
            self.mapping.retire();
        }
    }
}

impl Kind {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Connection => "connection",
            Kind::Memory => "memory",
            Kind::Semaphore => "semaphore",
            Kind::Lock => "lock",
            Kind::Event => "event",
            Kind::Queue => "queue",
            Kind::Topic => "topic",
            Kind::Store => "store",
        }
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let amount = self.amount;
        match self.kind {
            Kind::Memory => write!(out, "a memory of {amount} bytes"),
            Kind::Semaphore if amount == 1 => write!(out, "a semaphore of 1 permit"),
            Kind::Semaphore => write!(out, "a semaphore of {amount} permits"),
            Kind::Event => write!(out, "an event"),
            Kind::Queue => {
                let (limits, what) = (self.limits(), self.contents());
                let (items, deliveries) = (limits.items, limits.deliveries);
                write!(
                    out,
                    "a queue of {what} with maxsize={items}, max_memory={amount}, max_deliveries={deliveries}"
                )
            }
            Kind::Topic => write!(out, "a topic of {}", self.contents()),
            Kind::Store if self.is_owned() => {
                write!(out, "a store with max_memory={amount}, writable='owner'")
            }
            Kind::Store => write!(out, "a store with max_memory={amount}"),
            _ => write!(out, "a {}", self.kind.word()),
        }
    }
}

impl Shape {
    fn contents(self) -> &'static str {
        match self.is_raw() {
            true => "raw bytes (raw=True)",
            false => "values (raw=False)",
        }
    }
}

/// Stores what a new region is of.
pub(super) fn store_shape(mapping: &SharedMapping, shape: Shape) {
    // Relaxed: published with the header.
    mapping
        .u64_at(AT_AMOUNT)
        .store(shape.amount, Ordering::Relaxed);
    for (index, bound) in shape.bounds.into_iter().enumerate() {
        let word = mapping.u64_at(AT_BOUNDS + 8 * index);
        word.store(bound, Ordering::Relaxed);
    }
}

/// Where a name's members are told of a lie.
pub(super) fn poison(mapping: &SharedMapping) -> Poison<'_> {
    Poison([0, 8, 16].map(|at| mapping.u64_at(AT_POISON + at)))
}

/// What was found in a region that cannot be true, if anything was.
pub(super) fn corruption_in(mapping: &SharedMapping) -> Option<Corruption> {
    let is_told = mapping.u64_at(AT_POISON).load(Ordering::Relaxed) != 0;
    is_told.then(|| poison(mapping).read())
}
