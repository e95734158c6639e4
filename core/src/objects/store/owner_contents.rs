//! Finding and mapping the contents of a single-writer store.
//!
//! The contents lie in a [sealed](crate::memory::sealed) file of the owner. The object's memory, which all members
//! write, does not say who the owner is: the owner holds a lock of the lock file as long as it is alive, and the kernel
//! tells which process that is. The others open the file by the owner's descriptors, and map it for reading.
//!
//! While there is no owner, the contents that the most owners have had are the last ones: the mark of contents counts
//! owners, and stands in the sealed file.

use super::membership::StoreMembership;
use crate::clock;
use crate::crash;
use crate::memory::mapping::Access;
use crate::memory::sealed;
use crate::objects::deadline::deadline_after;
use crate::objects::error::ObjectError;
use crate::objects::files::replace_descriptor;
use crate::objects::members::Holder;
use crate::store::single_writer::{OWNER_HEADER, OwnerHeader};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

/// The beginning of the link targets in /proc of descriptors of contents.
const MEMFD: &str = "/memfd:shmrpc-store";
/// The pause between two checks for contents that a new owner is about to show, or that readers are about to map.
pub const POLL_PAUSE: Duration = Duration::from_micros(200);
/// The number of low bits of a mark, which are random and distinguish contents. The higher bits count the owners so
/// far.
pub const OWNERS_SHIFT: u32 = 32;

impl StoreMembership {
    /// Returns the contents of the owner. Without an owner, returns the last contents that any member has, or None if
    /// no contents are later than those of mark `known`. Waits for at most `timeout` nanoseconds for an owner that does
    /// not show its contents, and then fails with ETIMEDOUT. Fails at once if the owner is in another container, whose
    /// processes cannot be read, or if the lock file cannot be read.
    pub(super) fn find_contents(
        &self,
        known: u64,
        timeout: u64,
    ) -> Result<Option<(File, OwnerHeader)>, ObjectError> {
        let failed = || ObjectError::os("its lock file cannot be read");
        let end = deadline_after(timeout);
        loop {
            match self.lock_file().owner().map_err(failed())? {
                Some(Holder::Process(owner)) => {
                    if let Some(found) = self.contents_of_process(owner) {
                        return Ok(Some(found));
                    }
                    // The owner is about to have contents.
                    if clock::now() > end {
                        let what = format!(
                            "its owner, process {owner}, does not show its contents; is it stopped?"
                        );
                        return Err(ObjectError::from_errno(what, libc::ETIMEDOUT));
                    }
                    thread::sleep(POLL_PAUSE);
                }
                Some(Holder::Elsewhere) => {
                    return Err(ObjectError::Foreign(
                        "is of a process of another container, which cannot be read from here"
                            .to_owned(),
                    ));
                }
                None => return Ok(self.last_contents(known)),
            }
        }
    }

    /// Returns the last contents that any member has, or None if no contents are later than those of mark `known`.
    fn last_contents(&self, known: u64) -> Option<(File, OwnerHeader)> {
        let members = self.members();
        let holders = members
            .used_slots()
            .filter_map(|slot| members.member_at(slot).ok()?.holder);
        holders
            .filter_map(|holder| match holder {
                Holder::Process(process) => self.contents_of_process(process),
                Holder::Elsewhere => None,
            })
            .filter(|(_, header)| header.mark >> OWNERS_SHIFT > known >> OWNERS_SHIFT)
            .max_by_key(|(_, header)| header.mark)
    }

    /// Returns the last contents of this store that a process has open; None if it has none.
    fn contents_of_process(&self, process: libc::pid_t) -> Option<(File, OwnerHeader)> {
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
            let header = OwnerHeader {
                mark: word(OWNER_HEADER[0])?,
                owner: word(OWNER_HEADER[1])?,
                name: word(OWNER_HEADER[2])?,
            };
            let is_of_this_store = header.mark != 0 && header.name == self.memory_name_ending();
            is_of_this_store.then_some((file, header))
        });
        found.max_by_key(|(_, header)| header.mark)
    }

    /// Returns the number that the last 16 digits of the memory's name stand for.
    pub(super) fn memory_name_ending(&self) -> u64 {
        let digits = self.memory_name().len().saturating_sub(16);
        let ending = self.memory_name().get(digits..).unwrap_or_default();
        u64::from_str_radix(ending, 16).unwrap_or(0)
    }

    /// Maps contents for reading, and reports this to the owner. The caller has locked the contents. Closes the file of
    /// the contents before.
    pub(super) fn map_contents(&self, file: &File, header: OwnerHeader) -> Result<(), ObjectError> {
        let failed = || ObjectError::os("its memory cannot be mapped");
        let start = self.shape().contents_at();
        let mark = self.mark();
        self.mapping()
            .exchange(file.as_fd(), start, Access::ReadOnly)
            .map_err(failed())?;
        let replaced = self
            .contents_file()
            .and_then(|ours| replace_descriptor(&ours, file));
        replaced.map_err(failed())?;
        self.set_current(header.mark, mark);
        crash::point!(ReaderFollows);
        self.unchecked_store()
            .report_mapped(self.members().slot(), header.mark);
        Ok(())
    }

    /// Records the mark of the contents that are mapped, and the mark that the object's memory had before. The caller
    /// has locked the contents.
    pub(super) fn set_current(&self, current: u64, seen_mark: u64) {
        // Relaxed, both: changed by a thread that has locked the contents.
        self.current.store(current, Relaxed);
        self.seen_mark.store(seen_mark, Relaxed);
    }
}
