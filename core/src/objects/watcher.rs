//! The thread that learns of the deaths of other members: one in each process that has slept for a name.
//!
//! It sleeps on a descriptor of each process that is a member (`pidfd`), which is readable once that has ended, and on a
//! doorbell for each name, which whoever joins rings. So it wakes when somebody dies or joins. A process of another
//! container has no such descriptor here: as long as there is one, the thread looks now and then.
//!
//! It also sees to it that a permit which is free does not wait for somebody who has been woken for it and does not
//! hear, since its loop computes or it is stopped: after a while the next one is woken. It gives memory of a queue back
//! that is not used any more, and claims that nobody refers to, if a process that was stopped has kept us from that. And it
//! attaches the subscriptions of a topic to a publisher that has come, and maps the contents of a store's new owner.

use super::members::Holder;
use super::members::Number;
use super::membership::Membership;
use crate::fork_guard::PerProcess;
use crate::os::{done, retry};
use crate::sync::lock;
use crate::wait::doorbell::{Doorbell, numbered};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks at members that cannot be watched.
const GLANCE: Duration = Duration::from_millis(50);
/// For how long whoever was woken may not hear it, until the next one is woken too.
const HEARING: Duration = Duration::from_millis(100);
/// How long memory of a queue stays free before it is given back.
const SETTLING: Duration = Duration::from_secs(1);
/// Between two tries to end what a process that changes the queue has kept us from ending.
const TIDYING: Duration = Duration::from_millis(50);
/// What a wait of the kernel's is counted in.
const TICK: Duration = Duration::from_millis(1);
/// The number of what is not a name.
const NUDGED: u64 = 0;
/// Events that are taken at once.
const EVENTS: usize = 16;

/// What a process has of the other members of a name: nothing, before somebody in it sleeps.
pub(super) struct Watch {
    stem: PathBuf,
    doorbell: Option<Doorbell>,
    /// A descriptor of each process that is a member.
    processes: HashMap<u64, OwnedFd>,
    /// Whether a member can only be looked at now and then.
    is_partial: bool,
}

impl Watch {
    pub(super) fn new(stem: PathBuf) -> Self {
        Watch {
            stem,
            doorbell: None,
            processes: HashMap::new(),
            is_partial: false,
        }
    }

    /// Where the doorbell of a member's watcher hangs.
    pub(super) fn doorbell_of(&self, slot: u32) -> PathBuf {
        numbered(&self.stem, slot as usize)
    }

    /// Watches nobody any more.
    pub(super) fn end(&mut self) {
        *self = Watch::new(std::mem::take(&mut self.stem));
    }
}

/// By their numbers.
type Names = Mutex<HashMap<u64, Weak<Membership>>>;

/// The watcher of a process.
#[derive(Clone)]
struct Watcher {
    /// An epoll, with a name's number as the data of each of its descriptors.
    poll: Arc<OwnedFd>,
    /// What is written into it wakes the thread.
    nudge: Arc<OwnedFd>,
    names: Arc<Names>,
}

/// That of this process, if it runs.
static WATCHER: PerProcess<Mutex<Option<Watcher>>> = PerProcess::empty();

/// Watches the other members of a name from now on. Again: nothing.
pub(super) fn watch(name: &Arc<Membership>) -> io::Result<()> {
    if lock(&name.watch).doorbell.is_some() {
        return Ok(());
    }
    let Watcher { poll, names, .. } = running()?;
    let mut watch = lock(&name.watch);
    if watch.doorbell.is_some() || name.has_left() {
        return Ok(());
    }
    let number = Arc::as_ptr(name).addr() as u64;
    let mut known = lock(&names);
    // What is left of a name that is gone has its memory until then, and the thread may sleep for ever.
    known.retain(|_, name| name.strong_count() > 0);
    known.insert(number, Arc::downgrade(name));
    drop(known);
    let doorbell = Doorbell::new(&watch.doorbell_of(name.others().slot()))?;
    add(&poll, doorbell.as_fd().as_raw_fd(), number)?;
    watch.doorbell = Some(doorbell);
    name.others().watch();
    look_at(name, &mut watch, &poll, number);
    drop(watch);
    name.recover_dead();
    // Release: whoever sees it need not do any of this.
    name.is_watching.store(true, Release);
    Ok(())
}

/// Looks after a while whether somebody has heard that it was woken.
pub(super) fn expect(name: &Arc<Membership>) -> io::Result<()> {
    watch(name)?;
    let (nudge, one) = (running()?.nudge, 1u64);
    // SAFETY: eight bytes are readable. A full one wakes as well.
    unsafe { libc::write(nudge.as_raw_fd(), (&raw const one).cast(), 8) };
    Ok(())
}

/// The watcher of this process, which runs.
fn running() -> io::Result<Watcher> {
    let mut watcher = lock(WATCHER.get()?);
    if let Some(watcher) = &*watcher {
        return Ok(watcher.clone());
    }
    // SAFETY: no memory is involved; what comes back is ours alone.
    let poll = unsafe { OwnedFd::from_raw_fd(done(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
    let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
    // SAFETY: as above.
    let nudge = unsafe { OwnedFd::from_raw_fd(done(libc::eventfd(0, flags))?) };
    add(&poll, nudge.as_raw_fd(), NUDGED)?;
    let fresh = Watcher {
        poll: Arc::new(poll),
        nudge: Arc::new(nudge),
        names: Arc::default(),
    };
    let looking = fresh.clone();
    let thread = thread::Builder::new().name("shmrpc-watcher".to_owned());
    thread.spawn(move || look_on(&looking))?;
    Ok(watcher.insert(fresh).clone())
}

/// What is to be done for a name, some time after it was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Chore {
    /// Whoever was woken may not hear it: the next one is woken too.
    Redeem,
    /// Memory may be given back.
    Settle,
    /// What a process that changes the queue has kept us from ending is ended.
    TidyUp,
}

impl Chore {
    fn after(self) -> Duration {
        match self {
            Chore::Redeem => HEARING,
            Chore::Settle => SETTLING,
            Chore::TidyUp => TIDYING,
        }
    }

    fn is_due_for(self, name: &Membership) -> bool {
        match self {
            Chore::Redeem => name.is_pledged.load(Relaxed),
            Chore::Settle => name.has_spare.load(Relaxed),
            Chore::TidyUp => name.has_leftovers(),
        }
    }

    fn is_done_for(self, name: &Membership) {
        match self {
            Chore::Redeem => name.redeem(),
            Chore::Settle => name.settle(),
            Chore::TidyUp => name.tidy_up(),
        }
    }
}

fn look_on(watcher: &Watcher) {
    // When to do what, by the numbers of the names.
    let mut due: HashMap<(u64, Chore), Instant> = HashMap::new();
    loop {
        let now = Instant::now();
        let mut partial = Vec::new();
        for (number, name) in watcher.known() {
            for chore in [Chore::Redeem, Chore::Settle, Chore::TidyUp] {
                let key = (number, chore);
                if due.get(&key).is_some_and(|&due| due <= now) {
                    due.remove(&key);
                    chore.is_done_for(&name);
                }
                if chore.is_due_for(&name) {
                    due.entry(key).or_insert(now + chore.after());
                }
            }
            if lock(&name.watch).is_partial || name.has_remains.load(Relaxed) {
                partial.push(number);
            }
        }
        due.retain(|(number, _), _| lock(&watcher.names).contains_key(number));
        let next = due.values().min();
        let next = next.map(|due| due.saturating_duration_since(now) + TICK);
        let glance = (!partial.is_empty()).then_some(GLANCE);
        let mut happened = watcher.sleep(next.into_iter().chain(glance).min());
        happened.extend(partial);
        happened.sort_unstable();
        happened.dedup();
        for number in happened {
            let name = lock(&watcher.names).get(&number).and_then(Weak::upgrade);
            if let Some(name) = name.filter(|name| !name.has_left()) {
                look_at(&name, &mut lock(&name.watch), &watcher.poll, number);
                name.keep_up(); // First: its owner waits for that.
                name.recover_dead();
                name.attach_subscriptions();
            }
        }
    }
}

impl Watcher {
    /// The names that this process has still.
    fn known(&self) -> Vec<(u64, Arc<Membership>)> {
        let mut names = lock(&self.names);
        let is_there =
            |name: &Weak<Membership>| name.upgrade().is_some_and(|name| !name.has_left());
        names.retain(|_, name| is_there(name));
        let known = names
            .iter()
            .filter_map(|(&number, name)| Some((number, name.upgrade()?)));
        known.collect()
    }

    /// Sleeps until something happens, for `limit` at most; the names of which it has.
    fn sleep(&self, limit: Option<Duration>) -> Vec<u64> {
        let limit = limit.map_or(-1, |limit| limit.as_millis() as libc::c_int);
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        let mut wait = || {
            let (poll, most) = (self.poll.as_raw_fd(), EVENTS as libc::c_int);
            // SAFETY: this many events are writable.
            unsafe { libc::epoll_wait(poll, events.as_mut_ptr(), most, limit) as isize }
        };
        let count = retry(&mut wait).unwrap_or(0);
        let numbers: Vec<u64> = events[..count.min(EVENTS)]
            .iter()
            .map(|event| event.u64)
            .collect();
        if numbers.contains(&NUDGED) {
            let mut nudges = 0u64;
            // SAFETY: eight bytes are writable.
            unsafe { libc::read(self.nudge.as_raw_fd(), (&raw mut nudges).cast(), 8) };
        }
        numbers
    }
}

/// Watches the processes of members that are not watched so far, and no more those that are gone.
fn look_at(name: &Membership, watch: &mut Watch, poll: &OwnedFd, number: u64) {
    let Some(doorbell) = &watch.doorbell else {
        return;
    };
    doorbell.drain();
    watch.is_partial = false;
    let members = name.others();
    let mut processes = HashMap::new();
    for slot in members.used().filter(|&slot| slot != members.slot()) {
        let member = members.number(slot);
        let known = watch.processes.remove(&member.0);
        // One that has ended is to be watched no more: it would wake us for ever. Whoever recovers it tells us nothing,
        // but dies by a process that is watched.
        let process = match known {
            Some(process) if !has_ended(&process) => Some(process),
            Some(_) => continue,
            None => process_of(name, slot, member).inspect(|process| {
                watch.is_partial |= add(poll, process.as_raw_fd(), number).is_err();
            }),
        };
        match process {
            Some(process) => drop(processes.insert(member.0, process)),
            None => watch.is_partial |= members.lives(slot),
        }
    }
    watch.processes = processes;
}

/// A descriptor of the process that has a member's byte; None if it has none, or cannot be seen from here.
fn process_of(name: &Membership, slot: u32, number: Number) -> Option<OwnedFd> {
    let members = name.others();
    let Some(Holder::Process(pid)) = members.member(slot).ok()?.holder else {
        return None;
    };
    // SAFETY: no memory is involved; what comes back is ours alone.
    let process = unsafe {
        let opened = done(libc::syscall(libc::SYS_pidfd_open, pid, 0)).ok()?;
        OwnedFd::from_raw_fd(opened as RawFd)
    };
    // The id may have been another process's by then: but not if that one still has the byte.
    let again = members.member(slot).ok()?;
    (again.holder == Some(Holder::Process(pid)) && again.number == number).then_some(process)
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut asked = libc::pollfd {
        fd: process.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut asked, 1, 0) == 1 }
}

fn add(poll: &OwnedFd, descriptor: RawFd, number: u64) -> io::Result<()> {
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: number,
    };
    // SAFETY: the event lives through the call.
    done(unsafe {
        libc::epoll_ctl(
            poll.as_raw_fd(),
            libc::EPOLL_CTL_ADD,
            descriptor,
            &raw mut event,
        )
    })
    .map(drop)
}

/// The doorbells that members of a name who died have left beside its lock file.
pub(super) fn remove_doorbells(stem: &Path) {
    let (Some(place), Some(stem)) = (
        stem.parent(),
        stem.file_name().and_then(|name| name.to_str()),
    ) else {
        return;
    };
    let is_bell = |file: &str| {
        let rest = file
            .strip_prefix(stem)
            .and_then(|rest| rest.strip_prefix('.'));
        rest.is_some_and(|rest| {
            rest.bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b'.')
        })
    };
    for file in std::fs::read_dir(place).into_iter().flatten().flatten() {
        if file.file_name().to_str().is_some_and(is_bell) {
            let _ = std::fs::remove_file(file.path());
        }
    }
}
