//! A store with an owner: one member changes it, and all others map what it has for reading, and cannot.
//!
//! The contents lie in a [sealed](crate::memory::sealed) file of the owner's. In the memory of the name, which all write,
//! nothing says who that is: the owner has a byte of the lock file as long as it lives, and the kernel tells whose it is.
//! The others open the file by the owner's descriptors. Once the owner has gone they keep what they have; who ends a commit
//! in whose middle it died does so in memory of its own.
//!
//! Whoever opens the store so while nobody has the byte becomes the owner: it copies what was committed to a file of its
//! own, stores the number of that in the memory of the name, and rings for the [watchers](super::watcher) of all readers, which
//! map it, whether their programs look at the store or not. Before it has waited for them it changes nothing: so whatever it
//! commits is kept by each reader that could follow. One that is stopped is not waited for any longer than [`FOLLOWING`].
//!
//! While there is no owner, the contents that the most owners have had are the last ones: the number of contents counts them,
//! and is in the sealed file. One who comes and has nothing to copy so far takes those, and so does a reader.

use super::layout::AT_CONTENTS;
use super::members::Holder;
use super::membership::{Membership, NameError};
use super::queueing::{PATIENCE, deadline};
use super::registry::random;
use super::replacing::skipped_ids;
use super::stores::{Contents, Refusal, Shared};
use crate::clock;
use crate::crash;
use crate::memory::mapping::{Access, SharedMapping};
use crate::memory::sealed;
use crate::os::{done, fallocate};
use crate::shared_heap::Words;
use crate::store::Store;
use crate::store::single_writer::{OWNER_HEADER, OwnerHeader};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use std::thread;
use std::time::Duration;

/// What the descriptors of contents lead to, as /proc shows it.
const MEMFD: &str = "/memfd:shmrpc-store";
/// Between two looks for an owner that is about to have contents, or for readers that are about to map them.
const PAUSE: Duration = Duration::from_micros(200);
/// How long, in nanoseconds, a new owner waits until all readers have its contents.
const FOLLOWING: u64 = 1_000_000_000;
/// Bits of the number of contents that tell them from all others; above them is how many owners there were.
const OWNERS: u32 = 32;
/// How long, in nanoseconds, a reader looks before it asks whether the owner lives.
const SLICE: u64 = 5_000_000;

impl Contents {
    /// Whether the owner, or a new one, has other contents than those that this process reads.
    #[inline]
    pub(super) fn is_behind(&self, mapping: &SharedMapping) -> bool {
        // Acquire: pairs with the release of the new owner. Relaxed: changed by whoever is alone.
        self.store.is_read_only()
            && mapping.u64_at(AT_CONTENTS).load(Acquire) != self.seen.load(Relaxed)
    }
}

impl Membership {
    /// The owner of a store, if it has one that lives.
    pub fn store_owner(&self) -> Option<Holder> {
        match self.may_write() {
            _ if !self.shape().is_owned() => None,
            true => Some(Holder::Process(std::process::id() as libc::pid_t)),
            false => self.lock_file.owner().ok().flatten(),
        }
    }

    /// Whether this process can change the store.
    pub fn may_write(&self) -> bool {
        self.stored()
            .is_ok_and(|contents| !contents.store.is_read_only())
    }

    /// Becomes the owner of a store, unless it has one.
    pub(super) fn own_store(&self) -> Result<(), NameError> {
        let Some(contents) = &self.store else {
            return Ok(());
        };
        let _alone = contents.stay();
        let failed = || NameError::os("its lock file cannot be locked");
        if !contents.store.is_read_only() || !self.lock_file.own().map_err(failed())? {
            return Ok(());
        }
        crash::point!(OwnerBegun);
        let made = self.make_contents(contents);
        if made.is_err() {
            let _ = self.lock_file.disown();
        }
        made
    }

    /// Maps the contents for one who has come in, and only reads.
    pub(super) fn read_store(&self) -> Result<(), NameError> {
        let Some(contents) = &self.store else {
            return Ok(());
        };
        let _alone = contents.stay();
        if !contents.store.is_read_only() {
            return Ok(());
        }
        match self.find_contents(0, PATIENCE)? {
            Some((file, title)) => self.map_contents(contents, &file, title),
            None => Err(NameError::NotHeld(
                "it has no owner, and nobody has its contents any more: open it with writable='owner' to become its owner",
            )),
        }
    }

    /// Goes on with the contents of a new owner. `patience`, in nanoseconds, if it does not show them.
    pub(super) fn follow_owner(&self, contents: &Contents, patience: u64) -> Result<(), Refusal> {
        let _alone = contents.stay();
        if !contents.is_behind(self.mapping()) {
            return Ok(());
        }
        let word = self.mark();
        // Relaxed: changed by whoever is alone.
        let current = contents.current.load(Relaxed);
        if let Some((file, title)) = self.find_contents(current, patience)?
            && title.mark != current
        {
            self.map_contents(contents, &file, title)?;
        }
        contents.seen.store(word, Relaxed);
        Ok(())
    }

    /// The same, for the watcher: as soon as there is a new owner, and whether this process looks at the store or not.
    pub(super) fn keep_up(&self) {
        if let Some(contents) = &self.store
            && self.shape().is_owned()
            && contents.is_behind(self.mapping())
        {
            // An owner that does not show its contents rings again once it does. If it cannot be done for another reason,
            // the next one who looks at the store is told why.
            let _ = self.follow_owner(contents, 0);
        }
    }

    /// From now on the watcher follows new owners.
    pub(super) fn begin_following(self: &Arc<Self>) -> Result<(), NameError> {
        if self.may_write() {
            return Ok(());
        }
        self.watch()?;
        // That we watch is before this look, by the fence of `Members::watch`.
        self.keep_up();
        Ok(())
    }

    /// Waits until all readers that live have the contents of this number, but not for long: one may be stopped.
    fn wait_for_readers(&self, contents: &Contents, mark: u64) {
        let (members, end) = (self.others(), deadline(FOLLOWING));
        let is_missing = |slot| {
            slot != members.slot()
                && !contents.store.has_mapped_or_left(slot, mark)
                && members.lives(slot)
        };
        while members.used().any(is_missing) && clock::now() < end {
            thread::sleep(PAUSE);
        }
    }

    /// Reads the contents; `operate` until a deadline.
    pub(super) fn read_contents<R>(
        &self,
        contents: &Contents,
        patience: u64,
        operate: impl Fn(u64) -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        let end = deadline(patience);
        loop {
            let slice = clock::now().saturating_add(SLICE).min(end);
            match operate(if patience == 0 { 0 } else { slice }) {
                Err(Refusal::Name(NameError::Restless { .. })) if clock::now() < end => {
                    if contents.is_behind(self.mapping()) {
                        return Err(Refusal::Replaced);
                    }
                    self.mend_contents(contents)?;
                }
                done => return done,
            }
        }
    }

    /// If the owner has died in the middle of a commit, ends that in memory that nobody else sees.
    fn mend_contents(&self, contents: &Contents) -> Result<(), Refusal> {
        let failed = || NameError::os("its memory cannot be mapped");
        // First: what is mapped may be a new owner's by the time that we are alone.
        let _alone = contents.stay();
        if !contents.store.is_committing()
            || !contents.store.is_read_only()
            || self.lock_file.owner().map_err(failed())?.is_some()
        {
            return Ok(());
        }
        let start = self.shape().contents_at();
        let file = contents.file().map_err(failed())?;
        let mapped = self
            .mapping()
            .exchange(file.as_fd(), start, Access::Private);
        mapped.map_err(failed())?;
        crash::point!(MendBegun);
        contents
            .store
            .finish_commit()
            .map_err(|error| self.told_of(error))
    }

    /// The number of the contents, as the memory of the name says: a claim.
    fn mark(&self) -> u64 {
        // Acquire: pairs with the release of the owner.
        self.mapping().u64_at(AT_CONTENTS).load(Acquire)
    }

    /// What the name of the memory ends with.
    fn ending(&self) -> u64 {
        let digits = self.memory().len().saturating_sub(16);
        let ending = self.memory().get(digits..).unwrap_or_default();
        u64::from_str_radix(ending, 16).unwrap_or(0)
    }

    /// The contents, of the owner if there is one, or else the last ones that any member has, if they are later than `known`;
    /// None if nobody has such. `patience` if the owner does not show them.
    pub(super) fn find_contents(
        &self,
        known: u64,
        patience: u64,
    ) -> Result<Option<(File, OwnerHeader)>, NameError> {
        let failed = || NameError::os("its lock file cannot be read");
        let end = deadline(patience);
        loop {
            match self.lock_file.owner().map_err(failed())? {
                Some(Holder::Process(owner)) => {
                    if let Some(found) = self.contents_of(owner) {
                        return Ok(Some(found));
                    }
                    // It is about to have them.
                    if clock::now() > end {
                        let what = format!(
                            "its owner, process {owner}, does not show its contents; is it stopped?"
                        );
                        let error = io::Error::from_raw_os_error(libc::ETIMEDOUT);
                        return Err(NameError::os(what)(error));
                    }
                    thread::sleep(PAUSE);
                }
                Some(Holder::Elsewhere) => {
                    return Err(NameError::Foreign(
                        "is of a process of another container, which cannot be read from here"
                            .to_owned(),
                    ));
                }
                None => {
                    let members = self.others();
                    let holders = members
                        .used()
                        .filter_map(|slot| members.member(slot).ok()?.holder);
                    return Ok(holders
                        .filter_map(|holder| match holder {
                            Holder::Process(process) => self.contents_of(process),
                            Holder::Elsewhere => None,
                        })
                        .filter(|(_, title)| title.mark >> OWNERS > known >> OWNERS)
                        .max_by_key(|(_, title)| title.mark));
                }
            }
        }
    }

    /// The contents that a process has open.
    fn contents_of(&self, process: libc::pid_t) -> Option<(File, OwnerHeader)> {
        let (size, start) = (
            self.shape().layout().size as u64,
            self.shape().contents_at() as u64,
        );
        let entries = fs::read_dir(format!("/proc/{process}/fd")).ok()?;
        let found = entries.flatten().filter_map(|entry| {
            let target = fs::read_link(entry.path()).ok()?;
            if !target.to_str()?.starts_with(MEMFD) {
                return None;
            }
            let descriptor = entry.file_name().to_str()?.parse().ok()?;
            let file = sealed::open(process, descriptor).ok()?;
            // After the seals: the size stays as it is.
            if !sealed::is_sealed(&file) || file.metadata().ok()?.len() != size {
                return None;
            }
            let word = |at| {
                let mut bytes = [0; 8];
                file.read_exact_at(&mut bytes, start + at).ok()?;
                Some(u64::from_ne_bytes(bytes))
            };
            let title = OwnerHeader {
                mark: word(OWNER_HEADER[0])?,
                owner: word(OWNER_HEADER[1])?,
                name: word(OWNER_HEADER[2])?,
            };
            (title.mark != 0 && title.name == self.ending()).then_some((file, title))
        });
        found.max_by_key(|(_, title)| title.mark)
    }

    /// Maps contents for reading.
    fn map_contents(
        &self,
        contents: &Contents,
        file: &File,
        title: OwnerHeader,
    ) -> Result<(), NameError> {
        let failed = || NameError::os("its memory cannot be mapped");
        let start = self.shape().contents_at();
        let word = self.mark();
        self.mapping()
            .exchange(file.as_fd(), start, Access::ReadOnly)
            .map_err(failed())?;
        let behind = contents.file().and_then(|ours| put_behind(file, &ours));
        behind.map_err(failed())?;
        // Relaxed, both: changed by whoever is alone.
        contents.current.store(title.mark, Relaxed);
        contents.seen.store(word, Relaxed);
        crash::point!(ReaderFollows);
        contents
            .store
            .report_mapped(self.others().slot(), title.mark);
        Ok(())
    }

    /// Bytes of memory that the contents have.
    pub(super) fn allocated_in(&self, contents: &Contents) -> io::Result<u64> {
        // One who only looks has not mapped them. Relaxed: a look.
        if self.shape().is_owned() && contents.current.load(Relaxed) == 0 {
            let found = self.find_contents(0, 0).ok().flatten();
            return found.map_or(Ok(0), |(file, _)| Ok(512 * file.metadata()?.blocks()));
        }
        contents.allocated()
    }

    /// Makes contents of our own, of what was committed if there is anything, and lets all find them.
    fn make_contents(&self, contents: &Contents) -> Result<(), NameError> {
        let failed = || NameError::no_memory("its contents");
        let shape = self.shape();
        let (size, start) = (shape.layout().size, shape.contents_at());
        // One who has read it has what it needs, unless another one has what a later owner has left.
        let known = contents.current.load(Relaxed);
        if let Some((file, title)) = self.find_contents(known, PATIENCE)? {
            self.map_contents(contents, &file, title)?;
        }
        let before = contents.current.load(Relaxed);
        let is_new = before == 0;
        let file = Arc::new(sealed::create(c"shmrpc-store", size as u64).map_err(failed())?);
        let mapping = Arc::new(SharedMapping::new(file.as_fd(), size).map_err(failed())?);
        sealed::seal(&file).map_err(failed())?;
        let store: Shared = Store::create_owned(
            mapping.clone(),
            &file,
            start as u64,
            shape.amount,
            self.others().clone(),
        )
        .map_err(failed())?;
        let filled = match is_new {
            true => store.initialize(deadline(PATIENCE)),
            false => {
                let put = |at, bytes: &[u8]| put(&file, &mapping, start as u64, at, bytes);
                let moment = contents.store.copy_to(put).map_err(failed())?;
                store.adopt_copy(moment, 0, skipped_ids()?, deadline(PATIENCE))
            }
        };
        filled.map_err(|error| match self.told_of(error) {
            Refusal::Name(error) => error,
            other => NameError::os(format!("its contents cannot be made ({other:?})"))(
                io::Error::from_raw_os_error(libc::EIO),
            ),
        })?;
        // Told from all others by the lower half.
        let owners = (before >> OWNERS).saturating_add(1).min(u64::MAX >> OWNERS);
        let mark = owners << OWNERS | u64::from(random()? as u32);
        store.write_owner_header(OwnerHeader {
            mark,
            owner: self.others().us().0,
            name: self.ending(),
        });
        drop(store);
        crash::point!(ContentsMade);
        let mapping = Arc::into_inner(mapping).expect("what was made with it is dropped");
        self.mapping().adopt(mapping, start).map_err(failed())?;
        let behind = contents.file().and_then(|ours| put_behind(&file, &ours));
        behind.map_err(failed())?;
        contents.store.take_ownership().map_err(failed())?;
        // Relaxed, both: changed by whoever is alone.
        contents.current.store(mark, Relaxed);
        contents.seen.store(mark, Relaxed);
        // Release: whoever finds the number finds the contents.
        self.mapping().u64_at(AT_CONTENTS).store(mark, Release);
        // SeqCst: the number is before our look at who watches, and that one watches before its look at the number.
        fence(SeqCst);
        crash::point!(ContentsFound);
        // What earlier owners looked at and waited for is over.
        let us = self.others().us().0;
        let _ = contents.store.release_former_owners(us, deadline(PATIENCE));
        self.tell_watchers();
        contents.store.notify_all_readers(); // The last owner may have committed what it has told nobody.
        self.wake_everybody();
        crash::point!(OwnerTold);
        self.wait_for_readers(contents, mark);
        Ok(())
    }
}

/// Puts a file behind a descriptor of ours.
fn put_behind(file: &impl AsRawFd, descriptor: &OwnedFd) -> io::Result<()> {
    // SAFETY: no memory is involved; both are ours, and `descriptor` stays open, as another one.
    done(unsafe { libc::dup3(file.as_raw_fd(), descriptor.as_raw_fd(), libc::O_CLOEXEC) }).map(drop)
}

/// Puts bytes of other contents into those that are made, without their mark.
fn put(
    file: &OwnedFd,
    mapping: &SharedMapping,
    start: u64,
    at: u64,
    bytes: &[u8],
) -> io::Result<()> {
    fallocate(
        file.as_fd(),
        libc::FALLOC_FL_KEEP_SIZE,
        at,
        bytes.len() as u64,
    )?;
    let mut bytes = bytes.to_vec();
    if let Some(from) = (start + OWNER_HEADER[0]).checked_sub(at)
        && let Some(mark) = bytes.get_mut(from as usize..from as usize + 8)
    {
        mark.fill(0);
    }
    match mapping.copy_in(at, &bytes) {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(libc::EFAULT)),
    }
}
