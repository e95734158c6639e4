//! How the members of a store go on without one that holds it and has stopped.
//!
//! The lease of a living process cannot be taken from it: it may go on at any moment, in the middle of a change. So the
//! others leave it behind. Whoever is asked to marks the contents of the store as replaced, with the number of the member
//! that is fenced off; copies them, as they were committed, to another file; and stores the number of that in the memory
//! of the name, whose members, doors and sleepers stay. All who find the mark map the copy at the place of what they had,
//! so that addresses and offsets stay what they are. Whoever dies on the way leaves the mark, and the next one who finds it
//! makes a copy.
//!
//! The member that is fenced off finds the mark, too: after each of its changes, and before it takes the lease again. What
//! it writes is in memory that nobody else looks at.
//!
//! The file of a copy is named as the memory, with its number in the place of the last 16 digits. It is of the same size,
//! and has the contents at the same place, and nothing before them.

use super::layout::{AT_CONTENTS, Shape};
use super::members::{Holder, Number};
use super::membership::{Membership, NameError};
use super::queueing::{self, deadline};
use super::registry::random;
use super::stores::{Contents, Refusal, Shared};
use crate::crash;
use crate::memory::mapping::{Access, SharedMapping};
use crate::memory::named;
use crate::os::done;
use crate::shared_heap::HeapError;
use crate::store::failover::ids_to_skip;
use crate::store::{Store, StoreError};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

/// How often an operation goes on in another copy, which a member that keeps to the rules makes once in a while.
pub(super) const TRIES: usize = 16;
/// How long the door of a name may be held by another process, which may be making a copy.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long, in nanoseconds, it may take other threads of this process to end what they are doing.
const PAUSE: u64 = 1_000_000_000;

/// The error for a store that is replaced without end.
#[cold]
pub(super) fn too_often() -> NameError {
    NameError::os("it was replaced by a copy again and again")(io::Error::from_raw_os_error(
        libc::EBUSY,
    ))
}

/// The number of container numbers that a copy skips.
pub(super) fn skipped_ids() -> Result<u64, NameError> {
    Ok(ids_to_skip(random()? as u64))
}

/// The name of the file of a copy.
fn name_of(memory: &str, number: u64) -> Option<String> {
    let (stem, random) = memory.rsplit_once('.')?;
    Some(format!("{stem}.{}{number:016x}", random.get(..16)?))
}

/// The number of the copy that has the contents of a store now; 0 if it is the memory of the name itself.
fn number_in(mapping: &SharedMapping) -> u64 {
    // Acquire: pairs with the release of whoever has made the copy.
    mapping.u64_at(AT_CONTENTS).load(Acquire)
}

/// The name of the file that has the contents of a store now, if that is a copy.
pub(super) fn copy_in(mapping: &SharedMapping, shape: Shape, memory: &str) -> Option<String> {
    match number_in(mapping) {
        0 => None,
        _ if shape.is_owned() => None,
        number => name_of(memory, number),
    }
}

/// Puts the copy that has the contents of a store now, if one has, in the place of what is mapped. Its number.
pub(super) fn find_copy(
    mapping: &SharedMapping,
    file: &OwnedFd,
    shape: Shape,
    memory: &str,
) -> Result<u64, NameError> {
    let mut tried = 0;
    loop {
        let number = number_in(mapping);
        if number == 0 {
            return Ok(0);
        }
        match open_copy(memory, number, shape) {
            Ok(copy) => {
                exchange(mapping, file, &copy, shape)
                    .map_err(NameError::os("its memory cannot be mapped"))?;
                return Ok(number);
            }
            // One who only looks may come while there is another copy.
            Err(_) if number_in(mapping) != number && tried < TRIES => tried += 1,
            Err(error) => return Err(error),
        }
    }
}

fn open_copy(memory: &str, number: u64, shape: Shape) -> Result<File, NameError> {
    let name = name_of(memory, number);
    let name = name.ok_or_else(|| NameError::Foreign("has no copy of this name".to_owned()))?;
    let failed = || NameError::os(format!("its memory {name} cannot be opened"));
    let file = File::from(named::open(&name).map_err(failed())?);
    let status = file.metadata().map_err(failed())?;
    // SAFETY: it cannot fail, and no memory is involved.
    let user = unsafe { libc::geteuid() };
    let size = shape.layout().size as u64;
    if !status.is_file() || status.uid() != user || status.len() != size {
        return Err(NameError::Foreign(format!(
            "{name} is no regular file of this user with {size} bytes"
        )));
    }
    match named::share(&file).map_err(failed())? {
        true => Ok(file),
        false => Err(failed()(io::Error::from_raw_os_error(libc::EAGAIN))),
    }
}

/// Puts a copy in the place of what this process has: where it is mapped, and behind its descriptor.
fn exchange(mapping: &SharedMapping, file: &OwnedFd, copy: &File, shape: Shape) -> io::Result<()> {
    mapping.exchange(copy.as_fd(), shape.contents_at(), Access::Shared)?;
    // SAFETY: no memory is involved; both are ours, and `file` stays open, as another one.
    done(unsafe { libc::dup3(copy.as_raw_fd(), file.as_raw_fd(), libc::O_CLOEXEC) }).map(drop)
}

impl Membership {
    /// Moves all members to a copy of the store, if one of them holds it for longer than `patience`, in nanoseconds: that
    /// one is fenced off. Its process; None if nobody holds it.
    pub fn replace_store(&self, patience: u64) -> Result<Option<Holder>, Refusal> {
        for _ in 0..TRIES {
            let found = self.following(|contents| match contents.store.begin(deadline(patience)) {
                Ok(open) => {
                    contents.store.abandon(open);
                    Ok(None)
                }
                Err(StoreError::Heap(HeapError::Busy { holder })) => Ok(Some(holder)),
                Err(error) => Err(self.told_of(error)),
            });
            let Some(holder) = found?.map(Number) else {
                return Ok(None);
            };
            if holder == self.others().us() {
                let text = "a task or thread of this process is within a transaction: end that, and nobody need be fenced off";
                return Err(NameError::NotHeld(text).into());
            }
            // One that has died is no reason for a copy: the next look takes over.
            let Some(process) = self.holder_of(holder) else {
                continue;
            };
            if self.replace_without(holder)? {
                self.wake_everybody();
                return Ok(Some(process));
            }
        }
        Err(too_often().into())
    }

    /// Does so, unless the member does not hold the store any more, or another process is at it.
    fn replace_without(&self, holder: Number) -> Result<bool, Refusal> {
        let contents = self.stored()?;
        let _alone = contents.stay();
        self.at_the_door(contents, || {
            let store = &contents.store;
            // Relaxed: changed by whoever is alone.
            let is_current = number_in(self.mapping()) == contents.current.load(Relaxed);
            if !is_current || store.fenced().is_some() || store.holder() != holder.0 {
                return Ok(false);
            }
            store.mark_replaced(holder.0);
            crash::point!(ReplaceBegun);
            if store.holder() != holder.0 {
                store.cancel_replacement(); // It has gone on just now.
                return Ok(false);
            }
            self.move_to_copy(contents, holder.0).map(|()| true)
        })
    }

    /// Goes on in the copy of the store, which this process has found replaced.
    #[cold]
    pub(super) fn follow(&self) -> Result<(), Refusal> {
        let contents = self.stored()?;
        if self.shape().is_owned() {
            return self.follow_owner(contents, queueing::PATIENCE);
        }
        let _alone = contents.stay();
        // Another thread may have been there before.
        if contents.store.fenced().is_none() {
            return Ok(());
        }
        self.at_the_door(contents, || self.finish_replacing_of(contents))
    }

    /// The same for one who comes in, and holds the door.
    pub(super) fn finish_replacing(&self) -> Result<(), NameError> {
        let Some(contents) = &self.store else {
            return Ok(());
        };
        let finished = self.finish_replacing_of(contents);
        finished.map_err(|error| match error {
            Refusal::Name(error) => error,
            other => NameError::os(format!("a copy of it cannot be made ({other:?})"))(
                io::Error::from_raw_os_error(libc::EIO),
            ),
        })
    }

    fn finish_replacing_of(&self, contents: &Contents) -> Result<(), Refusal> {
        match contents.store.fenced() {
            None => Ok(()),
            Some(fenced) if fenced == self.others().us().0 => Err(NameError::Fenced.into()),
            Some(fenced) => self.move_to_copy(contents, fenced),
        }
    }

    fn at_the_door<R>(
        &self,
        contents: &Contents,
        act: impl FnOnce() -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        self.check()?;
        // Nobody else is to be woken for nothing who is fenced off already.
        if contents.store.fenced() == Some(self.others().us().0) {
            return Err(NameError::Fenced.into());
        }
        let failed = || NameError::os("its lock file cannot be locked");
        let entered = self.lock_file.enter(PATIENCE).map_err(failed())?;
        let seconds = PATIENCE.as_secs_f64();
        entered.map_err(|holder| NameError::Busy { holder, seconds })?;
        let acted = act();
        self.lock_file.pass().map_err(failed())?;
        acted
    }

    /// Maps the copy, which is made unless there is one.
    fn move_to_copy(&self, contents: &Contents, fenced: u64) -> Result<(), Refusal> {
        let (mapping, shape) = (self.mapping(), self.shape());
        // Relaxed, here and below: changed by whoever is alone.
        let known = contents.current.load(Relaxed);
        let copy = match number_in(mapping) {
            number if number != known => open_copy(self.memory(), number, shape)?,
            _ => self.publish_copy(contents, fenced)?,
        };
        let number = number_in(mapping);
        let failed = || NameError::os("its memory cannot be mapped");
        let file = contents.file().map_err(failed())?;
        let moved = contents
            .store
            .swap_memory(deadline(PAUSE), || exchange(mapping, &file, &copy, shape));
        match moved {
            Some(moved) => moved.map_err(failed())?,
            None => {
                // A thread of this process has not ended an operation; the next one tries it again.
                let holder = Holder::Process(std::process::id() as libc::pid_t);
                return Err(NameError::Changing { holder }.into());
            }
        }
        contents.current.store(number, Relaxed);
        crash::point!(CopyUsed);
        Ok(())
    }

    /// Makes a copy, and lets all find it.
    fn publish_copy(&self, contents: &Contents, fenced: u64) -> Result<File, Refusal> {
        for _ in 0..TRIES {
            match self.try_to_publish(contents, fenced) {
                // A clean-up took the file for dead before it was locked, if only to look.
                Err(Refusal::Name(NameError::Os { error, .. }))
                    if error.raw_os_error() == Some(libc::EAGAIN) => {}
                done => return done.inspect_err(|_| contents.store.cancel_replacement()),
            }
        }
        contents.store.cancel_replacement();
        Err(too_often().into())
    }

    fn try_to_publish(&self, contents: &Contents, fenced: u64) -> Result<File, Refusal> {
        let number = (random()? as u64).max(1);
        let name = name_of(self.memory(), number);
        let name = name.ok_or_else(|| NameError::Foreign("has no copy of this name".to_owned()))?;
        let copy = self.make_copy(contents, &name, fenced);
        let copy = copy.inspect_err(|_| {
            let _ = named::remove(&name);
        })?;
        let before = copy_in(self.mapping(), self.shape(), self.memory());
        let word = self.mapping().u64_at(AT_CONTENTS);
        // Release: whoever finds the number finds the copy.
        word.store(number, Release);
        crash::point!(CopyFound);
        if let Some(before) = before {
            let _ = named::remove(&before);
        }
        Ok(copy)
    }

    fn make_copy(&self, contents: &Contents, name: &str, fenced: u64) -> Result<File, Refusal> {
        let shape = self.shape();
        let (size, start) = (shape.layout().size, shape.contents_at());
        let failed = || NameError::os("a copy of it cannot be made in /dev/shm");
        let taken = || io::Error::from_raw_os_error(libc::EAGAIN);
        let made = named::create(name, size, std::slice::from_ref(&(0..1)))
            .and_then(|made| made.ok_or_else(taken))
            .map_err(failed())?;
        let file = File::from(made);
        let moment = contents
            .store
            .copy_to(|at, bytes| file.write_all_at(bytes, at))
            .map_err(failed())?;
        let words = SharedMapping::new(file.as_fd(), size).map_err(failed())?;
        let descriptor = Arc::new(file.try_clone().map_err(failed())?.into());
        let store: Shared = Store::new(
            Arc::new(words),
            &descriptor,
            start as u64,
            shape.amount,
            self.others().clone(),
        )
        .map_err(failed())?;
        store
            .adopt_copy(moment, fenced, skipped_ids()?, deadline(PAUSE))
            .map_err(|error| self.told_of(error))?;
        if !named::share(&file).map_err(failed())? {
            return Err(failed()(taken()).into());
        }
        Ok(file)
    }
}
