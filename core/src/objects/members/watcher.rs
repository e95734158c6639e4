//! The watcher: one thread in each process that learns of the deaths of other members.
//!
//! The watcher sleeps on a descriptor (`pidfd`) of each process that is a member, which becomes readable once the
//! process has ended, and on a doorbell for each object, which a joining member rings. A process of another container
//! has no such descriptor here: while there is one, the thread polls.
//!
//! The watcher also does background work for objects: [`Chore`].

use super::holder::Holder;
use super::lock_file::ObjectMembers;
use super::table::MemberId;
use crate::fork_guard::PerProcess;
use crate::os::{check_syscall, retry_interrupted};
use crate::sync::lock;
use crate::wait::doorbell::{Doorbell, numbered};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// The pause between two polls of members that cannot be watched.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The unit of the kernel's timeouts.
const TICK: Duration = Duration::from_millis(1);
/// The key of the descriptor by which the thread is woken. No object has it.
const WAKE_KEY: u64 = 0;
/// The maximum number of events of one wait.
const EVENTS: usize = 16;

/// Background work for an object, which the watcher does a while after it is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Chore {
    /// Wake the next sleeper if a woken one has not reacted, because its loop computes or its process is stopped.
    Recheck,
    /// Release memory that has been free for a while.
    ReclaimMemory,
    /// Finish operations that a process which held the owner lock has prevented.
    FinishDeferred,
}

impl Chore {
    const ALL: [Chore; 3] = [Chore::Recheck, Chore::ReclaimMemory, Chore::FinishDeferred];

    /// Returns the time after which the watcher does the chore once it has found the request.
    fn delay(self) -> Duration {
        match self {
            Chore::Recheck => Duration::from_millis(100),
            Chore::ReclaimMemory => Duration::from_secs(1),
            Chore::FinishDeferred => Duration::from_millis(50),
        }
    }
}

/// An object that the watcher can watch.
pub trait Watched: Send + Sync {
    /// Returns the watcher's state of the object.
    fn watch_state(&self) -> &Mutex<Watch>;
    /// Returns the members.
    fn members(&self) -> &ObjectMembers;
    /// Returns true once this process has left the object.
    fn has_left(&self) -> bool;
    /// Notes, in this process alone, that its watcher watches the members from now on.
    fn mark_watched(&self);
    /// Returns true if the recovery of a dead member was incomplete, so that the watcher must try again.
    fn must_retry_recovery(&self) -> bool;
    /// Recovers the slots of dead members, and wakes all sleepers if there were any.
    fn recover_dead(&self);
    /// Reacts to a member that has joined, has died or has rung the doorbell: recovers dead members, between the hooks
    /// `before_recovery` and `after_recovery` of the kind.
    fn react_to_members(&self);
    /// Returns true if a chore is requested.
    fn is_requested(&self, chore: Chore) -> bool;
    /// Does a chore.
    fn perform(&self, chore: Chore);
}

/// The watcher's state of an object: empty before a thread of this process sleeps for the object.
pub struct Watch {
    stem: PathBuf,
    doorbell: Option<Doorbell>,
    /// A descriptor of each member's process.
    processes: HashMap<u64, OwnedFd>,
    /// True if a member can only be polled.
    must_poll: bool,
}

impl Watch {
    /// Returns the state of an object that is not watched so far. The paths of its doorbells begin with `stem`.
    pub(in crate::objects) fn new(stem: PathBuf) -> Self {
        Watch {
            stem,
            doorbell: None,
            processes: HashMap::new(),
            must_poll: false,
        }
    }

    /// Returns the path of the doorbell of a member's watcher.
    pub(in crate::objects) fn doorbell_path(&self, slot: u32) -> PathBuf {
        numbered(&self.stem, slot as usize)
    }

    /// Stops watching: drops the doorbell and the descriptors. Removes the doorbell's file.
    pub(in crate::objects) fn end(&mut self) {
        *self = Watch::new(std::mem::take(&mut self.stem));
    }
}

/// The watched objects by their keys.
type Objects = Mutex<HashMap<u64, Weak<dyn Watched>>>;

/// The watcher of a process.
#[derive(Clone)]
struct Watcher {
    /// An epoll, with an object's key as the data of each of its descriptors.
    poll: Arc<OwnedFd>,
    /// An eventfd, which wakes the thread.
    wake: Arc<OwnedFd>,
    objects: Arc<Objects>,
}

/// The watcher of this process, once it runs.
static WATCHER: PerProcess<Mutex<Option<Watcher>>> = PerProcess::empty();

/// Starts to watch the other members of an object, and recovers dead ones in this thread, unless this process has left
/// the object. Starts the watcher's thread if it does not run. Idempotent. Raises an error if the system refuses a
/// thread, a descriptor or the doorbell's file; the object is then not watched, and a later call tries again.
pub(in crate::objects) fn watch(object: &Arc<dyn Watched>) -> io::Result<()> {
    if lock(object.watch_state()).doorbell.is_some() {
        return Ok(());
    }
    let Watcher { poll, objects, .. } = start()?;
    let mut watch = lock(object.watch_state());
    if watch.doorbell.is_some() || object.has_left() {
        return Ok(());
    }
    let key = Arc::as_ptr(object).addr() as u64;
    let mut known = lock(&objects);
    // A dropped object's memory is only freed with its last weak reference, and the thread may sleep without end.
    known.retain(|_, object| object.strong_count() > 0);
    known.insert(key, Arc::downgrade(object));
    drop(known);
    let members = object.members();
    let doorbell = Doorbell::new(&watch.doorbell_path(members.slot()))?;
    add(&poll, doorbell.as_fd().as_raw_fd(), key)?;
    watch.doorbell = Some(doorbell);
    members.watch();
    watch_processes(members, &mut watch, &poll, key);
    drop(watch);
    object.recover_dead();
    object.mark_watched();
    Ok(())
}

/// Wakes the watcher to check the requested chores of an object, and starts to watch the object. Raises the errors of
/// `watch`.
pub(in crate::objects) fn request(object: &Arc<dyn Watched>) -> io::Result<()> {
    watch(object)?;
    let (wake, one) = (start()?.wake, 1u64);
    // SAFETY: eight bytes are readable. A full eventfd wakes as well.
    unsafe { libc::write(wake.as_raw_fd(), (&raw const one).cast(), 8) };
    Ok(())
}

/// Returns the watcher of this process, and starts it if it does not run.
fn start() -> io::Result<Watcher> {
    let mut watcher = lock(WATCHER.get()?);
    if let Some(watcher) = &*watcher {
        return Ok(watcher.clone());
    }
    // SAFETY: no memory is involved; the descriptor is ours alone.
    let poll =
        unsafe { OwnedFd::from_raw_fd(check_syscall(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
    let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
    // SAFETY: as above.
    let wake = unsafe { OwnedFd::from_raw_fd(check_syscall(libc::eventfd(0, flags))?) };
    add(&poll, wake.as_raw_fd(), WAKE_KEY)?;
    let fresh = Watcher {
        poll: Arc::new(poll),
        wake: Arc::new(wake),
        objects: Arc::default(),
    };
    let running = fresh.clone();
    let thread = thread::Builder::new().name("shmrpc-watcher".to_owned());
    thread.spawn(move || run(&running))?;
    Ok(watcher.insert(fresh).clone())
}

/// Runs the watcher's thread: does the requested chores, and reacts to the members of objects that have changed. Never
/// returns.
fn run(watcher: &Watcher) {
    // When to do a chore, by the keys of the objects.
    let mut due: HashMap<(u64, Chore), Instant> = HashMap::new();
    loop {
        let now = Instant::now();
        let mut polled = Vec::new();
        for (key, object) in watcher.live_objects() {
            for chore in Chore::ALL {
                let entry = (key, chore);
                if due.get(&entry).is_some_and(|&due| due <= now) {
                    due.remove(&entry);
                    object.perform(chore);
                }
                if object.is_requested(chore) {
                    due.entry(entry).or_insert(now + chore.delay());
                }
            }
            if lock(object.watch_state()).must_poll || object.must_retry_recovery() {
                polled.push(key);
            }
        }
        due.retain(|(key, _), _| lock(&watcher.objects).contains_key(key));
        let next = due.values().min();
        let next = next.map(|due| due.saturating_duration_since(now) + TICK);
        let poll = (!polled.is_empty()).then_some(POLL_INTERVAL);
        let mut keys = watcher.sleep(next.into_iter().chain(poll).min());
        keys.extend(polled);
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            let object = lock(&watcher.objects).get(&key).and_then(Weak::upgrade);
            if let Some(object) = object.filter(|object| !object.has_left()) {
                let mut watch = lock(object.watch_state());
                watch_processes(object.members(), &mut watch, &watcher.poll, key);
                drop(watch);
                object.react_to_members();
            }
        }
    }
}

impl Watcher {
    /// Returns the objects that this process has not left, and forgets the others.
    fn live_objects(&self) -> Vec<(u64, Arc<dyn Watched>)> {
        let mut objects = lock(&self.objects);
        let is_live =
            |object: &Weak<dyn Watched>| object.upgrade().is_some_and(|object| !object.has_left());
        objects.retain(|_, object| is_live(object));
        let live = objects
            .iter()
            .filter_map(|(&key, object)| Some((key, object.upgrade()?)));
        live.collect()
    }

    /// Sleeps for at most `limit`, without a limit if that is None, and returns the keys of the objects whose
    /// descriptors are readable, at most `EVENTS`; `WAKE_KEY` is among them after a request. Returns none after an
    /// error.
    fn sleep(&self, limit: Option<Duration>) -> Vec<u64> {
        let limit = limit.map_or(-1, |limit| limit.as_millis() as libc::c_int);
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        let mut wait = || {
            let (poll, most) = (self.poll.as_raw_fd(), EVENTS as libc::c_int);
            // SAFETY: this many events are writable.
            unsafe { libc::epoll_wait(poll, events.as_mut_ptr(), most, limit) as isize }
        };
        let count = retry_interrupted(&mut wait).unwrap_or(0);
        let keys: Vec<u64> = events[..count.min(EVENTS)]
            .iter()
            .map(|event| event.u64)
            .collect();
        if keys.contains(&WAKE_KEY) {
            let mut wakes = 0u64;
            // SAFETY: eight bytes are writable.
            unsafe { libc::read(self.wake.as_raw_fd(), (&raw mut wakes).cast(), 8) };
        }
        keys
    }
}

/// Drains the doorbell, watches the processes of new members, and stops watching those that have ended. Sets
/// `must_poll` if a member that is alive cannot be watched. Does nothing before the object is watched.
fn watch_processes(members: &ObjectMembers, watch: &mut Watch, poll: &OwnedFd, key: u64) {
    let Some(doorbell) = &watch.doorbell else {
        return;
    };
    doorbell.drain();
    watch.must_poll = false;
    let mut processes = HashMap::new();
    for slot in members.used_slots().filter(|&slot| slot != members.slot()) {
        let member = members.id_at(slot);
        let known = watch.processes.remove(&member.0);
        // An ended process is watched no longer: its descriptor would wake us for ever. A process that recovers it does
        // not notify us, but its own death does, because it is watched.
        let process = match known {
            Some(process) if !has_ended(&process) => Some(process),
            Some(_) => continue,
            None => open_process(members, slot, member).inspect(|process| {
                watch.must_poll |= add(poll, process.as_raw_fd(), key).is_err();
            }),
        };
        match process {
            Some(process) => drop(processes.insert(member.0, process)),
            None => watch.must_poll |= members.is_alive(slot),
        }
    }
    watch.processes = processes;
}

/// Returns a descriptor of the process that holds a member's lock. Returns None if no process holds the lock, or if the
/// process is in another container.
fn open_process(members: &ObjectMembers, slot: u32, id: MemberId) -> Option<OwnedFd> {
    let Some(Holder::Process(pid)) = members.member_at(slot).ok()?.holder else {
        return None;
    };
    // SAFETY: no memory is involved; the descriptor is ours alone.
    let process = unsafe {
        let opened = check_syscall(libc::syscall(libc::SYS_pidfd_open, pid, 0)).ok()?;
        OwnedFd::from_raw_fd(opened as RawFd)
    };
    // The pid may have been another process's by then: but not if that process still holds the lock.
    let again = members.member_at(slot).ok()?;
    (again.holder == Some(Holder::Process(pid)) && again.id == id).then_some(process)
}

/// Returns true if the process of this pidfd has ended. Does not wait.
fn has_ended(process: &OwnedFd) -> bool {
    let mut asked = libc::pollfd {
        fd: process.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut asked, 1, 0) == 1 }
}

/// Adds a descriptor to an epoll, to be reported as readable with the key of its object.
fn add(poll: &OwnedFd, descriptor: RawFd, key: u64) -> io::Result<()> {
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: key,
    };
    // SAFETY: the event lives through the call.
    check_syscall(unsafe {
        libc::epoll_ctl(
            poll.as_raw_fd(),
            libc::EPOLL_CTL_ADD,
            descriptor,
            &raw mut event,
        )
    })
    .map(drop)
}

/// Removes the doorbells that members of an object have left beside its lock file: the files whose names are that of
/// `stem`, a dot, and digits and dots. The caller knows that no member is left. Errors are ignored.
pub(in crate::objects) fn remove_doorbells(stem: &Path) {
    let (Some(directory), Some(stem)) = (
        stem.parent(),
        stem.file_name().and_then(|name| name.to_str()),
    ) else {
        return;
    };
    let is_doorbell = |file: &str| {
        let rest = file
            .strip_prefix(stem)
            .and_then(|rest| rest.strip_prefix('.'));
        rest.is_some_and(|rest| {
            rest.bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b'.')
        })
    };
    for file in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if file.file_name().to_str().is_some_and(is_doorbell) {
            let _ = std::fs::remove_file(file.path());
        }
    }
}
