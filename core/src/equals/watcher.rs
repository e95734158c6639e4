//! The thread that learns of the deaths of other members: one in each process that has slept for a name.
//!
//! It sleeps on a descriptor of each process that is a member (`pidfd`), which is readable once that has ended, and on a
//! doorbell for each name, which whoever joins rings. So it wakes when somebody dies or joins, and at no other time. A
//! process of another container has no such descriptor here: as long as there is one, the thread looks now and then.

use super::lock_file::Holder;
use super::members::Number;
use super::membership::Membership;
use crate::origin::PerProcess;
use crate::os::{done, retry};
use crate::sync::lock;
use crate::wait::doorbell::Doorbell;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::thread;

/// Milliseconds between two looks at members that cannot be watched.
const GLANCE: libc::c_int = 50;
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
        let mut path = self.stem.clone().into_os_string();
        path.push(format!(".{slot}"));
        path.into()
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
    names: Arc<Names>,
}

/// That of this process, if it runs.
static WATCHER: PerProcess<Mutex<Option<Watcher>>> = PerProcess::empty();

/// Watches the other members of a name from now on. Again: nothing.
pub(super) fn watch(name: &Arc<Membership>) -> io::Result<()> {
    if lock(&name.watch).doorbell.is_some() {
        return Ok(());
    }
    let Watcher { poll, names } = running()?;
    let mut watch = lock(&name.watch);
    if watch.doorbell.is_some() || name.has_left() {
        return Ok(());
    }
    let number = Arc::as_ptr(name).addr() as u64;
    lock(&names).insert(number, Arc::downgrade(name));
    let doorbell = Doorbell::new(&watch.doorbell_of(name.others().slot()))?;
    add(&poll, doorbell.as_fd().as_raw_fd(), number)?;
    watch.doorbell = Some(doorbell);
    name.others().watch();
    look_at(name, &mut watch, &poll, number);
    drop(watch);
    name.recover_dead();
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
    let fresh = Watcher {
        poll: Arc::new(poll),
        names: Arc::default(),
    };
    let looking = fresh.clone();
    let thread = thread::Builder::new().name("shmrpc-watcher".to_owned());
    thread.spawn(move || look_on(&looking))?;
    Ok(watcher.insert(fresh).clone())
}

fn look_on(Watcher { poll, names }: &Watcher) {
    loop {
        let numbers = next_events(poll, names);
        for number in numbers {
            let name = lock(names).get(&number).and_then(Weak::upgrade);
            let Some(name) = name.filter(|name| !name.has_left()) else {
                lock(names).remove(&number);
                continue;
            };
            look_at(&name, &mut lock(&name.watch), poll, number);
            name.recover_dead();
        }
    }
}

/// The names of which something has happened, or that are to be looked at now and then.
fn next_events(poll: &OwnedFd, names: &Names) -> Vec<u64> {
    let is_partial = |name: &Weak<Membership>| {
        let name = name.upgrade();
        name.is_some_and(|name| lock(&name.watch).is_partial)
    };
    let known: Vec<_> = lock(names)
        .iter()
        .map(|(&number, name)| (number, name.clone()))
        .collect();
    let partial: Vec<u64> = known
        .iter()
        .filter(|(_, name)| is_partial(name))
        .map(|each| each.0)
        .collect();
    let limit = if partial.is_empty() { -1 } else { GLANCE };
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
    // SAFETY: so many events are writable.
    let wait = || unsafe {
        libc::epoll_wait(
            poll.as_raw_fd(),
            events.as_mut_ptr(),
            EVENTS as libc::c_int,
            limit,
        )
    };
    let mut wait = wait;
    let count = retry(|| wait() as isize).unwrap_or(0);
    let mut numbers: Vec<u64> = events[..count.min(EVENTS)]
        .iter()
        .map(|event| event.u64)
        .collect();
    numbers.extend(partial);
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Watches the processes of members that are not watched so far, and no more those that are gone.
fn look_at(name: &Membership, watch: &mut Watch, poll: &OwnedFd, number: u64) {
    let Some(doorbell) = &watch.doorbell else {
        return;
    };
    doorbell.silence();
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
