//! The errors of shared objects of every kind.

use super::members::Holder;
use super::memory::layout::SLEEPERS;
use crate::queue::MAX_CLAIMS;
use crate::shared_heap::Corruption;
use std::io;
use thiserror::Error;

/// Error raised when an object cannot be opened or used.
///
/// `Busy` is about the entry lock, `Changing` about the owner lock of a queue or a store. `NotHeld` is a call that the
/// state of the caller forbids: it lacks a permit, a transaction or an owner, or has one already. `Crowded` is about a
/// wait set, and `Full` about the members, publishers or subscribers.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the texts say what the fields hold")]
pub enum ObjectError {
    #[error("{what}: {error}")]
    Os { what: String, error: io::Error },
    #[error("is already open as {found}, not {asked}: use the same settings or another name")]
    Mismatch { found: String, asked: String },
    #[error(
        "was left as {found} by processes that were killed, not {asked}: open it as it is, or remove it with shmrpc cleanup"
    )]
    LeftOver { found: String, asked: String },
    #[error(
        "is already published by another handle of this process with {found}, not {asked}: use the same limits"
    )]
    Limits { found: String, asked: String },
    #[error("cannot be opened by this version of shmrpc: its memory {0}")]
    Foreign(String),
    #[error("is being opened or closed by {}, which has not finished within {seconds} s; is it stopped?", .holder.describe())]
    Busy { holder: Holder, seconds: f64 },
    #[error("already has {0}, the maximum")]
    Full(&'static str),
    #[error("can no longer be used: {0}; close it in all processes, then open it again")]
    Poisoned(#[from] Corruption),
    #[error(
        "was replaced by a copy because this process held it up; its last change may be lost: close all handles here and \
         open it again"
    )]
    Fenced,
    #[error("belongs to user {0}; a name is shared by the processes of one user")]
    OfUser(libc::uid_t),
    #[error("is closed")]
    Left,
    #[error("was opened in another process, from which this one was forked; open it again here")]
    Forked,
    #[error("{}", describe_read_only(*.owner))]
    ReadOnly { owner: Option<Holder> },
    #[error(
        "was changed by its owner{} during every read, or its owner stopped within a change: read less at once, or \
         open it with a longer busy_timeout", between_commas(*.owner)
    )]
    Restless { owner: Option<Holder> },
    #[error("{0}")]
    NotHeld(&'static str),
    #[error("already has {SLEEPERS} waiting threads and loops, the maximum")]
    Crowded,
    #[error(
        "has no room for another claim: {MAX_CLAIMS} items are claimed, viewed or dead letters ({dead}); end claims with \
         ack() or nack(), or take dead letters out"
    )]
    Claimed { dead: u64 },
    #[error("{} is in the middle of changing it and does not finish; is it stopped?", .holder.describe())]
    Changing { holder: Holder },
    #[error("{0}")]
    TooLarge(String),
}

/// Returns the owner for the middle of a sentence, or an empty text.
fn between_commas(owner: Option<Holder>) -> String {
    owner.map_or_else(String::new, |owner| format!(", {},", owner.describe()))
}

/// Returns the reason why this process cannot change a single-writer store.
fn describe_read_only(owner: Option<Holder>) -> String {
    match owner {
        Some(owner) => format!(
            "can be changed by its owner alone, {}: it was opened with single_writer=True",
            owner.describe()
        ),
        None => {
            "has no owner and can only be read: open it with single_writer=True to become its owner"
                .to_owned()
        }
    }
}

impl ObjectError {
    /// Returns true if the text is a predicate, whose subject is the object's name. False if the text is a sentence of
    /// its own, to follow the name and a colon.
    pub fn is_predicate(&self) -> bool {
        match self {
            ObjectError::Mismatch { .. }
            | ObjectError::LeftOver { .. }
            | ObjectError::Limits { .. }
            | ObjectError::Foreign(_)
            | ObjectError::Busy { .. }
            | ObjectError::Full(_)
            | ObjectError::Poisoned(_)
            | ObjectError::Fenced
            | ObjectError::OfUser(_)
            | ObjectError::Left
            | ObjectError::Forked
            | ObjectError::Crowded
            | ObjectError::ReadOnly { .. }
            | ObjectError::Restless { .. }
            | ObjectError::Claimed { .. } => true,
            ObjectError::Os { .. }
            | ObjectError::NotHeld(_)
            | ObjectError::Changing { .. }
            | ObjectError::TooLarge(_) => false,
        }
    }

    /// Returns a function that makes an `Os` error for memory that the system refuses. `what` says what needs the
    /// memory. The text says that there is no room if the error is ENOSPC, ENOMEM, EDQUOT or EFBIG.
    pub(super) fn no_memory(what: &str) -> impl FnOnce(io::Error) -> ObjectError + use<> {
        let what = what.to_owned();
        move |error| ObjectError::Os {
            what: match error.raw_os_error() {
                Some(libc::ENOSPC | libc::ENOMEM | libc::EDQUOT | libc::EFBIG) => {
                    format!("there is no room for {what} in /dev/shm")
                }
                _ => format!("memory for {what} cannot be had in /dev/shm"),
            },
            error,
        }
    }

    /// Returns a function that makes an `Os` error for a failed system call; `what` says what failed.
    pub(super) fn os(what: impl Into<String>) -> impl FnOnce(io::Error) -> ObjectError {
        let what = what.into();
        move |error| ObjectError::Os { what, error }
    }

    /// Makes an `Os` error for a failure that `code` of errno describes; `what` says what failed.
    pub(super) fn from_errno(what: impl Into<String>, code: libc::c_int) -> ObjectError {
        ObjectError::os(what)(io::Error::from_raw_os_error(code))
    }
}
