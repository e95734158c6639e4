//! Conversion of the errors of shared memory that members change together.

use super::error::ObjectError;
use super::members::Holder;
use super::members::MemberId;
use super::membership::Membership;
use crate::shared_heap::HeapError;
use std::io;

impl Membership {
    /// Converts the error of an operation that has changed nothing: into `Changing` for a busy owner lock, which names
    /// this process if the holder has just ended; `TooLarge` for an item beyond the limit; `Os` for missing memory;
    /// `Poisoned` for corruption, which poisons the object; and what `check` raises, or else `Forked`, for `Detached`.
    /// Any other error (`Replaced`, `ReadOnly`, `NeverStable`, `NoBlock` ...) becomes `Os` with ENOMEM; the conversion
    /// of a store handles some of these first. Once this process has left, each error becomes `Left`.
    #[cold]
    pub(super) fn map_shared_error(&self, error: HeapError) -> ObjectError {
        if self.has_left() {
            return ObjectError::Left; // The file is closed, and zeros are in its place.
        }
        match error {
            HeapError::Busy { holder } => {
                // If the holder has ended just now, we are about to take over.
                let holder = self.members().holder_of(MemberId(holder));
                let holder = holder.unwrap_or_else(Holder::this_process);
                ObjectError::Changing { holder }
            }
            HeapError::Poisoned(corruption) => self.poison(corruption),
            HeapError::Detached => self.check().err().unwrap_or(ObjectError::Forked),
            HeapError::Limit { asked, limit, .. } => ObjectError::TooLarge(format!(
                "{asked} bytes are more than it may ever hold: an item may have {limit} at most"
            )),
            HeapError::System { asked, error } => {
                ObjectError::no_memory(&format!("{asked} bytes more"))(error)
            }
            other => ObjectError::Os {
                what: other.to_string(),
                error: io::Error::from_raw_os_error(libc::ENOMEM),
            },
        }
    }

    /// Returns the process id of a member; 0 if its process is in another container or has ended.
    pub fn process_of(&self, member: u64) -> libc::pid_t {
        match self.members().holder_of(MemberId(member)) {
            Some(Holder::Process(pid)) => pid,
            _ => 0,
        }
    }
}
