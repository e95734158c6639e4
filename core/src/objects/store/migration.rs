//! Migration of this process to a copy of the store's contents.
//!
//! The owner lock of a living process cannot be taken from it: it may continue at any moment, in the middle of a
//! change. So the other members leave that process behind. One of them marks the contents of the store as replaced,
//! with the id of the member that is fenced off; copies the contents, as they were committed, to another file; and
//! stores the number of the copy in the object's memory, whose members, entry lock and sleepers stay. Each member that
//! finds the mark maps the copy in the place of its contents, so that addresses and offsets stay the same. A process
//! that dies meanwhile leaves the mark, and the next process that finds the mark makes a copy.
//!
//! The member that is fenced off finds the mark, too: after each of its changes, and before it takes the owner lock
//! again. It writes to memory that no other process reads.

use super::copies::{
    MOVE_ATTEMPTS, copy_name, copy_number, copy_of, map_copy, open_copy, replaced_too_often,
    skipped_ids,
};
use super::error::StoreRefused;
use super::membership::{ObjectStore, StoreMembership};
use crate::crash;
use crate::memory::mapping::SharedMapping;
use crate::memory::named;
use crate::objects::deadline::deadline_after;
use crate::objects::error::ObjectError;
use crate::objects::files::random;
use crate::objects::members::Holder;
use crate::objects::members::MemberId;
use crate::objects::memory::layout::AT_CONTENTS;
use crate::store::Store;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

/// The time for which another process may hold the entry lock: it may be making a copy.
const ENTRY_TIMEOUT: Duration = Duration::from_secs(30);
/// The time, in nanoseconds, in which other threads of this process must finish their operations.
const PAUSE_TIMEOUT: u64 = 1_000_000_000;

impl StoreMembership {
    /// Moves this process to a copy, which all other members follow except `holder`, which is fenced off. The caller
    /// wakes the sleepers. Returns false, without a change, if `holder` no longer has the owner lock, or if another
    /// process makes a copy. Waits for the entry lock; after an error no copy replaces the store, or a later operation
    /// follows it.
    pub(super) fn replace_without(&self, holder: MemberId) -> Result<bool, StoreRefused> {
        let store = self.store()?;
        let _alone = self.lock_contents();
        self.with_entry_lock(|| {
            // Relaxed: changed by a thread that has locked the contents.
            let is_current = copy_number(self.mapping()) == self.current.load(Relaxed);
            if !is_current || store.fenced().is_some() || store.holder() != holder.0 {
                return Ok(false);
            }
            store.mark_replaced(holder.0);
            crash::point!(ReplaceBegun);
            if store.holder() != holder.0 {
                store.cancel_replacement(); // The member has continued just now.
                return Ok(false);
            }
            self.move_to_copy(holder.0).map(|()| true)
        })
    }

    /// Moves this process to the copy, if the contents that it uses are replaced; makes the copy if no process has done
    /// so. Raises `Fenced` if this process is fenced off, `Busy` if it cannot get the entry lock, and `Changing` if a
    /// thread of this process does not finish its operation.
    pub(super) fn follow_copy(&self) -> Result<(), StoreRefused> {
        let store = self.store()?;
        let _alone = self.lock_contents();
        // Another thread may have moved before.
        if store.fenced().is_none() {
            return Ok(());
        }
        self.with_entry_lock(|| self.finish_replacing())
    }

    /// Moves this process to a copy if the contents are marked as replaced. The caller has the entry lock. Raises an
    /// error if this process is fenced off.
    pub(super) fn finish_replacing(&self) -> Result<(), StoreRefused> {
        match self.unchecked_store().fenced() {
            None => Ok(()),
            Some(fenced) if fenced == self.members().self_id().0 => Err(ObjectError::Fenced.into()),
            Some(fenced) => self.move_to_copy(fenced),
        }
    }

    /// Calls `act` while this process holds the entry lock, and returns the result. Raises `Fenced` if this process is
    /// fenced off, and `Busy` if another process does not release the lock within `ENTRY_TIMEOUT`. The caller has
    /// locked the contents.
    fn with_entry_lock<R>(
        &self,
        act: impl FnOnce() -> Result<R, StoreRefused>,
    ) -> Result<R, StoreRefused> {
        self.check()?;
        // A member that is fenced off already need not wait for the entry lock.
        if self.unchecked_store().fenced() == Some(self.members().self_id().0) {
            return Err(ObjectError::Fenced.into());
        }
        let failed = || ObjectError::os("its lock file cannot be locked");
        let locked = self
            .lock_file()
            .lock_entry(ENTRY_TIMEOUT)
            .map_err(failed())?;
        let seconds = ENTRY_TIMEOUT.as_secs_f64();
        locked.map_err(|holder| ObjectError::Busy { holder, seconds })?;
        let acted = act();
        self.lock_file().unlock_entry().map_err(failed())?;
        acted
    }

    /// Maps the copy, and makes it first if no process has done so. The caller has the entry lock, and has locked the
    /// contents. Raises `Changing` if a thread of this process does not finish its operation in time.
    fn move_to_copy(&self, fenced: u64) -> Result<(), StoreRefused> {
        let (mapping, shape) = (self.mapping(), self.shape());
        // Relaxed, here and below: changed by a thread that has locked the contents.
        let known = self.current.load(Relaxed);
        let copy = match copy_number(mapping) {
            number if number != known => open_copy(self.memory_name(), number, shape)?,
            _ => self.publish_copy(fenced)?,
        };
        let number = copy_number(mapping);
        let failed = || ObjectError::os("its memory cannot be mapped");
        let file = self.contents_file().map_err(failed())?;
        let moved = self
            .unchecked_store()
            .swap_memory(deadline_after(PAUSE_TIMEOUT), || {
                map_copy(mapping, &file, &copy, shape)
            });
        match moved {
            Some(moved) => moved.map_err(failed())?,
            None => {
                // A thread of this process has not finished an operation; the next operation tries again.
                let holder = Holder::this_process();
                return Err(ObjectError::Changing { holder }.into());
            }
        }
        self.current.store(number, Relaxed);
        crash::point!(CopyUsed);
        Ok(())
    }

    /// Makes a copy, with several attempts, and returns its file. Cancels the replacement if that fails.
    fn publish_copy(&self, fenced: u64) -> Result<File, StoreRefused> {
        let store = self.unchecked_store();
        for _ in 0..MOVE_ATTEMPTS {
            match self.try_publish_copy(fenced) {
                // A clean-up has locked the file first, to check whether it is needed.
                Err(StoreRefused::Object(ObjectError::Os { error, .. }))
                    if error.raw_os_error() == Some(libc::EAGAIN) => {}
                done => return done.inspect_err(|_| store.cancel_replacement()),
            }
        }
        store.cancel_replacement();
        Err(replaced_too_often().into())
    }

    /// Makes a copy, stores its number, by which the members find the copy, and removes the copy before. Returns the
    /// file. Raises EAGAIN if a clean-up has removed the file.
    fn try_publish_copy(&self, fenced: u64) -> Result<File, StoreRefused> {
        let number = (random()? as u64).max(1);
        let name = copy_name(self.memory_name(), number)?;
        let copy = self.make_copy(&name, fenced);
        let copy = copy.inspect_err(|_| {
            let _ = named::remove(&name);
        })?;
        let before = copy_of(self.mapping(), self.shape(), self.memory_name());
        let word = self.mapping().u64_at(AT_CONTENTS);
        // Release: a process that finds the number finds the copy.
        word.store(number, Release);
        crash::point!(CopyFound);
        if let Some(before) = before {
            let _ = named::remove(&before);
        }
        Ok(copy)
    }

    /// Makes the file of a copy with the committed contents, and locks it against clean-ups. Raises EAGAIN if a
    /// clean-up has removed the file.
    fn make_copy(&self, name: &str, fenced: u64) -> Result<File, StoreRefused> {
        let shape = self.shape();
        let (size, start) = (shape.layout().size, shape.contents_at());
        let failed = || ObjectError::os("a copy of it cannot be made in /dev/shm");
        let taken = || io::Error::from_raw_os_error(libc::EAGAIN);
        let made = named::create(name, size, std::slice::from_ref(&(0..1)))
            .and_then(|made| made.ok_or_else(taken))
            .map_err(failed())?;
        let file = File::from(made);
        let moment = self
            .unchecked_store()
            .copy_to(|at, bytes| file.write_all_at(bytes, at))
            .map_err(failed())?;
        let words = SharedMapping::new(file.as_fd(), size).map_err(failed())?;
        let descriptor = Arc::new(file.try_clone().map_err(failed())?.into());
        let store: ObjectStore = Store::new(
            Arc::new(words),
            &descriptor,
            start as u64,
            shape.amount,
            self.members().clone(),
        )
        .map_err(failed())?;
        store
            .adopt_copy(
                moment,
                fenced,
                skipped_ids()?,
                deadline_after(PAUSE_TIMEOUT),
            )
            .map_err(|error| self.map_error(error))?;
        if !named::lock_shared(&file).map_err(failed())? {
            return Err(failed()(taken()).into());
        }
        Ok(file)
    }
}
