//! Violations of the protocol by a peer, and limits of this process that lose a frame.

use thiserror::Error;

/// A violation of the protocol by the peer, which ends the connection; or a limit of this process, which costs one
/// frame: see [`own_limit`](Violation::own_limit). Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the texts say what the fields hold")]
pub enum Violation {
    #[error("ring index {index} is not a multiple of {unit}")]
    Misaligned { index: u64, unit: usize },
    #[error("ring index {index} is not between {low} and {high}")]
    OutOfRange { index: u64, low: u64, high: u64 },
    #[error("a ring of {used} bytes cannot grow to {to}: its limit is {most} bytes")]
    Growth { used: u64, to: u64, most: u64 },
    #[error("frame of {len} bytes is over the limit of {max} bytes")]
    Oversize { len: u64, max: u64 },
    #[error("the table of a parcel is malformed")]
    Table,
    #[error("extent {number} is unknown, or cannot be mapped")]
    Extent { number: u32 },
    /// The peer has no loan of the block, or the block is not in its extent.
    #[error("there is no loan of block {offset} of extent {extent}")]
    Block { extent: u32, offset: u64 },
    #[error("block {offset} of extent {extent} does not begin at a multiple of {granule}")]
    Unaligned {
        extent: u32,
        offset: u64,
        granule: u64,
    },
    #[error("extents of {size} bytes together are over the limit of {limit} bytes")]
    Memory { size: u64, limit: u64 },
    #[error("the peer has truncated the memory of the connection")]
    Truncated,
    #[error("a message about extents is malformed")]
    ExtentUpdate,
    #[error("a RELEASE has {len} bytes instead of {expected}")]
    Release { len: usize, expected: usize },
    /// `error`, here and below, is the `errno` of the failed system call of this process.
    #[error(
        "the process to receive it cannot map the {size} bytes of extent {number} that it lies in: {}",
        limit_of(*error)
    )]
    Unmapped { number: u32, size: u64, error: i32 },
    #[error(
        "the process to receive it cannot take the descriptor of extent {number} that it lies in: {}",
        limit_of(*error)
    )]
    DescriptorRefused { number: u32, error: i32 },
    #[error(
        "the process to receive it has no memory for the {len} bytes of its frame; raise its limit (ulimit -v, or that \
         of its container)"
    )]
    NoMemory { len: usize },
}

impl Violation {
    /// Return the `errno` of a limit of the receiver, which costs one frame and not the connection; None if it is the
    /// peer's fault.
    pub fn own_limit(&self) -> Option<i32> {
        match *self {
            Violation::Unmapped { error, .. } | Violation::DescriptorRefused { error, .. } => {
                Some(error)
            }
            Violation::NoMemory { .. } => Some(libc::ENOMEM),
            _ => None,
        }
    }
}

/// Return the resource that the receiver lacks, by the `errno` of its system call, and the remedy.
fn limit_of(error: i32) -> String {
    let known = match error {
        libc::EMFILE => {
            "its open files are at their limit (RLIMIT_NOFILE); raise it (ulimit -n, or LimitNOFILE= of its service)"
        }
        libc::ENFILE => {
            "the open files of its host are at their limit; raise it (sysctl fs.file-max)"
        }
        libc::ENOMEM => {
            "its address space or its mappings are at their limit; raise it (ulimit -v, or sysctl vm.max_map_count)"
        }
        libc::EAGAIN => "its locked memory is at its limit (RLIMIT_MEMLOCK); raise it (ulimit -l)",
        libc::EACCES => {
            "its system forbids it; check its confinement (SELinux, AppArmor) and its limit of open files (ulimit -n)"
        }
        other => return std::io::Error::from_raw_os_error(other).to_string(),
    };
    known.to_owned()
}
