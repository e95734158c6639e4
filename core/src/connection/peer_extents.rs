//! The peer's extents, and this side's loans of blocks in them.

use crate::connection::parcel::{self, Entry, Location, RELEASE_SIZE};
use crate::crash;
use crate::memory::arena::{BlockRef, GRANULE};
use crate::memory::extent::{self, Extent, ExtentError, Extents, MAX_EXTENTS};
use crate::memory::extent_update::{self, ExtentUpdate, UpdateError};
use crate::own_fd::OwnFd;
use crate::sync::lock;
use crate::violation::Violation;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, Weak};

/// Sends releases of loans to the peer, and receives those of the peer.
pub trait ReleaseSender: Send + Sync {
    /// Tell the peer that a loan has ended, if the connection still exists. Never waits, and never fails.
    fn send_release(&self, payload: &[u8; RELEASE_SIZE]);
    /// Process the releases that have come, because they may free memory. Does nothing while another thread receives.
    /// Fails if the peer has violated the protocol.
    fn collect_releases(&self) -> Result<(), Violation>;
}

/// The peer's extents, and this side's loans in them.
pub(super) struct PeerExtents {
    /// Sender of releases.
    sender: Weak<dyn ReleaseSender>,
    /// Process that has the loans: a forked child has copies of them, and must not end one.
    process: u32,
    table: Mutex<ExtentTable>,
}

struct ExtentTable {
    /// Mapped extents.
    extents: Extents,
    /// Extents that the peer has announced and that this process could not map: their sizes in bytes, and their files.
    unmapped: BTreeMap<u32, (u64, Arc<OwnFd>)>,
    /// Lowest number of a new extent, because numbers increase; None after the last.
    next: Option<u32>,
    /// Removed extents, which may still be mapped for loans.
    removed: Vec<Weak<Extent>>,
    /// Maximum size of all extents together, in bytes.
    limit: u64,
    /// Number of loans of each block, and the end of its lent part in the extent.
    loans: BTreeMap<BlockRef, (u32, u64)>,
}

impl PeerExtents {
    /// Create an empty set of extents, of up to `limit` bytes.
    pub(super) fn new(sender: Weak<dyn ReleaseSender>, limit: u64) -> Arc<Self> {
        Arc::new(PeerExtents {
            sender,
            process: std::process::id(),
            table: Mutex::new(ExtentTable {
                extents: Extents::new(),
                unmapped: BTreeMap::new(),
                next: Some(0),
                removed: Vec::new(),
                limit,
                loans: BTreeMap::new(),
            }),
        })
    }

    /// Return the sender of releases, while the connection exists.
    pub(super) fn sender(&self) -> Option<Arc<dyn ReleaseSender>> {
        self.sender.upgrade()
    }

    /// Return an entry that refers to the lent block of the peer that contains these bytes, if this side has a loan of
    /// it.
    pub(super) fn entry_for(&self, address: usize, len: usize) -> Option<Entry> {
        let table = lock(&self.table);
        let (extent, offset) = extent::find(&table.extents, address, len)?;
        let first = BlockRef { extent, offset: 0 };
        let (&place, &(_, end)) = table
            .loans
            .range(first..=BlockRef { extent, offset })
            .next_back()?;
        (offset + len as u64 <= end).then_some(Entry {
            location: Location::AtReceiver(place),
            start: offset - place.offset,
            len: len as u64,
        })
    }

    /// Open a loan of the block at `place` for the buffer `entry`, which counts until it is dropped. Extent updates
    /// come from `socket`. Fails with a violation if the peer must not name the block, and also if this process cannot
    /// map its extent.
    pub(super) fn open_loan(
        self: &Arc<Self>,
        socket: BorrowedFd<'_>,
        place: BlockRef,
        entry: &Entry,
    ) -> Result<Loan, Violation> {
        let mut table = lock(&self.table);
        let number = place.extent;
        let mut unknown = Violation::Extent { number };
        if !table.extents.contains_key(&number) && !table.unmapped.contains_key(&number) {
            // The owner announces an extent before a frame names it.
            if let Some(error) = table.receive_updates(socket)? {
                unknown = Violation::DescriptorRefused { number, error };
            }
        }
        let extent = table.extent(number)?.ok_or(unknown)?.clone();
        // The whole block is in the extent: so that it can be mapped by itself, it ends with a granule.
        let start = place.offset.checked_add(entry.start);
        let end = start.and_then(|start| start.checked_add(entry.len));
        let whole = end.and_then(|end| end.checked_next_multiple_of(GRANULE));
        let (Some(end), Some(..)) = (end, whole.filter(|&end| end <= extent.size() as u64)) else {
            return Err(unknown_block(place));
        };
        if place.offset % GRANULE != 0 {
            return Err(Violation::Unaligned {
                extent: number,
                offset: place.offset,
                granule: GRANULE,
            });
        }
        let loan = table.loans.entry(place).or_insert((0, 0));
        *loan = (loan.0 + 1, loan.1.max(end));
        crash::point!(LoanOpened);
        drop(table);
        let peer = self.clone();
        Ok(Loan {
            extent,
            place,
            peer,
        })
    }

    /// Unmap the extents without loans; the others are unmapped with their last loan. Called when no loan is opened any
    /// longer.
    pub(super) fn unmap_idle(&self) {
        lock(&self.table).extents.clear();
    }
}

/// A loan of a block of the peer. Its drop tells the peer.
pub struct Loan {
    pub(super) extent: Arc<Extent>,
    pub(super) place: BlockRef,
    peer: Arc<PeerExtents>,
}

impl Drop for Loan {
    /// End the loan, and tell the peer if the connection still exists. Does nothing in a forked child.
    fn drop(&mut self) {
        if self.peer.process != std::process::id() {
            return;
        }
        lock(&self.peer.table).end_loan(self.place);
        crash::point!(LoanEnded);
        if let Some(sender) = self.peer.sender() {
            sender.send_release(&parcel::release(self.place));
            crash::point!(LoanReleased);
        }
    }
}

impl ExtentTable {
    /// Return the bytes of all extents, including removed ones with loans and those that this process could not map.
    fn total_bytes(&mut self) -> u64 {
        self.removed.retain(|extent| extent.strong_count() > 0);
        let removed = self.removed.iter().filter_map(Weak::upgrade);
        let removed: u64 = removed.map(|extent| extent.size() as u64).sum();
        let here = self.extents.values().map(|extent| extent.size() as u64);
        let unmapped = self.unmapped.values().map(|&(size, _)| size);
        removed + here.sum::<u64>() + unmapped.sum::<u64>()
    }

    /// Return the extent of this number, after mapping it; None if it is unknown. An unusable extent counts as unknown
    /// from now on; one that this process has no room to map is [`Violation::Unmapped`], and tried again at the next
    /// call.
    fn extent(&mut self, number: u32) -> Result<Option<&Arc<Extent>>, Violation> {
        if let Some((size, file)) = self.unmapped.get(&number) {
            let size = *size;
            match Extent::open_shared(number, size as usize, file.clone()) {
                Ok(opened) => {
                    crash::point!(ExtentMapped);
                    self.extents.insert(number, Arc::new(opened));
                }
                Err(ExtentError::Os(error)) if is_own_limit(&error) => {
                    let error = errno(&error);
                    return Err(Violation::Unmapped {
                        number,
                        size,
                        error,
                    });
                }
                Err(_) => {}
            }
            self.unmapped.remove(&number);
        }
        Ok(self.extents.get(&number))
    }

    /// Receive all pending extent updates, and map the new extents; one that cannot be mapped now is tried again when a
    /// frame names it. Return the `errno` if this process could not receive the next one, which stays pending for the
    /// next frame that names an unknown extent; None if all were received. Fails if an update is malformed, or exceeds
    /// the limits of numbers or bytes.
    fn receive_updates(&mut self, socket: BorrowedFd<'_>) -> Result<Option<i32>, Violation> {
        loop {
            match extent_update::receive(socket) {
                Ok(None) => return Ok(None),
                Ok(Some(ExtentUpdate::Removed { number })) => {
                    self.unmapped.remove(&number);
                    if let Some(extent) = self.extents.remove(&number) {
                        self.removed.push(Arc::downgrade(&extent));
                    }
                }
                Ok(Some(ExtentUpdate::Added { number, size, file })) => {
                    let refused = Violation::Extent { number };
                    let many = self.extents.len() + self.unmapped.len() >= MAX_EXTENTS;
                    if many || self.next.is_none_or(|n| number < n) {
                        return Err(refused);
                    }
                    let (size_of_all, limit) =
                        (size.saturating_add(self.total_bytes()), self.limit);
                    if size_of_all > limit {
                        return Err(Violation::Memory {
                            size: size_of_all,
                            limit,
                        });
                    }
                    self.next = number.checked_add(1);
                    crash::point!(ExtentAnnounced);
                    self.unmapped
                        .insert(number, (size, Arc::new(OwnFd::from(file))));
                    // An unusable extent counts as unknown once a frame names it. Perhaps none will: its removal may be
                    // the next update.
                    let _ = self.extent(number);
                }
                Err(UpdateError::Os(error)) => return Ok(Some(errno(&error))),
                Err(UpdateError::Malformed(_)) => return Err(Violation::ExtentUpdate),
            }
        }
    }

    /// End one loan of a block here; the caller tells the peer. The extent stays mapped.
    fn end_loan(&mut self, place: BlockRef) {
        if let Some((count, _)) = self.loans.get_mut(&place) {
            *count -= 1;
            if *count == 0 {
                self.loans.remove(&place);
            }
        }
    }
}

/// Return true if this process or its system refused the mapping: no more address space, mappings, locked memory or
/// files, or a rule forbids it. The peer's file itself was checked before.
fn is_own_limit(error: &io::Error) -> bool {
    matches!(
        errno(error),
        libc::EACCES | libc::EAGAIN | libc::ENFILE | libc::ENOMEM
    )
}

/// Return the `errno` of an error; EIO if it has none.
fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Return the violation for a block that the peer must not name.
pub(super) fn unknown_block(place: BlockRef) -> Violation {
    Violation::Block {
        extent: place.extent,
        offset: place.offset,
    }
}
