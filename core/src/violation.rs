//! What a peer can do wrong, and what this process may lack for what it sends.

use std::fmt;

/// What a peer announced that cannot be true. The connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The peer's index is not one of whole words.
    Misaligned {
        /// The index it announced.
        index: u64,
        /// What it should be a multiple of, in bytes.
        unit: usize,
    },
    /// The peer's index went back, or beyond what the capacity allows.
    OutOfRange {
        /// The index it announced.
        index: u64,
        /// The least it could be.
        low: u64,
        /// The most it could be.
        high: u64,
    },
    /// The peer announced a frame larger than the limit.
    Oversize {
        /// The length it announced, in bytes.
        len: u64,
        /// The limit, in bytes.
        max: u64,
    },
    /// The table of a parcel is not one.
    Table,
    /// The peer named an extent of which it has not told us, or one that cannot be mapped.
    Extent {
        /// Its number.
        number: u32,
    },
    /// The peer named a block that it has no right to, or that is not in its extent.
    Block {
        /// The number of the extent.
        extent: u32,
        /// Where the block begins in it.
        offset: u64,
    },
    /// The peer named a block that begins where none can.
    Unaligned {
        /// The number of the extent.
        extent: u32,
        /// Where the block begins in it.
        offset: u64,
        /// What that should be a multiple of, in bytes.
        granule: u64,
    },
    /// The peer's extents together are over the limit.
    Memory {
        /// Bytes that they would take.
        size: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The peer has shortened a file that the connection lies in.
    CutOff,
    /// What the peer told of its extents cannot be read.
    News,
    /// No fault of the peer's: the receiver cannot map an extent. What names it cannot be looked at; all else goes on.
    Unmapped {
        /// The extent's number.
        number: u32,
        /// Its size, in bytes.
        size: u64,
        /// The `errno` of the mapping.
        error: i32,
    },
    /// No fault of the peer's: the receiver cannot take an extent's descriptor. As above.
    Untaken {
        /// The number of the extent that a frame names.
        number: u32,
        /// The `errno` of the receiving.
        error: i32,
    },
    /// No fault of the peer's: the receiver has no memory for a frame. It is dropped as it comes; all else goes on.
    NoMemory {
        /// Bytes of its payload.
        len: usize,
    },
    /// A RELEASE is of another length than one has.
    Release {
        /// Its length, in bytes.
        len: usize,
        /// What one has, in bytes.
        expected: usize,
    },
}

impl Violation {
    /// The `errno` of a limit of the receiver's, which costs one frame and not the connection; None if it is the peer's
    /// fault.
    pub fn own_limit(&self) -> Option<i32> {
        match *self {
            Violation::Unmapped { error, .. } | Violation::Untaken { error, .. } => Some(error),
            Violation::NoMemory { .. } => Some(libc::ENOMEM),
            _ => None,
        }
    }
}

/// What the receiver has no more of, by the `errno` of what it tried, and how to give it more.
fn limit_of(error: i32) -> String {
    match error {
        libc::EMFILE => "it has as many files open as it may (RLIMIT_NOFILE); raise that (ulimit -n, or LimitNOFILE= of \
                         a service of systemd)"
            .into(),
        libc::ENFILE => {
            "its host has as many files open as it allows; raise that (sysctl fs.file-max)".into()
        }
        libc::ENOMEM => "it has as much address space or as many mappings as it may; raise that (ulimit -v, or sysctl \
                         vm.max_map_count)"
            .into(),
        libc::EAGAIN => "it has as much locked memory as it may (RLIMIT_MEMLOCK); raise that (ulimit -l)".into(),
        libc::EACCES => "its system does not allow it; look at what confines it (SELinux, AppArmor), or \
                                       try again if it is at its limit of open files (ulimit -n)"
            .into(),
        other => std::io::Error::from_raw_os_error(other).to_string(),
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Violation::Misaligned { index, unit } => {
                write!(out, "ring index {index} is not a multiple of {unit}")
            }
            Violation::OutOfRange { index, low, high } => {
                write!(out, "ring index {index} is not between {low} and {high}")
            }
            Violation::Oversize { len, max } => {
                write!(out, "frame of {len} bytes is over the limit of {max} bytes")
            }
            Violation::Table => write!(out, "the table of a parcel is malformed"),
            Violation::Extent { number } => {
                write!(out, "extent {number} is unknown, or cannot be mapped")
            }
            Violation::Memory { size, limit } => {
                write!(
                    out,
                    "extents of {size} bytes together are over the limit of {limit} bytes"
                )
            }
            Violation::Block { extent, offset } => {
                write!(
                    out,
                    "there is no lease of block {offset} of extent {extent}"
                )
            }
            Violation::Unaligned {
                extent,
                offset,
                granule,
            } => write!(
                out,
                "block {offset} of extent {extent} does not begin at a multiple of {granule}"
            ),
            Violation::CutOff => {
                write!(out, "the peer has cut off the memory of the connection")
            }
            Violation::News => write!(out, "a message about extents is malformed"),
            Violation::Unmapped {
                number,
                size,
                error,
            } => write!(
                out,
                "the process to receive it cannot map the {size} bytes of extent {number} that it lies in: {}",
                limit_of(error)
            ),
            Violation::Untaken { number, error } => write!(
                out,
                "the process to receive it cannot take the descriptor of extent {number} that it lies in: {}",
                limit_of(error)
            ),
            Violation::NoMemory { len } => write!(
                out,
                "the process to receive it has no memory for the {len} bytes of its frame; raise its limit (ulimit \
                 -v, or that of its container)"
            ),
            Violation::Release { len, expected } => {
                write!(out, "a RELEASE of {len} bytes; it has {expected}")
            }
        }
    }
}

impl std::error::Error for Violation {}
