//! Stores with a single writer: one member, the owner, changes the store, and all others map its contents for reading.
//!
//! A member that opens the store for writing while there is no owner becomes the owner: it copies what was committed to
//! a file of its own, stores the mark of that file in the object's memory, and rings for the watchers of all readers,
//! which map the file, whether their programs look at the store or not. The new owner changes nothing before the
//! readers have followed, so each reader that could follow keeps all commits. It waits for a stopped reader no longer
//! than [`FOLLOW_TIMEOUT`].
//!
//! Once the owner has gone, readers keep what they have. A reader that finds a commit in whose middle the owner died
//! finishes it in private memory.

use super::copies::skipped_ids;
use super::error::StoreRefused;
use super::membership::{ObjectStore, StoreMembership};
use super::owner_contents::{OWNERS_SHIFT, POLL_PAUSE};
use crate::clock;
use crate::crash;
use crate::memory::mapping::{Access, SharedMapping};
use crate::memory::sealed;
use crate::objects::deadline::{RECOVERY_TIMEOUT, deadline_after};
use crate::objects::error::ObjectError;
use crate::objects::files::{random, replace_descriptor};
use crate::objects::memory::layout::AT_CONTENTS;
use crate::os::fallocate;
use crate::shared_heap::Words;
use crate::store::Store;
use crate::store::single_writer::{OWNER_HEADER, OwnerHeader};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use std::thread;

/// The longest time, in nanoseconds, for which a new owner waits until all readers have mapped its contents.
const FOLLOW_TIMEOUT: u64 = 1_000_000_000;
/// The time, in nanoseconds, after which a reader interrupts a read to check that the owner is alive.
const READ_SLICE: u64 = 5_000_000;

impl StoreMembership {
    // --- owners ---

    /// Makes this process the owner of the store, unless there is an owner, and waits until living readers have
    /// followed, for at most [`FOLLOW_TIMEOUT`]. Does nothing if any process is the owner. After an error this process
    /// is not the owner. Blocks while another thread moves to other contents.
    pub(super) fn become_owner(&self) -> Result<(), ObjectError> {
        let _alone = self.lock_contents();
        let failed = || ObjectError::os("its lock file cannot be locked");
        let is_owned = !self.unchecked_store().is_read_only()
            || !self.lock_file().try_lock_owner().map_err(failed())?;
        if is_owned {
            return Ok(());
        }
        crash::point!(OwnerBegun);
        let made = self.make_contents();
        if made.is_err() {
            let _ = self.lock_file().unlock_owner();
        }
        made
    }

    /// Makes contents of this process, a copy of the committed ones if there are any, publishes them, and waits for the
    /// readers.
    fn make_contents(&self) -> Result<(), ObjectError> {
        let failed = || ObjectError::no_memory("its contents");
        let (start, self_id) = (self.shape().contents_at(), self.members().self_id().0);
        let current = self.unchecked_store();
        // A process that has read the store has the contents, unless another one has those of a later owner.
        let known = self.current.load(Relaxed);
        if let Some((file, header)) = self.find_contents(known, RECOVERY_TIMEOUT)? {
            self.map_contents(&file, header)?;
        }
        let before = self.current.load(Relaxed);
        let (file, mapping, mark) = self.create_contents(before)?;
        crash::point!(ContentsMade);
        self.mapping().adopt(mapping, start).map_err(failed())?;
        let replaced = self
            .contents_file()
            .and_then(|ours| replace_descriptor(&ours, &*file));
        replaced.map_err(failed())?;
        current.take_ownership().map_err(failed())?;
        self.set_current(mark, mark);
        // Release: a process that finds the mark finds the contents.
        self.mapping().u64_at(AT_CONTENTS).store(mark, Release);
        // SeqCst: the mark is before our look for watching members, and a reader watches before its look at the mark.
        fence(SeqCst);
        crash::point!(ContentsFound);
        // Pins and waits of earlier owners are over.
        let _ = current.release_former_owners(self_id, deadline_after(RECOVERY_TIMEOUT));
        self.notify_watchers();
        current.notify_all_readers(); // The last owner may have died between a commit and its notification.
        self.wake_all_sets();
        crash::point!(ReadersWoken);
        self.wait_for_readers(mark);
        Ok(())
    }

    /// Creates a sealed file with a copy of the contents that are mapped, whose mark is `before`, or with empty
    /// contents if that is 0. Returns the file, its mapping and its mark.
    fn create_contents(
        &self,
        before: u64,
    ) -> Result<(Arc<OwnedFd>, SharedMapping, u64), ObjectError> {
        let failed = || ObjectError::no_memory("its contents");
        let shape = self.shape();
        let (size, start) = (shape.layout().size, shape.contents_at() as u64);
        let file = Arc::new(sealed::create(c"shmrpc-store", size as u64).map_err(failed())?);
        let mapping = Arc::new(SharedMapping::new(file.as_fd(), size).map_err(failed())?);
        sealed::seal(&file).map_err(failed())?;
        let store: ObjectStore = Store::create_owned(
            mapping.clone(),
            &file,
            start,
            shape.amount,
            self.members().clone(),
        )
        .map_err(failed())?;
        let deadline = deadline_after(RECOVERY_TIMEOUT);
        let filled = match before {
            0 => store.initialize(deadline),
            _ => {
                let write = |at, bytes: &[u8]| write_contents(&file, &mapping, start, at, bytes);
                let moment = self.unchecked_store().copy_to(write).map_err(failed())?;
                store.adopt_copy(moment, 0, skipped_ids()?, deadline)
            }
        };
        filled.map_err(|error| {
            let error = self.map_error(error);
            error.into_object_error("its contents cannot be made")
        })?;
        // Told from all others by the lower half.
        let owners = (before >> OWNERS_SHIFT)
            .saturating_add(1)
            .min(u64::MAX >> OWNERS_SHIFT);
        let mark = owners << OWNERS_SHIFT | u64::from(random()? as u32);
        store.write_owner_header(OwnerHeader {
            mark,
            owner: self.members().self_id().0,
            name: self.memory_name_ending(),
        });
        drop(store);
        let mapping = Arc::into_inner(mapping).expect("the store that shared it is dropped");
        Ok((file, mapping, mark))
    }

    /// Waits until all living readers have mapped the contents of this mark, but at most [`FOLLOW_TIMEOUT`], because a
    /// reader may be stopped.
    fn wait_for_readers(&self, mark: u64) {
        let (members, end) = (self.members(), deadline_after(FOLLOW_TIMEOUT));
        let is_missing = |slot| {
            slot != members.slot()
                && !self.unchecked_store().has_mapped_or_left(slot, mark)
                && members.is_alive(slot)
        };
        while members.used_slots().any(is_missing) && clock::now() < end {
            thread::sleep(POLL_PAUSE);
        }
    }

    // --- readers ---

    /// Maps the contents for a reader that has joined. Does nothing if this process is the owner. Raises `NotHeld` if
    /// no process has contents, and the errors of `find_contents` after a wait of `RECOVERY_TIMEOUT`.
    pub(super) fn become_reader(&self) -> Result<(), ObjectError> {
        let _alone = self.lock_contents();
        if !self.unchecked_store().is_read_only() {
            return Ok(());
        }
        match self.find_contents(0, RECOVERY_TIMEOUT)? {
            Some((file, header)) => self.map_contents(&file, header),
            None => Err(ObjectError::NotHeld(
                "it has no owner, and no process has its contents: open it with single_writer=True to become its owner",
            )),
        }
    }

    /// Makes the watcher follow new owners from now on, if this process is a reader.
    pub(super) fn begin_following(&self) -> Result<(), ObjectError> {
        if self.may_write() {
            return Ok(());
        }
        self.watch()?;
        // We watch before this look, by the fence of `Members::watch`.
        self.keep_up();
        Ok(())
    }

    /// Maps the contents of a new owner, if there is one, without a wait and without errors. The watcher calls this.
    pub(super) fn keep_up(&self) {
        if self.shape().has_single_writer() && self.is_behind() {
            // An owner that does not show its contents rings again once it does. After other errors, the next operation
            // raises them.
            let _ = self.follow_owner(0);
        }
    }

    /// Maps the contents of a new owner, if there is one; keeps the contents if only the mark is new. Waits for at most
    /// `timeout` nanoseconds if the owner does not show them. Raises the errors of `find_contents`; the next call tries
    /// again.
    pub(super) fn follow_owner(&self, timeout: u64) -> Result<(), StoreRefused> {
        let _alone = self.lock_contents();
        if !self.is_behind() {
            return Ok(());
        }
        let mark = self.mark();
        // Relaxed: changed by a thread that has locked the contents.
        let current = self.current.load(Relaxed);
        if let Some((file, header)) = self.find_contents(current, timeout)?
            && header.mark != current
        {
            self.map_contents(&file, header)?;
        }
        self.seen_mark.store(mark, Relaxed);
        Ok(())
    }

    /// Reads the contents with `read`, which takes a deadline, and returns the result. Reads again until `timeout` if
    /// the owner changes the contents meanwhile, and checks between the reads whether the owner has died. Raises
    /// `Restless` after the timeout, and `Replaced` if there is a new owner. With a `timeout` of 0 reads once, with
    /// deadline 0.
    pub(super) fn read_contents<R>(
        &self,
        timeout: u64,
        read: impl Fn(u64) -> Result<R, StoreRefused>,
    ) -> Result<R, StoreRefused> {
        let end = deadline_after(timeout);
        loop {
            let slice = clock::now().saturating_add(READ_SLICE).min(end);
            match read(if timeout == 0 { 0 } else { slice }) {
                Err(StoreRefused::Object(ObjectError::Restless { .. })) if clock::now() < end => {
                    if self.is_behind() {
                        return Err(StoreRefused::Replaced);
                    }
                    self.finish_commit_of_dead_owner()?;
                }
                done => return done,
            }
        }
    }

    /// Finishes the commit in whose middle the owner has died, in a private copy of the memory. Does nothing while the
    /// owner lives.
    fn finish_commit_of_dead_owner(&self) -> Result<(), StoreRefused> {
        let failed = || ObjectError::os("its memory cannot be mapped");
        let store = self.unchecked_store();
        // First: once this thread is alone, a new owner's contents may be mapped.
        let _alone = self.lock_contents();
        if !store.is_committing()
            || !store.is_read_only()
            || self.lock_file().owner().map_err(failed())?.is_some()
        {
            return Ok(());
        }
        let start = self.shape().contents_at();
        let file = self.contents_file().map_err(failed())?;
        let mapped = self
            .mapping()
            .exchange(file.as_fd(), start, Access::Private);
        mapped.map_err(failed())?;
        crash::point!(MendBegun);
        store.finish_commit().map_err(|error| self.map_error(error))
    }

    /// Returns the bytes of memory that are allocated for the contents; 0 if they cannot be found.
    pub(super) fn allocated_contents(&self) -> io::Result<u64> {
        // A process that only inspects the store has not mapped them. Relaxed: a look.
        if self.shape().has_single_writer() && self.current.load(Relaxed) == 0 {
            let found = self.find_contents(0, 0).ok().flatten();
            return found.map_or(Ok(0), |(file, _)| Ok(512 * file.metadata()?.blocks()));
        }
        self.unchecked_store().allocated()
    }
}

/// Writes bytes of other contents, without their mark, into new contents. Allocates the memory first.
fn write_contents(
    file: &OwnedFd,
    mapping: &SharedMapping,
    start: u64,
    at: u64,
    bytes: &[u8],
) -> io::Result<()> {
    let len = bytes.len() as u64;
    fallocate(file.as_fd(), libc::FALLOC_FL_KEEP_SIZE, at, len)?;
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
